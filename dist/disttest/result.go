// SPDX-License-Identifier: Apache-2.0

package disttest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is the result of a run. Times count from its beginning.
type Result struct {
	// Seed repeats the run; see [WithSeed].
	Seed uint64
	// Elapsed is when the last rank ended.
	Elapsed time.Duration
	Ranks   []Rank // by number
	// Calls are the last 4,096 operations of each rank since its main began, in the order in
	// which they began.
	Calls []Call
	// Faults are the faults that happened, in order.
	Faults []Happened
}

// Rank is how a rank ended.
type Rank struct {
	// Err is what main returned, or why main was not called. For a rank that a fault ended it
	// is [ErrKilled] or [ErrStopped], joined with what main returned.
	Err error
	// Began is when main was called, after the group was formed; 0 if it was not called.
	Began time.Duration
	// Ended is when main returned.
	Ended time.Duration
}

// Call is an operation of a rank.
type Call struct {
	Rank         int
	Number       int // among the rank's, from 1, as [Fault.AtCall] counts
	Group        string
	Op           string
	Seq          uint64 // the number in errors
	Began, Ended time.Duration
	Err          error
}

// Happened is a fault, and when it began.
type Happened struct {
	At    time.Duration
	Fault Fault
}

// Err returns the errors of all ranks, nil if there are none.
func (r *Result) Err() error {
	var errs []error
	for i := range r.Ranks {
		if err := r.Ranks[i].Err; err != nil {
			errs = append(errs, fmt.Errorf("rank %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// String returns how the run went, for a test's log.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ranks, seed %d, %v\n", len(r.Ranks), r.Seed, r.Elapsed)
	for _, h := range r.Faults {
		fmt.Fprintf(&b, "%12v  %v\n", h.At, h.Fault)
	}
	for i, k := range r.Ranks {
		fmt.Fprintf(&b, "%12v  rank %d: %v\n", k.Ended, i, orDone(k.Err))
	}
	return b.String()
}

// Trace returns all that is known of the run as text. Runs with the same seed have the same trace.
func (r *Result) Trace() string {
	var b strings.Builder
	b.WriteString(r.String())
	for _, c := range r.Calls {
		fmt.Fprintf(&b, "%12v %12v  rank %d, call %d: %s %d of group %q: %v\n", c.Began, c.Ended, c.Rank, c.Number, c.Op, c.Seq, c.Group, orDone(c.Err))
	}
	return b.String()
}

func orDone(err error) any {
	if err == nil {
		return "done"
	}
	return err
}

// sortCalls puts calls into the order in which they began.
func sortCalls(calls []Call) {
	slices.SortFunc(calls, func(a, b Call) int {
		return cmp.Or(cmp.Compare(a.Began, b.Began), a.Rank-b.Rank, cmp.Compare(a.Group, b.Group), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Seq, b.Seq))
	})
}
