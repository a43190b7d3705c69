// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Two ranks that call the same collective differently find out by its data. Two ranks that
// wait for each other in calls that do not meet would wait until their time is up: calls on
// two groups, or a collective and a message. The watchdog of a rank finds such pairs.
//
// The watchdog looks from time to time whether its rank has made a call since the last look.
// If not, it asks the other members of the rank's present call what they are doing. The rank
// and another one deadlock if two things hold. Each is in a call that cannot end before the
// other has made that call too. And on each of them the goroutine that waits has made all calls
// of its rank so far, so that no other goroutine will make the missing call. The watchdog
// reports a deadlock that it has seen twice. The rank that comes last to its call can see the
// deadlock, so one round of questions for each call is enough.
const (
	lookPeriod  = 250 * time.Millisecond
	againPeriod = 100 * time.Millisecond
	// stuckAfter is how long both must have been in their calls.
	stuckAfter = 200 * time.Millisecond
	// mostAsked is how many ranks are asked: those that follow this one. Of up to 17 ranks,
	// one of any two asks the other.
	mostAsked = 8
	// askPause, times the number of ranks, is the least time between two rounds of
	// questions, for rank 0 passes all of them on.
	askPause = 125 * time.Millisecond
	// mostTries is how often the ranks are asked if one of them does not answer, because its
	// process may be held up.
	mostTries = 16
)

// Watchdog looks for calls that wait for each other, and for calls that take too long. Each
// rank of a job has one.
type Watchdog struct {
	log  *flight.Log
	find func(key uint64) (Group, bool)
	stop chan struct{}

	mu      sync.Mutex
	timer   *time.Timer
	closed  bool
	looking sync.WaitGroup

	// Of the looks, which follow each other:
	calls   uint64    // made by this rank when it was looked last
	done    bool      // nothing more is to be found until there are others
	looks   int       // without a call to ask about
	tries   int       // to find out what others do
	asked   time.Time // last
	suspect pairOfCalls
	overdue overdue
}

// pairOfCalls is two calls that wait for each other.
type pairOfCalls struct {
	mine, theirs uint64 // the ranks' own numbers for them
	peer         int
}

// New starts the watchdog of a rank, whose groups' calls log knows. find returns the group
// whose members have met by the key that a number stands for, unless it is closed. Calls that
// take too long are reported to to, which may be nil.
func New(log *flight.Log, find func(key uint64) (Group, bool), to io.Writer) *Watchdog {
	w := &Watchdog{log: log, find: find, stop: make(chan struct{}), overdue: overdue{to: to, floor: overdueAfter}}
	w.mu.Lock() // the first look may begin before the timer is known
	w.timer = time.AfterFunc(lookPeriod, w.look)
	w.mu.Unlock()
	return w
}

// Close ends the looks; nil has none.
func (w *Watchdog) Close() {
	if w == nil {
		return
	}
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.looking.Wait()
}

func (w *Watchdog) look() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.looking.Add(1)
	w.mu.Unlock()
	defer w.looking.Done()
	next := w.next()
	w.sayOverdue()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.timer.Reset(next)
	}
}

// next looks once and returns after what time to look again.
func (w *Watchdog) next() time.Duration {
	calls := w.log.NumCalls()
	if calls != w.calls {
		w.calls, w.done, w.looks, w.tries, w.suspect = calls, false, 0, 0, pairOfCalls{}
		return lookPeriod
	}
	if w.done {
		return lookPeriod
	}
	mine := w.log.Doing()
	g, ok := w.find(mine.Key)
	if !ok || !stuck(&mine) {
		// Only a new call changes anything, or time, or the turn of a call
		// that waits behind another.
		w.done = mine.State != fault.DoingUnderWay || !mine.Solo
		w.looks = min(w.looks+1, 3)
		return lookPeriod << w.looks >> 1
	}
	if w.suspect == (pairOfCalls{}) && time.Since(w.asked) < time.Duration(g.Size())*askPause {
		return lookPeriod
	}
	w.asked = time.Now()
	pair, theirs, h, sure := w.search(g, &mine)
	switch {
	case h == nil:
		w.tries++
		w.done, w.suspect = sure || w.tries == mostTries, pairOfCalls{}
	case pair != w.suspect:
		w.suspect = pair
		return againPeriod
	default:
		w.done = true
		report(g, h, pair.peer, &mine, theirs)
	}
	return lookPeriod
}

