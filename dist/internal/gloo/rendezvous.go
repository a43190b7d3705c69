// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/lobby"
)

const (
	// helloPatience is how long a connection has to say whose it is.
	helloPatience = 10 * time.Second
	// numDials is how often a connection is tried, dialPause how long after a failure.
	numDials  = 4
	dialPause = 100 * time.Millisecond
	// shutPatience is for how long a listener goes on when it is no longer needed,
	// leavePatience how long it may take to tell ranks that wait for this one that it
	// does not come, leavesAtOnce how many of them at a time.
	shutPatience  = 20 * time.Millisecond
	leavePatience = 500 * time.Millisecond
	leavesAtOnce  = 16
)

// keepAlive finds out after [goneAfter] that a host is gone of which a call waits to
// hear: see [Communicator.watchLines].
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// Open meets the other members and connects to each of them. ctx bounds that only;
// [Config].Timeout does too.
func Open(ctx context.Context, cfg Config) (*Communicator, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if len(cfg.Addrs) == 0 {
		cfg.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("dist: group %q over gloo: %w", cfg.Group, err)
	}
	b := newCommunicator(cfg)
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout,
		fmt.Errorf("the group's limit of %v: %w", cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	go func() { // who has sent what cannot be is not waited with
		select {
		case <-b.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	for i := range cfg.Addrs {
		m := &meeting{b: b, mesh: b.contexts[i], index: i, addr: cfg.Addrs[i], attached: make(chan struct{}, 1)}
		err := m.meet(ctx)
		if why := b.why(); why != nil {
			err = why
		}
		if err != nil {
			b.end(err)
			b.closed.Store(true)
			b.running.Wait()
			return nil, err
		}
	}
	b.running.Add(1)
	go b.watchLines()
	return b, nil
}

// meeting is how the members of a context come together.
type meeting struct {
	b     *Communicator
	mesh  *mesh
	index int
	addr  netip.Addr
	// attached has a token after a connection was made.
	attached chan struct{}
	// plan says of what a rank has published whether this rank is the one to connect,
	// where to, and what to say then. Nil until this rank has published its own.
	plan func(rank int, value []byte) (there netip.AddrPort, hello []byte, first bool, err error)
}

func (m *meeting) meet(ctx context.Context) error {
	if len(m.b.cfg.Members) == 1 {
		return nil
	}
	var err error
	if m.b.cfg.Generation == PerPair {
		err = m.meetPerPair(ctx)
	} else {
		err = m.meetPerDevice(ctx)
	}
	if err != nil && m.plan != nil {
		m.leave()
	}
	return err
}

// leave tells the ranks that wait for a connection from this one that it gives up: by a
// connection that ends at once. PyTorch 1.13 waits five times its limit for one that
// does not come.
func (m *meeting) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leavePatience)
	defer cancel()
	atOnce := make(chan struct{}, leavesAtOnce)
	var leaving sync.WaitGroup
	for _, r := range m.others() {
		if m.mesh.pairs[r].attached() {
			continue
		}
		atOnce <- struct{}{}
		leaving.Go(func() {
			defer func() { <-atOnce }()
			v, err := m.b.cfg.Store.Get(ctx, m.key("", r))
			if err != nil {
				return
			}
			there, hello, first, err := m.plan(r, v)
			if err != nil || !first {
				return
			}
			if conn, err := m.dial(ctx, there); err == nil {
				_, _ = conn.Write(hello)
				conn.Close()
			}
		})
	}
	leaving.Wait()
}

// dial makes a connection from this rank's address.
func (m *meeting) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive, LocalAddr: &net.TCPAddr{IP: m.addr.AsSlice(), Zone: m.addr.Zone()}}
	return d.DialContext(ctx, "tcp", at.String())
}

// key is a key of this context in the group's store.
func (m *meeting) key(name string, rank int) string {
	return strconv.Itoa(m.index) + "/" + name + strconv.Itoa(rank)
}

