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

// meetTime is how long the store waits for all ranks. It is longer than any rank waits for
// the others.
const meetTime = 24 * time.Hour

// AgentStore says who serves the store in which the ranks of a job meet.
type AgentStore int

const (
	// StoreByProgram means StoreByAgent if rank 0 runs a Python program, else
	// StoreByRank0. PyTorch's ranks meet in such a store, and Cohort's ranks with the
	// backend gloo.
	StoreByProgram AgentStore = iota
	// StoreByAgent means that the agent serves the store.
	StoreByAgent
	// StoreByRank0 means that rank 0 serves the store: its program listens at MasterPort.
	StoreByRank0
)

// ServesStore reports whether the agent of this host serves the store of the attempts in
// which this host has rank 0.
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

// rankStore is the store of an attempt, which the agent serves while the ranks come
// together.
type rankStore struct {
	*store.PyTorchServer
	cancel context.CancelFunc
	met    sync.WaitGroup
	mixed  chan error // gets an error if ranks of two PyTorch releases wait for each other in vain
}

// hopeless returns a channel that gets an error if the ranks can never come together.
func (r *rankStore) hopeless() <-chan error {
	if r == nil {
		return nil
	}
	return r.mixed
}

// serveStore serves a new store for the attempt, if this agent has to serve one. PyTorch's
// protocol has no authentication. So the store admits only processes of this host, and of
// hosts whose agents have proved that they belong to the job.
func (a *agent) serveStore(ctx context.Context) error {
	a.endStore()
	if !a.attempt.AgentStore || a.attempt.NodeRank != 0 {
		return nil
	}
	opts := []store.PyTorchServerOption{store.WithRefusals(func(r *store.PyTorchRefusal) {
		fmt.Fprintf(a.stderr, "cohort: %s\n", visible.Text(r.Error()))
	})}
	if a.attempt.NodeAddrs != "" {
		nodes, err := transport.LookupHosts(ctx, a.attempt.NodeAddrs)
		if err != nil {
			return fmt.Errorf("the addresses of the job's nodes: %w", err)
		}
		opts = append(opts, store.WithAdmission(func(peer netip.Addr) bool { return transport.Admits(nodes, peer) }))
	}
	addr := net.JoinHostPort(a.attempt.MasterAddr, strconv.Itoa(a.attempt.MasterPort))
	s, err := store.ListenPyTorch(addr, opts...)
	if err != nil {
		return err
	}
	if a.attempt.Number == 0 {
		fmt.Fprintf(a.stderr, "cohort: %s\n", s.Notice())
	}
	ctx, cancel := context.WithTimeout(context.Background(), meetTime)
	r := &rankStore{PyTorchServer: s, cancel: cancel, mixed: make(chan error, 1)}
	r.met.Go(func() {
		// Nobody needs the error: not all ranks have come, or they use the store otherwise.
		_ = s.Meet(ctx, a.attempt.WorldSize)
	})
	r.met.Go(func() { r.watchReleases(ctx, a.attempt) })
	a.store = r
	return nil
}

const (
	// releasesPoll is the first interval between two looks for ranks of two PyTorch
	// releases. The interval grows up to releasesRest, because programs may use the store
	// for something else.
	releasesPoll = 100 * time.Millisecond
	releasesRest = time.Second
	// releasesGrace is the time that Go ranks have to end with errors of their own.
	releasesGrace = time.Second
)

// listed names ranks in a sentence.
func listed(ranks []string) string {
	if len(ranks) == 1 {
		return "rank " + ranks[0]
	}
	return "ranks " + strings.Join(ranks, ", ")
}

// watchReleases waits until ranks of two PyTorch releases show themselves that meet at
// different keys of the store, and so never find each other. It then tells the Go ranks
// and the agent.
func (r *rankStore) watchReleases(ctx context.Context, at Attempt) {
	pause := releasesPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	attempt := store.Prefix(r.Store(), "/worker/attempt_"+strconv.Itoa(at.Number))
	releases := []struct {
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
			pause = min(pause*5/4, releasesRest)
			timer.Reset(pause)
		}
		var came, first []string // of each release that has shown itself
		for _, k := range releases {
			var ranks []string
			for rank := range at.WorldSize {
				// No key has this value, so nothing is replaced: this only reads the key.
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
		if strings.HasSuffix(came[0], releases[0].name) { // what Go ranks know of
			_ = r.Store().Set(ctx, store.PyTorchMixed, []byte(first[0]+" "+first[1]))
			select {
			case <-ctx.Done():
			case <-time.After(releasesGrace):
			}
		}
		r.mixed <- fmt.Errorf("%s came (a Go rank counts as one of the PyTorch that it found): ranks of two PyTorch releases cannot be in one group; use one release for all Python ranks", strings.Join(came, ", "))
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
