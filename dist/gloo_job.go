// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// glooJob is what the groups of a rank in a PyTorch job have in common.
//
// Nothing of Cohort's own goes between the ranks here, but what PyTorch's would:
// no beats, no comparison of calls, no barrier beside those that PyTorch has. What
// is only in this process, such as the flight recorder, stays.
type glooJob struct {
	options // pytorch is what was found out
	glooPlace
	guess     string // of which releases the store is, if pytorch is the earliest of them
	apart     bool   // the launcher's store has a part for each start of the ranks
	hostname  string // this machine's name
	self      []byte // what it has said of itself in the store
	before    []byte // what another process of its rank had said there, nil for nothing
	agent     *agentWatch
	box       *blackBox
	stopDumps func()
	server    *store.PyTorchServer // rank 0, if it serves the store
	client    *store.PyTorchClient // the others
	shared    *store.PyTorchFile   // all of them, where there is one
	alone     bool                 // PyTorch serves the store: ranks of another one than that cannot join
	keys      store.Store          // of the default group, before the group's name
	addrs     []netip.Addr         // where this rank listens, once it is known

	mu     sync.Mutex
	names  groupNames
	goes   *goMembers
	making chan struct{} // of one token: groups are made one after the other
}

// initGloo is [Init] with the backend "gloo".
func initGloo(ctx context.Context, o options) (*Group, error) {
	pl, err := o.findGlooPlace()
	switch {
	case err != nil:
	case o.algorithms.Deterministic:
		err = errors.New("WithDeterministic: in a PyTorch job it is Gloo that decides the order of a reduction, with the same bits on all ranks")
	case o.silenceSaid:
		err = errNoBeats
	case o.host != nil:
		err = errors.New("a network inside the process has no PyTorch ranks")
	}
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if pl.worldSize == 1 {
		return aloneGroup(o), nil
	}
	if level, _ := envvar.PyTorchDebug.Lookup(); strings.EqualFold(level, "DETAIL") {
		return nil, fmt.Errorf("dist: init rank %d of %d with PyTorch: %w", pl.rank, pl.worldSize, &envvar.Error{Var: envvar.PyTorchDebug, Value: level,
			Want: "OFF or INFO on all ranks, for with DETAIL those of PyTorch wait for this one in groups that it has not"})
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultInitTimeout,
			fmt.Errorf("not all ranks came within %v: %w", DefaultInitTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	nodes, err := admittedNodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	o.admitted = append(o.admitted, nodes...)
	watch, err := watchAgent(true)
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j := &glooJob{options: o, glooPlace: pl, agent: watch, making: make(chan struct{}, 1)}
	stop := watch.watchAll(func(rank int, d death) {
		cancel(d.error(worldName, d.who, func() native.Obituary { return d.Obituary }))
	})
	g, err := j.form(ctx, cancel)
	stop()
	if err != nil {
		var died *RankError
		if cause := context.Cause(ctx); errors.As(cause, &died) || errors.Is(cause, errTwin) {
			err = cause
		}
		_ = j.close(0)
		return nil, within(fmt.Sprintf("dist: init rank %d of %d with PyTorch: ", pl.rank, pl.worldSize), worldName, err)
	}
	return g, nil
}

func (j *glooJob) form(ctx context.Context, end context.CancelCauseFunc) (*Group, error) {
	host, _ := os.Hostname()
	j.hostname = host
	j.box = newBlackBox(j.rank, j.worldSize, host, os.Getpid())
	j.agent.setDump(j.box.answer)
	j.stopDumps = j.box.dumpOn(j.dumpSignal)
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
	g := &Group{name: worldName, key: worldName, rank: j.rank, size: j.worldSize, job: j, node: nodeID(j.node),
		base: j.keys, timeout: j.timeout, box: j.box}
	g.init()
	for r := range j.worldSize {
		g.world = append(g.world, r)
		m := Member{Rank: r}
		if r == j.rank {
			m.Host, m.PID = host, os.Getpid()
		}
		g.members, g.nodes = append(g.members, m), append(g.nodes, "")
	}
	g.setLocal()
	g.openLog()
	const name = "0" // PyTorch's of the group of all ranks
	j.names.count(false)
	j.names.enter(name)
	if g.store = j.keys; j.pytorch != pytorch1_13 {
		g.store = j.groupKeys(name)
	}
	stop := j.watchOthers(ctx, end)
	published := &ownKey{Store: j.glooKeys(name)}
	missing := func(ctx context.Context) string {
		if err := j.twin(ctx, published); err != nil {
			end(err)
			return ""
		}
		return j.notPublished(ctx)
	}
	err = j.waits(ctx, missing, func() error { return j.open(ctx, end, g, name, published) })
	stop()
	if err != nil {
		return nil, err
	}
	if err := j.met(ctx, g, name, j.keys, j.worldSize); err != nil {
		_ = g.Close()
		return nil, err
	}
	g.onClose = func(pending bool) error {
		if pending {
			return j.close(0)
		}
		return j.close(storePatience)
	}
	return g, nil
}

// openStore serves PyTorch's store or connects to it, and joins as PyTorch's
// ranks do.
func (j *glooJob) openStore(ctx context.Context) (store.Store, error) {
	switch {
	case j.options.store != nil:
		return j.options.store, nil
	case j.file != "":
		var err error
		if j.shared, err = store.OpenPyTorchFile(j.file, j.worldSize); err != nil {
			return nil, err
		}
		return j.shared, nil
	case j.rank == 0 && !j.glooPlace.agent:
		var err error
		cfg := store.PyTorchServerConfig{Refused: func(r *store.PyTorchRefusal) { fmt.Fprintf(os.Stderr, "cohort: rank 0: %v\n", r) }}
		if len(j.admitted) > 0 { // beside this host
			cfg.Admit = j.admitsFrom
		}
		j.server, err = store.ListenPyTorch(j.storeAddr(ctx), cfg)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "cohort: rank 0: %s\n", j.server.Notice())
		return j.server.Store(), nil
	}
	var err error
	if j.client, err = store.DialPyTorch(ctx, j.addr, store.PyTorchClientConfig{}); err != nil {
		return nil, fmt.Errorf("PyTorch's store at %s: %w", j.addr, err)
	}
	if _, err := j.client.Join(ctx); err != nil {
		return nil, err
	}
	return j.client, nil
}

// joinedKey is PyTorch's own count of who has joined, as it stands in a store.
const joinedKey = "\x00pytorch:init/"

// awaitJoined waits until all ranks have joined the store, and so have spoken.
func awaitJoined(ctx context.Context, base store.Store, numRanks int) error {
	return awaitCount(ctx, base, joinedKey, 0, numRanks, "joined the store")
}

// watchOthers ends the forming, on a rank 0 that serves the store, when another rank
// shows itself where ranks of another PyTorch meet: it would wait in vain, and be
// waited for. Elsewhere it is the launcher that sees it, where that serves the store.
func (j *glooJob) watchOthers(ctx context.Context, end context.CancelCauseFunc) (stop func()) {
	other := pytorch1_13
	if j.pytorch == other {
		other = pytorch2
	}
	mixed := func(r int) {
		end(fault.NewRankError(worldName, Member{Rank: r}, fmt.Errorf("it runs %v, and others run %v, which cannot be in one group", other, j.pytorch)))
	}
	if j.server == nil {
		return j.watchLauncher(ctx, func(old, young int) {
			if other == pytorch1_13 {
				mixed(old)
			} else {
				mixed(young)
			}
		})
	}
	gloo, _ := glooPrefixes(other, "0")
	there := store.Prefix(j.keys, gloo)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	for r := 1; r < j.worldSize; r++ {
		watching.Go(func() {
			if there.Wait(ctx, fmt.Sprintf("0/%d", r)) == nil {
				mixed(r)
			}
		})
	}
	return func() {
		cancel()
		watching.Wait()
	}
}

// watchLauncher looks whether the launcher says that ranks of 1.13 and of 2.x have
// come, and which is the first of each.
func (j *glooJob) watchLauncher(ctx context.Context, mixed func(old, young int)) (stop func()) {
	if j.client == nil || !j.glooPlace.agent {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		if hosted, err := isSet(ctx, j.client, store.PyTorchHosted); !hosted || err != nil {
			return
		}
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			text, err := peek(ctx, j.client, store.PyTorchMixed)
			if err != nil {
				return // the forming hears of it
			}
			var old, young int
			if n, _ := fmt.Sscan(string(text), &old, &young); n == 2 {
				mixed(old, young)
				return
			}
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// prefixed returns the part of a store that PyTorch's default group has.
func (j *glooJob) prefixed(base store.Store) store.Store {
	if j.options.store != nil {
		return base // as PyTorch's store= argument
	}
	if j.apart {
		base = store.Prefix(base, attemptKeys())
	}
	return store.Prefix(base, "default_pg")
}

// glooPrefixes returns the parts of the store that PyTorch's objects have, within that
// of the default group and given the name of a group: those of its Gloo and those
// of the group itself.
func glooPrefixes(p pytorch, name string) (gloo, group string) {
	switch {
	case p == pytorch1_13:
		return name, name
	case name == "0":
		group = "0/"
	default:
		group = "0//" + name + "/"
	}
	return group + "/cpu/", group
}

func (j *glooJob) groupKeys(name string) store.Store {
	_, group := glooPrefixes(j.pytorch, name)
	return store.Prefix(j.keys, group)
}

func (j *glooJob) glooKeys(name string) store.Store {
	gloo, _ := glooPrefixes(j.pytorch, name)
	return store.Prefix(j.keys, gloo)
}

// config is what a group's backend needs to know, but for what only the system can say.
func (j *glooJob) config(g *Group, keys store.Store) gloo.Config {
	cfg := gloo.Config{Group: g.name, Rank: g.rank, Members: g.members, Store: keys, Generation: gloo.PerDevice,
		Hostname: j.hostname, Timeout: g.timeout, Lazy: envvar.GlooLazy.Text() == "1", Admit: j.admitsFrom,
		Refused: func(from netip.AddrPort, rank int, err error) {
			if err == nil {
				err = errors.New("that rank is elsewhere: Gloo's protocol has no authentication; dist.WithAdmitted lets more addresses in")
			}
			fmt.Fprintf(os.Stderr, "cohort: rank %d: refused a connection from %v as that of rank %d of group %q: %v\n", j.rank, from, rank, g.name, err)
		}}
	if j.pytorch == pytorch1_13 {
		cfg.Generation, cfg.Lazy = gloo.PerPair, false
	}
	return cfg
}

// open opens a group's backend, whose ranks meet in a part of the store; end ends what is
// left of the group's forming.
func (j *glooJob) open(ctx context.Context, end context.CancelCauseFunc, g *Group, name string, keys store.Store) error {
	cfg := j.config(g, keys)
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
	for r, m := range b.Members() {
		g.members[r].Host = m.Host
		g.nodes[r] = m.Host // as PyTorch has it
	}
	g.node = j.hostname
	g.setLocal()
	mourned := j.agent.watch(g.world, func(rank int, d death) { b.Died(rank) })
	compared := j.watchWrapper(g, b, name, cfg, end)
	unwatch := func() {
		mourned()
		compared()
	}
	g.mu.Lock()
	g.backend, g.transport, g.unwatch = b, glooBackend, unwatch
	closed := g.closed
	g.mu.Unlock()
	if closed {
		unwatch()
		_ = b.Close()
		return ErrClosed
	}
	return nil
}

// addresses returns where this rank listens for the others: at the interfaces that
// are named, or the one that leads to where all meet, or as PyTorch does.
func (j *glooJob) addresses(ctx context.Context) ([]netip.Addr, error) {
	if names := envvar.GlooInterface.Text(); names != "" || j.addr == "" {
		return gloo.LocalAddrs(ctx, names)
	}
	a, err := wayTo(ctx, j.addr)
	if err != nil || envvar.Interface.IsSet() {
		return []netip.Addr{a}, err
	}
	// Whose name server is not there need not wait for it long: most need no answer.
	ask, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	theirs, err := gloo.LocalAddrs(ask, "")
	switch {
	case err != nil:
	case a.IsLoopback() && !theirs[0].IsLoopback() && len(j.admitted) > 0: // others do not come that way
		a = theirs[0]
	case a.Is4() != theirs[0].Is4():
		a = inFamily(ctx, j.addr, theirs[0])
	}
	return []netip.Addr{a}, nil
}

// nameTime is how long the look-up of this host's name may take.
const nameTime = 2 * time.Second

// wayTo returns this machine's address on the way to where all meet.
func wayTo(ctx context.Context, addr string) (netip.Addr, error) {
	c, err := transport.ChooseInterface(ctx, addr)
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(c.Host)
	return a.Unmap(), err
}

// inFamily returns this machine's address on a way to where all meet of the family that
// PyTorch's ranks use, whatever that is reached by: that of the address of their host's
// name. localhost is ::1 first on most systems, and the host's name of IPv4. It is theirs
// where there is no such way.
func inFamily(ctx context.Context, addr string, theirs netip.Addr) netip.Addr {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return theirs
	}
	network := "ip6"
	if theirs.Is4() {
		network = "ip4"
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
	if err != nil {
		return theirs
	}
	for _, there := range found {
		if a, err := wayTo(ctx, net.JoinHostPort(there.Unmap().String(), port)); err == nil && a.Is4() == theirs.Is4() {
			return a
		}
	}
	return theirs
}

// glooTLS returns what the environment says of encryption, nil for none.
func glooTLS() (*tls.Config, error) {
	kind, err := envvar.GlooTransport.OneOf("TCP", "TCP_TLS")
	if err != nil || kind == "TCP" {
		return nil, err
	}
	return gloo.LoadTLS(envvar.GlooTLSKey.Text(), envvar.GlooTLSCert.Text(), envvar.GlooTLSCAFile.Text(), envvar.GlooTLSCAPath.Text())
}

// met is the end of the making of a group: what PyTorch's ranks wait for in the
// store then. keys are where, and numRanks how many of them there are.
func (j *glooJob) met(ctx context.Context, g *Group, name string, keys store.Store, numRanks int) error {
	if j.pytorch == pytorch1_13 {
		j.mu.Lock()
		count := j.names.counted
		j.mu.Unlock()
		if g != nil && g.rank == 0 {
			// Ranks of PyTorch 1.13 wait for a number that only messages to people show, and
			// those whose calls are compared before they come to the barrier.
			if err := j.groupKeys(name).Set(ctx, "SEQ_NUM_STORE_KEY", binary.LittleEndian.AppendUint64(nil, 1)); err != nil {
				return err
			}
		}
		return storeBarrier(ctx, j.keys, strconv.Itoa(count), j.worldSize, false)
	}
	if envvar.InitBarrier.Text() != "1" {
		return nil
	}
	return storeBarrier(ctx, keys, name, numRanks, true)
}

// storeBarrier waits until ranks have come in the store: with a last one that says
// so, or by looking at how many have.
func storeBarrier(ctx context.Context, keys store.Store, name string, numRanks int, last bool) error {
	key := "store_based_barrier_key:" + name
	n, err := keys.Add(ctx, key, 1)
	if err != nil {
		return err
	}
	if last {
		if n == int64(numRanks) {
			return keys.Set(ctx, key+":last_worker", []byte("1"))
		}
		return keys.Wait(ctx, key+":last_worker")
	}
	return awaitCount(ctx, keys, key, n, numRanks, "come to the barrier in the store")
}

// close gives back what the job holds. The store is served for as long as
// patience says if others still use it.
func (j *glooJob) close(patience time.Duration) error {
	var errs []error
	if j.stopDumps != nil {
		j.stopDumps()
		j.stopDumps = nil
	}
	j.agent.close()
	errs = append(errs, j.goes.close())
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