// listen opens a listener, which the end of the group shuts: for who accepts to close.
func (m *meeting) listen(ctx context.Context) (net.Listener, netip.AddrPort, error) {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", netip.AddrPortFrom(m.addr, 0).String())
	if err != nil {
		return nil, netip.AddrPort{}, fmt.Errorf("dist: group %q over gloo: listen at %v: %w", m.b.cfg.Group, m.addr, err)
	}
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if err := m.b.failure; err != nil {
		l.Close()
		return nil, netip.AddrPort{}, err
	}
	m.b.listeners = append(m.b.listeners, l)
	return l, netip.AddrPortFrom(m.addr, l.Addr().(*net.TCPAddr).AddrPort().Port()), nil
}

// speaking has a listener give those connections alone that have said something, as
// members do at once: strangers who hold theirs and are silent leave room for them.
func (m *meeting) speaking(l net.Listener) net.Listener {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	i := slices.Index(m.b.listeners, l)
	if i < 0 { // the group has ended
		return l
	}
	m.b.listeners[i] = lobby.Speaking(l, helloPatience, nil)
	return m.b.listeners[i]
}

// close closes listeners before the group ends.
func (m *meeting) close(ls ...net.Listener) {
	m.b.mu.Lock()
	m.b.listeners = slices.DeleteFunc(m.b.listeners, func(l net.Listener) bool { return slices.Contains(ls, l) })
	m.b.mu.Unlock()
	for _, l := range ls {
		if l != nil {
			shut(l)
		}
	}
}

// shut has a listener end a moment later, by who accepts: a connection that it has made
// and nobody has taken would be reset, which ends a process of PyTorch 1.13 that has just
// made it.
func shut(l net.Listener) {
	if late, ok := l.(interface{ SetDeadline(time.Time) error }); !ok || late.SetDeadline(time.Now().Add(shutPatience)) != nil {
		l.Close()
	}
}

// get waits for a key of each of some ranks; take is called with each value, in
// order.
func (m *meeting) get(ctx context.Context, name string, ranks []int, take func(rank int, value []byte) error) error {
	for i, r := range ranks {
		v, err := m.b.cfg.Store.Get(ctx, m.key(name, r))
		if err != nil {
			return m.absent(ctx, name, ranks[i:], err)
		}
		if err := take(r, v); err != nil {
			if _, ok := err.(*sizeError); !ok {
				err = fmt.Errorf("what it has published: %w", err)
			}
			e := m.b.blame(nil, r, err)
			e.Op = "init"
			return e
		}
	}
	return nil
}

// absent returns the error of ranks that have not published a key.
func (m *meeting) absent(ctx context.Context, name string, ranks []int, err error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("dist: group %q over gloo: %w", m.b.cfg.Group, err)
	}
	var missing []int
	for i, r := range ranks {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
		_, err := m.b.cfg.Store.Get(look, m.key(name, r))
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded):
			missing = append(missing, r)
		default: // it cannot be asked any more
			missing = append(missing, ranks[i:]...)
			return m.missing(ctx, missing)
		}
	}
	return m.missing(ctx, missing)
}

// missing is the error of ranks that have not come.
func (m *meeting) missing(ctx context.Context, ranks []int) error {
	e := &fault.TimeoutError{Group: m.b.cfg.Group, Op: "init", Cause: ctxerr.Of(ctx)}
	for _, r := range ranks {
		e.Missing = append(e.Missing, m.b.Member(r))
	}
	return e
}

