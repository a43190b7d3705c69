// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Init forms the group of all ranks of a job, each of which calls it once, and
// returns when all have come. By default the place of this process comes from
// the environment, as `cohort run` and torchrun set it; with none of its
// variables set, or a world size of 1, the group is this process alone and
// needs no network. Several ranks must share a job token (COHORT_TOKEN),
// which the launcher makes.
//
// Rank 0 listens on MASTER_ADDR:MASTER_PORT for the store through which the
// ranks find each other. Ranks of one node then talk through shared memory
// (COHORT_TRANSPORT=tcp keeps them from it); ranks of several nodes over TCP.
// ctx bounds the forming of the group only.
func Init(ctx context.Context, opts ...Option) (*Group, error) {
	o := options{timeout: DefaultTimeout}
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, fmt.Errorf("dist: init: %w", err)
		}
	}
	pl, err := placeFromURL(o.url)
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if pl.worldSize == 1 {
		return aloneGroup(o), nil
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultInitTimeout,
			fmt.Errorf("not all ranks came within %v: %w", DefaultInitTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch, err := watchAgent(func(e *RankError) { cancel(e) })
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	m := &meeting{options: o, place: pl, agent: watch}
	g, err := m.form(ctx)
	if err != nil {
		m.giveUp()
		var died *RankError
		if errors.As(context.Cause(ctx), &died) {
			return nil, died
		}
		return nil, fmt.Errorf("dist: init rank %d of %d: %w", pl.rank, pl.worldSize, err)
	}
	return g, nil
}

func aloneGroup(o options) *Group {
	host, _ := os.Hostname() // for messages only
	g := &Group{name: worldName, size: 1, localSize: 1, node: nodeID(o.node), transport: "none",
		members: []Member{{Host: host, PID: os.Getpid()}}, store: store.NewMemory()}
	g.init()
	return g
}

// meeting is the forming of a group: what a rank has opened so far.
type meeting struct {
	options
	place
	agent  *agentWatch
	token  transport.Token
	port   *transport.Port // rank 0: at MASTER_PORT
	server *store.Server
	client *store.Client
	store  store.Store
	unix   *native.Endpoint // until a backend owns it
	tcp    *native.Endpoint // likewise
}

// introduction is what a rank tells the others about itself.
type introduction struct {
	Host      string `json:"host"`
	PID       int    `json:"pid"`
	Node      string `json:"node"`
	Transport string `json:"transport"`
	Unix      string `json:"unix,omitempty"`
}

func (m *meeting) form(ctx context.Context) (*Group, error) {
	kind, err := envvar.Transport.OneOf("auto", "shm", "tcp")
	if err != nil {
		return nil, err
	}
	if m.token, err = transport.TokenFromEnv(); err != nil {
		return nil, err
	}
	if err := m.openStore(ctx); err != nil {
		return nil, err
	}
	me := introduction{PID: os.Getpid(), Node: nodeID(m.node), Transport: kind}
	me.Host, _ = os.Hostname() // for messages only
	if native.SharedMemory && kind != "tcp" {
		port, err := transport.Listen("unix:", m.token)
		if err != nil {
			return nil, err
		}
		m.unix, me.Unix = native.NewEndpoint(port, true), port.Addr()
	}
	all, err := exchange(ctx, m, "introduction", me)
	if err != nil {
		return nil, err
	}
	g := &Group{name: worldName, rank: m.rank, size: m.worldSize, node: me.Node, store: store.Prefix(m.store, "user/")}
	g.init()
	for r, in := range all {
		g.members = append(g.members, Member{Rank: r, Host: in.Host, PID: in.PID})
		if r == m.rank || in.Node != "" && in.Node == me.Node {
			g.localSize++
			if r < m.rank {
				g.localRank++
			}
		}
	}
	cfg := native.Config{Group: worldName, Rank: m.rank, Members: g.members, Timeout: m.timeout, Options: m.algorithms, Obituary: m.agent.obituary}
	if g.transport, err = chooseTransport(all); err != nil {
		return nil, err
	}
	if g.transport == "shm" {
		cfg.Topology = collective.OneNode(m.worldSize)
		err = m.joinShm(ctx, g, cfg, all)
	} else {
		cfg.Topology = collective.Apart(m.worldSize)
		err = m.joinRing(ctx, g, cfg)
	}
	if err != nil {
		return nil, err
	}
	g.onClose = m.close
	m.agent.forward(g.backend.(interface{ Died(rank int) }).Died)
	// All have come when all have passed this.
	if err := g.Barrier(ctx); err != nil {
		_ = g.backend.Close()
		return nil, err
	}
	return g, nil
}

// chooseTransport decides from what all ranks said, so that all decide alike.
func chooseTransport(all []introduction) (string, error) {
	kind := "shm"
	for r, in := range all {
		if in.Transport == "tcp" || in.Node == "" || in.Node != all[0].Node || in.Unix == "" {
			kind = "tcp"
		}
		if in.Transport != all[0].Transport {
			return "", fmt.Errorf("%s is %q on rank 0 and %q on rank %d: set it to the same on all", envvar.Transport, all[0].Transport, in.Transport, r)
		}
	}
	if kind != "shm" && all[0].Transport == "shm" {
		return "", fmt.Errorf("%s=shm: the ranks are on several nodes, or this system has no shared memory between processes", envvar.Transport)
	}
	return kind, nil
}

func (m *meeting) joinShm(ctx context.Context, g *Group, cfg native.Config, all []introduction) error {
	addrs := make([]string, len(all))
	for r, in := range all {
		addrs[r] = in.Unix
	}
	end := m.unix
	m.unix = nil
	b, err := native.OpenShm(ctx, cfg, end, addrs, m.token)
	if err != nil {
		return err
	}
	g.backend = b
	return nil
}

func (m *meeting) joinRing(ctx context.Context, g *Group, cfg native.Config) error {
	if m.unix != nil {
		_ = m.unix.Close()
		m.unix = nil
	}
	addr := m.master
	if m.rank == 0 {
		m.tcp = native.NewEndpoint(m.port, false)
	} else {
		host, err := transport.ReachableHost(ctx, m.master)
		if err != nil {
			return err
		}
		port, err := transport.Listen(net.JoinHostPort(host, "0"), m.token)
		if err != nil {
			return err
		}
		m.tcp, addr = native.NewEndpoint(port, true), port.Addr()
	}
	addrs, err := exchange(ctx, m, "address", addr)
	if err != nil {
		return err
	}
	end := m.tcp
	m.tcp = nil
	b, err := native.OpenRing(ctx, cfg, end, addrs, m.token)
	if err != nil {
		return err
	}
	g.backend = b
	return nil
}

// openStore serves the store on rank 0 and connects to it elsewhere.
func (m *meeting) openStore(ctx context.Context) error {
	if m.rank != 0 {
		var err error
		if m.client, err = store.Connect(ctx, m.master, m.token); err != nil {
			return fmt.Errorf("connect to rank 0, which listens at %s: %w", m.master, err)
		}
		m.store = m.client
		return nil
	}
	addr := m.master
	if host, port, err := net.SplitHostPort(addr); err == nil && host != "localhost" {
		// The address by which others know this host may not be one that it
		// has itself, so all are listened on, unless the job is local.
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			addr = net.JoinHostPort("", port)
		}
	}
	var err error
	if m.port, err = transport.Listen(addr, m.token); err != nil {
		return err
	}
	mem := store.NewMemory()
	m.server, m.store = store.Serve(m.port, mem), mem
	return nil
}

