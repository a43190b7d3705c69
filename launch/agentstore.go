// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// meetTime is how long the store waits for all ranks to come together: more than any
// rank waits for the others.
const meetTime = 24 * time.Hour

// AgentStore says who serves the store in which a job's ranks meet.
type AgentStore int

const (
	// StoreByProgram leaves it to what rank 0 runs: the agent serves the store of a Python
	// program with several ranks, in which PyTorch's and Cohort's with the backend gloo meet.
	StoreByProgram AgentStore = iota
	// StoreByAgent has the agent serve it, in a job on one machine.
	StoreByAgent
	// StoreByRank0 has rank 0 serve it: what it runs listens on the master's port itself.
	StoreByRank0
)

// servesStore says whether this agent serves an attempt's store: where the job is on one
// machine, for PyTorch's protocol has no authentication.
func (a *agent) servesStore() bool {
	switch a.cfg.AgentStore {
	case StoreByAgent:
		return true
	case StoreByRank0:
		return false
	}
	// A single rank has nobody to meet, and may start processes of its own that do, at a port
	// that it gives them: they would look for the launcher's store there.
	return a.attempt.NumNodes == 1 && a.attempt.WorldSize > 1 && a.program(0).isPython
}

// rankStore is an attempt's store, while its ranks come together.
type rankStore struct {
	*store.PyTorchServer
	cancel context.CancelFunc
	met    sync.WaitGroup
}

// serveStore serves the attempt's store, a new one each time, if the agent is to.
func (a *agent) serveStore(stderr io.Writer) (*rankStore, error) {
	if !a.servesStore() {
		return nil, nil
	}
	addr := net.JoinHostPort(a.attempt.MasterAddr, strconv.Itoa(a.attempt.MasterPort))
	s, err := store.ListenPyTorch(addr, store.PyTorchServerConfig{Refused: func(r *store.PyTorchRefusal) {
		fmt.Fprintf(stderr, "cohort: %v\n", r)
	}})
	if err != nil {
		return nil, err
	}
	if a.attempt.Number == 0 {
		fmt.Fprintf(stderr, "cohort: %s\n", s.Notice())
	}
	ctx, cancel := context.WithTimeout(context.Background(), meetTime)
	r := &rankStore{PyTorchServer: s, cancel: cancel}
	r.met.Go(func() {
		// If not all come, or they use the store for something else, nobody asks.
		_ = s.Meet(ctx, a.attempt.WorldSize)
	})
	return r, nil
}

// end ends the store.
func (r *rankStore) end() {
	if r == nil {
		return
	}
	r.cancel()
	r.met.Wait()
	_ = r.Close() // it has no error
}
