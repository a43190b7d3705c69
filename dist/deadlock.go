// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Two ranks that call the same collective differently find out by its data. Two
// that wait for each other in calls that do not meet, on two groups or one in a
// collective and one for a message, would wait until their time is up. The
// guard of a rank finds such pairs.
//
// It looks now and then whether this rank has made no call since it looked
// last, and if so asks the others in the call that it is in what they are doing.
// A rank is found out if it is in a call that cannot end before this one has
// made it, while this one is in a call that cannot end before that one has.
// Neither will, if the goroutines that wait have made all calls of their ranks
// so far, which is required of both: nobody else is there to make it. It is
// looked at twice. The one that comes last to such a pair sees it, so nobody
// needs to ask more than once for a call.
const (
	guardPeriod = 250 * time.Millisecond
	guardAgain  = 100 * time.Millisecond
	// stuckAfter is how long both must have been in their calls.
	stuckAfter = 200 * time.Millisecond
	// guardAsks is how many ranks are asked: the next ones. Of up to 17 ranks,
	// one of any two asks the other.
	guardAsks = 8
	// guardPause, for each rank of the group, is the least time between two
	// rounds of questions: rank 0 passes them on.
	guardPause = 125 * time.Millisecond
	// guardTries is how often they are asked where one of them does not answer: its
	// process may be held up.
	guardTries = 16
)

// guard looks for calls that wait for each other. One is made for each rank of
// a job.
type guard struct {
	root *Group
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

// watchCalls starts the guard of a group of all ranks.
func (g *Group) watchCalls() {
	if _, ok := g.comm.(backend.Asker); !ok {
		return
	}
	w := &guard{root: g, stop: make(chan struct{}), overdue: newOverdue(g)}
	g.guard = w
	w.mu.Lock() // the first look may begin before the timer is known
	w.timer = time.AfterFunc(guardPeriod, w.look)
	w.mu.Unlock()
}

// close ends the looks; nil has none.
func (w *guard) close() {
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

func (w *guard) look() {
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
func (w *guard) next() time.Duration {
	calls := w.root.log.NumCalls()
	if calls != w.calls {
		w.calls, w.done, w.looks, w.tries, w.suspect = calls, false, 0, 0, pairOfCalls{}
		return guardPeriod
	}
	if w.done {
		return guardPeriod
	}
	mine := w.root.log.Doing()
	g := w.root.withKey(mine.Key)
	if g == nil || !stuck(&mine) {
		// Only a new call changes anything, or time, or the turn of a call
		// that waits behind another.
		w.done = mine.State != DoingUnderWay || !mine.Solo
		w.looks = min(w.looks+1, 3)
		return guardPeriod << w.looks >> 1
	}
	if w.suspect == (pairOfCalls{}) && time.Since(w.asked) < time.Duration(g.size)*guardPause {
		return guardPeriod
	}
	w.asked = time.Now()
	pair, theirs, h, sure := w.search(g, &mine)
	switch {
	case h == nil:
		w.tries++
		w.done, w.suspect = sure || w.tries == guardTries, pairOfCalls{}
	case pair != w.suspect:
		w.suspect = pair
		return guardAgain
	default:
		w.done = true
		report(g, h, pair.peer, &mine, theirs)
	}
	return guardPeriod
}

// stuck reports whether a rank makes no call before the one that it is in ends.
func stuck(d *Doing) bool {
	return d.State == DoingUnderWay && d.Blocking && d.Solo && d.For >= stuckAfter
}

// search asks the others in a call of this rank and returns the first that it
// is stuck with, by its number in g, and the group of that one's call. sure says that
// there is none, where none is found: all that were asked have answered.
func (w *guard) search(g *Group, mine *Doing) (pair pairOfCalls, theirs *Doing, of *Group, sure bool) {
	g.mu.Lock()
	comm, _ := g.comm.(backend.Asker)
	g.mu.Unlock()
	if comm == nil {
		return pairOfCalls{}, nil, nil, true
	}
	asked := min(guardAsks, g.size-1)
	answers := make([]Doing, asked)
	var all sync.WaitGroup
	for i := range answers {
		if peer := (g.rank + 1 + i) % g.size; mine.Call.NeedsAll(g.rank, peer) {
			all.Go(func() { answers[i] = comm.Ask(peer, w.stop) })
		}
	}
	all.Wait()
	if w.root.log.NumCalls() != w.calls || w.root.log.Doing().ID != mine.ID {
		return pairOfCalls{}, nil, nil, false // it has gone on meanwhile
	}
	sure = true
	for i := range answers {
		peer, theirs := (g.rank+1+i)%g.size, &answers[i]
		if theirs.State == fault.DoingUnknown && mine.Call.NeedsAll(g.rank, peer) {
			sure = false
		}
		if !stuck(theirs) || madeBy(&mine.Call, theirs.Called, theirs.Sent, theirs.Received) {
			continue
		}
		h := w.root.withKey(theirs.Key)
		if h == nil {
			continue
		}
		there := slices.Index(h.world, g.world[peer])
		if there < 0 || !theirs.Call.NeedsAll(there, h.rank) {
			continue
		}
		if here := h.doing(there); madeBy(&theirs.Call, here.Called, here.Sent, here.Received) {
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

// doing returns what this rank is doing, for a member of the group.
func (g *Group) doing(asker int) Doing {
	d := g.log.Doing()
	d.Called = g.log.LastCalled()
	g.mu.Lock()
	defer g.mu.Unlock()
	d.Sent, d.Received = g.pairs[pair{asker, true}].issued(), g.pairs[pair{asker, false}].issued()
	// Receives that wait at the gate may be from anybody.
	d.Received += uint64(len(g.gate.waiting))
	return d
}

// issued returns how many calls have been made of a lane, which may be nil.
func (l *lane) issued() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// withKey returns this group, or the one made from it, whose members have met
// by the key that a number stands for, unless it is closed.
func (g *Group) withKey(number uint64) *Group {
	if g.log.Key() == number {
		return g
	}
	for _, c := range g.offspring() {
		if found := c.withKey(number); found != nil {
			return found
		}
	}
	return nil
}

// report fails both groups: in each, the two calls as its members number them.
func report(g, h *Group, peer int, mine, theirs *Doing) {
	here := RankCall{Rank: g.rank, Call: mine.Call, Site: mine.Site}
	there := RankCall{Rank: peer, Call: theirs.Call, Site: theirs.Site}
	if g == h {
		g.failOpen(&MismatchError{Group: g.name, Seq: here.Call.Seq, Here: here, There: there})
		return
	}
	there.Group = h.name
	g.failOpen(&MismatchError{Group: g.name, Seq: here.Call.Seq, Here: here, There: there})
	here.Rank, here.Group = h.rank, g.name
	there.Rank, there.Group = slices.Index(h.world, g.world[peer]), ""
	h.failOpen(&MismatchError{Group: h.name, Seq: there.Call.Seq, Here: here, There: there})
}
