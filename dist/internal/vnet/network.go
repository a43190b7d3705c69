// SPDX-License-Identifier: Apache-2.0

package vnet

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// Link is what a path is like.
type Link struct {
	// Latency is how long a byte is on its way, and Jitter up to how much
	// longer, drawn for each segment.
	Latency, Jitter time.Duration
	// BytesPerSecond is how much goes over it; 0 is no limit. All connections
	// from one host to another share it.
	BytesPerSecond float64
}

// Check returns what is wrong with a link.
func (l Link) Check() error {
	if l.Latency < 0 || l.Jitter < 0 || l.BytesPerSecond < 0 || math.IsNaN(l.BytesPerSecond) {
		return fmt.Errorf("a link of latency %v, jitter %v and %v bytes a second: want none below 0", l.Latency, l.Jitter, l.BytesPerSecond)
	}
	return nil
}

// keepAlive is how long two hosts that do not reach each other keep their
// connections: as long as package transport's sockets.
const keepAlive = 25 * time.Second

// Network is hosts and the paths between them.
type Network struct {
	mu      sync.Mutex
	start   time.Time
	seed    uint64
	hosts   []*Host
	link    func(from, to int) Link
	paths   map[[2]int]*path
	pending []parcel  // sent since the last instant that was taken up
	sentAt  int64     // when the first of pending was
	coming  eventHeap // what will happen
	order   uint64    // of events made
	timer   *time.Timer
	set     int64 // when it fires
	virtual bool  // the time
	settles bool  // it has fired, and a step is under way
	stepped int64 // when the last step was
	closed  bool
}

// path is a way from one host to another.
type path struct {
	Link
	random *rand.Rand
	busy   int64 // until when what was sent is being put on the line
	last   int64 // when the last of it arrives
	cuts   int   // faults that it is cut by
	cutAt  int64 // when the first of them came
	epoch  int   // changes when cuts becomes 0 or 1
	held   []parcel
}

// parcel is something on its way from one host to another.
type parcel struct {
	from, to int
	conn     uint64 // its connection, of those that one of the two dialled
	reply    bool   // from the end that was dialled
	n        uint64 // number in the connection and direction
	size     int    // 0: it is only to have its turn
	arrive   func() // with the network locked
}

func (p *parcel) compare(q *parcel) int {
	for _, d := range [...]int{p.from - q.from, p.to - q.to, order(p.conn, q.conn), bit(p.reply) - bit(q.reply), order(p.n, q.n)} {
		if d != 0 {
			return d
		}
	}
	return 0
}

func order(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

type event struct {
	at    int64
	order uint64
	do    func() // with the network locked
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{}
	*h = (*h)[:last]
	return e
}

// New returns a network of hosts. link says what the paths are like; it is
// asked once for each path that is used.
func New(numHosts int, seed uint64, link func(from, to int) Link) *Network {
	n := &Network{start: time.Now(), seed: seed, link: link, paths: map[[2]int]*path{}, set: math.MaxInt64, virtual: inBubble()}
	n.timer = time.AfterFunc(time.Hour, n.step)
	n.timer.Stop()
	for i := range numHosts {
		n.hosts = append(n.hosts, newHost(n, i))
	}
	return n
}

// Host returns a host by its number.
func (n *Network) Host(i int) *Host { return n.hosts[i] }

// Now returns the time since the network was made.
func (n *Network) Now() time.Duration { return time.Since(n.start) }

func (n *Network) now() int64 { return int64(time.Since(n.start)) }

// At calls do when the network has been there for so long, in a goroutine of
// its own and while nothing arrives.
func (n *Network) At(after time.Duration, do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at(int64(after), func() { go do() })
}

// at makes an event. The network is locked.
func (n *Network) at(at int64, do func()) {
	n.order++
	heap.Push(&n.coming, event{max(at, n.now()+1), n.order, do})
	n.arm()
}

// send takes a parcel. The network is locked.
func (n *Network) send(p parcel) {
	if n.closed {
		return
	}
	if len(n.pending) == 0 {
		n.sentAt = n.now()
	}
	n.pending = append(n.pending, p)
	n.arm()
}

// arm sets the timer to the next instant at which something is to be done. The
// network is locked.
func (n *Network) arm() {
	next := int64(math.MaxInt64)
	if len(n.pending) > 0 {
		next = n.sentAt + 1
	}
	if len(n.coming) > 0 {
		next = min(next, n.coming[0].at)
	}
	next = max(next, n.stepped+1)
	if next < n.set && !n.settles && !n.closed {
		n.set = next
		n.timer.Reset(time.Duration(next - n.now()))
	}
}

// step does what is to be done at this instant: it takes up what was sent
// before, and lets one thing arrive.
func (n *Network) step() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.settles {
		return
	}
	if n.virtual {
		// What arrives comes after all that others do at this instant, each time.
		n.settles = true
		n.mu.Unlock()
		synctest.Wait()
		n.mu.Lock()
		n.settles = false
	}
	if n.closed {
		return
	}
	n.set, n.stepped = math.MaxInt64, n.now()
	if len(n.pending) > 0 && n.sentAt < n.stepped {
		taken := n.pending
		n.pending = nil
		slices.SortStableFunc(taken, func(a, b parcel) int { return a.compare(&b) })
		for _, p := range taken {
			if p.size == 0 {
				n.at(n.stepped, p.arrive)
			} else {
				n.put(n.path(p.from, p.to), p)
			}
		}
	}
	if len(n.coming) > 0 && n.coming[0].at <= n.stepped {
		heap.Pop(&n.coming).(event).do()
	}
	n.arm()
}

