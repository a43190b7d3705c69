// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
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
// With [WithBackend]("gloo") the job is one of PyTorch's, which needs no token; see the
// package's section on PyTorch. What follows is about Cohort's own.
//
// Rank 0 listens on MASTER_ADDR:MASTER_PORT for the store through which the
// ranks find each other, unless [WithStore] gives one, or torchrun serves its own there
// (TORCHELASTIC_USE_AGENT_STORE=True), in which they meet then. torchrun makes no token:
// give it one in COHORT_TOKEN (`cohort token` prints one). Ranks of one node then
// talk through shared memory (COHORT_TRANSPORT=unix, tcp or tls keeps them from it),
// ranks of several nodes over TCP, at the address of the interface that
// [Group.Interface] names. Connections that do not prove the token are closed
// without an answer, and a line on standard error says so; another one says for whom
// a rank waits, after five seconds and then once a minute. ctx bounds the forming
// of the group only.
func Init(ctx context.Context, opts ...Option) (*Group, error) {
	o := options{timeout: DefaultTimeout, silence: DefaultSilence, host: native.HostFrom(ctx)}
	if err := o.silenceFromEnv(); err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if err := o.apply(opts); err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if o.backend == glooBackend {
		return initGloo(ctx, o)
	} else if o.pytorch != pytorchAny {
		return nil, fmt.Errorf("dist: init: WithPyTorch is about jobs with PyTorch ranks, which WithBackend(%q) makes", glooBackend)
	}
	pl, err := o.findPlace()
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if pl.worldSize == 1 {
		if err := new(meeting).readEnvironment(); err != nil {
			return nil, fmt.Errorf("dist: init: %w", err)
		}
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
	watch, err := watchAgent(o.host == nil)
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	m := &meeting{options: o, place: pl, agent: watch}
	stop := watch.watchAll(func(rank int, d death) {
		cancel(d.error(worldName, d.who, func() native.Obituary { return d.Obituary }))
	})
	g, err := m.form(ctx, cancel)
	stop()
	if err != nil {
		var other *RankError
		var late *TimeoutError
		if cause := context.Cause(ctx); (errors.As(cause, &other) || errors.As(cause, &late)) && (errors.Is(err, cause) || isLoss(err)) {
			err = cause // of another rank, or from one
		}
		err = m.settle(err)
		m.giveUp()
		return nil, within(fmt.Sprintf("dist: init rank %d of %d: ", pl.rank, pl.worldSize), worldName, err)
	}
	return g, nil
}

func aloneGroup(o options) *Group {
	host, _ := os.Hostname() // for messages only
	node, mem := nodeID(o.node), store.NewMemory()
	g := &Group{name: worldName, key: worldName, size: 1, localSize: 1, node: node, nodes: []string{node}, world: []int{0}, transport: "none",
		members: []Member{{Host: host, PID: os.Getpid()}}, base: mem, store: store.Prefix(mem, "user/"), timeout: o.timeout, silence: o.silence, algorithms: o.algorithms, host: o.host}
	g.init()
	g.openLog()
	if stop := g.box.dumpOn(o.dumpSignal); stop != nil {
		g.onClose = func(bool) error { stop(); return nil }
	}
	return g
}

// meeting is what a rank that is a process has opened so far, and then what
// its groups have in common.
type meeting struct {
	options
	place
	agent   *agentWatch
	token   transport.Token
	port    *transport.Port // rank 0: at MASTER_PORT
	server  *store.Server
	client  *store.Client
	lent    *store.PyTorchClient // in place of both, of the launcher's store
	store   store.Store
	fabric  *native.Fabric
	me      introduction
	all     []introduction // by rank
	encrypt transport.Encrypt
	// box is there from the start, to say that this rank waits here; stopDumps
	// ends what WithDumpSignal began, nil if that was nothing.
	box       *blackBox
	stopDumps func()
	// choice is how others reach this process; empty if it has no TCP port.
	choice transport.Choice
	failed atomic.Pointer[error] // of the last try to reach rank 0
	// joined is called on rank 0 when all have joined: from then on one may leave.
	joined func()
}

// introduction is what a rank tells the others about itself.
type introduction struct {
	Host      string `json:"host"`
	PID       int    `json:"pid"`
	WorldSize int    `json:"world_size"`
	Client    string `json:"client,omitempty"` // its connection to the store, as rank 0 sees it
	Node      string `json:"node"`
	Transport string `json:"transport"`
	Encrypt   string `json:"encrypt"`
	Agreed    uint64 `json:"agreed"`
	Unix      string `json:"unix,omitempty"`
}

func (m *meeting) form(ctx context.Context, end context.CancelCauseFunc) (*Group, error) {
	var err error
	if m.host != nil {
		m.token = m.host.Token
	} else if m.token, err = transport.TokenFromEnv(); err != nil {
		return nil, err
	}
	m.me = introduction{PID: os.Getpid(), WorldSize: m.worldSize, Node: nodeID(m.node), Agreed: agreed(m.algorithms, m.silence)}
	m.me.Host, _ = os.Hostname() // for messages only
	wrong := m.readEnvironment()
	m.fabric = native.NewFabric(m.token, m.encrypt)
	if h := m.host; h != nil {
		m.me.Host, m.me.PID = h.Name, h.PID
		m.fabric.Over(h)
	}
	m.box = newBlackBox(m.rank, m.worldSize, m.me.Host, m.me.PID)
	m.agent.setDump(m.box.answer)
	m.stopDumps = m.box.dumpOn(m.dumpSignal)
	reach := ctx
	if wrong != nil { // the others are to know, if they can be told soon
		var cancel context.CancelFunc
		reach, cancel = context.WithTimeout(ctx, storePatience)
		defer cancel()
	}
	heard := m.reportWaiting(reach, rankZero)
	err = m.openStore(reach)
	heard()
	if err != nil || wrong != nil {
		return nil, cmp.Or(wrong, err)
	}
	if m.rank == 0 {
		defer m.watchForming(ctx, end)()
	} else if m.client != nil {
		m.me.Client = m.client.LocalAddr()
	}
	if kind := m.me.Transport; native.SharedMemory && (kind == "auto" || kind == "shm") || kind == "unix" {
		port, err := transport.Listen("unix:", m.token)
		if err != nil {
			return nil, err
		}
		m.guard(port)
		m.fabric.Listen(port, true)
		m.me.Unix = port.Addr()
	}
	if err := m.agree(ctx); err != nil {
		return nil, err
	}
	heard = m.reportWaiting(ctx, m.notJoined)
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
	g := &Group{name: worldName, key: worldName, rank: m.rank, size: m.worldSize, node: m.me.Node, home: m, host: m.host,
		base: m.store, store: store.Prefix(m.store, "user/"), timeout: m.timeout, silence: m.silence, algorithms: m.algorithms}
	g.init()
	g.world = m.ranks()
	for r, in := range m.all {
		g.members = append(g.members, Member{Rank: r, Host: in.Host, PID: in.PID})
		g.nodes = append(g.nodes, in.Node)
	}
	g.setLocal()
	g.box = m.box
	g.openLog()
	if err := m.publish(ctx, g.world); err != nil {
		return nil, err
	}
	if m.choice != (transport.Choice{}) {
		g.reached = m.choice.String()
	}
	if err := g.meet(ctx, worldName); err != nil {
		return nil, err
	}
	g.onClose = func(pending bool) error {
		if pending {
			return m.close(0) // the job has failed, or is being stopped
		}
		return m.close(storePatience)
	}
	g.watchCalls()
	return g, nil
}

// readEnvironment reads the variables that are about this rank's connections,
// needed or not: one that is wrong is to be told before it matters. A host of a
// network inside the process has none of that.
func (m *meeting) readEnvironment() (err error) {
	if m.host != nil {
		m.me.Transport, m.encrypt = "tcp", transport.EncryptNone
		m.me.Encrypt = m.encrypt.String()
		return nil
	}
	if m.me.Transport, err = envvar.Transport.OneOf(envvar.Transports()...); err != nil {
		return err
	}
	if m.encrypt, err = transport.EncryptFromEnv(); err != nil {
		return err
	}
	m.me.Encrypt = m.encrypt.String()
	return transport.CheckInterface()
}

// dataIsOpen reports whether data of collectives leaves a host in the clear, and nobody
// has said that it may. Encryption takes half of the bandwidth where processors are the limit, so it is
// not the default.
func (m *meeting) dataIsOpen() bool {
	if m.host != nil || m.encrypt != transport.EncryptControl || m.me.Transport == "tls" || envvar.Encrypt.IsSet() {
		return false
	}
	return slices.ContainsFunc(m.all, func(in introduction) bool { return in.Node != m.me.Node && in.Host != m.me.Host })
}

// shares reports whether ranks of the job, given by their numbers in it, can
// all share memory. Every rank decides alike, from what all have said.
func (m *meeting) shares(world []int) bool {
	for _, r := range world {
		if in := &m.all[r]; in.Transport != "auto" && in.Transport != "shm" || in.Node == "" || in.Node != m.all[world[0]].Node || in.Unix == "" {
			return false
		}
	}
	return true
}

// numberNodes returns the number of each rank's node among those of ranks of the
// job, as [collective.Topology] wants it.
func (m *meeting) numberNodes(world []int) []int {
	numbers, node := map[string]int{}, make([]int, len(world))
	next := 0
	for i, r := range world {
		id := m.all[r].Node
		number, ok := numbers[id]
		if !ok || id == "" {
			number, next = next, next+1
			numbers[id] = number
		}
		node[i] = number
	}
	return node
}

// links decides how ranks of the job that do not all share memory talk: the
// topology by which plans are chosen, the links, and the name of it all.
func (m *meeting) links(world []int) (collective.Topology, native.MeshOptions, string) {
	node := m.numberNodes(world)
	numNodes := slices.Max(node) + 1
	links := native.MeshOptions{Node: node, TLS: m.encrypt}
	local, remote := "shm", "tcp"
	if m.encrypt == transport.EncryptAll {
		remote = "tls"
	}
	switch m.me.Transport { // as on all ranks
	case "unix":
		links.Local, local = native.LocalUnix, "unix"
	case "tcp":
		links.Local = native.LocalTCP
	case "tls":
		links.Local, links.LocalTLS, remote = native.LocalTCP, true, "tls"
		links.TLS = transport.EncryptAll
	}
	for _, r := range world {
		if m.all[r].Unix == "" {
			links.Local = native.LocalTCP
		}
	}
	if links.Local == native.LocalTCP {
		if local = "tcp"; links.LocalTLS {
			local = "tls"
		}
	}
	switch {
	case numNodes == 1: // ranks that talk over sockets all the same
		return collective.Apart(len(world)), links, local
	case numNodes == len(world) || local == remote:
		return collective.Topology{Node: node}, links, remote
	}
	return collective.Topology{Node: node}, links, local + "+" + remote
}

// publish gives everybody everybody's addresses. Where all ranks share memory
// nobody listens on a TCP port beside the store's.
func (m *meeting) publish(ctx context.Context, world []int) error {
	book := make([]native.Address, m.worldSize)
	for r, in := range m.all {
		book[r].Unix = in.Unix
	}
	defer func() { m.fabric.SetBook(book) }()
	if _, _, kind := m.links(world); m.shares(world) || kind == "unix" {
		return nil
	}
	if m.me.Transport == "shm" {
		return fmt.Errorf("%s=shm: the ranks are on several nodes, or this system has no shared memory between processes", envvar.Transport)
	}
	addr, err := m.listen(ctx)
	if err != nil {
		return err
	}
	addrs, err := exchange(ctx, m, "address", addr)
	if err != nil {
		return err
	}
	for r := range book {
		book[r].TCP = addrs[r]
	}
	return nil
}

// listen opens this process's TCP port, at rank 0 the one of the store.
func (m *meeting) listen(ctx context.Context) (addr string, err error) {
	if m.host != nil {
		return m.listenOn(m.host)
	}
	if m.choice, err = m.chooseInterface(ctx); err != nil {
		return "", err
	}
	if m.port != nil {
		m.fabric.Listen(m.port, false)
		return m.master, nil
	}
	port, err := transport.Listen(net.JoinHostPort(m.choice.Host, "0"), m.token)
	if err != nil {
		return "", err
	}
	m.guard(port)
	m.fabric.Listen(port, true)
	return port.Addr(), nil
}

// somewhere are addresses that nobody has (RFC 5737 and 3849): the route to
// them is the one to most of the world.
var somewhere = []string{"192.0.2.1:9", "[2001:db8::1]:9"}

// chooseInterface returns the address under which the other ranks reach this
// one. Where there is no master to ask the way to, and no way to the world
// either, ranks of one node have the loopback interface.
func (m *meeting) chooseInterface(ctx context.Context) (transport.Choice, error) {
	if m.master != "" {
		return transport.ChooseInterface(ctx, m.master)
	}
	var errs []error
	for _, to := range somewhere {
		c, err := transport.ChooseInterface(ctx, to)
		if err == nil {
			if !envvar.Interface.IsSet() {
				c.Why = "default route"
			}
			return c, nil
		}
		errs = append(errs, err)
	}
	if node := m.numberNodes(m.ranks()); slices.Max(node) == 0 && !envvar.Interface.IsSet() {
		return transport.ChooseInterface(ctx, "127.0.0.1:9")
	}
	return transport.Choice{}, errors.Join(errs...)
}

// ranks returns the numbers of all ranks of the job.
func (m *meeting) ranks() []int {
	all := make([]int, m.worldSize)
	for r := range all {
		all[r] = r
	}
	return all
}

// open implements [home].
func (m *meeting) open(ctx context.Context, g *Group, cfg native.Config) (collective.Backend, string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cfg.Obituary = func(rank int) native.Obituary { return m.agent.obituary(cfg.World[rank]) }
	cfg.Survivors = m.agent.hasLost()
	for _, in := range m.all {
		if in.Node == m.me.Node {
			cfg.NumLocal++
		}
	}
	who := func(rank int) Member {
		of := g.members[rank]
		of.Rank = cfg.World[rank]
		return of
	}
	cfg.Deaths = func(rank int) { m.agent.died(who(rank)) }
	cfg.Silences = func(rank int, text string) { m.agent.fellSilent(who(rank), text) }
	// Until there is a backend that can be told, a death ends the forming.
	leave := m.agent.watch(cfg.World, func(rank int, d death) {
		cancel(d.error(g.name, g.members[rank], func() native.Obituary { return cfg.Obituary(rank) }))
	})
	defer leave()
	var backend interface {
		collective.Backend
		Died(rank int)
		Silent(rank int, text string)
	}
	var kind string
	var err error
	if m.shares(cfg.World) {
		cfg.Topology, kind = collective.OneNode(g.size), "shm"
		backend, err = native.OpenShm(ctx, cfg, m.fabric)
	} else {
		var links native.MeshOptions
		cfg.Topology, links, kind = m.links(cfg.World)
		backend, err = native.OpenMesh(ctx, cfg, m.fabric, links)
	}
	if err != nil {
		return nil, "", err
	}
	if g.parent == nil && m.joined != nil {
		m.joined()
	}
	unwatch := m.agent.watch(cfg.World, func(rank int, d death) {
		switch {
		case d.silent != "":
			backend.Silent(rank, d.silent)
		case d.Signal != "":
			backend.Died(rank)
		default:
			time.AfterFunc(lastWords, func() { backend.Died(rank) })
		}
	})
	g.mu.Lock()
	g.unwatch = unwatch
	g.mu.Unlock()
	return backend, kind, nil
}

// openStore serves the store on rank 0 and connects to it elsewhere, unless
// one is given.
func (m *meeting) openStore(ctx context.Context) error {
	if m.options.store != nil {
		m.store = inAttempt(m.options.store)
		return nil
	}
	if m.agentServes() {
		return m.joinAgentStore(ctx)
	}
	if m.rank != 0 {
		var err error
		if m.client, err = store.Connect(ctx, m.master, m.token, m.encrypt, transport.WithFailures(func(err error) { m.failed.Store(&err) })); err != nil {
			// A newer server of PyTorch's is silent to who is not its client, an older one hangs up.
			if errors.Is(err, transport.ErrRejected) || errors.Is(err, transport.ErrNoRoom) || errors.Is(err, os.ErrDeadlineExceeded) {
				err = fmt.Errorf("%w; where PyTorch's rank 0 listens there, give dist.WithBackend(%q)", err, glooBackend)
			}
			return fmt.Errorf("connect to rank 0, which listens at %s: %w", m.master, err)
		}
		m.failed.Store(nil)
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
	m.guard(m.port)
	mem := store.NewMemory()
	m.server, m.store = store.Serve(m.port, mem), mem
	return nil
}

// storePatience is how long rank 0, when it leaves, serves the store for those
// who have not yet.
const storePatience = 500 * time.Millisecond

// exchange gives every rank what each rank has to say, by rank. Rank 0 waits
// for all and publishes the whole, so that n ranks make some 2n requests.
func exchange[T any](ctx context.Context, m *meeting, what string, mine T) ([]T, error) {
	whole := listKey(what)
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	if current, ok, err := m.store.CompareAndSet(ctx, entryKey(what, m.rank), nil, value); err != nil {
		return nil, err
	} else if !ok {
		why := ""
		if m.options.store != nil {
			why = "; a store that outlives a run wants a prefix for each"
		}
		return nil, fmt.Errorf("a process has joined as rank %d before%s: %s", m.rank, why, current)
	}
	if m.rank == 0 {
		keys := make([]string, m.worldSize)
		for r := range keys {
			keys[r] = entryKey(what, r)
		}
		values, err := m.store.MultiGet(ctx, keys...)
		if err != nil {
			return nil, missingRanks(ctx, err)
		}
		raw := make([]json.RawMessage, len(values))
		for r, v := range values {
			raw[r] = v
		}
		list, err := json.Marshal(raw)
		if err != nil {
			return nil, err
		}
		if err := m.store.Set(ctx, whole, list); err != nil {
			return nil, err
		}
	}
	list, err := m.store.Get(ctx, whole)
	if err != nil {
		return nil, m.whoIsMissing(ctx, what, err)
	}
	if bytes.HasPrefix(list, []byte("{")) {
		var no struct{ Failed json.RawMessage }
		if err := json.Unmarshal(list, &no); err != nil {
			return nil, fmt.Errorf("the list of %ss from rank 0: %w", what, err)
		}
		return nil, parseFailure(no.Failed).error()
	}
	var all []T
	if err := json.Unmarshal(list, &all); err != nil {
		return nil, fmt.Errorf("the list of %ss from rank 0: %w", what, err)
	}
	if len(all) != m.worldSize {
		return nil, fmt.Errorf("the list of %ss from rank 0 has %d entries, want %d", what, len(all), m.worldSize)
	}
	return all, nil
}

// whoIsMissing asks the store, when the wait for a list has run out of time, who
// has not come.
func (m *meeting) whoIsMissing(ctx context.Context, what string, err error) error {
	if ctx.Err() == nil {
		return err
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellPatience)
	defer cancel()
	keys := make([]string, m.worldSize)
	for r := range keys {
		keys[r] = entryKey(what, r)
	}
	if _, e := m.store.MultiGet(limit, keys...); e != nil {
		return missingRanks(ctx, e)
	}
	return &TimeoutError{Group: worldName, Op: "init", Missing: []Member{{}}, Cause: ctxerr.Of(ctx)}
}

// missingRanks makes a time-out that names ranks of one that names keys.
func missingRanks(ctx context.Context, err error) error {
	var se *store.Error
	if !errors.As(err, &se) || ctx.Err() == nil {
		return err
	}
	late := &TimeoutError{Group: worldName, Op: "init", Cause: ctxerr.Of(ctx)}
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

// close gives back what the meeting still holds. The store is served for as
// long as patience says if others still use it.
func (m *meeting) close(patience time.Duration) error {
	var errs []error
	if m.stopDumps != nil {
		m.stopDumps()
		m.stopDumps = nil
	}
	m.agent.close()
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
	return errors.Join(errs...)
}

// giveUp closes everything after a failure.
func (m *meeting) giveUp() { _ = m.close(0) }
