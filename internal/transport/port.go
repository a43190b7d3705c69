// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/lobby"
)

const (
	handshakeTimeout = 10 * time.Second
	// takenPatience is how long an address that is taken is tried again. A process that is
	// being started has copies of its parent's descriptors until its program runs, so
	// that a listener which has just been closed may be open for some milliseconds more.
	takenPatience = 250 * time.Millisecond
	// maxHalfOpen has the lobby hold as many as the process can.
	maxHalfOpen = 0
)

// Port is a listener that admits members of the job and hands each
// connection to the handler of its protocol.
type Port struct {
	ln    net.Listener
	addr  string
	dir   string // to remove at the end, or empty
	token Token
	tls   *tls.Config
	lobby *lobby.Lobby

	timeout time.Duration // of a handshake
	most    int           // in the lobby, 0: as many as can be
	refused refusals

	mu       sync.Mutex
	handlers map[string]func(*Conn)
	forTLS   map[string]bool // protocols that plain connections from other hosts do not get
	allTLS   bool
	halfOpen map[net.Conn]struct{} // whose first words were a member's
	closed   bool

	running sync.WaitGroup // the handshakes
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
	for by := time.Now().Add(takenPatience); errors.Is(err, syscall.EADDRINUSE) && network == "tcp" && time.Now().Before(by); {
		time.Sleep(takenPatience / 50)
		ln, err = config.Listen(context.Background(), network, address)
	}
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
		ln: ln, addr: addressOf(ln.Addr()), token: token, tls: secure, timeout: timeout, most: maxHalfOpen,
		handlers: map[string]func(*Conn){}, forTLS: map[string]bool{}, halfOpen: map[net.Conn]struct{}{},
	}
}

// open starts to take connections.
func (p *Port) open() {
	p.lobby = lobby.New(p.ln, lobby.Config{
		Patience: p.timeout, Most: p.most, Admit: admitUser, Judge: p.token.greeted, Enter: p.enter, Refuse: p.refuse, Crowd: p.crowd,
	})
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
	for nc := range p.halfOpen {
		nc.Close()
	}
	p.mu.Unlock()
	err := p.lobby.Close()
	p.running.Wait()
	p.refused.flush(p.addr)
	if p.dir != "" {
		os.RemoveAll(p.dir)
	}
	return err
}

// refuse counts who is turned away.
func (p *Port) refuse(from lobby.Source, why error) { p.refused.add(p.addr, from, why, time.Now()) }

// crowd tells of many that are held.
func (p *Port) crowd(held int, most lobby.Source, of int) { p.refused.crowd(p.addr, held, most, of) }

// enter starts the handshake with a connection whose first words are a member's.
func (p *Port) enter(nc net.Conn, from lobby.Source, said []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		nc.Close()
		return
	}
	p.halfOpen[nc] = struct{}{}
	p.running.Add(1)
	go p.serve(nc, from, said)
}

// serve runs the handshake, then the handler.
func (p *Port) serve(nc net.Conn, from lobby.Source, said []byte) {
	nc.SetDeadline(time.Now().Add(p.timeout))
	link, proto, err := p.shake(nc, said)

	p.mu.Lock()
	delete(p.halfOpen, nc)
	handler := p.handlers[proto]
	closed := p.closed
	p.mu.Unlock()
	if why := whyRefused(err); why != nil && !closed {
		p.refuse(from, why)
	}
	p.running.Done()
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
func (p *Port) shake(nc net.Conn, said []byte) (link net.Conn, proto string, err error) {
	if said[0] == magic[0] {
		exposed := !sameHost(nc)
		proto, err = answerHello(nc, saidBy(p.token, said, nil), func(proto string) verdict { return p.judge(proto, exposed) })
		return nc, proto, err
	}
	greeted := false
	secure, key, err := serverTLS(nc, said, p.token, p.tls, func() { greeted = true })
	if err != nil {
		if greeted { // who then fails has no certificate, or not the right one
			err = fmt.Errorf("%w (%w)", errNoTrust, err)
		}
		return nil, "", err
	}
	proto, err = serverHandshake(secure, p.token, key, func(proto string) verdict { return p.judge(proto, false) })
	return secure, proto, err
}

// ListenOn opens a port on a listener that is not of the system's network, and
// owns it.
func ListenOn(ln net.Listener, token Token) (*Port, error) {
	if token.IsZero() {
		return nil, &Error{Op: "listen", Addr: addressOf(ln.Addr()), Err: ErrNoToken}
	}
	secure, err := tlsConfig(token)
	if err != nil {
		return nil, &Error{Op: "listen", Addr: addressOf(ln.Addr()), Err: err}
	}
	p := makePort(ln, token, secure, handshakeTimeout, maxHalfOpen)
	p.open()
	return p, nil
}
