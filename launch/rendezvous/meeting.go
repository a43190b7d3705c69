// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/launch"
)

// The ports that torchrun uses if the endpoint names none.
const (
	StaticPort = 29500
	C10dPort   = 29400
)

// Meeting says in which store the nodes of a job meet.
type Meeting struct {
	// One of these is set. Addr is host:port of a store that one of the nodes serves. File
	// is the path of a file that all nodes see. Open opens another store.
	Addr string
	File string
	Open Opener
	// Via is an address, host:port. If Addr is not set, other nodes reach this one at the
	// interface on the route to Via. May be empty.
	Via string
	// Hosts says whether this node serves the store at Addr. If it is nil, the node serves
	// the store if Addr is an address of this machine at which nobody serves one yet.
	Hosts *bool
	// Patience is how long the node waits at first until the store is there; 0 means
	// Timing.Read.
	Patience time.Duration
}

// startedMeeting is a meeting whose store this node has reached, or serves.
type startedMeeting struct {
	open   Opener
	addr   string        // of this node
	server *store.Server // that this node serves, or nil
	close  func()
}

// begin reaches the store, or serves it. It tries again until Patience is over.
func (mt *Meeting) begin(ctx context.Context, n *Nodes, h *launch.Host) (*startedMeeting, error) {
	patience := cmp.Or(mt.Patience, n.Settings.Timing.Read)
	call, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nobody has answered for %v", patience))
	defer cancel()
	story := time.AfterFunc(tellAfter, func() {
		fmt.Fprintf(h.Config().Stderr, "cohort: waiting for the store in which the nodes meet, at %s\n", mt.where())
	})
	defer story.Stop()
	for began := time.Now(); ; {
		m, err := mt.try(call, n, h)
		var left *staleStore
		switch {
		case err == nil:
			return m, nil
		case errors.As(err, &left) && (!left.strange || time.Since(began) < strangePatience) && call.Err() == nil:
			pause(call, retryPause)
		case call.Err() != nil && ctx.Err() == nil && (left == nil || left.strange):
			return nil, fmt.Errorf("the store in which the nodes meet, at %s, is out of reach: is the endpoint right, and is the node that serves the store running? (%w)", mt.where(), err)
		default:
			return nil, err
		}
	}
}

// strangePatience is how long an answer at the endpoint may come from something that is no
// store. It may be the store of the last job, which is just closing.
const strangePatience = time.Second

// staleStore is the error of a store whose job has ended: it has just gone with the node that
// serves it, or is about to go. If strange is set, what answers is no store.
type staleStore struct {
	strange bool
	err     error
}

func (e *staleStore) Error() string { return e.err.Error() }
func (e *staleStore) Unwrap() error { return e.err }