// stuck reports whether a rank makes no call before the one that it is in ends.
func stuck(d *fault.Doing) bool {
	return d.State == fault.DoingUnderWay && d.Blocking && d.Solo && d.For >= stuckAfter
}

// search asks the others in a call of this rank and returns the first that it
// is stuck with, by its number in g, and the group of that one's call. sure says that
// there is none, where none is found: all that were asked have answered.
func (w *Watchdog) search(g Group, mine *fault.Doing) (pair pairOfCalls, theirs *fault.Doing, of Group, sure bool) {
	comm := g.Asker()
	if comm == nil {
		return pairOfCalls{}, nil, nil, true
	}
	asked := min(mostAsked, g.Size()-1)
	answers := make([]fault.Doing, asked)
	var all sync.WaitGroup
	for i := range answers {
		if peer := (g.Rank() + 1 + i) % g.Size(); mine.Call.NeedsAll(g.Rank(), peer) {
			all.Go(func() { answers[i] = comm.Ask(peer, w.stop) })
		}
	}
	all.Wait()
	if w.log.NumCalls() != w.calls || w.log.Doing().ID != mine.ID {
		return pairOfCalls{}, nil, nil, false // it has gone on meanwhile
	}
	sure = true
	for i := range answers {
		peer, theirs := (g.Rank()+1+i)%g.Size(), &answers[i]
		if theirs.State == fault.DoingUnknown && mine.Call.NeedsAll(g.Rank(), peer) {
			sure = false
		}
		if !stuck(theirs) || madeBy(&mine.Call, theirs.Called, theirs.Sent, theirs.Received) {
			continue
		}
		h, ok := w.find(theirs.Key)
		if !ok {
			continue
		}
		there := slices.Index(h.World(), g.World()[peer])
		if there < 0 || !theirs.Call.NeedsAll(there, h.Rank()) {
			continue
		}
		if here := h.Doing(there); madeBy(&theirs.Call, here.Called, here.Sent, here.Received) {
			continue
		}
		return pairOfCalls{mine.ID, theirs.ID, peer}, theirs, h, true
	}
	return pairOfCalls{}, nil, nil, sure
}

// madeBy reports whether a rank has made its part of another one's call: it has
// called so many collectives of the group, sent the other so many messages and
// received so many from it.
func madeBy(c *operation.Call, called, sent, received uint64) bool {
	switch c.Op {
	case operation.Send:
		return received >= c.Seq
	case operation.Recv:
		return sent >= c.Seq
	}
	return called >= c.Seq
}

// report fails both groups: in each, the two calls as its members number them.
func report(g, h Group, peer int, mine, theirs *fault.Doing) {
	here := fault.RankCall{Rank: g.Rank(), Call: mine.Call, Site: mine.Site}
	there := fault.RankCall{Rank: peer, Call: theirs.Call, Site: theirs.Site}
	if g == h {
		g.End(&fault.MismatchError{Group: g.Name(), Seq: here.Call.Seq, Here: here, There: there})
		return
	}
	there.Group = h.Name()
	g.End(&fault.MismatchError{Group: g.Name(), Seq: here.Call.Seq, Here: here, There: there})
	here.Rank, here.Group = h.Rank(), g.Name()
	there.Rank, there.Group = slices.Index(h.World(), g.World()[peer]), ""
	h.End(&fault.MismatchError{Group: h.Name(), Seq: there.Call.Seq, Here: here, There: there})
}
