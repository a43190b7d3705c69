// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// spareOpenings is how many connections of others than members may wait to say whose
// they are.
const spareOpenings = 16

// maxTold is of how many connections that were refused a group tells.
const maxTold = 16

// DefaultTimeout is PyTorch's limit for a call.
const DefaultTimeout = 30 * time.Minute

// Config is what a backend needs to know of its group.
type Config struct {
	Group string
	Rank  int
	// Members are all ranks, in their order. Hosts that are not given are filled in
	// from what the ranks publish.
	Members []fault.Member
	// Store is the group's part of the job's store. The keys are "0/3" for the
	// address of rank 3 and "0/rank_3" for its host; 0 is the number of the context.
	Store      store.Store
	Generation Generation
	// Addrs are the addresses of this machine at which the rank is reached, one for
	// each context, over which the tags are spread; the loopback's if there are none.
	Addrs []netip.Addr
	// Hostname is what peers are told; ranks of one name are taken to be on one host.
	Hostname string
	// TLS encrypts and authenticates, nil for neither. See [LoadTLS].
	TLS *tls.Config
	// Lazy has peers of the generation [PerDevice] connect when they first need to.
	Lazy bool
	// Timeout limits a call whose context has no earlier end; 0 is [DefaultTimeout].
	Timeout time.Duration
	// Admit says from where connections are taken, besides from the addresses that the
	// members have published in the store; nil takes all.
	Admit func(netip.Addr) bool
	// Refused is told of the first connections that were not taken, whose they said they
	// were, and what was wrong with their TLS; nil stands for one from elsewhere. May be nil.
	Refused func(from netip.AddrPort, rank int, err error)
	// Deaths is told of ranks whose connection has ended. May be nil.
	Deaths func(rank int)
}

func (cfg *Config) check() error {
	n := len(cfg.Members)
	switch {
	case n < 1 || n > maxSize || cfg.Rank < 0 || cfg.Rank >= n:
		return fmt.Errorf("rank %d of %d", cfg.Rank, n)
	case cfg.Generation != PerPair && cfg.Generation != PerDevice:
		return fmt.Errorf("%v, want PerPair or PerDevice", cfg.Generation)
	case cfg.Store == nil:
		return errors.New("no store")
	case cfg.Lazy && cfg.Generation == PerPair:
		return fmt.Errorf("ranks connect when they need to, but they meet by %v", cfg.Generation)
	}
	return nil
}

// Communicator is one rank's part of a group. It implements [backend.Communicator].
type Communicator struct {
	cfg      Config
	contexts []*mesh
	tags     tags
	anyone   waiter // a receive from any rank
	run      run    // of collectives, one at a time
	messages sync.Pool

	mu        sync.Mutex
	members   []fault.Member
	losses    []loss
	failure   error         // that has ended the group
	doom      error         // that ends it when a connection does
	failed    chan struct{} // closed then
	listeners []net.Listener
	opening   []net.Conn // have not said yet whose they are, oldest first
	refused   atomic.Int64
	closed    atomic.Bool
	running   sync.WaitGroup
}

// newCommunicator returns a backend that is connected with nobody.
func newCommunicator(cfg Config) *Communicator {
	b := &Communicator{cfg: cfg, members: slices.Clone(cfg.Members), failed: make(chan struct{}), anyone: newWaiter()}
	b.run.b, b.run.waiter = b, newWaiter()
	for r := range b.members {
		b.members[r].Rank = r
	}
	for range cfg.Addrs {
		x := &mesh{pairs: make([]*pair, len(cfg.Members))}
		for r := range x.pairs {
			if r != cfg.Rank {
				x.pairs[r] = newPair(b, r)
			}
		}
		b.contexts = append(b.contexts, x)
	}
	return b
}

// mesh is the connections that come over one address.
type mesh struct {
	pairs []*pair // by rank; nil for the own
}

// loss is a connection that has ended.
type loss struct {
	rank int
	at   time.Time
	err  error
}

// pairFor returns the connection over which a tag goes to a rank.
func (b *Communicator) pairFor(rank int, tag uint32) *pair {
	return b.contexts[int(tag%uint32(len(b.contexts)))].pairs[rank]
}

// Member returns what is known of a rank.
func (b *Communicator) Member(rank int) fault.Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rank < 0 || rank >= len(b.members) {
		return fault.Member{Rank: rank}
	}
	return b.members[rank]
}

// Members returns what is known of all ranks.
func (b *Communicator) Members() []fault.Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.members)
}

// Tag returns how many tags this rank has used: one for each collective, and two for
// a [Communicator.MonitoredBarrier].
func (b *Communicator) Tag() uint32 { return b.tags.next.Load() }

// lose takes note that a connection has ended.
func (b *Communicator) lose(p *pair, err error) {
	if p.whyLost() != nil {
		return
	}
	lost := lossOf(p, err)
	b.mu.Lock()
	if doom := b.doom; doom != nil {
		b.mu.Unlock()
		b.end(doom)
		return
	}
	known := b.failure != nil
	if !known {
		b.losses = append(b.losses, loss{p.peer, time.Now(), lost})
	}
	b.mu.Unlock()
	p.lose(lost)
	b.anyone.ping()
	if !known && b.cfg.Deaths != nil {
		b.cfg.Deaths(p.peer)
	}
}

// wrong ends the group because of what a peer has sent.
func (b *Communicator) wrong(p *pair, e *fault.WireError) {
	told := *e
	told.Peer = p.describe()
	b.end(b.blame(nil, p.peer, &told))
}

