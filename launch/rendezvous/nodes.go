// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/launch"
)

// Nodes joins a host with others: it is what launch.Config.Nodes takes.
type Nodes struct {
	Settings Settings
	Rank     int    // the node rank that this one asks for, -1 for any
	Addr     string // under which other nodes reach this one; empty: the one on the route to the store
	Meeting  Meeting

	ran bool // Run has been called
}

// Run implements [launch.Nodes]: it runs rounds on this host until the job has ended.
func (n *Nodes) Run(ctx context.Context, h *launch.Host) error {
	n.ran = true
	cfg := h.Config()
	// The store may take its time to be there: a signal ends that too.
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
	if s := meet.server; s != nil { // who waits here for a node learns why it does not come
		s.OnRefusal(func(line string) { fmt.Fprintf(said, "cohort: the store in which the nodes meet %s\n", plain(line)) })
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	p := &participant{
		host: h, out: said, ctx: life, events: make(chan Event, 16),
		store: newStoreClient(meet.open, n.Settings.Job, n.Settings.Timing.Call),
	}
	defer p.store.close()
	defer p.running.Wait()
	defer end()
	name, err := os.Hostname()
	if err != nil {
		name = meet.addr
	}
	me := Node{Host: name, PID: os.Getpid(), Addr: meet.addr, NumRanks: cfg.NumRanks, Role: cfg.Role, Rank: n.Rank, Hosts: meet.server != nil, Store: h.ServesStore()}
	p.m = NewMachine(n.Settings, me, newID, func() int {
		port, err := launch.FreePort(meet.addr)
		if err != nil {
			return 0
		}
		return port
	})
	return p.run(ctx)
}

func newID() string {
	b := make([]byte, idBytes/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

var _ launch.Nodes = (*Nodes)(nil)

// addrTowards returns the address under which others reach this node.
func addrTowards(ctx context.Context, endpoint string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tellAfter)
	defer cancel()
	c, err := transport.ChooseInterface(ctx, endpoint)
	return c.Host, err
}