// inBubble reports whether time is virtual here: whether there is a moment when
// all is done that is done at an instant.
func inBubble() (yes bool) {
	defer func() { _ = recover() }() // Wait says no by a panic
	synctest.Wait()
	return true
}

func (n *Network) path(from, to int) *path {
	key := [2]int{from, to}
	p := n.paths[key]
	if p == nil {
		p = &path{Link: n.link(from, to), random: rand.New(rand.NewPCG(n.seed, uint64(from)<<32|uint64(to)))}
		n.paths[key] = p
	}
	return p
}

// put puts a parcel on a path.
func (n *Network) put(way *path, p parcel) {
	if way.cuts > 0 {
		way.held = append(way.held, p)
		return
	}
	way.busy = max(way.busy, n.now())
	if way.BytesPerSecond > 0 {
		way.busy += int64(float64(p.size) / way.BytesPerSecond * 1e9)
	}
	at := way.busy + int64(way.Latency)
	if way.Jitter > 0 {
		at += way.random.Int64N(int64(way.Jitter) + 1)
	}
	way.last = max(at, way.last+1)
	n.at(way.last, p.arrive)
}

// SetLink changes what the path from one host to another is like.
func (n *Network) SetLink(from, to int, l Link) (before Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.path(from, to)
	before, p.Link = p.Link, l
	return before
}

// Cut cuts the path from one host to another, without a word to either. Each
// Cut wants a Mend.
func (n *Network) Cut(from, to int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.path(from, to)
	if p.cuts++; p.cuts > 1 {
		return
	}
	p.cutAt = n.now()
	p.epoch++
	epoch := p.epoch
	n.at(n.now()+int64(keepAlive), func() {
		if p.cuts > 0 && p.epoch == epoch {
			n.expire(from, to)
		}
	})
}

// Mend undoes a Cut.
func (n *Network) Mend(from, to int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.path(from, to)
	if p.cuts--; p.cuts > 0 {
		return
	}
	p.epoch++
	for _, held := range p.held {
		n.send(held)
	}
	p.held = nil
}

// expire ends the connections between two hosts that have not reached each
// other for too long, one after the other. The network is locked.
func (n *Network) expire(a, b int) {
	for _, h := range []*Host{n.hosts[a], n.hosts[b]} {
		for _, c := range h.connsWith(a + b - h.number) {
			n.at(n.now(), func() { c.lose(errTimedOut) })
		}
	}
}

// Close ends the network: everything that waits in it goes on, with errors.
func (n *Network) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.timer.Stop()
	n.pending, n.coming = nil, nil
	for _, h := range n.hosts {
		for c := range h.conns {
			c.frozen = false // its turn does not come any more
		}
		h.end()
	}
}
