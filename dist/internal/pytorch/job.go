// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/dist/internal/liveness"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// job is the [backend.Job] of a rank in a PyTorch job.
//
// Nothing of Cohort's own goes between the ranks here, but what PyTorch's would:
// no beats, no comparison of calls, no barrier beside those that PyTorch has. What
// is only in this process, such as the flight recorder, stays.
type job struct {
	place
	settings *backend.Settings
	said     Release // which PyTorch the settings say the others run
	release  Release // which one was found
	guess    string  // of which releases the store is, if release is the earliest of them
	apart    bool    // the launcher's store has a part for each start of the ranks
	admitted []netip.Prefix
	hostname string // this machine's name
	self     []byte // what it has said of itself in the store
	before   []byte // what another process of its rank had said there, nil for nothing
	agent    *liveness.Watch
	unwatch  func()               // ends what watches the forming of the group of all ranks
	server   *store.PyTorchServer // rank 0, if it serves the store
	client   *store.PyTorchClient // the others
	shared   *store.PyTorchFile   // all of them, where there is one
	alone    bool                 // PyTorch serves the store: ranks of another one than that cannot join
	keys     store.Store          // of the default group, before the group's name
	addrs    []netip.Addr         // where this rank listens, once it is known

	mu     sync.Mutex
	names  groupNames
	goes   *meeting.Guests
	making chan struct{} // of one token: groups are made one after the other
}

