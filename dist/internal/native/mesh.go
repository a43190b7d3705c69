// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

// LocalLink is how ranks of one node talk in a [Mesh].
type LocalLink int

const (
	LocalShm  LocalLink = iota // through shared memory
	LocalUnix                  // over unix sockets
	LocalTCP                   // like ranks of different nodes
)

// MeshOptions say how the ranks of a [Mesh] talk.
type MeshOptions struct {
	Node  []int     // by rank: the number of its node
	Local LocalLink // between ranks of one node
	// TLS says which connections between nodes are encrypted, LocalTLS whether
	// those within a node are that go over TCP.
	TLS      transport.Encrypt
	LocalTLS bool
	// Carrier opens what moves the data in place of connections, when the star has formed;
	// nil for none. Local is then not LocalShm.
	Carrier func(ctx context.Context) (Carrier, error)
}

// Mesh is a rank of a group whose ranks do not all share memory. Any two ranks have a link of
// their own, which is opened when a plan or a message first needs it: a connection for each
// direction, or between ranks of a node the pipes of a [Shm] inside the mesh. Collectives and
// messages have links of their own, so that neither waits for the other. Every collective is
// a plan, and its pieces take either kind of link.
//
// A [star] of connections to rank 0 holds the group together; the ranks of a node have
// another star, that of their Shm. A wait on a link ends with the news of a fault that comes
// over a star. While all is well a star carries beats, and calls that have waited for long
// (see watchdog.go).
type Mesh struct {
	cfg    Config
	n      int
	fabric *Fabric
	end    *Endpoint
	star   *star
	opts   MeshOptions

	carrier Carrier // moves all data; nil for connections

	local   *Shm  // among the ranks of this node; nil if there is none
	localOf []int // by rank: its number in local, or -1

	// to and from are the connections of collectives, by rank, nil until they are needed.
	// One call at a time uses them. Only the goroutine that receives uses from and running.
	to, from []*transport.Conn
	running  *watched // the collective under way
	inline   int      // bytes that may be on their way over each of to

	// whole ends with the first fault. It is the one context that lives as long as the
	// group.
	whole    context.Context
	endWhole context.CancelFunc

	mu       sync.Mutex
	conns    map[*transport.Conn]int // all connections that a fault must cut, with their peers
	outgoing map[int]*transport.Conn // of messages, by peer
	incoming map[int]*transport.Conn
	waiting  map[way]chan *transport.Conn // incoming ones not yet taken
	left     map[int]bool                 // ranks that have closed the group
	fault    *meshFault
	news     chan struct{} // closed and replaced when left or fault changes

	failed  atomic.Pointer[firstError]
	failing sync.Mutex  // held while the others are told of failed
	told    atomic.Bool // a call has returned it
	closed  atomic.Bool
	exec    executor
	in      []byte         // scratch: a piece to be reduced
	links   []int          // scratch: pieces for each local rank
	dealt   operation.Call // scratch: a call as one rank's pieces show it
	lines   []heldLine     // scratch: of the heartbeat
	watch   watchdog
	past    history
	given   atomic.Int64 // bytes of data that this rank has sent over connections
}

// way is what a connection to or from a peer carries.
type way struct {
	peer int
	why  purpose
}

type meshFault struct {
	rank int
	kind uint32
	text string
}