// end makes err the end of the group, unless it has ended: all connections are
// closed, which other ranks notice.
func (b *Communicator) end(err error) {
	b.mu.Lock()
	if b.failure != nil {
		b.mu.Unlock()
		return
	}
	b.failure = err
	close(b.failed)
	listeners, opening := b.listeners, b.opening
	b.listeners, b.opening = nil, nil
	b.mu.Unlock()
	for _, l := range listeners {
		shut(l)
	}
	for _, conn := range opening {
		conn.Close()
	}
	for _, x := range b.contexts {
		for _, p := range x.pairs {
			if p != nil {
				p.lose(err)
			}
		}
	}
}

// opens takes note of a connection that has yet to say whose it is, unless the group has
// ended. Where there are more such than members could make, the oldest goes: a member
// speaks at once.
func (b *Communicator) opens(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure != nil {
		return false
	}
	if len(b.opening) >= 2*len(b.cfg.Members)+spareOpenings {
		b.opening[0].Close()
		b.opening = slices.Delete(b.opening, 0, 1)
	}
	b.opening = append(b.opening, conn)
	return true
}

func (b *Communicator) opened(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opening = slices.DeleteFunc(b.opening, func(c net.Conn) bool { return c == conn })
}

// why returns what has ended the group, nil if it goes on.
func (b *Communicator) why() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure
}

// usable returns an error if no call can be made any more.
func (b *Communicator) usable(c *operation.Call) error {
	if b.closed.Load() {
		return b.closedError(c)
	}
	if err := b.why(); err != nil {
		return b.again(c, err)
	}
	return nil
}

// lossPatience is how long a rank that has lost another one stays for the others: a
// busy machine takes so long to let all of them see it.
const lossPatience = 200 * time.Millisecond

// broken ends the group with the error of a call of which an operation with a peer
// has failed, and returns it. Nothing uses the call's memory any more.
func (b *Communicator) broken(c *operation.Call, peer int, begun time.Time, err error) error {
	if first := b.why(); first != nil {
		b.running.Wait()
		return b.again(c, first)
	}
	var wire *fault.WireError
	if errors.As(err, &wire) {
		told := *wire
		told.Peer = b.pairFor(peer, 0).describe()
		err = &told
	} else {
		// A rank that has ended takes others with it: the first one is at fault.
		b.mu.Lock()
		for _, l := range b.losses {
			if !l.at.Before(begun) {
				peer, err = l.rank, l.err
				break
			}
		}
		b.mu.Unlock()
		if errors.Is(err, fault.ErrGone) {
			// Others notice the same end a moment later, and must not see this rank's first.
			time.Sleep(lossPatience)
		}
	}
	return b.fail(b.blame(c, peer, err))
}

// fail ends the group with an error and returns it, or the one that has ended it
// before, as that of this call.
func (b *Communicator) fail(err error) error {
	b.end(err)
	b.running.Wait()
	return err
}

// Trouble implements [backend.Communicator].
func (b *Communicator) Trouble(c operation.Call) error {
	if err := b.usable(&c); err != nil {
		return err
	}
	b.mu.Lock()
	losses := b.losses
	b.mu.Unlock()
	if len(losses) > 0 {
		return b.blame(&c, losses[0].rank, losses[0].err)
	}
	return nil
}

// Fail implements [backend.Communicator]: the other ranks see their connections with
// this one end.
func (b *Communicator) Fail(err error) { b.end(err) }

// Doom says what will end the group: a member that goes from now on goes for that.
func (b *Communicator) Doom(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doom = err
}

// Died tells the group that a rank's process has ended.
func (b *Communicator) Died(rank int) {
	if rank >= 0 && rank < len(b.cfg.Members) && rank != b.cfg.Rank {
		b.end(b.blame(nil, rank, fault.ErrDied))
	}
}

// Silent tells the group that a rank has fallen silent.
func (b *Communicator) Silent(rank int, text string) {
	if rank >= 0 && rank < len(b.cfg.Members) {
		b.end(b.blame(nil, rank, &fault.SilentError{Text: text, Here: rank == b.cfg.Rank}))
	}
}

// HasLeft implements [backend.Communicator].
func (b *Communicator) HasLeft(rank int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.losses, func(l loss) bool { return l.rank == rank })
}

// Close implements [backend.Communicator].
func (b *Communicator) Close() error {
	b.closed.Store(true)
	b.end(fault.ErrClosed)
	b.running.Wait()
	return nil
}

// Collective implements [backend.Communicator].
func (b *Communicator) Collective(ctx context.Context, c operation.Call, in, out collective.Data) error {
	kept := &b.run.call // which c would be allocated for
	*kept = c
	if err := b.usable(kept); err != nil {
		return err
	}
	tag, err := b.take(prefixOf(c.Op))
	if err != nil {
		return b.fail(b.blameFor(kept, err))
	}
	return b.run.do(ctx, kept, tag, in, out)
}

// take takes the next tag, unless peers have said that they are in another kind of
// collective.
func (b *Communicator) take(kind prefix) (uint32, error) {
	tag := b.tags.take(kind)
	for _, p := range b.contexts[int(tag%uint32(len(b.contexts)))].pairs {
		if p == nil {
			continue
		}
		if err := p.arrive(tag, kind); err != nil {
			return tag, &peerError{p, err}
		}
	}
	return tag, nil
}

// peerError is an error about a peer that is yet to be blamed.
type peerError struct {
	p   *pair
	err error
}

func (e *peerError) Error() string { return e.err.Error() }

// blameFor makes the error of a call from a [peerError].
func (b *Communicator) blameFor(c *operation.Call, err error) error {
	e, ok := err.(*peerError)
	if !ok {
		return err
	}
	if wire, ok := e.err.(*fault.WireError); ok {
		told := *wire
		told.Peer = e.p.describe()
		return b.blame(c, e.p.peer, &told)
	}
	return b.blame(c, e.p.peer, e.err)
}
