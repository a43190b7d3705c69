// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
)

const (
	// A rank is slow if the others wait for it for slowShare of the time, and
	// for slowWait a step at least, longer than for most, and so in slowSteps steps
	// one after the other: on a machine with too much to do all ranks are late now
	// and then.
	slowShare = 0.10
	slowWait  = 5 * time.Millisecond
	slowSteps = 5
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

// WithOnStraggler has tell called when the others wait for one rank for more than
// a tenth of the time and for 5 ms a step. It is called on every rank, at the end
// of a backward pass, once for each rank that is waited for. It takes a dozen
// steps to know ([dist.Group.Skew]). After a call there is none for a hundred
// steps, after the next one for two hundred, and so on. Without this option rank 0
// writes the note to standard error; a nil tell says nothing.
func WithOnStraggler(tell func(Straggler)) DDPOption {
	return func(o *ddpOptions) { o.onStraggler, o.stragglerSaid = tell, true }
}

// stragglerWatch decides when to tell of a slow rank.
type stragglerWatch struct {
	tell  func(Straggler) // may be nil
	told  map[int]bool    // the ranks that were told of
	steps int             // so far
	quiet int             // for how many steps nothing was to be told after the last time
	until int             // up to which step that is
	slow  int             // the rank that was slow in the last steps,
	held  int             // of which there were so many

	shares []float64 // scratch
}

// watchStragglers returns the watch of a rank, which has tell called, or says it itself where
// nothing was said of that.
func watchStragglers(g *dist.Group, o *ddpOptions) stragglerWatch {
	w := stragglerWatch{tell: o.onStraggler, told: map[int]bool{}}
	if !o.stragglerSaid && g.Rank() == 0 {
		w.tell = func(s Straggler) { fmt.Fprintf(os.Stderr, "cohort: %v\n", s) }
	}
	return w
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
	w.shares = w.shares[:0]
	for _, row := range skew {
		if row.Share > slowest.Share {
			slowest = row
		}
		w.shares = append(w.shares, row.Share)
	}
	slices.Sort(w.shares)
	most := w.shares[(len(w.shares)-1)/2]
	if slowest.Share-most < slowShare || slowest.Share*float64(slowest.Step) < float64(slowWait) {
		w.held = 0
		return slowest, false
	}
	if slowest.Rank != w.slow {
		w.slow, w.held = slowest.Rank, 0
	}
	w.held++
	if w.held < slowSteps || w.steps < w.until || w.told[slowest.Rank] {
		return slowest, false
	}
	w.told[slowest.Rank], w.quiet = true, max(quietSteps, 2*w.quiet)
	w.until = w.steps + w.quiet
	return slowest, true
}