// OpenMesh forms a group of ranks of several nodes, or of one that do not
// share memory.
func OpenMesh(ctx context.Context, cfg Config, fabric *Fabric, opts MeshOptions) (*Mesh, error) {
	n := len(cfg.Members)
	m := &Mesh{cfg: cfg, n: n, fabric: fabric, exec: executor{rank: cfg.Rank, numRanks: n},
		opts: opts, localOf: make([]int, n), to: make([]*transport.Conn, n), from: make([]*transport.Conn, n), links: make([]int, n),
		conns: map[*transport.Conn]int{}, outgoing: map[int]*transport.Conn{}, incoming: map[int]*transport.Conn{},
		waiting: map[way]chan *transport.Conn{}, left: map[int]bool{}, news: make(chan struct{})}
	m.watch.mesh, m.inline = m, inlineLimit
	m.whole, m.endWhole = context.WithCancel(context.Background())
	m.star = newStar(&m.cfg, m.heard, m.hasLeft)
	m.star.lines = m.checkLines
	m.star.stalled, m.star.past, m.star.compare = m.heardCall, m.past.call, m.compareCalls
	var local []int
	for r := range n {
		m.localOf[r] = -1
		if m.near(r) && opts.Local != LocalTCP {
			local = append(local, r)
		}
	}
	var err error
	if m.end, err = fabric.attach(cfg.Key, n, m.serve); err != nil {
		return nil, err
	}
	err = m.meet(ctx)
	if err == nil && opts.Carrier != nil {
		err = m.openCarrier(ctx)
	}
	if err == nil && opts.Local == LocalShm && len(local) > 1 {
		err = m.meetLocally(ctx, local)
	}
	if err != nil {
		m.Fail(err) // members that have come wait for this rank
		m.star.giveUp(m.cfg.reason(err))
		m.end.fail(m.cfg.reason(err))
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

// meet opens the connections of the star.
func (m *Mesh) meet(ctx context.Context) error {
	if m.cfg.Rank == 0 {
		defer m.fabric.askAbsent(ctx, &m.cfg, func(rank int) route { return m.route(rank, forControl) }, m.star.absent, m.star.mute)()
		return m.star.awaitSpokes(ctx)
	}
	ctx, stop := m.fabric.withHub(ctx, &m.cfg, func(rank int) route { return m.route(rank, forControl) })
	defer stop()
	var hub *transport.Conn
	var err error
	for try := 1; ; try++ {
		if hub, err = m.dial(ctx, 0, forControl); err == nil {
			err = hub.Do(ctx, func() error { return awaitDone(hub) })
		}
		if !hungUp(ctx, err) || try == maxJoins {
			break
		}
		if hub != nil {
			hub.Close()
		}
		time.Sleep(joinPause)
	}
	if hub != nil && err != nil {
		err = fmt.Errorf("dist: join group %q at %v: %w", m.cfg.Group, m.cfg.Members[0], err)
	}
	if err != nil {
		return m.star.lostHub(ctx, hub, err)
	}
	return m.star.join(0, hub, nil)
}

// openCarrier opens what moves the data, unless a fault of the group comes first.
func (m *Mesh) openCarrier(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.whole, func() { cancel(m.explain(nil, 0, errors.New(meshFailed))) })()
	carrier, err := m.opts.Carrier(ctx)
	if err != nil && m.whole.Err() != nil {
		return m.explain(nil, 0, err)
	}
	m.carrier = carrier
	return err
}

// awaitDone reads a peer's word that it has taken a connection.
func awaitDone(conn *transport.Conn) error {
	kind, payload, err := conn.ReadFrame(nil, maxControl)
	if err == nil && kind != frameDone {
		err = refusal(payload)
	}
	return err
}

// meshFailed is the text of the fault in the Shm inside when the mesh has failed. The mesh
// knows the reason.
const meshFailed = "the group has failed"

// meetLocally forms the group of the ranks of this node.
func (m *Mesh) meetLocally(ctx context.Context, ranks []int) error {
	cfg := m.cfg
	cfg.Key, cfg.Members, cfg.World = m.cfg.Key+" local", nil, nil
	cfg.Topology = collective.OneNode(len(ranks))
	for i, r := range ranks {
		m.localOf[r] = i
		cfg.Members = append(cfg.Members, m.cfg.Members[r])
		cfg.World = append(cfg.World, m.cfg.World[r])
	}
	cfg.Rank = m.localOf[m.cfg.Rank]
	// The mesh does these: its star knows which rank died first.
	cfg.Silence, cfg.Silences, cfg.Progress, cfg.Deaths, cfg.Survivors = 0, nil, nil, nil, false
	if ask := m.cfg.ProcessEnd; ask != nil {
		cfg.ProcessEnd = func(i int) ProcessEnd { return ask(ranks[i]) }
	}
	// If a rank of another node fails, this wait must end.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.whole, func() {
		cancel(m.explain(nil, 0, errors.New(meshFailed)))
	})()
	local, err := OpenShm(ctx, cfg, m.fabric)
	if err != nil {
		var other *fault.RankError
		if errors.As(err, &other) && (errors.Is(err, fault.ErrLeft) || other.Cause.Error() == meshFailed) { // the mesh knows why
			return m.explain(nil, other.Rank, err)
		}
		return err
	}
	m.mu.Lock()
	m.local = local
	failed := m.fault
	m.mu.Unlock()
	if failed != nil {
		return m.cfg.faultError(nil, failed.rank, failed.kind, failed.text)
	}
	return nil
}

// near reports whether a rank is on this one's node.
func (m *Mesh) near(rank int) bool { return m.opts.Node[rank] == m.opts.Node[m.cfg.Rank] }

