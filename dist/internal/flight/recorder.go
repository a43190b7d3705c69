// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/internal/goroutine"
)

const (
	// NumEntries is how many calls a recorder remembers unless told otherwise.
	NumEntries = 2048
	// firstEntries is how many it has room for at first: a job of thousands of
	// goroutine ranks need not pay for what it does not use.
	firstEntries = 32
	// maxProbes is how many calls that have not ended are passed over to keep
	// them, before one is lost.
	maxProbes = 64
	// maxSites bounds the call sites that are kept. A program that has more
	// calls from ever new stacks; they are looked up again then.
	maxSites = 4096
)

// Who is the rank that a recorder belongs to.
type Who struct {
	Rank, WorldSize int
	Host            string
	PID             int
}

// Recorder is what a rank remembers of its last calls, in all its groups.
type Recorder struct {
	who  Who
	most int

	mu      sync.Mutex
	start   time.Time // of the times in entries
	entries []entry
	next    int    // the slot to be used next
	ids     uint64 // of entries, given out so far
	sites   map[uint64]*site
	latest  uintptr // the goroutine that made the last call, or several
	looks   int     // how often callers has been looked after
	callers []int   // the first goroutines that have made calls, by their numbers in stacks
	caller  uintptr // the goroutine that has made all calls; several if more have
	open    map[*Log]struct{}
}

// entry is a call.
type entry struct {
	id   uint64 // 0: empty
	log  *Log
	site *site
	err  error
	// seq, parts and the rest are those of the call.
	seq    uint64
	layout uint64
	count  int
	root   int
	// In nanoseconds since the recorder's start; 0: not yet.
	called, begun, ended int64
	reduce               operation.ReduceOp
	op                   operation.Op
	background           bool // the goroutine that called it went on
	dtype                operation.DType
}

// Ticket is a call that has been recorded, to say later what became of it.
type Ticket struct {
	id    uint64
	slot  int
	begun int64
}

// Begun reports whether the call is known to run.
func (t Ticket) Begun() bool { return t.begun != 0 }

// New returns the recorder of a rank, with room for as many calls as
// [NumEntries] says.
func New(who Who) *Recorder { return newSize(who, NumEntries) }

func newSize(who Who, most int) *Recorder {
	return &Recorder{who: who, most: most, start: time.Now(), entries: make([]entry, 0, min(firstEntries, most)),
		sites: map[uint64]*site{}, open: map[*Log]struct{}{}}
}

// Log is the part of a recorder that is about one group.
type Log struct {
	r       *Recorder
	name    string
	key     string
	rank    int
	members []fault.Member // by rank
	world   []int          // the members' ranks in the job
	about   func(*flightlog.Group)

	// Guarded by the recorder's lock.
	forms                         bool   // collective 1 is the barrier that ends the forming
	seqCalled, seqBegun, seqEnded uint64 // of collectives
	calls                         uint64 // collectives that have ended
	waited                        int64  // ns from their beginning to their end, of those that a caller stands still in
	failed                        error
	failedAt                      int64
}

// Group makes the log of a group that this recorder's rank is a member of:
// its name, the key by which its members know it, this rank's number in it, its
// members and their numbers in the job. about fills in what else is known of
// the group at each dump; it may be nil.
func (r *Recorder) Group(name, key string, rank int, members []fault.Member, world []int, about func(*flightlog.Group)) *Log {
	l := &Log{r: r, name: name, key: key, rank: rank, members: members, world: world, about: about}
	r.mu.Lock()
	r.open[l] = struct{}{}
	r.mu.Unlock()
	return l
}

// Forms says that the group's first collective will be the barrier that all members
// pass when they have formed it: the program has made no such call.
func (l *Log) Forms() {
	if l == nil {
		return
	}
	l.r.mu.Lock()
	l.forms = true
	l.r.mu.Unlock()
}

// forming reports whether a call is the barrier that ends the forming of its group.
func (e *entry) forming() bool { return e.log.forms && e.op == operation.Barrier && e.seq == 1 }

// Recorder returns the recorder that the log is a part of.
func (l *Log) Recorder() *Recorder { return l.r }

// Close says that this rank has left the group. It stays in dumps for as long
// as the recorder remembers calls of it, and what is known of the group stays as
// it is now: the log no longer keeps the group alive.
func (l *Log) Close() {
	if l == nil {
		return
	}
	var last flightlog.Group
	if l.about != nil {
		l.about(&last)
	}
	l.r.mu.Lock()
	l.about = func(g *flightlog.Group) { g.Transport, g.Skew = last.Transport, last.Skew }
	delete(l.r.open, l)
	l.r.mu.Unlock()
}

// isCollective reports whether a call is one of all members of its group.
func isCollective(op operation.Op) bool { return op != operation.Send && op != operation.Recv }

