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
	// parkLimit is how long a connection to a group that this rank has not
	// made yet waits for it.
	parkLimit = 5 * time.Minute
	// parkedPerRank bounds the connections that wait so: each rank of the job
	// forms one group at a time, or a few.
	parkedPerRank = 4
	parkedAtLeast = 64
	// maxClosed bounds the names of closed groups that are remembered, to tell
	// late comers.
	maxClosed = 1024
)

// Fabric is what the groups of a process have in common: the ports at which
// the other processes reach it, the addresses of all of them, and the
// distribution of the connections that come. The first frame of a connection,
// the hello, names the group that it is for. A hello to a group that is not
// made yet waits for it, for members do not come at the same time; a hello to
// a closed group is refused. Nothing is connected before a group needs it, and
// a fabric knows of no group but those that its process is a member of.
type Fabric struct {
	token   transport.Token
	encrypt transport.Encrypt
	ports   []ownedPort
	// dialer is the way to the others where that is not the system's network.
	dialer transport.DialFunc

	mu      sync.Mutex
	book    []Address // by rank in the job
	ends    map[string]*Endpoint
	parked  map[string]chan struct{} // groups that somebody waits for; closed when made
	open    map[*transport.Conn]struct{}
	closed  map[string]string // why, if they have never been
	order   []string          // of closed, oldest first
	done    chan struct{}
	ended   bool
	running sync.WaitGroup
}

type ownedPort struct {
	*transport.Port
	owned bool
}

// NewFabric returns a fabric without ports or addresses. What encrypt wants to go
// through TLS is refused to connections from other hosts that do not.
func NewFabric(token transport.Token, encrypt transport.Encrypt) *Fabric {
	return &Fabric{token: token, encrypt: encrypt, ends: map[string]*Endpoint{}, parked: map[string]chan struct{}{},
		open: map[*transport.Conn]struct{}{}, closed: map[string]string{}, done: make(chan struct{})}
}

// Listen offers [Proto] on a port, which Close closes if it is owned.
func (f *Fabric) Listen(port *transport.Port, owned bool) {
	f.ports = append(f.ports, ownedPort{port, owned})
	port.Handle(Proto, f.handle)
}

// SetBook says where the ranks of the job listen. Before any group is made.
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

// errNotListening is the error of a connection that a rank does not take.
var errNotListening = errors.New("it does not listen for this kind of connection")

// dial connects to a rank of the job, given by its number there, and says
// what for.
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

// handle answers a connection: it hands it to its group.
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

// checkShelter refuses a connection from another node that should have gone
// through TLS. The port cannot: what a connection is for, and from which rank,
// is known from its hello.
func (f *Fabric) checkShelter(conn *transport.Conn, why purpose) error {
	if f.encrypt.TLS(conn.Sheltered(), why != forControl) {
		return fmt.Errorf("from another node %w", transport.ErrNeedsTLS)
	}
	return nil
}

// refuse tells a peer why its connection is not taken.
func refuse(conn *transport.Conn, err error) {
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	text := err.Error()
	var closed *closedError
	if errors.As(err, &closed) && closed.why != "" {
		text = closedText + ": " + closed.why
	}
	_ = conn.WriteFrame(frameRefused, []byte(text))
}

// endpoint returns the endpoint of the group that a connection is for, waiting
// until there is one or the peer has gone.
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
			return nil, fmt.Errorf("this rank has not made the group yet, and more than %d connections wait for such", most)
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
			return nil, errors.New("the peer has ended the connection, or has said what cannot wait")
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

// watchEnd returns a channel that is closed when the peer ends a connection,
// until release is called, but for one that has taken leave: the group is to hear of
// that. The connection's read deadline has then passed.
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

// Close withdraws the offers, ends what is being answered and waits for it.
// The groups are closed before.
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
