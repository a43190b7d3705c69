// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/goroutine"
)

// several stands for more goroutines than one that have made calls.
const several = goroutine.Unknown

// called notes that a goroutine has made a call that had not made all before.
// The recorder is locked.
func (r *Recorder) called(by uintptr) {
	if by != r.latest && r.looks < maxCallers {
		r.latest = by
		r.looks++
		if n := number(); !slices.Contains(r.callers, n) {
			r.callers = append(r.callers, n)
		}
	}
	if r.caller == 0 {
		r.caller = by
	} else {
		r.caller = several
	}
}

// Doing returns what the rank is doing: the newest call that it is in, those
// first that a goroutine waits for, or else its last call, in any group.
func (l *Log) Doing() fault.Doing {
	if l == nil {
		return fault.Doing{}
	}
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *entry
	score := func(e *entry) int {
		switch {
		case e.begun == 0 || e.ended != 0:
			return 0
		case e.background:
			return 1
		}
		return 2
	}
	for i := range r.entries {
		e := &r.entries[i]
		if e.id == 0 {
			continue
		}
		if best == nil || score(e) > score(best) || score(e) == score(best) && e.id > best.id {
			best = e
		}
	}
	if best == nil {
		return fault.Doing{State: fault.DoingNothing}
	}
	since := best.begun
	d := fault.Doing{State: fault.DoingUnderWay, Group: best.log.name, Key: collective.KeyNumber(best.log.key), ID: best.id,
		Call: operation.Call{Op: best.op, Reduce: best.reduce, DType: best.dtype, Root: best.root, Count: best.count, Layout: best.layout, Seq: best.seq},
		Site: best.site.String(), Blocking: !best.background, Solo: r.caller > several}
	switch {
	case best.ended != 0 && best.err != nil:
		d.State, since = fault.DoingFailed, best.ended
	case best.ended != 0:
		d.State, since = fault.DoingEnded, best.ended
		if best.forming() {
			d.Call.Seq = 0
		}
	case since == 0:
		since = best.called // it waits for its turn
	}
	d.For = max(0, time.Since(r.start)-time.Duration(since))
	return d
}

// Key returns the number that stands for the group in a [fault.Doing].
func (l *Log) Key() uint64 { return collective.KeyNumber(l.key) }

// NumCalls returns how many calls the rank has made, in all groups.
func (l *Log) NumCalls() uint64 {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.r.ids
}

// LastCalled returns the number of the last collective that this rank has called.
func (l *Log) LastCalled() uint64 {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.seqCalled
}
