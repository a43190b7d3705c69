// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
)

// A Proxy passes the connections to its TCP address on to another, which a test sets.
type Proxy struct {
	net.Listener
	mu    sync.Mutex
	to    string
	lines []*proxied
	holds []func()
}

// proxied is a connection that is passed on.
type proxied struct {
	near, far net.Conn
	ended     chan struct{}

	mu   sync.Mutex
	held chan struct{} // nil: nothing is held back
}

// NewProxy makes one, until the end of the test.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			far, err := net.Dial("tcp", p.to)
			if err != nil {
				near.Close()
				p.mu.Unlock()
				continue
			}
			c := &proxied{near: near, far: far, ended: make(chan struct{})}
			p.lines = append(p.lines, c)
			p.mu.Unlock()
			running.Go(c.pass)
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for _, open := range p.holds {
			open()
		}
		p.mu.Unlock()
		p.Cut()
		running.Wait()
	})
	return p
}

// Address returns where the proxy listens.
func (p *Proxy) Address() string { return p.Addr().String() }

// To says to where connections are passed on from now on.
func (p *Proxy) To(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = addr
}

// Cut ends all connections. Those that come later are passed on.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.lines {
		c.near.Close()
		c.far.Close()
	}
	p.lines = nil
}

// Hold keeps back what is written to the connections that there are, and that they have
// been closed. Those that come later are passed on. letGo passes on what was kept, and
// returns when the connections, which their ends have closed, are over.
func (p *Proxy) Hold() (letGo func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines, held := slices.Clone(p.lines), make(chan struct{})
	open := sync.OnceFunc(func() { close(held) })
	p.holds = append(p.holds, open)
	for _, c := range lines {
		c.mu.Lock()
		c.held = held
		c.mu.Unlock()
	}
	return func() {
		open()
		for _, c := range lines {
			<-c.ended
		}
	}
}

// pass passes on in both directions until one of them ends.
func (c *proxied) pass() {
	defer close(c.ended)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c.near, c.far}, {c.far, c.near}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], holding{c, way[0]})
			c.near.Close()
			c.far.Close()
		})
	}
	both.Wait()
}

// holding reads what is passed on.
type holding struct {
	c    *proxied
	from net.Conn
}

func (h holding) Read(b []byte) (int, error) {
	n, err := h.from.Read(b)
	h.c.mu.Lock()
	held := h.c.held
	h.c.mu.Unlock()
	if held != nil {
		<-held
	}
	return n, err
}
