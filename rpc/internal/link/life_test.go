// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// deaf is an agent that answers nothing.
type deaf struct{}

func (deaf) Serve(*ServerConn) Server    { return deaf{} }
func (deaf) Lost(*Peer, uint64, error)   {}
func (deaf) Take(r *wire.Received) error { return errors.New("no calls are taken") }
func (deaf) Ended(error)                 {}

// open opens the endpoint of a deaf agent of a list.
func open(t *testing.T, name string, list []Address, listen string) *Endpoint {
	t.Helper()
	token, err := transport.ParseToken(agenttest.Token)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := New(Config{Context: ctx, Name: name, MaxMessage: 1 << 20, Peers: list, Listen: listen, Token: token}, deaf{})
	t.Cleanup(func() {
		e.Stop()
		cancel()
		if err := e.Close(ErrClosed); err != nil {
			t.Error(err)
		}
	})
	if err := e.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Answer()
	return e
}

// TestLostAsSoonAsConnected: another process takes the place of one between the welcome of
// that one and the moment when those are told who wait for the connection. They get the new
// one's.
func TestLostAsSoonAsConnected(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "tcp")
	var between [2]*agenttest.Proxy
	var list []Address
	for i, name := range []string{"server", "worker"} {
		between[i] = agenttest.NewProxy(t)
		list = append(list, Address{name, between[i].Address()})
	}
	server := open(t, "server", list, "127.0.0.1:0")
	between[0].To(server.Addr())
	first, err := transport.Listen("127.0.0.1:0", server.Token)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	accepted := make(chan *transport.Conn, 1)
	first.Handle(proto, func(c *transport.Conn) { accepted <- c })
	between[1].To(first.Addr())
	worker := server.byName["worker"]
	type result struct {
		conn *ClientConn
		err  error
	}
	connected := make(chan result, 1)
	go func() {
		c, err := worker.Connect(t.Context(), time.Time{})
		connected <- result{c, err}
	}()
	conn := <-accepted
	defer conn.Close()
	hello, err := readHello(conn)
	if err != nil {
		t.Fatal(err)
	}
	hello.Release()
	worker.mu.Lock() // who has connected is held up
	unlock := sync.OnceFunc(worker.mu.Unlock)
	defer unlock()
	m := wire.New(wire.FrameWelcome, nil)
	m.Enc.Array(5)
	m.Enc.Uint(wire.Version)
	m.Enc.Text("worker")
	m.Enc.Int(1)
	m.Enc.Text("first")
	m.Enc.Uint(1 << 20)
	err = finishAndWrite(m, conn)
	m.Release(nil)
	if err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "the server has connected", func() bool { return len(server.Clients()) == 1 })
	second := open(t, "worker", list, "127.0.0.1:0")
	between[1].To(second.Addr())
	if _, err := second.byName["server"].Connect(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	unlock()
	r := <-connected
	if r.err != nil || r.conn.Life != second.Life() {
		t.Errorf("who waited for the connection: %v, %v", r.conn, r.err)
	}
}