// others are all ranks but this one.
func (m *meeting) others() []int {
	var ranks []int
	for r := range m.b.cfg.Members {
		if r != m.b.cfg.Rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// named takes note of a rank's host.
func (m *meeting) named(rank int, host string) {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if at := &m.b.members[rank]; at.Host == "" {
		at.Host = strings.ToValidUTF8(host, "?")
	}
}

// meetPerDevice: every rank listens at one address.
func (m *meeting) meetPerDevice(ctx context.Context) error {
	b := m.b
	l, here, err := m.listen(ctx)
	if err != nil {
		return err
	}
	me := rankInfo{host: b.cfg.Hostname, addr: address{here, noSequence}}
	if !b.cfg.Lazy {
		// The number of a connection is the rank that makes it: so do ranks that
		// connect when they need to.
		for r := range b.cfg.Members {
			me.ids = append(me.ids, int64(r))
		}
	}
	b.running.Add(1)
	l = m.speaking(l)
	go m.acceptAll(l, m.callerByNumber)
	if err := b.cfg.Store.Set(ctx, m.key("", b.cfg.Rank), me.encode()); err != nil {
		return fmt.Errorf("dist: group %q over gloo: %w", b.cfg.Group, err)
	}
	plan := func(r int, info rankInfo) (there netip.AddrPort, hello []byte, first bool, err error) {
		number, own := int64(b.cfg.Rank), int64(r)
		if info.ids != nil {
			number = info.ids[b.cfg.Rank]
		}
		if me.ids != nil {
			own = me.ids[r]
		}
		first, err = (address{here, own}).dials(address{info.addr.addr, number})
		return info.addr.addr, binary.LittleEndian.AppendUint64(nil, uint64(number)), first, err
	}
	m.plan = func(r int, v []byte) (there netip.AddrPort, hello []byte, first bool, err error) {
		info, err := parseRankInfo(v, anySize)
		if err != nil || b.cfg.Rank >= len(info.ids) { // who does not wait for this rank
			return there, nil, false, err
		}
		return plan(r, info)
	}
	dials := m.dialing(ctx)
	defer dials.end()
	lazy := false
	var awaited []int
	err = m.get(ctx, "", m.others(), func(r int, v []byte) error {
		info, err := parseRankInfo(v, len(b.cfg.Members))
		if err != nil {
			return otherGeneration(PerPair, len(v) > 0 && len(v)%addressBytes == 0, err)
		}
		m.named(r, info.host)
		there, hello, first, err := plan(r, info)
		switch {
		case err != nil:
			return err
		case first:
			awaited = append(awaited, r)
			dials.start(r, there, hello)
		case info.ids == nil:
			lazy = true
		default:
			awaited = append(awaited, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := m.await(ctx, awaited, dials); err != nil {
		return err
	}
	if !lazy {
		m.close(l)
	}
	return nil
}

// otherGeneration returns an error about what a rank has published, which may be that
// it meets in the other way.
func otherGeneration(g Generation, meets bool, err error) error {
	if meets {
		return fmt.Errorf("it meets by %v: this rank cannot be in one group with it (%w)", g, err)
	}
	return err
}

// meetPerPair: every rank listens at an address for each other.
func (m *meeting) meetPerPair(ctx context.Context) error {
	b := m.b
	n, self := len(b.cfg.Members), b.cfg.Rank
	listeners := make([]net.Listener, n)
	addrs := make([]netip.AddrPort, n)
	for _, r := range m.others() {
		var err error
		if listeners[r], addrs[r], err = m.listen(ctx); err != nil {
			return err
		}
		b.running.Add(1)
		go m.acceptAll(listeners[r], func(net.Conn) (int, error) { return r, nil })
	}
	host := b.cfg.Hostname
	if err := b.cfg.Store.Set(ctx, m.key("rank_", self), []byte(host)); err != nil {
		return fmt.Errorf("dist: group %q over gloo: %w", b.cfg.Group, err)
	}
	if err := b.cfg.Store.Set(ctx, m.key("", self), appendPairAddresses(nil, addrs, self)); err != nil {
		return fmt.Errorf("dist: group %q over gloo: %w", b.cfg.Group, err)
	}
	plan := func(r int, v []byte, size int) (at netip.AddrPort, first bool, err error) {
		there, err := parsePairAddress(v, size, r, self)
		if err == nil {
			first, err = (address{addrs[r], noSequence}).dials(there)
		}
		return there.addr, first, err
	}
	m.plan = func(r int, v []byte) (at netip.AddrPort, hello []byte, first bool, err error) {
		at, first, err = plan(r, v, anySize)
		return at, nil, first, err
	}
	dials := m.dialing(ctx)
	defer dials.end()
	err := m.get(ctx, "", m.others(), func(r int, v []byte) error {
		there, first, err := plan(r, v, n)
		if err != nil {
			_, other := parseRankInfo(v, n)
			return otherGeneration(PerDevice, other == nil, err)
		}
		if first {
			m.close(listeners[r])
			dials.start(r, there, nil)
		}
		return nil
	})
	if err == nil {
		err = m.get(ctx, "rank_", m.others(), func(r int, v []byte) error {
			if len(v) > maxHostname {
				return fmt.Errorf("a host name of %d bytes, at most %d", len(v), maxHostname)
			}
			m.named(r, string(v))
			return nil
		})
	}
	if err != nil {
		return err
	}
	if err := m.await(ctx, m.others(), dials); err != nil {
		return err
	}
	m.close(listeners...)
	return nil
}

// await waits until ranks are connected.
func (m *meeting) await(ctx context.Context, ranks []int, dials *dialing) error {
	for {
		ranks = slices.DeleteFunc(ranks, func(r int) bool { return m.mesh.pairs[r].attached() })
		if len(ranks) == 0 {
			return nil
		}
		select {
		case <-m.attached:
		case err := <-dials.failed:
			return err
		case <-ctx.Done():
			return m.missing(ctx, ranks)
		}
	}
}

// acceptAll takes connections until the listener is closed. caller says whose one is.
func (m *meeting) acceptAll(l net.Listener, caller func(net.Conn) (int, error)) {
	defer m.b.running.Done()
	defer l.Close()
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) || m.b.why() != nil {
				return
			}
			time.Sleep(dialPause) // out of descriptors, for example
			continue
		}
		if !m.b.opens(conn) { // what was not read would have it reset
			_ = conn.SetReadDeadline(time.Now().Add(shutPatience))
			_, _ = caller(conn)
			conn.Close()
			continue
		}
		m.b.running.Add(1)
		go func() {
			defer m.b.running.Done()
			ok := m.accept(conn, caller)
			m.b.opened(conn)
			if !ok {
				conn.Close()
			}
		}()
	}
}

// admits reports whether a connection that says that it is a rank's may be: it comes from
// where all may come from, or from where that rank is, by the job's store. Nothing else
// on this wire says who somebody is.
func (m *meeting) admits(conn net.Conn, rank int) bool {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return false
	}
	from := at.Addr().Unmap()
	if m.b.cfg.Admit == nil || m.b.cfg.Admit(from) || m.published(rank) == from {
		return true
	}
	m.refuse(at, rank, nil)
	return false
}

// refuse tells of a connection that is not taken.
func (m *meeting) refuse(from netip.AddrPort, rank int, err error) {
	if m.b.cfg.Refused != nil && m.b.why() == nil && m.b.refused.Add(1) <= maxTold {
		m.b.cfg.Refused(from, rank, err)
	}
}

// published returns the address that a rank has published, as it has before it connects;
// the zero one if there is none.
func (m *meeting) published(rank int) netip.Addr {
	ctx, cancel := context.WithTimeout(context.Background(), helloPatience)
	defer cancel()
	go func() {
		select {
		case <-m.b.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	v, err := m.b.cfg.Store.Get(ctx, m.key("", rank))
	if err != nil {
		return netip.Addr{}
	}
	n := len(m.b.cfg.Members)
	if m.b.cfg.Generation == PerPair {
		there, err := parsePairAddress(v, n, rank, m.b.cfg.Rank)
		if err != nil {
			return netip.Addr{}
		}
		return there.addr.Addr().Unmap()
	}
	info, err := parseRankInfo(v, n)
	if err != nil {
		return netip.Addr{}
	}
	return info.addr.addr.Addr().Unmap()
}

// accept takes a connection, if it says whose it is.
func (m *meeting) accept(conn net.Conn, caller func(net.Conn) (int, error)) bool {
	_ = conn.SetDeadline(time.Now().Add(helloPatience))
	rank, err := caller(conn)
	if err != nil || rank < 0 || rank >= len(m.mesh.pairs) || m.mesh.pairs[rank] == nil || !m.admits(conn, rank) {
		return false
	}
	if cfg := m.b.cfg.TLS; cfg != nil {
		conn = tls.Server(conn, cfg)
		if err := conn.(*tls.Conn).Handshake(); err != nil {
			if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
				m.refuse(from.AddrPort(), rank, err)
			}
			return false
		}
	}
	return m.attach(rank, conn)
}

// callerByNumber reads the number of a connection.
func (m *meeting) callerByNumber(conn net.Conn) (int, error) {
	var number [8]byte
	for n := 0; n < len(number); {
		k, err := conn.Read(number[n:])
		if n += k; err != nil && n < len(number) {
			return 0, err
		}
	}
	rank := binary.LittleEndian.Uint64(number[:])
	if rank >= uint64(len(m.mesh.pairs)) {
		return 0, fmt.Errorf("a connection with the number %d, of %d ranks", rank, len(m.mesh.pairs))
	}
	return int(rank), nil
}

// attach gives a rank's pair its connection.
func (m *meeting) attach(rank int, conn net.Conn) bool {
	_ = conn.SetDeadline(time.Time{})
	if !m.mesh.pairs[rank].attach(conn) {
		return false
	}
	select {
	case m.attached <- struct{}{}:
	default:
	}
	return true
}

// dialing is the connections that this rank makes.
type dialing struct {
	m      *meeting
	ctx    context.Context
	cancel context.CancelFunc
	failed chan error
	under  sync.WaitGroup
}

func (m *meeting) dialing(ctx context.Context) *dialing {
	ctx, cancel := context.WithCancel(ctx)
	return &dialing{m: m, ctx: ctx, cancel: cancel, failed: make(chan error, len(m.b.cfg.Members))}
}

// end gives up those that are under way, as they are only where the meeting has failed.
func (d *dialing) end() {
	d.cancel()
	d.under.Wait()
}

// start connects to a rank, and says hello.
func (d *dialing) start(rank int, at netip.AddrPort, hello []byte) {
	d.under.Go(func() {
		conn, err := d.connect(at, hello)
		if err == nil && !d.m.attach(rank, conn) {
			conn.Close()
			err = errors.New("there is a connection already")
		}
		if err == nil {
			return
		}
		if d.ctx.Err() != nil {
			d.failed <- d.m.missing(d.ctx, []int{rank})
			return
		}
		err = fmt.Errorf("connect to %v: %w", at, err)
		if at.Addr().IsLoopback() && !d.m.addr.IsLoopback() {
			err = fmt.Errorf("%w; it has published an address that only its own host reaches, which is what the name of that host stands for: GLOO_SOCKET_IFNAME, set for that rank, names the interface to use", err)
		}
		e := d.m.b.blame(nil, rank, err)
		e.Op = "init"
		d.failed <- e
	})
}

// connect makes a connection, trying a few times.
func (d *dialing) connect(at netip.AddrPort, hello []byte) (conn net.Conn, err error) {
	for try := range numDials {
		if try > 0 {
			select {
			case <-time.After(dialPause << try):
			case <-d.ctx.Done():
				return nil, err
			}
		}
		if conn, err = d.m.dial(d.ctx, at); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	made := conn // the result may be another when the context ends
	stop := context.AfterFunc(d.ctx, func() { made.Close() })
	defer stop()
	if len(hello) > 0 {
		if _, err := conn.Write(hello); err != nil {
			conn.Close()
			return nil, err
		}
	}
	if cfg := d.m.b.cfg.TLS; cfg != nil {
		client := tls.Client(conn, cfg)
		if err := client.HandshakeContext(d.ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return client, nil
	}
	return conn, nil
}
