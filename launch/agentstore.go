// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/internal/visible"
)

// meetTime is how long the store waits for all ranks to come together: more than any
// rank waits for the others.
const meetTime = 24 * time.Hour

// AgentStore says who serves the store in which a job's ranks meet.
type AgentStore int

const (
	// StoreByProgram leaves it to what rank 0 runs: the agent serves the store of a Python
	// program, in which PyTorch's and Cohort's with the backend gloo meet.
	StoreByProgram AgentStore = iota
	// StoreByAgent has the agent serve it.
	StoreByAgent
	// StoreByRank0 has rank 0 serve it: what it runs listens on the master's port itself.
	StoreByRank0
)

// ServesStore reports whether this host's agent is to serve the store of attempts in
// which it has rank 0.
func (h *Host) ServesStore() bool {
	switch h.cfg.AgentStore {
	case StoreByAgent:
		return true
	case StoreByRank0:
		return false
	}
	p := h.program(0)
	return p.isPython || p.byItself
}

// rankStore is an attempt's store, while its ranks come together.
type rankStore struct {
	*store.PyTorchServer
	cancel context.CancelFunc
	met    sync.WaitGroup
	mixed  chan error // that ranks of two PyTorch have come, which wait in vain
}

// hopeless returns where it is said that the ranks can never come together.
func (r *rankStore) hopeless() <-chan error {
	if r == nil {
		return nil
	}
	return r.mixed
}

// serveStore serves the attempt's store, a new one each time, if this agent is to. PyTorch's
// protocol has no authentication: this host's processes come in, and those of hosts whose
// agents have proved that they belong to the job.
func (a *agent) serveStore(ctx context.Context) error {
	a.endStore()
	if !a.attempt.AgentStore || a.attempt.NodeRank != 0 {
		return nil
	}
	cfg := store.PyTorchServerConfig{Refused: func(r *store.PyTorchRefusal) {
		fmt.Fprintf(a.stderr, "cohort: %s\n", visible.Text(r.Error()))
	}}
	if a.attempt.NodeAddrs != "" {
		nodes, err := transport.LookupHosts(ctx, a.attempt.NodeAddrs)
		if err != nil {
			return fmt.Errorf("the addresses of the job's nodes: %w", err)
		}
		cfg.Admit = func(peer netip.Addr) bool { return transport.Admits(nodes, peer) }
	}
	addr := net.JoinHostPort(a.attempt.MasterAddr, strconv.Itoa(a.attempt.MasterPort))
	s, err := store.ListenPyTorch(addr, cfg)
	if err != nil {
		return err
	}
	if a.attempt.Number == 0 {
		fmt.Fprintf(a.stderr, "cohort: %s\n", s.Notice())
	}
	ctx, cancel := context.WithTimeout(context.Background(), meetTime)
	r := &rankStore{PyTorchServer: s, cancel: cancel, mixed: make(chan error, 1)}
	r.met.Go(func() {
		// If not all come, or they use the store for something else, nobody asks.
		_ = s.Meet(ctx, a.attempt.WorldSize)
	})
	r.met.Go(func() { r.watchKinds(ctx, a.attempt) })
	a.store = r
	return nil
}

const (
	// kindsPoll is from when on the store is looked through for ranks of another PyTorch,
	// less and less often, down to every kindsRest: programs may use it for something else.
	kindsPoll = 100 * time.Millisecond
	kindsRest = time.Second
	// kindsGrace is what Go ranks have to end with errors of their own.
	kindsGrace = time.Second
)

// listed is ranks in a sentence.
func listed(ranks []string) string {
	if len(ranks) == 1 {
		return "rank " + ranks[0]
	}
	return "ranks " + strings.Join(ranks, ", ")
}

// watchKinds waits until ranks of two PyTorch show themselves that do not meet in one place
// of the store, each where those of its kind do, and tells the Go ranks and the agent.
func (r *rankStore) watchKinds(ctx context.Context, at Attempt) {
	pause := kindsPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	attempt := store.Prefix(r.Store(), "/worker/attempt_"+strconv.Itoa(at.Number))
	kinds := []struct {
		name, first string
		keys        store.Store
	}{
		{"PyTorch 1.13", "0/rank_", store.Prefix(attempt, "default_pg/0")},
		{"PyTorch 2.2 to 2.5", "0/", store.Prefix(attempt, "default_pg/0//cpu/")},
		{"PyTorch 2.6 or later", "0/", store.Prefix(r.Store(), "default_pg/0//cpu/")},
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			pause = min(pause*5/4, kindsRest)
			timer.Reset(pause)
		}
		var came, first []string // of each kind that has shown itself
		for _, k := range kinds {
			var ranks []string
			for rank := range at.WorldSize {
				// What nobody has as its value is not replaced: this only looks.
				if v, _, err := k.keys.CompareAndSet(ctx, k.first+strconv.Itoa(rank), []byte{0}, []byte{0}); err == nil && v != nil {
					ranks = append(ranks, strconv.Itoa(rank))
				}
			}
			if len(ranks) == at.WorldSize {
				return
			}
			if len(ranks) > 0 {
				came, first = append(came, listed(ranks)+" with "+k.name), append(first, ranks[0])
			}
		}
		if len(came) < 2 {
			continue
		}
		if strings.HasSuffix(came[0], kinds[0].name) { // what Go ranks know of
			_ = r.Store().Set(ctx, store.PyTorchMixed, []byte(first[0]+" "+first[1]))
			select {
			case <-ctx.Done():
			case <-time.After(kindsGrace):
			}
		}
		r.mixed <- fmt.Errorf("%s came (a Go rank counts as one of the PyTorch that it found): they cannot be in one group; give all Python ranks one PyTorch", strings.Join(came, ", "))
		return
	}
}

// endStore ends the store of the last attempt, if there is one.
func (h *Host) endStore() {
	r := h.store
	if r == nil {
		return
	}
	h.store = nil
	r.cancel()
	r.met.Wait()
	_ = r.Close() // it has no error
}
