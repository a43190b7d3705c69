// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
)

const (
	// A rank is slow if the others wait for it for slowShare of the time, and
	// for slowWait a step at least, longer than for most: on a machine with too
	// much to do all ranks are late now and then. It is not slow any more below
	// half of that share.
	slowShare = 0.10
	slowWait  = time.Millisecond
	// quietSteps is for how many steps nothing more is told, twice as many each
	// time: where ranks are late in turns nobody wants to know of each.
	quietSteps = 100
)

// Straggler is a rank that the others wait for.
type Straggler struct {
	dist.Member
	Wait time.Duration // a step, of those who wait the longest
	Step time.Duration // what a step takes
}

// String is what a person is told:
// "rank 2 (host h, pid 4711) is slow: the others wait 13ms of 45ms a step for it".
func (s Straggler) String() string {
	return fmt.Sprintf("%v is slow: the others wait %v of %v a step for it", s.Member, short(s.Wait), short(s.Step))
}

// short rounds a time to what a person reads.
func short(d time.Duration) time.Duration {
	for unit := time.Second; unit >= time.Microsecond; unit /= 10 {
		if d >= 100*unit {
			return d.Round(unit)
		}
	}
	return d
}

// OnStraggler has tell called when one rank makes the others wait for more than
// a tenth of the time, at the end of a backward pass of every rank, once until
// another rank does, or the same one again after it did not. It takes a dozen
// steps to know, see [dist.Group.Skew], and after each call a hundred until the
// next one, then two hundred, and so on.
func OnStraggler(tell func(Straggler)) DDPOption {
	return func(o *ddpOptions) { o.onStraggler = tell }
}

// stragglerWatch decides when to tell of a slow rank.
type stragglerWatch struct {
	tell  func(Straggler) // may be nil
	named int             // the rank that was told of; -1 for none
	steps int             // so far
	quiet int             // for how many steps nothing was to be told after the last time
	until int             // up to which step that is

	shares []float64 // scratch
}

// look is called when a step has ended.
func (w *stragglerWatch) look(g *dist.Group) {
	g.StepEnded()
	if w.tell == nil {
		return
	}
	if row, ok := w.news(g.Skew()); ok {
		w.tell(Straggler{Member: g.Members()[row.Rank], Wait: time.Duration(row.Share * float64(row.Step)), Step: row.Step})
	}
}

// news returns the slowest rank if it is to be told of.
func (w *stragglerWatch) news(skew []dist.RankSkew) (slowest dist.RankSkew, ok bool) {
	if len(skew) == 0 {
		return slowest, false
	}
	w.steps++
	named := 0.0
	w.shares = w.shares[:0]
	for _, row := range skew {
		if row.Share > slowest.Share {
			slowest = row
		}
		w.shares = append(w.shares, row.Share)
		if row.Rank == w.named {
			named = row.Share
		}
	}
	if named < slowShare/2 {
		w.named = -1
	}
	slices.Sort(w.shares)
	most := w.shares[(len(w.shares)-1)/2]
	slow := slowest.Share-most >= slowShare && slowest.Share*float64(slowest.Step) >= float64(slowWait)
	if !slow || w.steps < w.until || slowest.Rank == w.named || w.named >= 0 && slowest.Share < 1.2*named {
		return slowest, false
	}
	w.named, w.quiet = slowest.Rank, max(quietSteps, 2*w.quiet)
	w.until = w.steps + w.quiet
	return slowest, true
}