// route returns how a connection to a rank goes.
func (m *Mesh) route(rank int, why purpose) route {
	near := m.near(rank)
	switch {
	case near && m.opts.Local != LocalTCP:
		return overUnix
	case near && m.opts.LocalTLS || m.opts.TLS.TLS(near, why != forControl):
		return overTLS
	}
	return overTCP
}

func (m *Mesh) dial(ctx context.Context, peer int, why purpose) (*transport.Conn, error) {
	conn, err := m.fabric.dial(ctx, m.cfg.World[peer], m.route(peer, why),
		hello{purpose: why, rank: m.cfg.Rank, number: m.cfg.Agreed, group: m.cfg.Key})
	if err != nil {
		return nil, fmt.Errorf("dist: group %q: connect to %v: %w", m.cfg.Group, m.cfg.Members[peer], err)
	}
	return conn, nil
}

// keep adds a connection to those that end with the group. It returns false if the group has
// ended.
func (m *Mesh) keep(c *transport.Conn, peer int) bool {
	if m.cfg.Silence > 0 {
		c.Probe(m.cfg.Silence)
		c.RetrySoon(m.cfg.Silence / retries)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() || m.fault != nil {
		c.Close()
		return false
	}
	m.conns[c] = peer
	return true
}

// serve takes a connection from another rank.
func (m *Mesh) serve(conn *transport.Conn, h hello) bool {
	if h.rank == m.cfg.Rank {
		return false
	}
	if !m.near(h.rank) {
		if err := m.fabric.checkShelter(conn, h.purpose); err != nil {
			refuse(conn, err)
			return false
		}
	}
	_ = conn.SetDeadline(time.Time{})
	switch h.purpose {
	case forControl:
		err := m.star.mayJoin(h)
		if err == nil {
			err = m.star.join(h.rank, conn, func() error { return conn.WriteFrame(frameDone) })
		}
		if err != nil {
			refuse(conn, err)
		}
		return err == nil
	case forCollectives, forMessages:
		if !m.keep(conn, h.rank) {
			return false
		}
		select {
		case m.waitingFor(way{h.rank, h.purpose}) <- conn:
			m.mu.Lock()
			m.tellNews() // a receive from any rank may wait for it
			m.mu.Unlock()
			return true
		default:
			m.mu.Lock()
			delete(m.conns, conn)
			m.mu.Unlock()
			return false
		}
	}
	return false
}

// waitingFor returns the channel on which a connection from a peer is handed over.
func (m *Mesh) waitingFor(w way) chan *transport.Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	ch := m.waiting[w]
	if ch == nil {
		ch = make(chan *transport.Conn, 1)
		m.waiting[w] = ch
	}
	return ch
}

// tellNews wakes all that wait for news; the mesh is locked.
func (m *Mesh) tellNews() {
	close(m.news)
	m.news = make(chan struct{})
}

// heard takes the news of a fault: every wait ends.
func (m *Mesh) heard(rank int, kind uint32, text string) {
	m.mu.Lock()
	if m.fault != nil {
		m.mu.Unlock()
		return
	}
	m.fault = &meshFault{rank, kind, text}
	m.endWhole()
	for c := range m.conns {
		c.Close()
	}
	m.tellNews()
	local := m.local
	m.mu.Unlock()
	if local != nil {
		// Calls that wait there ask the mesh what has happened.
		local.Report(local.cfg.Rank, kindFailed, meshFailed)
	}
}

// hasLeft takes the news that a rank has left.
func (m *Mesh) hasLeft(rank int) {
	m.mu.Lock()
	m.left[rank] = true
	m.tellNews()
	m.mu.Unlock()
	// The others may wait for each other in a collective that cannot end.
	if m.watch.anyCollective(func(c *operation.Call) bool { return m.deserted(c, rank) }) {
		m.star.spread(rank, kindLeft, "")
		m.heard(rank, kindLeft, "")
	}
}

// deserted reports whether a rank is known to have left without making a collective.
func (m *Mesh) deserted(c *operation.Call, rank int) bool {
	last, known := m.star.lastOf(rank)
	return known && last < c.Seq
}

// anyDeserted returns the error of a collective that begins after a rank has left without
// making it. The reason for the leave may have come after usable was called.
func (m *Mesh) anyDeserted(c *operation.Call) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.fault; f != nil {
		return m.cfg.faultError(c, f.rank, f.kind, f.text)
	}
	for r := range m.left {
		if m.deserted(c, r) {
			return m.cfg.faultError(c, r, kindLeft, "")
		}
	}
	return nil
}

// HasLeft implements [backend.Communicator].
func (m *Mesh) HasLeft(rank int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[rank] || m.fault != nil && m.fault.kind == kindLeft && m.fault.rank == rank
}

