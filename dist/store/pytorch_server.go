// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/lobby"
)

// PyTorchServerOption changes what a [PyTorchServer] serves, and to whom. Without options it
// serves a new store to processes of this host.
type PyTorchServerOption func(*PyTorchServer)

// WithMemory makes the server serve m. At the same time m can be served on Cohort's wire, and
// be used in this process.
func WithMemory(m *Memory) PyTorchServerOption { return func(s *PyTorchServer) { s.mem = m } }

// WithAdmission makes admit decide whether a client of an address may use the server. PyTorch's
// protocol has no authentication: a client that is admitted can read and write everything.
// Without this option only processes of this host are admitted. With it, admit hosts that have
// authenticated in another way.
func WithAdmission(admit func(peer netip.Addr) bool) PyTorchServerOption {
	return func(s *PyTorchServer) { s.admit = admit }
}

// WithRefusals makes the server call refused for clients that it does not admit, or drops for
// what they sent. The calls are so few a minute that no stranger fills a log; PyTorchRefusal.Untold
// counts the others. Several goroutines may call refused at once.
func WithRefusals(refused func(*PyTorchRefusal)) PyTorchServerOption {
	return func(s *PyTorchServer) { s.refused = refused }
}

// A [PyTorchServer] tells its clients of itself by keys, which are neither counted nor
// listed. The value of the first three is "1". A launcher that serves the store adds the last.
const (
	// PyTorchHosted is there from the start: a Cohort program serves the store.
	PyTorchHosted = "cohort/host"
	// PyTorchSpoken1 is there once a client of the generation [PyTorch1] has come.
	PyTorchSpoken1 = "cohort/spoken/1.13"
	// PyTorchSpoken2 is there once a client of PyTorch 2.2 to 2.4 has come, which begin without a ping.
	PyTorchSpoken2 = "cohort/spoken/2.2"
	// PyTorchMet is there once all processes have joined; its value is "1.13" where clients
	// of [PyTorch1] are among them, else "2".
	PyTorchMet = "cohort/pytorch"
	// PyTorchMixed is there once ranks of PyTorch 1.13 and of 2.x have come to one group, and
	// wait in vain. Its value is the first of each, "1 0".
	PyTorchMixed = "cohort/mixed"
)

// PyTorchServer serves a store to PyTorch's clients of all supported generations at
// once: torch.distributed.TCPStore(host, port, is_master=False), and every process
// group and launcher that is made of it.
type PyTorchServer struct {
	listener net.Listener
	mem      *Memory
	admit    func(netip.Addr) bool
	refused  func(*PyTorchRefusal)
	lastID   atomic.Uint64 // of waits in this process
	client   uint64        // who waits in this process, to the store
	last     atomic.Uint64 // the client that was served last
	coming   atomic.Int64  // bytes of values that are being read
	joins    sync.Map      // id → chan reply

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	closed  bool
	empty   chan struct{} // closed when there is no connection; or nil
	spoken  []PyTorchGeneration
	plain   bool          // PyTorchSpoken2 is told
	first   chan struct{} // closed when the first client has shown its generation
	running sync.WaitGroup
	telling telling
}

// ListenPyTorch serves PyTorch's store protocol on a TCP address, host:port, until
// [PyTorchServer.Close]. Port 0 is any free port. A value may have 512 MiB, and all values
// together 2 GiB; keys and numbers may have 256 MiB more. A client that asks for more room than
// there is loses its connection, as it does with PyTorch's server. Other clients do not notice.
func ListenPyTorch(addr string, opts ...PyTorchServerOption) (*PyTorchServer, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("store: listen on %s for PyTorch: %w", addr, err)
	}
	return ServePyTorch(l, opts...), nil
}

// ServePyTorch is [ListenPyTorch] on a listener that the caller has made; it
// ends with the server.
func ServePyTorch(l net.Listener, opts ...PyTorchServerOption) *PyTorchServer {
	s := &PyTorchServer{conns: map[net.Conn]struct{}{}, first: make(chan struct{})}
	for _, opt := range opts {
		opt(s)
	}
	s.listener = lobby.Speaking(l, lobby.Forever, s.admitsFrom) // 1.13's second connection never says anything
	if s.mem == nil {
		s.mem = NewMemory()
	}
	s.client = s.mem.attach(func(id uint64, r reply) {
		if ch, ok := s.joins.LoadAndDelete(id); ok {
			ch.(chan reply) <- r // has room
		}
	})
	s.tell(PyTorchHosted)
	s.running.Add(1)
	go s.accept()
	return s
}

// Addr returns the address at which the store is served: host:port.
func (s *PyTorchServer) Addr() string { return s.listener.Addr().String() }

// Store returns the store that is served, for use in this process.
func (s *PyTorchServer) Store() Store { return s.mem }

// Notice is one line that says who may use the server, and why it asks for no token.
func (s *PyTorchServer) Notice() string {
	who := "processes of this host"
	if s.admit != nil {
		who = "the hosts that it was told of"
	}
	return fmt.Sprintf("PyTorch's store at %s asks for no token, for PyTorch's protocol has no authentication; it admits %s alone", s.Addr(), who)
}

// Generations returns the protocol generations that clients have spoken so far,
// in order.
func (s *PyTorchServer) Generations() []PyTorchGeneration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.spoken)
}

