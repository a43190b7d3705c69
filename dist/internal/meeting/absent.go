// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
)

const (
	// leftPeriod is how often a rank that waits for the members of a new group
	// looks whether they have left the group that it is made from.
	leftPeriod = 50 * time.Millisecond
	// leftPatience is how long one that has left is waited for all the same:
	// members may come, and leave both groups, before all others have seen that
	// they came.
	leftPatience = 200 * time.Millisecond
	// leftLooks is how often one whose forming has failed looks for such a member:
	// the news may come a little later.
	leftLooks = 3
)

// absence is of members of a group that is being made: they have left the one that
// it is made from.
type absence struct {
	spec *backend.Spec
	at   map[int]int // the number in the parent by that in the job; nil before the first look

	mu    sync.Mutex
	timer *time.Timer
	since map[int]time.Time // by rank: when it was first seen to have left the parent
	over  bool
}

// expectMembers ends the forming of a group, by abort, when a member has left the
// group that it is made from: it cannot come any more.
func expectMembers(s *backend.Spec, abort context.CancelCauseFunc) *absence {
	f := &absence{spec: s}
	if s.Parent == nil {
		return f
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timer = time.AfterFunc(leftPeriod, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.over {
			return
		}
		if reason := f.look(leftPatience); reason != nil {
			abort(reason)
			return
		}
		f.timer.Reset(leftPeriod)
	})
	return f
}

// stop ends the watch and returns the error of the forming, given what it has
// come to here: if a member has left, that is why, and the rest, such as that
// another member has given up for that reason, follows from it.
func (f *absence) stop(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	if f.timer == nil {
		return err
	}
	f.timer.Stop()
	for range leftLooks {
		if err == nil || errors.Is(err, fault.ErrDied) || errors.Is(err, fault.ErrSilent) {
			break
		}
		if reason := f.look(0); reason != nil {
			return reason
		}
		var late *fault.TimeoutError
		if errors.As(err, &late) || errors.Is(err, fault.ErrClosed) {
			break // no news are on their way
		}
		time.Sleep(leftPeriod)
	}
	return err
}

// look returns the error about the first member to leave the parent, if that was
// so long ago.
func (f *absence) look(patience time.Duration) error {
	parent := f.spec.Parent
	comm := parent.Comm()
	if comm == nil {
		return nil
	}
	if f.at == nil {
		f.at, f.since = make(map[int]int, len(parent.World)), map[int]time.Time{}
		for r, w := range parent.World {
			f.at[w] = r
		}
	}
	now := time.Now()
	first := -1
	for i, w := range f.spec.World {
		if i == f.spec.Rank || !comm.HasLeft(f.at[w]) {
			continue
		}
		if _, seen := f.since[i]; !seen {
			f.since[i] = now
		}
		if first < 0 || f.since[i].Before(f.since[first]) {
			first = i
		}
	}
	if first < 0 || now.Sub(f.since[first]) < patience {
		return nil
	}
	return fault.NewRankError(parent.Name, parent.Members[f.at[f.spec.World[first]]], fault.ErrLeft)
}