// Called records a call as this goroutine makes it: the call site is on its
// stack. begins says that it runs at once.
func (l *Log) Called(c *operation.Call, begins bool) Ticket {
	if l == nil {
		return Ticket{}
	}
	r := l.r
	stack := hashStack()
	now := max(1, int64(time.Since(r.start)))
	r.mu.Lock()
	if caller := goroutine.ID(); r.caller != caller {
		r.called(caller)
	}
	s := r.sites[stack]
	if s == nil {
		s = r.newSite(stack)
	}
	slot := r.slot()
	e := &r.entries[slot]
	r.ids++
	*e = entry{id: r.ids, log: l, site: s, seq: c.Seq, layout: c.Layout, count: c.Count, root: c.Root,
		called: now, reduce: c.Reduce.Kind(), op: c.Op, background: c.Background, dtype: c.DType}
	t := Ticket{id: r.ids, slot: slot}
	if begins {
		e.begun, t.begun = now, now
	}
	if isCollective(c.Op) {
		l.seqCalled = c.Seq
		if begins {
			l.seqBegun = c.Seq
		}
	}
	r.mu.Unlock()
	return t
}

// slot returns the place of the next entry. The recorder is locked.
func (r *Recorder) slot() int {
	if n := len(r.entries); n < r.most {
		r.entries = append(r.entries, entry{})
		return n
	}
	at := r.next
	for range maxProbes {
		if r.entries[at].ended != 0 {
			break
		}
		if at++; at == len(r.entries) {
			at = 0
		}
	}
	if r.next = at + 1; r.next == len(r.entries) {
		r.next = 0
	}
	return at
}

// find returns the entry of a ticket, nil if it has been lost. The recorder is
// locked.
func (r *Recorder) find(t Ticket) *entry {
	if t.id == 0 || r.entries[t.slot].id != t.id {
		return nil
	}
	return &r.entries[t.slot]
}

// Numbered says which peer and number a message has, where that was not known
// when it was called.
func (l *Log) Numbered(t Ticket, peer int, seq uint64) {
	if l == nil {
		return
	}
	l.r.mu.Lock()
	if e := l.r.find(t); e != nil {
		e.root, e.seq = peer, seq
	}
	l.r.mu.Unlock()
}

// Begun says that a call runs now, unless it has been said.
func (l *Log) Begun(t Ticket) Ticket {
	if l == nil || t.begun != 0 || t.id == 0 {
		return t
	}
	r := l.r
	now := max(1, int64(time.Since(r.start)))
	r.mu.Lock()
	if e := r.find(t); e != nil {
		e.begun = now
		if isCollective(e.op) {
			l.seqBegun = e.seq
		}
	}
	r.mu.Unlock()
	t.begun = now
	return t
}

// Start is the moment from which times count.
func (r *Recorder) Start() time.Time { return r.start }

// Ended says how a call has ended, and returns when the program called it, and when it began and
// ended. An entry that is lost has begun when it was called.
func (l *Log) Ended(t Ticket, c *operation.Call, err error) (at event.Span) {
	if l == nil {
		return at
	}
	r := l.r
	now := max(1, int64(time.Since(r.start)))
	at = event.Span{Called: time.Duration(t.begun), Begun: time.Duration(t.begun), Ended: time.Duration(now)}
	r.mu.Lock()
	if e := r.find(t); e != nil {
		e.ended, e.err = now, err
		at.Called = time.Duration(e.called)
	}
	switch {
	case err != nil:
		if l.failed == nil {
			l.failed, l.failedAt = err, now
		}
	case isCollective(c.Op):
		l.seqEnded = c.Seq
		l.calls++
		if !c.Background {
			l.waited += now - t.begun
		}
	}
	r.mu.Unlock()
	return at
}

// Waited returns how many collectives of the group have ended on this rank, and
// the nanoseconds that they took in all, but for those in the background,
// beside which the caller does something else. A rank that waits less than the
// others is the one that they wait for.
func (l *Log) Waited() (calls uint64, ns int64) {
	if l == nil {
		return 0, 0
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.calls, l.waited
}

// Site returns where this rank made the call of the group of that kind
// (collective, message to or from that peer) and number, as far as it is
// remembered: "dir/file.go:88 pkg.Func". What is not known is "".
func (l *Log) Site(c operation.Call) string {
	if l == nil {
		return ""
	}
	r := l.r
	r.mu.Lock()
	var found *site
	var newest uint64
	for i := range r.entries {
		e := &r.entries[i]
		if e.log != l || e.seq != c.Seq || e.id <= newest || isCollective(e.op) != isCollective(c.Op) {
			continue
		}
		if !isCollective(c.Op) && (e.op != c.Op || e.root != c.Root) {
			continue
		}
		found, newest = e.site, e.id
	}
	r.mu.Unlock()
	if found == nil {
		return ""
	}
	return found.String()
}
