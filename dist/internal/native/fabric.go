// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// Address is where a process listens for the others; a part is empty where it
// does not.
type Address struct {
	Unix string // for ranks of its node: descriptors, and data
	TCP  string // for all
}

const (
	// parkLimit is how long a connection waits for a group that this rank has not made yet.
	parkLimit = 5 * time.Minute
	// parkedPerRank bounds the connections that wait for groups: each rank of the job forms
	// one group at a time, or a few.
	parkedPerRank = 4
	parkedAtLeast = 64
	// maxClosed bounds the names of closed groups that are kept, for members that connect
	// late.
	maxClosed = 1024
)

// Fabric is what the groups of a process have in common: the ports at which other processes
// reach it, the addresses of all processes of the job, and the table by which a new
// connection finds its group. The first frame of a connection, the hello, names the group.
// Members do not come at the same time, so a hello to a group that this rank has not made yet
// waits. A hello to a closed group is refused. Nothing is connected before a group needs it,
// and a fabric knows only the groups of which its process is a member.
type Fabric struct {
	token   transport.Token
	encrypt transport.Encrypt
	ports   []ownedPort
	// dialer connects to the other processes, nil where the system's network does.
	dialer transport.DialFunc

	mu      sync.Mutex
	book    []Address // by rank in the job
	ends    map[string]*Endpoint
	parked  map[string]chan struct{} // groups for which connections wait; closed when made
	open    map[*transport.Conn]struct{}
	closed  map[string]string // closed groups; the value is why a group could not be made
	order   []string          // of closed, oldest first
	done    chan struct{}
	ended   bool
	running sync.WaitGroup
}

type ownedPort struct {
	*transport.Port
	owned bool
}

// NewFabric returns a fabric without ports or addresses. It refuses connections from other
// hosts that do not go through TLS, where encrypt asks for it.
func NewFabric(token transport.Token, encrypt transport.Encrypt) *Fabric {
	return &Fabric{token: token, encrypt: encrypt, ends: map[string]*Endpoint{}, parked: map[string]chan struct{}{},
		open: map[*transport.Conn]struct{}{}, closed: map[string]string{}, done: make(chan struct{})}
}

// Listen offers [Proto] on a port, which Close closes if it is owned.
func (f *Fabric) Listen(port *transport.Port, owned bool) {
	f.ports = append(f.ports, ownedPort{port, owned})
	port.Handle(Proto, f.handle)
}

// SetBook sets where the ranks of the job listen, before any group is made.
func (f *Fabric) SetBook(book []Address) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.book = book
}

// route is the way to a rank.
type route uint8

const (
	overTCP route = iota
	overTLS
	overUnix
)

// errNotListening is the error of a connection of a kind for which a rank does not listen.
var errNotListening = errors.New("the rank does not listen for this kind of connection")

// dial connects to a rank of the job, by its number there, and sends a hello.
func (f *Fabric) dial(ctx context.Context, rank int, by route, h hello) (*transport.Conn, error) {
	conn, err := f.connect(ctx, rank, by)
	if err != nil {
		return nil, err
	}
	if err := conn.WriteFrame(frameHello, h.encode()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// handle hands a new connection to its group.
func (f *Fabric) handle(conn *transport.Conn) {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		conn.Close()
		return
	}
	f.open[conn] = struct{}{}
	f.running.Add(1)
	f.mu.Unlock()
	defer f.running.Done()

	keep := false
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	if h, err := takeHello(conn); err == nil {
		e, err := f.endpoint(conn, h.group)
		if err != nil {
			refuse(conn, err)
		} else {
			keep = e.answer(conn, h)
		}
	}
	f.mu.Lock()
	delete(f.open, conn)
	f.mu.Unlock()
	if !keep {
		conn.Close()
	}
}

// checkShelter refuses a connection from another node that should have gone through TLS. The
// port cannot do that, for only the hello tells the connection's purpose and rank.
func (f *Fabric) checkShelter(conn *transport.Conn, why purpose) error {
	if f.encrypt.TLS(conn.Sheltered(), why != forControl) {
		return fmt.Errorf("from another node %w", transport.ErrNeedsTLS)
	}
	return nil
}

// refuse tells a peer why its connection is refused.
func refuse(conn *transport.Conn, err error) {
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	text := err.Error()
	var closed *closedError
	if errors.As(err, &closed) && closed.why != "" {
		text = closedText + ": " + closed.why
	}
	_ = conn.WriteFrame(frameRefused, []byte(text))
}

// endpoint returns the endpoint of a connection's group. It waits until the group is made or
// the peer has gone.
func (f *Fabric) endpoint(conn *transport.Conn, group string) (*Endpoint, error) {
	limit := time.NewTimer(parkLimit)
	defer limit.Stop()
	var gone <-chan struct{}
	for {
		f.mu.Lock()
		if e := f.ends[group]; e != nil {
			f.mu.Unlock()
			return e, nil
		}
		if why, was := f.closed[group]; was {
			f.mu.Unlock()
			return nil, &closedError{why}
		}
		if most := max(parkedAtLeast, parkedPerRank*len(f.book)); len(f.open) > most {
			f.mu.Unlock()
			return nil, fmt.Errorf("this rank has not made the group yet, and %d connections wait for groups already", most)
		}
		made := f.parked[group]
		if made == nil {
			made = make(chan struct{})
			f.parked[group] = made
		}
		f.mu.Unlock()
		if gone == nil {
			var release func()
			gone, release = watchEnd(conn)
			defer release()
		}
		select {
		case <-made:
		case <-f.done:
			return nil, errors.New("this rank has left the job")
		case <-gone:
			f.unpark(group, made)
			return nil, errors.New("the peer ended the connection, or sent more than a hello, before this rank had made the group")
		case <-limit.C:
			f.unpark(group, made)
			return nil, fmt.Errorf("this rank has not made the group within %v", parkLimit)
		}
	}
}

// unpark ends the wait for a group; the others that wait for it begin anew.
func (f *Fabric) unpark(group string, made chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.parked[group] == made && f.ends[group] == nil {
		delete(f.parked, group)
		close(made)
	}
}

// watchEnd returns a channel that is closed when the peer ends a connection, until release
// is called. It is not closed for a peer that has told a leave or a fault before, for the
// group must hear of that. After release the connection's read deadline has passed.
func watchEnd(conn *transport.Conn) (gone <-chan struct{}, release func()) {
	_ = conn.SetReadDeadline(time.Time{})
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if kind, over := conn.AwaitEnd(); over && kind != frameBye && kind != frameFault {
			close(ended)
		}
	}()
	return ended, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-done
	}
}

// Close stops listening, ends the connections that are being answered, and waits for them.
// The groups have been closed before.
func (f *Fabric) Close() error {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return nil
	}
	f.ended = true
	close(f.done)
	for c := range f.open {
		c.Close()
	}
	f.mu.Unlock()
	var errs []error
	for _, p := range f.ports {
		p.Handle(Proto, nil)
		if p.owned {
			errs = append(errs, p.Close())
		}
	}
	f.running.Wait()
	return errors.Join(errs...)
}

// replyTimeout limits the wait for a peer's first or next word where the peer
// answers at once.
const replyTimeout = 10 * time.Second
