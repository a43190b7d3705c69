// SPDX-License-Identifier: Apache-2.0

package disttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Fault is something that goes wrong. The functions below make it. It happens when [Fault.At] or
// [Fault.AtCall] says, or else at once.
type Fault struct {
	kind    faultKind
	ranks   []int // of a cut: one way, from the first to the second
	link    Link
	at      time.Duration
	caller  int // -1: at a time
	call    int
	lasting time.Duration // 0: for good
}

type faultKind int

const (
	faultKill faultKind = iota + 1
	faultStop
	faultCut
	faultCutOneWay
	faultIsolate
	faultSlow
)

func newFault(kind faultKind, ranks ...int) Fault {
	return Fault{kind: kind, ranks: slices.Clone(ranks), caller: -1}
}

// Kill ends a rank's process, as kill -9 does: its connections are closed, and nothing answers.
func Kill(rank int) Fault { return newFault(faultKill, rank) }

// Stop stops a rank's process, as SIGSTOP or a machine that swaps does: its connections stay, and
// nothing comes. A rank that is stopped for good is killed when all others have ended.
func Stop(rank int) Fault { return newFault(faultStop, rank) }

// Cut cuts the line between two ranks; neither is told.
func Cut(a, b int) Fault { return newFault(faultCut, a, b) }

// CutOneWay cuts the line from one rank to another in this direction only.
func CutOneWay(from, to int) Fault { return newFault(faultCutOneWay, from, to) }

// Isolate cuts all lines between some ranks and all others: a network partition, or for one rank, a
// host without power or network.
func Isolate(ranks ...int) Fault { return newFault(faultIsolate, ranks...) }

// Slow gives the line between two ranks other properties, in both directions.
func Slow(a, b int, l Link) Fault {
	f := newFault(faultSlow, a, b)
	f.link = l
	return f
}

// At makes the fault happen at a time after the run has begun. Forming the group takes some round
// trips of that time.
func (f Fault) At(d time.Duration) Fault {
	f.at, f.caller = d, -1
	return f
}

// AtCall makes the fault happen when a rank begins its k-th operation since its main began, counted from
// 1 over all groups. Operations are collectives, messages, and the barrier with which a new group begins.
func (f Fault) AtCall(rank, k int) Fault {
	f.caller, f.call = rank, k
	return f
}

// For makes the fault end after a time.
func (f Fault) For(d time.Duration) Fault {
	f.lasting = d
	return f
}

// Ranks returns the ranks that the fault concerns.
func (f Fault) Ranks() []int { return slices.Clone(f.ranks) }

// String returns what the fault is, and when it happens.
func (f Fault) String() string {
	var b strings.Builder
	switch f.kind {
	case faultKill:
		fmt.Fprintf(&b, "kill rank %d", f.ranks[0])
	case faultStop:
		fmt.Fprintf(&b, "stop rank %d", f.ranks[0])
	case faultCut:
		fmt.Fprintf(&b, "cut between rank %d and rank %d", f.ranks[0], f.ranks[1])
	case faultCutOneWay:
		fmt.Fprintf(&b, "cut from rank %d to rank %d", f.ranks[0], f.ranks[1])
	case faultIsolate:
		fmt.Fprintf(&b, "isolate ranks %v", f.ranks)
	case faultSlow:
		fmt.Fprintf(&b, "line between rank %d and rank %d of %v", f.ranks[0], f.ranks[1], f.link)
	default:
		return "no fault"
	}
	if f.lasting > 0 {
		fmt.Fprintf(&b, " for %v", f.lasting)
	}
	if f.caller >= 0 {
		fmt.Fprintf(&b, " at call %d of rank %d", f.call, f.caller)
	} else {
		fmt.Fprintf(&b, " at %v", f.at)
	}
	return b.String()
}

// check returns what is wrong with a fault among n ranks.
func (f Fault) check(n int) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("the fault %q: "+format, append([]any{f.String()}, args...)...)
	}
	for i, r := range f.ranks {
		if r < 0 || r >= n {
			return fail("there is no rank %d of %d", r, n)
		}
		if slices.Contains(f.ranks[:i], r) {
			return fail("rank %d is there twice", r)
		}
	}
	switch {
	case f.kind == 0:
		return errors.New("a fault of no kind: make it by Kill, Stop, Cut, CutOneWay, Isolate or Slow")
	case f.kind == faultIsolate && (len(f.ranks) == 0 || len(f.ranks) == n):
		return fail("want some of %d ranks, not %d", n, len(f.ranks))
	case f.kind == faultKill && f.lasting != 0:
		return fail("nobody is killed for a time")
	case f.lasting < 0 || f.at < 0:
		return fail("a time below 0")
	case f.caller >= n || f.caller >= 0 && f.call < 1:
		return fail("want a rank of %d, and a call from 1", n)
	}
	return f.link.check()
}

// lines returns the pairs, from and to, that a cut or a change is about.
func (f Fault) lines(n int) [][2]int {
	switch f.kind {
	case faultCutOneWay:
		return [][2]int{{f.ranks[0], f.ranks[1]}}
	case faultCut, faultSlow:
		return [][2]int{{f.ranks[0], f.ranks[1]}, {f.ranks[1], f.ranks[0]}}
	}
	var lines [][2]int
	for _, r := range f.ranks {
		for other := range n {
			if !slices.Contains(f.ranks, other) {
				lines = append(lines, [2]int{r, other}, [2]int{other, r})
			}
		}
	}
	return lines
}

// randomFault draws a fault among n ranks that happens within a time.
func randomFault(random *rand.Rand, n int, within time.Duration) Fault {
	a := random.IntN(n)
	b := (a + 1 + random.IntN(n-1)) % n
	var f Fault
	switch kind := faultKind(1 + random.IntN(int(faultSlow))); kind {
	case faultKill, faultStop, faultIsolate:
		f = newFault(kind, a)
	case faultSlow:
		f = Slow(a, b, Link{Latency: time.Duration(random.Int64N(int64(20 * time.Millisecond))), BytesPerSecond: 1e6 + 1e8*random.Float64()})
	default:
		f = newFault(kind, a, b)
	}
	if f.kind != faultKill && random.IntN(2) == 0 {
		f = f.For(1 + time.Duration(random.Int64N(int64(within))))
	}
	return f.At(time.Duration(random.Int64N(int64(within))))
}