// Died tells the group that a rank's process has ended.
func (m *Mesh) Died(rank int) {
	if rank >= 0 && rank < m.n && rank != m.cfg.Rank {
		m.star.spread(rank, kindDied, "") // others first: this process may end of it
		m.heard(rank, kindDied, "")
	}
}

// Silent tells the group that a rank has fallen silent.
func (m *Mesh) Silent(rank int, text string) {
	if rank >= 0 && rank < m.n {
		m.star.spread(rank, kindSilent, text)
		m.heard(rank, kindSilent, text)
	}
}

// Skew returns how late the ranks are, as far as that is known.
func (m *Mesh) Skew() []RankSkew { return m.star.beats.latest() }

// StepEnded notes that the program has ended a step.
func (m *Mesh) StepEnded() { m.star.beats.soon() }

// usable returns an error if no call can be made any more.
func (m *Mesh) usable(c *operation.Call) error {
	if m.closed.Load() {
		return m.cfg.closed(c)
	}
	if f := m.failed.Load(); f != nil {
		m.awaitTold()
		if _, ok := f.err.(*fault.MismatchError); ok && !m.told.Load() { // found by who reads the star
			return m.fail(f.err)
		}
		return m.cfg.again(f.err, c)
	}
	m.mu.Lock()
	failed := m.fault
	m.mu.Unlock()
	if failed != nil {
		return m.fail(m.cfg.faultError(c, failed.rank, failed.kind, failed.text))
	}
	return nil
}

// fail makes err the end of the group, here and for the others, and returns
// the error that this rank reports.
func (m *Mesh) fail(err error) error {
	m.told.Store(true)
	m.cfg.askMissing(err, m.star.ask)
	m.Fail(err)
	if e, ok := err.(*fault.MismatchError); ok {
		m.mu.Lock()
		failed := m.fault
		m.mu.Unlock()
		if failed != nil && failed.kind == kindMismatch {
			err = m.star.settled(e)
			m.failed.Store(&firstError{err})
		}
	}
	return err
}

// awaitTold waits until the others have been told of a failure. Before that this rank must
// not leave, nor its process end.
func (m *Mesh) awaitTold() {
	m.failing.Lock()
	defer m.failing.Unlock()
}

// Fail implements [backend.Communicator].
func (m *Mesh) Fail(err error) {
	m.failing.Lock()
	defer m.failing.Unlock()
	m.failed.CompareAndSwap(nil, &firstError{err})
	rank, kind, text := m.cfg.faultOf(err)
	m.mu.Lock()
	known := m.fault != nil
	m.mu.Unlock()
	if !known {
		// The others hear of it first: when connections are cut, they look for the reason.
		m.star.spread(rank, kind, text)
		m.heard(rank, kind, text)
		if kind == kindSilent && m.cfg.Silences != nil {
			m.cfg.Silences(rank, text) // this rank has found it
		}
		if kind == kindDied && m.cfg.Deaths != nil {
			m.cfg.Deaths(rank)
		}
	}
}

// Close implements [backend.Communicator].
func (m *Mesh) Close() error {
	if m.closed.Load() {
		return nil
	}
	wrong := m.confirm()
	if m.closed.Swap(true) {
		return nil
	}
	m.awaitTold()
	m.endWhole()
	m.watch.close()
	m.mu.Lock()
	local := m.local
	m.mu.Unlock()
	m.star.close()
	err := wrong
	if m.carrier != nil {
		m.mu.Lock()
		well := m.fault == nil || m.fault.kind == kindLeft
		m.mu.Unlock()
		if cerr := m.carrier.Close(well && m.failed.Load() == nil); err == nil {
			err = cerr
		}
	}
	if local != nil {
		if cerr := local.Close(); err == nil {
			err = cerr
		}
	}
	m.end.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		c.Close()
	}
	clear(m.conns)
	return err
}