// try tries once to reach the store, or to serve it.
func (mt *Meeting) try(ctx context.Context, n *Nodes, h *launch.Host) (*startedMeeting, error) {
	m := &startedMeeting{addr: n.Addr, close: func() {}}
	var err error
	switch {
	case mt.Addr != "":
		err = mt.serve(ctx, m, n, h)
	case mt.File != "":
		m.open = openFile(mt.File)
	default:
		m.open = mt.Open
	}
	if err != nil {
		return nil, err
	}
	if m.addr == "" {
		via := mt.Addr
		if via == "" {
			via = mt.Via
		}
		if m.addr = "127.0.0.1"; via != "" {
			if m.addr, err = addrTowards(ctx, via); err != nil {
				m.close()
				return nil, err
			}
		}
	}
	if err := m.greet(ctx, mt, n); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// serve serves the store, if this node is the one that serves it.
func (mt *Meeting) serve(ctx context.Context, m *startedMeeting, n *Nodes, h *launch.Host) error {
	token := h.Token()
	m.open = dialStore(mt.Addr, token)
	if mt.Hosts != nil && !*mt.Hosts || mt.Hosts == nil && transport.LeavesHost(ctx, mt.Addr) {
		return nil
	}
	server, err := store.Listen(mt.Addr, token)
	switch {
	case err == nil:
	case errors.Is(err, syscall.EADDRINUSE) && mt.Hosts == nil:
		return nil // probably another agent of this machine serves it
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port in use: this node has to serve the store at %s, and another program listens there: give another port on all nodes (%w)", mt.Addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && n.Rank == 0:
		return fmt.Errorf("this node has to serve the store at %s, because it is node 0 (as without --node-rank), and that is no address of this machine: if it is another node, give each node its own --node-rank (%w)", mt.Addr, err)
	default:
		return fmt.Errorf("this node has to serve the store at %s, and cannot: %w", mt.Addr, err)
	}
	m.server = server
	m.open = func(context.Context) (*Opened, error) {
		return &Opened{Store: server.Store(), Close: func() {}, Lasting: true}, nil
	}
	m.close = func() { _ = server.Close() }
	return nil
}

func dialStore(addr, token string) Opener {
	return func(ctx context.Context) (*Opened, error) {
		c, err := store.Dial(ctx, addr, token)
		if err != nil {
			return nil, err
		}
		return &Opened{Store: c, Close: func() { _ = c.Close() }}, nil
	}
}

func openFile(path string) Opener {
	return func(context.Context) (*Opened, error) {
		f, err := store.OpenFile(path)
		if err != nil {
			return nil, err
		}
		return &Opened{Store: f, Close: func() { _ = f.Close() }, Lasting: true}, nil
	}
}

// greet waits until the store is there, and checks that it is the store of this job.
func (m *startedMeeting) greet(ctx context.Context, mt *Meeting, n *Nodes) error {
	first, err := m.open(ctx)
	if err == nil {
		if err = m.claim(ctx, first.Store, mt, n); err != nil {
			first.Close()
		}
	}
	var left *staleStore
	switch {
	// A store with another token reads the handshake and closes the connection. Another
	// program resets it.
	case errors.Is(err, transport.ErrRejected) && !errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("wrong token: the store at %s has another one: give all nodes the same COHORT_TOKEN or --token-file (%w)", mt.where(), err)
	case err != nil && first == nil && mt.Addr != "" && ctx.Err() == nil:
		return &staleStore{true, fmt.Errorf("what answers at %s is no store in which nodes meet: is the endpoint right, or does another program use its port? (%w)", mt.Addr, err)}
	case errors.Is(err, store.ErrLost) && ctx.Err() == nil:
		return &staleStore{false, fmt.Errorf("the store in which the nodes meet, at %s, has gone: %w", mt.where(), err)}
	case err != nil && !errors.As(err, &left):
		return err
	case err != nil:
		return left
	}
	again := m.open
	m.open = func(ctx context.Context) (*Opened, error) {
		if o := first; o != nil {
			first = nil
			return o, nil
		}
		return again(ctx)
	}
	return nil
}

// claim writes the name of the job into the store, if only one job may use it.
func (m *startedMeeting) claim(ctx context.Context, s store.Store, mt *Meeting, n *Nodes) error {
	if mt.Addr == "" {
		_, _, err := s.CompareAndSet(ctx, "rendezvous", absent, absent)
		return err
	}
	b, _, err := s.CompareAndSet(ctx, "rendezvous", nil, []byte(n.Settings.Job))
	if err != nil {
		return err
	}
	state, _, err := s.CompareAndSet(ctx, "rendezvous/"+string(b)+"/"+keyState, absent, absent)
	if err != nil {
		return err
	}
	if string(b) != n.Settings.Job {
		err = fmt.Errorf("the job at %s is %q, this node's is %q: give --rdzv-id %s to join it, or another endpoint", mt.Addr, b, n.Settings.Job, b)
	}
	if was, bad := decodeState(state); bad == nil && was.Phase == Closed {
		return &staleStore{false, fmt.Errorf("job %q has ended at %s (%s), and its launcher there is still running: wait until it ends, or give another endpoint", was.Job, mt.Addr, plain(was.Text))}
	}
	return err
}

func (mt *Meeting) where() string {
	switch {
	case mt.Addr != "":
		return mt.Addr
	case mt.File != "":
		return mt.File
	default:
		return "the endpoint " + mt.Via
	}
}

// Endpoint reads HOST or HOST:PORT, and adds the port if there is none. An empty host is this
// machine.
func Endpoint(text string, port int) (string, error) {
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		n, err := envvar.ParseInt(p)
		if err != nil || n < 1 || n > math.MaxUint16 {
			return "", fmt.Errorf("port %q: want 1 to 65535", p)
		}
		host, port = h, n
	}
	host = strings.Trim(host, "[]")
	if strings.ContainsAny(host, "/ ,") || strings.Count(host, ":") == 1 {
		return "", fmt.Errorf("%q: want HOST:PORT", text)
	}
	if host == "" {
		host = "localhost"
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}
