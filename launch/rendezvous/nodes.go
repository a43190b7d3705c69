// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/launch"
)

// Nodes joins this host with the other nodes of a job. It is for launch.Config.Nodes.
type Nodes struct {
	Settings Settings
	Rank     int    // the node rank that this node asks for, -1 for any
	Addr     string // the address at which other nodes reach this one; empty: that of the interface on the route to the store
	Meeting  Meeting

	ran bool // Run has been called
}

// Run implements [launch.Nodes]: it runs rounds on this host until the job has ended.
func (n *Nodes) Run(ctx context.Context, h *launch.Host) error {
	n.ran = true
	cfg := h.Config()
	check := cmp.Or(cfg.Environment.Check, launch.CheckStop)
	print, end := fingerprintOf(ctx, h, check)
	defer end()
	// The store may not be there yet. A signal ends the wait for it.
	waits, busy := h.Idle(ctx)
	meet, err := n.Meeting.begin(waits, n, h)
	asked := context.Cause(waits)
	busy()
	switch {
	case err != nil && asked != nil:
		return stopped(cfg, asked)
	case err != nil:
		return &launch.ConfigError{Field: "Nodes", Err: err}
	}
	said := newLineWriter(cfg.Stderr)
	defer said.end()
	defer meet.close()
	if s := meet.server; s != nil { // the person here learns why a node does not come
		s.OnRefusal(func(line string) { fmt.Fprintf(said, "cohort: the store in which the nodes meet %s\n", plain(line)) })
	}
	port := masterPort{addr: meet.addr}
	defer port.release()
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &participant{
		host: h, out: said, ctx: life, events: make(chan Event, 16),
		store: newStoreClient(meet.open, n.Settings.Job, n.Settings.Timing.Call),
	}
	p.check, p.print = check, print
	defer p.store.close()
	defer p.running.Wait()
	defer stop()
	name, err := os.Hostname()
	if err != nil {
		name = meet.addr
	}
	me := Node{Host: name, PID: os.Getpid(), Addr: meet.addr, NumRanks: cfg.NumRanks, Role: cfg.Role, Rank: n.Rank, Hosts: meet.server != nil, Store: h.ServesStore()}
	p.m = NewMachine(n.Settings, me, newID, port.next)
	return p.run(ctx)
}

// fingerprintOf begins to read the environment of this node, while the nodes meet. end ends
// that, and waits for it.
func fingerprintOf(ctx context.Context, h *launch.Host, check launch.EnvironmentCheck) (print func() *fingerprint.Fingerprint, end func()) {
	f := &fingerprint.Fingerprint{}
	if check == launch.CheckOff {
		return func() *fingerprint.Fingerprint { return f }, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		f = h.Fingerprint(ctx)
	}()
	return func() *fingerprint.Fingerprint { <-read; return f }, func() { cancel(); <-read }
}

// masterPort is the port of this node at which rank 0 of the next or present round listens.
// It is kept for rank 0 from the time when the other nodes are told of it.
type masterPort struct {
	addr string
	held *transport.HeldPort
}

// next lets the port of the last round go and returns another one; 0 if there is none.
func (p *masterPort) next() int {
	p.release()
	held, err := transport.HoldPort(p.addr)
	if err != nil {
		return 0
	}
	p.held = held
	return held.Port()
}

func (p *masterPort) release() {
	p.held.Close()
	p.held = nil
}

func newID() string {
	b := make([]byte, idBytes/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

var _ launch.Nodes = (*Nodes)(nil)

// addrTowards returns the address at which others reach this node: that of the interface on
// the route to the endpoint.
func addrTowards(ctx context.Context, endpoint string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tellAfter)
	defer cancel()
	c, err := transport.ChooseInterface(ctx, endpoint)
	return c.Host, err
}