// Start is the [backend.Start] of PyTorch's jobs.
func Start(ctx context.Context, s *backend.Settings) (backend.Job, error) {
	pl, err := findPlace(s)
	switch {
	case err != nil:
	case s.Algorithms.Deterministic:
		err = errors.New("WithDeterministic: in a PyTorch job it is Gloo that decides the order of a reduction, with the same bits on all ranks")
	case s.SilenceSet:
		err = errNoBeats
	case native.HostFrom(ctx) != nil:
		err = errors.New("a network inside the process has no PyTorch ranks")
	}
	if err != nil {
		return nil, err
	}
	if pl.worldSize == 1 {
		return meeting.Alone(s), nil
	}
	s.Silence = 0 // groups of Go ranks say theirs by WithSilence
	j := &job{place: pl, settings: s, admitted: s.Admitted, making: make(chan struct{}, 1)}
	if s.PyTorch != "" {
		if j.said, err = ParseRelease(s.PyTorch); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// Place implements [backend.Job].
func (j *job) Place() (rank, worldSize int) { return j.rank, j.worldSize }

// Meet implements [backend.Job].
func (j *job) Meet(ctx context.Context, end context.CancelCauseFunc, answer func(e agentpipe.Event)) (*backend.Roster, backend.Forming, error) {
	if level, _ := envvar.PyTorchDebug.Lookup(); strings.EqualFold(level, "DETAIL") {
		return nil, nil, fmt.Errorf("dist: init rank %d of %d with PyTorch: %w", j.rank, j.worldSize, &envvar.Error{Var: envvar.PyTorchDebug, Value: level,
			Want: "OFF or INFO on all ranks, for with DETAIL those of PyTorch wait for this one in groups that it has not"})
	}
	nodes, err := admittedNodes(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("dist: init: %w", err)
	}
	j.admitted = append(slices.Clone(j.admitted), nodes...)
	if j.agent, err = liveness.New(true); err != nil {
		return nil, nil, fmt.Errorf("dist: init: %w", err)
	}
	j.agent.SetDump(answer)
	j.unwatch = j.agent.WatchAll(func(rank int, d liveness.Loss) {
		end(d.RankError(backend.World, d.Who, func() native.ProcessEnd { return d.ProcessEnd }))
	})
	r, err := j.meet(ctx)
	if err != nil {
		return nil, nil, j.formed(ctx, err)
	}
	return r, &forming{j: j, plan: backend.Plan{Job: j}, name: worldGroup, end: end, keys: j.keys, numRanks: j.worldSize, isZero: j.rank == 0}, nil
}

// formed ends the forming of the group of all ranks and returns the error to report.
func (j *job) formed(ctx context.Context, err error) error {
	j.unwatch()
	if err == nil {
		return nil
	}
	var died *fault.RankError
	if cause := context.Cause(ctx); errors.As(cause, &died) || errors.Is(cause, errTwin) {
		err = cause
	}
	return backend.Within(fmt.Sprintf("dist: init rank %d of %d with PyTorch: ", j.rank, j.worldSize), backend.World, err)
}

// meet reaches the store in which the ranks meet, and finds out which PyTorch they run.
func (j *job) meet(ctx context.Context) (*backend.Roster, error) {
	j.hostname, _ = os.Hostname()
	var base store.Store
	err := j.waits(ctx, j.notServed, func() (err error) {
		base, err = j.openStore(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := j.waits(ctx, j.notJoined(base), func() error { return j.findPyTorch(ctx, base) }); err != nil {
		return nil, err
	}
	j.keys = j.prefixed(base)
	if err := j.sayGo(ctx); err != nil {
		return nil, err
	}
	j.names.count(false) // the group of all ranks
	where := make([]backend.Where, j.worldSize)
	where[j.rank] = backend.Where{Host: j.hostname, PID: os.Getpid()}
	return &backend.Roster{Where: where, Keys: j.keys, Store: j.worldStore()}, nil
}

// config is what a group's backend needs to know, but for what only the system can say.
func (j *job) config(s *backend.Spec, keys store.Store) gloo.Config {
	cfg := gloo.Config{Group: s.Name, Rank: s.Rank, Members: s.Members, Store: keys, Generation: gloo.PerDevice,
		Hostname: j.hostname, Timeout: s.Timeout, Lazy: envvar.GlooLazy.Text() == "1", Admit: j.admitsFrom,
		Refused: func(from netip.AddrPort, rank int, err error) {
			if err == nil {
				err = errors.New("that rank is elsewhere: Gloo's protocol has no authentication; dist.WithAdmitted lets more addresses in")
			}
			fmt.Fprintf(os.Stderr, "cohort: rank %d: refused a connection from %v as that of rank %d of group %q: %v\n", j.rank, from, rank, s.Name, err)
		}}
	if j.release == Release1_13 {
		cfg.Generation, cfg.Lazy = gloo.PerPair, false
	}
	return cfg
}

// open opens a group's communicator, whose ranks meet in a part of the store; end ends what is
// left of the group's forming.
func (j *job) open(ctx context.Context, end context.CancelCauseFunc, r *rules, m *backend.Membership, name string, keys store.Store) error {
	cfg := j.config(r.spec, keys)
	var err error
	if j.addrs == nil { // groups are made one after the other
		if j.addrs, err = j.addresses(ctx); err != nil {
			return err
		}
	}
	cfg.Addrs = j.addrs
	if cfg.TLS, err = glooTLS(); err != nil {
		return err
	}
	b, err := gloo.Open(ctx, cfg)
	if err != nil {
		return err
	}
	for _, at := range b.Members() {
		m.Where = append(m.Where, backend.Where{Host: at.Host, Node: at.Host}) // as PyTorch has it
	}
	mourned := j.agent.WatchMembers(r.spec.World, func(rank int, _ liveness.Loss) { b.Died(rank) })
	compared := j.watchWrapper(r, b, name, cfg, end)
	m.Unwatch = func() {
		mourned()
		compared()
	}
	r.comm, m.Comm, m.Transport = b, b, "gloo"
	return nil
}

// Close implements [backend.Job]. The store is served for a moment longer if others still
// use it, unless this rank's operations have failed.
func (j *job) Close(pending bool) error {
	patience := meeting.StorePatience
	if pending {
		patience = 0
	}
	var errs []error
	if j.agent != nil {
		j.agent.Close()
	}
	errs = append(errs, j.goes.Close())
	if j.client != nil {
		errs = append(errs, j.client.Close())
	}
	if j.shared != nil {
		errs = append(errs, j.shared.Close())
	}
	if j.server != nil {
		j.server.Linger(patience)
		errs = append(errs, j.server.Close())
	}
	return errors.Join(errs...)
}
