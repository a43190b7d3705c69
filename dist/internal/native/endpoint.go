// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// Endpoint is where the other ranks of a group reach this one: a port that
// offers [Proto]. It may be made, and its address told, before there is a
// group: connections wait until there is.
type Endpoint struct {
	port  *transport.Port
	owned bool

	ready chan struct{} // closed when serve is set, or the endpoint closed
	serve func(*transport.Conn) (keep bool)

	mu      sync.Mutex
	open    map[*transport.Conn]struct{} // being answered
	closed  bool
	running sync.WaitGroup
}

// NewEndpoint offers [Proto] on a port, which Close closes if it is owned.
func NewEndpoint(port *transport.Port, owned bool) *Endpoint {
	e := &Endpoint{port: port, owned: owned, ready: make(chan struct{}), open: map[*transport.Conn]struct{}{}}
	port.Handle(Proto, e.handle)
	return e
}

// attach sets who answers connections. Once, and not after Close.
func (e *Endpoint) attach(serve func(*transport.Conn) (keep bool)) {
	e.serve = serve
	close(e.ready)
}

// handle answers a connection, which is closed after unless it is to be kept.
func (e *Endpoint) handle(conn *transport.Conn) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		conn.Close()
		return
	}
	e.open[conn] = struct{}{}
	e.running.Add(1)
	e.mu.Unlock()
	defer e.running.Done()

	<-e.ready
	keep := false
	if e.serve != nil {
		_ = conn.SetDeadline(time.Now().Add(replyTimeout))
		keep = e.serve(conn)
	}
	e.mu.Lock()
	delete(e.open, conn)
	e.mu.Unlock()
	if !keep {
		conn.Close()
	}
}

// Close withdraws the offer, ends what is being answered and waits for it.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	for c := range e.open {
		c.Close()
	}
	e.mu.Unlock()
	if e.serve == nil {
		close(e.ready)
	}
	e.port.Handle(Proto, nil)
	var err error
	if e.owned {
		err = e.port.Close()
	}
	e.running.Wait()
	return err
}

// takeHello reads the first frame of a connection. A hello that makes no
// sense is answered with why.
func takeHello(conn *transport.Conn, group string, numRanks int) (hello, error) {
	kind, payload, err := conn.ReadFrame(nil, maxHello)
	if err != nil {
		return hello{}, err
	}
	if kind != frameHello {
		return hello{}, fmt.Errorf("first frame of kind %d", kind)
	}
	h, err := parseHello(payload, group, numRanks)
	if err != nil {
		_ = conn.WriteFrame(frameRefused, []byte(err.Error()))
	}
	return h, err
}
