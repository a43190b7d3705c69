// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHalfOpen      = 256
)

// Port is a listener that admits members of the job and hands each
// connection to the handler of its protocol.
type Port struct {
	ln    net.Listener
	addr  string
	dir   string // to remove at the end, or empty
	token Token
	tls   *tls.Config

	timeout time.Duration // of a handshake
	refused refusals
	pace    pacer

	mu       sync.Mutex
	handlers map[string]func(*Conn)
	forTLS   map[string]bool // protocols that plain connections from other hosts do not get
	allTLS   bool
	halfOpen lobby
	closed   bool

	stop    chan struct{}
	running sync.WaitGroup // the accept loop and the handshakes
}

// Listen opens a port at addr; the package comment has the forms. TCP port 0
// and "unix:" choose a free one; Addr says which. Protocols are offered with
// Handle.
func Listen(addr string, token Token) (*Port, error) {
	return listen(addr, token, handshakeTimeout, maxHalfOpen)
}

func listen(addr string, token Token, timeout time.Duration, maxHalfOpen int) (*Port, error) {
	if token.IsZero() {
		return nil, &Error{Op: "listen", Addr: addr, Err: ErrNoToken}
	}
	network, address, err := parseAddress(addr)
	if err != nil {
		return nil, &Error{Op: "listen", Addr: addr, Err: err}
	}
	secure, err := tlsConfig(token)
	if err != nil {
		return nil, &Error{Op: "listen", Addr: addr, Err: err}
	}
	dir := ""
	if network == "unix" && address == "" {
		if address, dir, err = freshUnix(); err != nil {
			return nil, &Error{Op: "listen", Addr: addr, Err: err}
		}
	}
	config := net.ListenConfig{KeepAlive: -1} // until it is a member's
	ln, err := config.Listen(context.Background(), network, address)
	if errors.Is(err, syscall.EADDRINUSE) && network == "unix" && isAbandoned(address) && os.Remove(address) == nil {
		ln, err = config.Listen(context.Background(), network, address)
	}
	if err != nil {
		if dir != "" {
			os.RemoveAll(dir)
		}
		err = plain(err)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: another process listens there; end it or choose another port (0 takes a free one)", err)
		}
		return nil, &Error{Op: "listen", Addr: addr, Err: err}
	}
	p := makePort(ln, token, secure, timeout, maxHalfOpen)
	p.dir = dir
	p.open()
	return p, nil
}

func makePort(ln net.Listener, token Token, secure *tls.Config, timeout time.Duration, maxHalfOpen int) *Port {
	return &Port{
		ln: ln, addr: addressOf(ln.Addr()), token: token, tls: secure,
		timeout: timeout, pace: newPacer(time.Now()),
		handlers: map[string]func(*Conn){}, forTLS: map[string]bool{}, halfOpen: newLobby(maxHalfOpen), stop: make(chan struct{}),
	}
}

// open starts to take connections.
func (p *Port) open() {
	p.running.Add(1)
	go p.accept()
}

// keepAlive finds a peer whose machine has gone without a word.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// Addr returns the address to dial. For a TCP port that listens on all
// interfaces its host is "::" or "0.0.0.0": peers need one from ChooseInterface.
func (p *Port) Addr() string { return p.addr }

// Handle offers a protocol: handler is called for each connection that asks
// for it, in a goroutine of its own, and owns the Conn. A nil handler
// withdraws the offer. A malformed name panics.
func (p *Port) Handle(proto string, handler func(*Conn)) {
	if err := checkProto(proto); err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if handler == nil {
		delete(p.handlers, proto)
		return
	}
	p.handlers[proto] = handler
}

// RequireTLS refuses protocols, or all when none is named, to plain
// connections from other hosts. What comes from this host is taken either way.
func (p *Port) RequireTLS(protos ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allTLS = p.allTLS || len(protos) == 0
	for _, proto := range protos {
		p.forTLS[proto] = true
	}
}

// judge decides on a member that asks for a protocol.
func (p *Port) judge(proto string, exposed bool) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.handlers[proto] == nil:
		return noProtocol
	case exposed && (p.allTLS || p.forTLS[proto]):
		return needsTLS
	}
	return accepted
}

// sameHost says whether both ends of a connection are on this host.
func sameHost(nc net.Conn) bool {
	remote, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return true
	}
	local, ok := nc.LocalAddr().(*net.TCPAddr)
	return remote.IP.IsLoopback() || ok && remote.IP.Equal(local.IP)
}