// exchange gives every rank what each rank has to say, by rank. Rank 0 waits
// for all and publishes the whole, so that n ranks make some 2n requests.
func exchange[T any](ctx context.Context, m *meeting, what string, mine T) ([]T, error) {
	key := func(rank int) string { return "dist/" + worldName + "/" + what + "/" + strconv.Itoa(rank) }
	whole := "dist/" + worldName + "/" + what
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	if current, ok, err := m.store.CompareAndSet(ctx, key(m.rank), nil, value); err != nil {
		return nil, err
	} else if !ok {
		return nil, fmt.Errorf("a process has joined as rank %d before: %s", m.rank, current)
	}
	if m.rank == 0 {
		keys := make([]string, m.worldSize)
		for r := range keys {
			keys[r] = key(r)
		}
		if err := m.store.Wait(ctx, keys...); err != nil {
			return nil, missingRanks(ctx, err)
		}
		values := make([]json.RawMessage, m.worldSize)
		for r := range values {
			if values[r], err = m.store.Get(ctx, keys[r]); err != nil {
				return nil, err
			}
		}
		list, err := json.Marshal(values)
		if err != nil {
			return nil, err
		}
		if err := m.store.Set(ctx, whole, list); err != nil {
			return nil, err
		}
	}
	list, err := m.store.Get(ctx, whole)
	if err != nil {
		return nil, err
	}
	var all []T
	if err := json.Unmarshal(list, &all); err != nil || len(all) != m.worldSize {
		return nil, fmt.Errorf("the list of %ss from rank 0 has %d entries, want %d: %w", what, len(all), m.worldSize, err)
	}
	return all, nil
}

// missingRanks makes a time-out that names ranks of one that names keys.
func missingRanks(ctx context.Context, err error) error {
	var se *store.Error
	if !errors.As(err, &se) || ctx.Err() == nil {
		return err
	}
	late := &TimeoutError{Group: worldName, Op: "init", Cause: se.Err}
	for _, k := range se.Keys {
		if r, err := strconv.Atoi(k[strings.LastIndexByte(k, '/')+1:]); err == nil {
			late.Missing = append(late.Missing, Member{Rank: r})
		}
	}
	if len(late.Missing) == 0 {
		return err
	}
	return late
}

// close gives back what the meeting still holds when the group is closed.
func (m *meeting) close() error {
	var errs []error
	m.agent.close()
	if m.client != nil {
		errs = append(errs, m.client.Close())
	}
	if m.server != nil {
		errs = append(errs, m.server.Close())
	}
	for _, e := range []*native.Endpoint{m.unix, m.tcp} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if m.port != nil {
		errs = append(errs, m.port.Close())
	}
	return errors.Join(errs...)
}

// giveUp closes everything after a failure.
func (m *meeting) giveUp() { _ = m.close() }