// AwaitGeneration waits for a first client, and returns the oldest generation that is spoken.
func (s *PyTorchServer) AwaitGeneration(ctx context.Context) (PyTorchGeneration, error) {
	ctx, release := deadline(ctx)
	defer release()
	select {
	case <-s.first:
		return s.Generations()[0], nil
	case <-ctx.Done():
		return 0, &Error{Op: "wait", Addr: s.Addr(), Err: fmt.Errorf("no PyTorch process has come: %w", context.Cause(ctx))}
	}
}

// Join counts this process in as PyTorch's process that serves the store does,
// and waits until worldSize processes have joined.
func (s *PyTorchServer) Join(ctx context.Context, worldSize int) error {
	return s.join(ctx, 1, worldSize)
}

// Meet waits until worldSize processes have joined, this one not among them, and then sets
// [PyTorchMet]: for a launcher that serves the store of its ranks.
func (s *PyTorchServer) Meet(ctx context.Context, worldSize int) error {
	if err := s.join(ctx, 0, worldSize); err != nil {
		return err
	}
	text := "2"
	if slices.Contains(s.Generations(), PyTorch1) {
		text = "1.13"
	}
	return s.mem.Set(ctx, PyTorchMet, []byte(text))
}

func (s *PyTorchServer) join(ctx context.Context, counts int64, worldSize int) error {
	ctx, release := deadline(ctx)
	defer release()
	id := s.lastID.Add(1)
	ch := make(chan reply, 1)
	s.joins.Store(id, ch)
	c := call{s.client, id}
	key := pyTorchRaw + joinKey
	r, what := s.mem.apply(c, request{op: opPyTorchBarrier, keys: []string{key}, delta: counts, need: int64(worldSize)})
	if what == waiting {
		select {
		case r = <-ch:
		case <-ctx.Done():
			s.mem.cancel(c)
			r = <-ch
		}
	} else {
		s.joins.Delete(id)
	}
	switch {
	case r.status == statusCancelled:
		n, _ := s.mem.Add(context.WithoutCancel(ctx), key, 0)
		return &Error{Op: "join", Addr: s.Addr(), Err: fmt.Errorf("%d of %d processes have joined: %w", n, worldSize, context.Cause(ctx))}
	case r.err() != nil:
		return &Error{Op: "join", Addr: s.Addr(), Err: r.err()}
	}
	return nil
}

// Linger takes no more clients and waits until all have gone, but not longer than
// patience: see [Server.Linger].
func (s *PyTorchServer) Linger(patience time.Duration) {
	lobby.Deaf(s.listener)
	linger(&s.mu, s.conns, &s.empty, patience)
}

// Close ends the server and all its connections, and waits until their goroutines
// have ended. The store stays.
func (s *PyTorchServer) Close() error {
	s.listener.Close()
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	if first {
		s.mem.detach(s.client)
	}
	return nil
}

// accept takes clients until the listener is closed.
func (s *PyTorchServer) accept() {
	defer s.running.Done()
	pause := time.Millisecond
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil { // such as too many open files
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		if !s.admits(c) {
			s.report(c, 0, nil, errors.New("its host is not one of this job's"))
			c.Close()
			continue
		}
		if !s.enter(c) {
			c.Close()
			return
		}
		go func() {
			defer s.leave(c)
			s.serve(c)
		}()
	}
}

// admits says whether a client may come in.
func (s *PyTorchServer) admits(c net.Conn) bool { return s.admitsFrom(c.RemoteAddr(), c.LocalAddr()) }

func (s *PyTorchServer) admitsFrom(there, here net.Addr) bool {
	peer, ok := addrOf(there)
	if !ok {
		return false
	}
	if s.admit != nil {
		return s.admit(peer)
	}
	mine, ok := addrOf(here)
	return peer.IsLoopback() || ok && peer == mine
}

func addrOf(a net.Addr) (netip.Addr, bool) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}, false
	}
	return t.AddrPort().Addr().Unmap(), true
}

// report tells of a client that was refused.
func (s *PyTorchServer) report(c net.Conn, g PyTorchGeneration, sent []byte, err error) {
	if s.refused == nil {
		return
	}
	if untold, tell := s.telling.one(time.Now()); tell {
		s.refused(&PyTorchRefusal{Untold: untold, Server: s.Addr(), Peer: c.RemoteAddr().String(), Generation: g, Sent: sent, Err: err})
	}
}

// enter counts a connection in, unless the server is closed.
func (s *PyTorchServer) enter(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	return true
}

func (s *PyTorchServer) leave(c net.Conn) {
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
	s.mu.Unlock()
	s.running.Done()
}

// heard notes that a client speaks a generation, before its first request counts, which
// has a ping in it from 2.5 on.
func (s *PyTorchServer) heard(g PyTorchGeneration, pings bool) {
	s.mu.Lock()
	known := slices.Contains(s.spoken, g)
	plain := g == PyTorch2 && !pings && !s.plain
	s.plain = s.plain || plain
	s.mu.Unlock()
	if plain {
		s.tell(PyTorchSpoken2)
	}
	if known {
		return
	}
	if g == PyTorch1 {
		s.tell(PyTorchSpoken1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.spoken, g) {
		return
	}
	if s.spoken = append(s.spoken, g); len(s.spoken) == 1 {
		close(s.first)
	}
	slices.Sort(s.spoken)
}

// tell sets a key by which clients in other processes learn of the server. One that
// does not fit is not told: the store is full, and so says the next request.
func (s *PyTorchServer) tell(key string) {
	_ = s.mem.Set(context.Background(), key, []byte("1"))
}
