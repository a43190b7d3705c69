// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

const (
	// helloPatience is how long a connection has to say whose it is.
	helloPatience = 10 * time.Second
	// numDials is how often a connection is tried, dialPause how long after a failure.
	numDials  = 4
	dialPause = 100 * time.Millisecond
	// shutPatience is for how long a listener goes on when it is no longer needed,
	// leavePatience how long it may take to tell ranks that wait for this one that it
	// does not come, leavesAtOnce how many of them at a time.
	shutPatience  = 20 * time.Millisecond
	leavePatience = 500 * time.Millisecond
	leavesAtOnce  = 16
)

// keepAlive finds out after [goneAfter] that a host is gone of which a call waits to
// hear: see [Communicator.watchLines].
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// Open meets the other members and connects to each of them. ctx bounds that only;
// [Config].Timeout does too.
func Open(ctx context.Context, cfg Config) (*Communicator, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if len(cfg.Addrs) == 0 {
		cfg.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("dist: group %q over gloo: %w", cfg.Group, err)
	}
	b := newCommunicator(cfg)
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout,
		fmt.Errorf("the group's limit of %v: %w", cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	go func() { // who has sent what cannot be is not waited with
		select {
		case <-b.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	for i := range cfg.Addrs {
		m := &rendezvous{b: b, mesh: b.contexts[i], index: i, addr: cfg.Addrs[i], attached: make(chan struct{}, 1)}
		err := m.meet(ctx)
		if why := b.why(); why != nil {
			err = why
		}
		if err != nil {
			b.end(err)
			b.closed.Store(true)
			b.running.Wait()
			return nil, err
		}
	}
	b.running.Add(1)
	go b.watchLines()
	return b, nil
}

// rendezvous is how the members of a context come together.
type rendezvous struct {
	b     *Communicator
	mesh  *mesh
	index int
	addr  netip.Addr
	// attached has a token after a connection was made.
	attached chan struct{}
	// plan says of what a rank has published whether this rank is the one to connect,
	// where to, and what to say then. Nil until this rank has published its own.
	plan func(rank int, value []byte) (there netip.AddrPort, hello []byte, first bool, err error)
}

func (m *rendezvous) meet(ctx context.Context) error {
	if len(m.b.cfg.Members) == 1 {
		return nil
	}
	var err error
	if m.b.cfg.Generation == PerPair {
		err = m.meetPerPair(ctx)
	} else {
		err = m.meetPerDevice(ctx)
	}
	if err != nil && m.plan != nil {
		m.leave()
	}
	return err
}

// leave tells the ranks that wait for a connection from this one that it gives up: by a
// connection that ends at once. PyTorch 1.13 waits five times its limit for one that
// does not come.
func (m *rendezvous) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	atOnce := make(chan struct{}, leavesAtOnce)
	var leaving sync.WaitGroup
	for _, r := range m.others() {
		if m.mesh.pairs[r].attached() {
			continue
		}
		atOnce <- struct{}{}
		leaving.Go(func() {
			defer func() { <-atOnce }()
			v, err := m.b.cfg.Store.Get(ctx, m.key("", r))
			if err != nil {
				return
			}
			there, hello, first, err := m.plan(r, v)
			if err != nil || !first {
				return
			}
			if conn, err := m.dial(ctx, there); err == nil {
				_, _ = conn.Write(hello)
				conn.Close()
			}
		})
	}
	leaving.Wait()
}

// key is a key of this context in the group's store.
func (m *rendezvous) key(name string, rank int) string {
	return strconv.Itoa(m.index) + "/" + name + strconv.Itoa(rank)
}

// get waits for a key of each of some ranks; take is called with each value, in
// order.
func (m *rendezvous) get(ctx context.Context, name string, ranks []int, take func(rank int, value []byte) error) error {
	for i, r := range ranks {
		v, err := m.b.cfg.Store.Get(ctx, m.key(name, r))
		if err != nil {
			return m.absent(ctx, name, ranks[i:], err)
		}
		if err := take(r, v); err != nil {
			if _, ok := err.(*sizeError); !ok {
				err = fmt.Errorf("what it has published: %w", err)
			}
			e := m.b.blame(nil, r, err)
			e.Op = "init"
			return e
		}
	}
	return nil
}

// absent returns the error of ranks that have not published a key.
func (m *rendezvous) absent(ctx context.Context, name string, ranks []int, err error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("dist: group %q over gloo: %w", m.b.cfg.Group, err)
	}
	var missing []int
	for i, r := range ranks {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
		_, err := m.b.cfg.Store.Get(look, m.key(name, r))
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded):
			missing = append(missing, r)
		default: // it cannot be asked any more
			missing = append(missing, ranks[i:]...)
			return m.missing(ctx, missing)
		}
	}
	return m.missing(ctx, missing)
}

// missing is the error of ranks that have not come.
func (m *rendezvous) missing(ctx context.Context, ranks []int) error {
	e := &fault.TimeoutError{Group: m.b.cfg.Group, Op: "init", Cause: ctxerr.Of(ctx)}
	for _, r := range ranks {
		e.Missing = append(e.Missing, m.b.Member(r))
	}
	return e
}

// others are all ranks but this one.
func (m *rendezvous) others() []int {
	var ranks []int
	for r := range m.b.cfg.Members {
		if r != m.b.cfg.Rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// named takes note of a rank's host.
func (m *rendezvous) named(rank int, host string) {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if at := &m.b.members[rank]; at.Host == "" {
		at.Host = strings.ToValidUTF8(host, "?")
	}
}

// await waits until ranks are connected.
func (m *rendezvous) await(ctx context.Context, ranks []int, dials *dialing) error {
	for {
		ranks = slices.DeleteFunc(ranks, func(r int) bool { return m.mesh.pairs[r].attached() })
		if len(ranks) == 0 {
			return nil
		}
		select {
		case <-m.attached:
		case err := <-dials.failed:
			return err
		case <-ctx.Done():
			return m.missing(ctx, ranks)
		}
	}
}