// Close stops listening, ends the handshakes under way and waits for them.
// Connections that handlers have stay open.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.stop)
	p.halfOpen.closeAll()
	p.mu.Unlock()
	err := p.ln.Close()
	p.running.Wait()
	p.refused.flush(p.addr)
	if p.dir != "" {
		os.RemoveAll(p.dir)
	}
	return err
}

// accept takes connections until Close.
func (p *Port) accept() {
	defer p.running.Done()
	pause := time.Duration(0)
	for {
		if d := p.pace.wait(time.Now()); d > 0 {
			if !p.sleep(d) {
				return
			}
			continue
		}
		nc, err := p.ln.Accept()
		if err == nil {
			pause = 0
			p.admit(nc)
			continue
		}
		// Other than by Close, accepting fails for a connection that has gone
		// again, or for want of descriptors or memory: those come back.
		p.mu.Lock()
		closed := p.closed
		p.halfOpen.evict()
		p.mu.Unlock()
		if closed {
			return
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		if !p.sleep(pause) {
			return
		}
	}
}

// sleep waits, and says whether the port is still open.
func (p *Port) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.stop:
		return false
	}
}

// admit starts the handshake with a connection.
func (p *Port) admit(nc net.Conn) {
	from, foreign := sourceOf(nc)
	if foreign {
		p.refused.add(p.addr, from, errOtherUser, time.Now()) // first, as in serve: whoever sees it closed can count on the report
		nc.Close()
		return
	}
	v := &visitor{nc: nc, from: from}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		nc.Close()
		return
	}
	place := p.halfOpen.enter(v)
	p.running.Add(1)
	go p.serve(v, place)
}

// serve runs the handshake, then the handler.
func (p *Port) serve(v *visitor, place *list.Element) {
	nc := v.nc
	nc.SetDeadline(time.Now().Add(p.timeout))
	link, proto, err := p.shake(v)

	p.mu.Lock()
	p.halfOpen.leave(place)
	handler := p.handlers[proto]
	closed, evicted := p.closed, v.evicted
	p.mu.Unlock()
	if why := whyRefused(err, evicted); why != nil && !closed {
		p.refused.add(p.addr, v.from, why, time.Now())
	}
	p.running.Done()
	if err == nil {
		p.pace.admitted(time.Now())
	}
	if err != nil || handler == nil || closed {
		nc.Close()
		return
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // a hint, without which silence is found out later
	}
	nc.SetDeadline(time.Time{})
	handler(NewConn(link, proto))
}

// shake runs the handshake, plain or through TLS: the first byte tells.
func (p *Port) shake(v *visitor) (link net.Conn, proto string, err error) {
	proven := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		v.proven = true
	}
	nc := v.nc
	first := &opened{Conn: nc, proven: proven}
	if _, err := io.ReadFull(nc, first.b[:]); err != nil {
		if errors.Is(err, io.EOF) || isReset(err) {
			err = errNoWord
		}
		return nil, "", err
	}
	switch b := first.b[0]; {
	case b == magic[0]:
		exposed := !sameHost(nc)
		proto, err = serverHandshake(first, p.token, nil, func(proto string) verdict { return p.judge(proto, exposed) })
		return nc, proto, err
	case b == tlsFirst:
	case b >= ' ' && b <= '~':
		return nil, "", errText
	default:
		return nil, "", strange(nc, b)
	}
	greeted := false
	secure, key, err := serverTLS(nc, first.b[:], p.token, p.tls, func() { greeted = true; proven() })
	if err != nil {
		if greeted { // who then fails has no certificate, or not the right one
			err = fmt.Errorf("%w (%w)", errNoTrust, err)
		}
		return nil, "", err
	}
	proto, err = serverHandshake(secure, p.token, key, func(proto string) verdict { return p.judge(proto, false) })
	return secure, proto, err
}

// opened is a connection whose first byte has been read. Its first write is
// what nobody gets who has not proven the token.
type opened struct {
	net.Conn
	b      [1]byte
	done   bool
	proven func()
}

// Write implements io.Writer.
func (f *opened) Write(p []byte) (int, error) {
	f.proven()
	return f.Conn.Write(p)
}

// Read implements io.Reader.
func (f *opened) Read(p []byte) (int, error) {
	if !f.done && len(p) > 0 {
		f.done = true
		p[0] = f.b[0]
		return 1, nil
	}
	return f.Conn.Read(p)
}