// explain returns the error of a call whose connection with peer has ended with err: the
// fault that the star tells, or that the connection is lost.
func (m *Mesh) explain(c *operation.Call, peer int, err error) error {
	start := time.Now()
	timer := time.NewTimer(newsPatience)
	defer timer.Stop()
	for {
		m.mu.Lock()
		failed, left, news := m.fault, m.left[peer], m.news
		m.mu.Unlock()
		switch {
		case failed != nil:
			return m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
		case left:
			return m.cfg.faultError(c, peer, kindLeft, "")
		case m.HasLeft(0): // without the hub, no news comes
			if r, ok := m.deserter(c); ok {
				return m.cfg.faultError(c, r, kindLeft, "")
			}
		}
		select {
		case <-news:
		case <-timer.C:
			// When the hub is silent, no news is passed on: the rank that found it out first
			// cuts its connections, and the others do not hear why.
			if m.star.beats.misses(0) && time.Since(start) < m.cfg.Silence {
				timer.Reset(m.star.beats.period)
				continue
			}
			if kind, ended := m.cfg.ended(peer, err); ended && transport.NobodyListens(err) {
				return m.cfg.faultError(c, peer, kind, "")
			}
			if noWay(err) && m.cfg.Silence > 0 {
				return m.cfg.faultError(c, peer, kindSilent, m.cutText(m.cfg.Silence))
			}
			if r, ok := m.deserter(c); ok {
				return m.cfg.faultError(c, r, kindLeft, "")
			}
			var other *fault.RankError
			if errors.As(err, &other) { // the ranks of this node know why
				return other
			}
			return m.cfg.faultError(c, peer, kindFailed, "lost the connection: "+err.Error())
		}
	}
}

// deserter returns a rank that has left before it did its part of a collective. Other ranks
// that have found that out have ended their connections.
func (m *Mesh) deserter(c *operation.Call) (rank int, ok bool) {
	if c == nil || isMessage(c) {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.left {
		if last, known := m.star.lastOf(r); !known || last < c.Seq {
			return r, true
		}
	}
	return 0, false
}

// errLate is the error of a wait that the context or the time limit has ended.
var errLate = errors.New("out of time")

// broken returns the error of a call from the error of a connection.
func (m *Mesh) broken(ctx context.Context, c *operation.Call, peer int, missing int, err error) error {
	if !errors.Is(err, errLate) {
		return m.explain(c, peer, err)
	}
	return m.late(ctx, c, m.cfg.Members[missing])
}

// late returns the error of a call that has run out of time.
func (m *Mesh) late(ctx context.Context, c *operation.Call, missing ...fault.Member) error {
	cause := ctxerr.Of(ctx)
	if cause == nil {
		cause = fmt.Errorf("the group's limit of %v: %w", m.cfg.Timeout, context.DeadlineExceeded)
	}
	return &fault.TimeoutError{Group: m.cfg.Group, Op: c.Op.String(), Seq: c.Seq, Missing: missing, Cause: cause}
}

// others returns all members but this rank.
func (m *Mesh) others() []fault.Member {
	return slices.Delete(slices.Clone(m.cfg.Members), m.cfg.Rank, m.cfg.Rank+1)
}

// Trouble implements [backend.Communicator].
func (m *Mesh) Trouble(c operation.Call) error {
	if err := m.usable(&c); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.fault; f != nil {
		return m.cfg.faultError(&c, f.rank, f.kind, f.text)
	}
	for r := range m.left {
		return m.cfg.faultError(&c, r, kindLeft, "")
	}
	return nil
}

// compareCalls compares the last calls of a rank that leaves with this rank's.
func (m *Mesh) compareCalls(rank int, calls []operation.Call) (fits bool) {
	fits, err := m.past.checks(&m.cfg, rank, calls)
	if err != nil {
		m.Fail(err)
	}
	return fits
}

// confirm returns the mismatch of a call that has ended well on this rank: one that was found
// meanwhile, or among the last calls.
func (m *Mesh) confirm() error {
	if calls := m.past.unconfirmed(); calls != nil && m.whole.Err() == nil {
		patience := time.NewTimer(confirmPatience)
		defer patience.Stop()
		select {
		case <-m.star.confirm(calls):
		case <-m.whole.Done():
		case <-patience.C:
		}
	}
	m.mu.Lock()
	failed := m.fault
	m.mu.Unlock()
	if failed == nil || failed.kind != kindMismatch || m.told.Load() {
		return nil
	}
	err := m.cfg.faultError(nil, failed.rank, failed.kind, failed.text)
	if e, ok := err.(*fault.MismatchError); !ok || e.Here.Group != "" || e.There.Group != "" {
		return nil // a call on another group tells it
	}
	return m.fail(err)
}

// Ask returns what another rank is doing, a zero Doing if it does not answer. stop ends the
// wait for the answer.
func (m *Mesh) Ask(rank int, stop <-chan struct{}) fault.Doing { return m.star.ask(rank, stop) }

// AskWhere is Ask. The answer also has where the rank's program is.
func (m *Mesh) AskWhere(rank int, stop <-chan struct{}) fault.Doing {
	return m.star.askFor(rank, askWhere, stop)
}
