// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/liveness"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// meeting is the [backend.Job] of a rank that is a process: what it has opened so far, and
// then what its groups have in common.
type meeting struct {
	place
	settings *backend.Settings
	carried  *Carried     // nil where native's links move the data
	host     *native.Host // nil but in a network inside the process
	agent    *liveness.Watch
	token    transport.Token
	port     *transport.Port // rank 0: at MASTER_PORT
	server   *store.Server
	client   *store.Client
	lent     *store.PyTorchClient // in place of both, of the launcher's store
	store    store.Store
	fabric   *native.Fabric
	me       introduction
	all      []introduction // by rank
	encrypt  transport.Encrypt
	// choice is how others reach this process; empty if it has no TCP port.
	choice transport.Choice
	failed atomic.Pointer[error] // of the last try to reach rank 0
	// joined is called on rank 0 when all have joined: from then on one may leave.
	joined func()
	// unwatch ends what watches the forming of the group of all ranks.
	unwatch []func()
}

// Start is the [backend.Start] of jobs whose ranks are Cohort's.
func Start(ctx context.Context, s *backend.Settings) (backend.Job, error) {
	if s.PyTorch != "" {
		return nil, errors.New(`WithPyTorch is about jobs with PyTorch ranks, which WithBackend("gloo") makes`)
	}
	pl, err := findPlace(s)
	if err != nil {
		return nil, err
	}
	m := &meeting{place: pl, settings: s, host: native.HostFrom(ctx)}
	if pl.worldSize == 1 {
		if err := m.readEnvironment(); err != nil {
			return nil, err
		}
		return Alone(s), nil
	}
	return m, nil
}

// Place implements [backend.Job].
func (m *meeting) Place() (rank, worldSize int) { return m.rank, m.worldSize }

// Meet implements [backend.Job].
func (m *meeting) Meet(ctx context.Context, end context.CancelCauseFunc, answer func(e agentpipe.Event)) (*backend.Roster, backend.Forming, error) {
	var err error
	if m.agent, err = liveness.New(m.host == nil); err != nil {
		return nil, nil, fmt.Errorf("dist: init: %w", err)
	}
	m.agent.SetDump(answer)
	m.unwatch = append(m.unwatch, m.agent.WatchAll(func(rank int, d liveness.Loss) {
		end(d.RankError(backend.World, d.Who, func() native.ProcessEnd { return d.ProcessEnd }))
	}))
	r, err := m.meet(ctx, end)
	if err != nil {
		return nil, nil, m.formed(ctx, err)
	}
	return r, &world{m}, nil
}

// formed ends the forming of the group of all ranks and returns the error to report.
func (m *meeting) formed(ctx context.Context, err error) error {
	for _, stop := range slices.Backward(m.unwatch) {
		stop()
	}
	m.unwatch = nil
	if err == nil {
		return nil
	}
	var other *fault.RankError
	var late *fault.TimeoutError
	if cause := context.Cause(ctx); (errors.As(cause, &other) || errors.As(cause, &late)) && (errors.Is(err, cause) || isLoss(err)) {
		err = cause // of another rank, or from one
	}
	return backend.Within(fmt.Sprintf("dist: init rank %d of %d: ", m.rank, m.worldSize), backend.World, m.settle(err))
}

// meet brings all ranks together: all know all others, and how they are reached.
func (m *meeting) meet(ctx context.Context, end context.CancelCauseFunc) (*backend.Roster, error) {
	wrong, err := m.introduce()
	if err != nil {
		return nil, err
	}
	if err := m.reachStore(ctx, wrong); err != nil {
		return nil, err
	}
	if m.rank == 0 {
		m.unwatch = append(m.unwatch, m.watchForming(ctx, end))
	} else if m.client != nil {
		m.me.Client = m.client.LocalAddr()
	}
	if err := m.listenUnix(); err != nil {
		return nil, err
	}
	if err := m.agree(ctx); err != nil {
		return nil, err
	}
	heard := m.reportWaiting(ctx, m.notJoined)
	m.all, err = exchange(ctx, m, "introduction", m.me)
	heard()
	if err != nil {
		return nil, err
	}
	for r := range m.all {
		if err := goTogether(0, &m.all[0], r, &m.all[r]); err != nil {
			return nil, err
		}
	}
	if m.rank == 0 && m.dataIsOpen() {
		fmt.Fprintf(os.Stderr, "cohort: rank 0: what collectives exchange between the hosts is not encrypted: %s=all for all ranks encrypts it, %[1]s=control leaves it so without this line\n", envvar.Encrypt)
	}
	if err := m.publish(ctx, m.ranks()); err != nil {
		return nil, err
	}
	r := &backend.Roster{Keys: m.store, Store: store.Prefix(m.store, "user/"), Where: m.where(m.ranks())}
	if m.choice != (transport.Choice{}) {
		r.Interface = m.choice.String()
	}
	return r, nil
}

// introduce makes what this rank tells the others of itself. wrong is what is wrong with
// its environment, which the others are to know.
func (m *meeting) introduce() (wrong, err error) {
	switch {
	case m.host != nil:
		m.token = m.host.Token
	case m.carried != nil:
		m.token = m.carried.Token
	default:
		if m.token, err = transport.TokenFromEnv(); err != nil {
			return nil, err
		}
	}
	m.me = introduction{PID: os.Getpid(), WorldSize: m.worldSize, Node: NodeID(m.settings.Node), Agreed: agreed(m.settings.Algorithms, m.settings.Silence)}
	m.me.Host, _ = os.Hostname() // for messages only
	wrong = m.readEnvironment()
	m.fabric = native.NewFabric(m.token, m.encrypt)
	if h := m.host; h != nil {
		m.me.Host, m.me.PID = h.Name, h.PID
		m.fabric.Over(h)
	}
	return wrong, nil
}

// reachStore opens the store in which the ranks meet. wrong is an error to report in any
// case.
func (m *meeting) reachStore(ctx context.Context, wrong error) error {
	if wrong != nil { // the others are to know, if they can be told soon
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, StorePatience)
		defer cancel()
	}
	heard := m.reportWaiting(ctx, rankZero)
	err := m.openStore(ctx)
	heard()
	return cmp.Or(wrong, err)
}

// where says where ranks of the job run.
func (m *meeting) where(world []int) []backend.Where {
	at := make([]backend.Where, len(world))
	for i, r := range world {
		at[i] = backend.Where{Host: m.all[r].Host, PID: m.all[r].PID, Node: m.all[r].Node}
	}
	return at
}

// open opens a communicator for a group of the job's ranks.
func (m *meeting) open(ctx context.Context, s *backend.Spec) (*backend.Membership, error) {
	cfg := config(s)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cfg.ProcessEnd = func(rank int) native.ProcessEnd { return m.agent.ProcessEnd(cfg.World[rank]) }
	cfg.Survivors = m.agent.HasLost()
	for _, in := range m.all {
		if in.Node == m.me.Node {
			cfg.NumLocal++
		}
	}
	who := func(rank int) fault.Member {
		of := s.Members[rank]
		of.Rank = cfg.World[rank]
		return of
	}
	cfg.Deaths = func(rank int) { m.agent.Died(who(rank)) }
	cfg.Silences = func(rank int, text string) { m.agent.FellSilent(who(rank), text) }
	// Until there is a backend that can be told, a death ends the forming.
	leave := m.agent.WatchMembers(cfg.World, func(rank int, d liveness.Loss) {
		cancel(d.RankError(s.Name, s.Members[rank], func() native.ProcessEnd { return cfg.ProcessEnd(rank) }))
	})
	defer leave()
	var comm interface {
		backend.Communicator
		Died(rank int)
		Silent(rank int, text string)
	}
	var kind string
	var err error
	if m.carried == nil && m.shares(cfg.World) {
		cfg.Topology, kind = collective.OneNode(len(s.World)), "shm"
		comm, err = native.OpenShm(ctx, cfg, m.fabric)
	} else {
		var links native.MeshOptions
		cfg.Topology, links, kind = m.links(cfg.World)
		if by := m.carried; by != nil {
			kind = by.Backend
			links.Carrier = func(ctx context.Context) (native.Carrier, error) { return by.Open(ctx, s) }
		}
		comm, err = native.OpenMesh(ctx, cfg, m.fabric, links)
	}
	if err != nil {
		return nil, err
	}
	if s.Parent == nil && m.joined != nil {
		m.joined()
	}
	unwatch := m.agent.WatchMembers(cfg.World, func(rank int, d liveness.Loss) {
		switch {
		case d.Silent != "":
			comm.Silent(rank, d.Silent)
		case d.Signal != "":
			comm.Died(rank)
		default:
			time.AfterFunc(liveness.LastWords, func() { comm.Died(rank) })
		}
	})
	return &backend.Membership{Comm: comm, Transport: kind, Unwatch: unwatch}, nil
}

// Close implements [backend.Job]. The store is served for a moment longer if others still
// use it, unless this rank's operations have failed.
func (m *meeting) Close(pending bool) error {
	patience := StorePatience
	if pending {
		patience = 0
	}
	var errs []error
	if m.agent != nil {
		m.agent.Close()
	}
	if m.client != nil {
		errs = append(errs, m.client.Close())
	}
	if m.lent != nil {
		errs = append(errs, m.lent.Close())
	}
	if m.server != nil {
		m.server.Linger(patience)
		errs = append(errs, m.server.Close())
	}
	if m.fabric != nil {
		errs = append(errs, m.fabric.Close())
	}
	if m.port != nil {
		errs = append(errs, m.port.Close())
	}
	if m.carried != nil {
		errs = append(errs, m.carried.Close(pending))
	}
	return errors.Join(errs...)
}
