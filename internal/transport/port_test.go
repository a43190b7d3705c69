// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newPort opens a port that ends with the test and echoes the frames of
// protocol "echo".
func newPort(t testing.TB, addr string, timeout time.Duration, halfOpen int) (*Port, Token) {
	t.Helper()
	token := NewToken()
	p, err := listen(addr, token, timeout, halfOpen)
	if err != nil {
		t.Fatal(err)
	}
	p.Handle("echo", func(c *Conn) {
		defer c.Close() // when the client has closed
		for {
			kind, payload, err := c.ReadFrame(nil, 1<<20)
			if err != nil || c.WriteFrame(kind, payload) != nil {
				return
			}
		}
	})
	t.Cleanup(func() { p.Close() })
	return p, token
}

// mustEcho dials and exchanges a frame.
func mustEcho(t testing.TB, p *Port, token Token) {
	t.Helper()
	c, err := Dial(soon(t), p.Addr(), "echo", token)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if err := c.WriteFrame(7, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if kind, got, err := c.ReadFrame(nil, 10); kind != 7 || string(got) != "hello" || err != nil {
		t.Fatal(kind, got, err)
	}
}

func TestPortTellsProtocolsApart(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "unix:", "unix:" + filepath.Join(t.TempDir(), "s")} {
		p, token := newPort(t, addr, patience, 10)
		got := make(chan string, 2)
		for _, proto := range []string{"one", "two"} {
			p.Handle(proto, func(c *Conn) { got <- proto + "=" + c.Proto(); c.Close() })
		}
		for _, proto := range []string{"two", "one"} {
			c, err := Dial(soon(t), p.Addr(), proto, token)
			if err != nil {
				t.Fatal(err)
			}
			if g := <-got; g != proto+"="+proto {
				t.Errorf("asked for %s, handled %s", proto, g)
			}
			c.Close()
		}
		mustEcho(t, p, token)
	}
}

func TestProtocolThatIsNotOffered(t *testing.T) {
	t.Parallel() // it waits a while for the protocol to be offered
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	p.Handle("two", func(c *Conn) { c.Close() })
	p.Handle("two", nil)
	if _, err := Dial(soon(t), p.Addr(), "two", token); !errors.Is(err, ErrNoProtocol) || !strings.Contains(err.Error(), "two") {
		t.Errorf("%v", err)
	}
	mustEcho(t, p, token)
}

// A listener that has been closed may be open for a moment more, in a process that is just being started.
func TestListenWhereOneHasJustEnded(t *testing.T) {
	held, err := HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	last, err := net.Listen("tcp", held.Addr())
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(takenPatience/10, func() { last.Close() })
	p, err := Listen(held.Addr(), NewToken())
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestListenErrors(t *testing.T) {
	token := NewToken()
	p, err := Listen("127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = Listen(p.Addr(), token)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), p.Addr()) {
		t.Errorf("port in use: %v", err)
	}
	if _, err := Listen("127.0.0.1:0", Token{}); !errors.Is(err, ErrNoToken) {
		t.Errorf("no token: %v", err)
	}
	for _, bad := range []string{"", "localhost", "127.0.0.1:x", "127.0.0.1:70000", "1:2:3", "unix:/no/such/directory/socket"} {
		var e *Error
		if _, err := Listen(bad, token); !errors.As(err, &e) || e.Op != "listen" || e.Addr != bad {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Strangers who connect and say nothing, as many as they like, neither keep
// members out nor stay.
func TestSilentStrangersDoNotKeepMembersOut(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", time.Hour, 5)
	var strangers []net.Conn
	for range 50 {
		nc, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		strangers = append(strangers, nc)
	}
	for range 5 {
		mustEcho(t, p, token)
	}
	for _, nc := range strangers[:40] {
		nc.SetReadDeadline(time.Now().Add(patience))
		if n, err := nc.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a stranger read %d bytes, %v; want the connection closed", n, err)
		}
	}
}

func TestSilentStrangerIsClosedAtTheDeadline(t *testing.T) {
	p, _ := newPort(t, "127.0.0.1:0", 20*time.Millisecond, 5)
	for _, said := range []string{"", "\xc0", magic, "GET / HTTP/1.1\r\n\r\n", "\x16", "\x16\x03\x01\x01\x00"} {
		nc, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(nc, said)
		nc.SetReadDeadline(time.Now().Add(patience))
		if n, err := nc.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %q: %d bytes, %v; want the connection closed", said, n, err)
		}
		nc.Close()
	}
}

func TestCloseEndsHandshakes(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "unix:"} {
		p, _ := newPort(t, addr, time.Hour, 10)
		network, address, err := parseAddress(p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		nc, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		io.WriteString(nc, magic)
		if err := p.Close(); err != nil { // waits for the handshake
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if _, err := net.Dial(network, address); err == nil {
			t.Error("the port still listens")
		}
	}
}

func TestSocketFileGoesAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	p, err := Listen("unix:"+path, NewToken())
	if err != nil {
		t.Fatal(err)
	}
	if p.Addr() != "unix:"+path {
		t.Errorf("Addr = %s", p.Addr())
	}
	p.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

func TestDialWaitsForTheListener(t *testing.T) {
	path := "unix:" + filepath.Join(t.TempDir(), "s")
	token := NewToken()
	dialled := make(chan error, 1)
	ctx := soon(t)
	go func() {
		c, err := Dial(ctx, path, "late", token)
		if err == nil {
			c.Close()
		}
		dialled <- err
	}()
	p, err := Listen(path, token)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	handled := make(chan struct{})
	p.Handle("late", func(c *Conn) { c.Close(); close(handled) })
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	<-handled
}

func TestDialGivesUp(t *testing.T) {
	nobody, err := HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	addr := nobody.Addr()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	_, err = Dial(ctx, addr, "store", NewToken())
	var e *Error
	if !errors.As(err, &e) || e.Addr != addr || e.Proto != "store" ||
		!errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v: want the address, the protocol, the deadline and the refusal", err)
	}

	cancelled, stop := context.WithCancelCause(context.Background())
	why := errors.New("rank 3 failed")
	stop(why)
	if _, err := Dial(cancelled, addr, "store", NewToken()); !errors.Is(err, why) {
		t.Errorf("%v: want the context's cause", err)
	}
	if _, err := Dial(soon(t), addr, "store", Token{}); !errors.Is(err, ErrNoToken) {
		t.Errorf("no token: %v", err)
	}
}

// Another token is an error long before the context's deadline.
func TestDialWithAnotherToken(t *testing.T) {
	p, _ := newPort(t, "127.0.0.1:0", patience, 10)
	other := NewToken()
	_, err := Dial(soon(t), p.Addr(), "echo", other)
	if !errors.Is(err, ErrRejected) || !strings.Contains(err.Error(), "token") || strings.Contains(err.Error(), other.Text()) {
		t.Errorf("%v", err)
	}
}

func TestDialAnswersToSomethingElse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\n\r\n"+strings.Repeat("x", 100))
			nc.Close()
		}
	}()
	_, err = Dial(soon(t), ln.Addr().String(), "echo", NewToken())
	if !errors.Is(err, ErrImpostor) && !errors.Is(err, ErrRejected) {
		t.Errorf("%v", err)
	}
}

func TestManyDialAtOnce(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, maxHalfOpen)
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() { mustEchoAsync(t, p, token) })
	}
	wg.Wait()
}

// mustEchoAsync is mustEcho for other goroutines than the test's own.
func mustEchoAsync(t *testing.T, p *Port, token Token) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := Dial(ctx, p.Addr(), "echo", token)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if err := c.Do(ctx, func() error {
		if err := c.WriteFrame(1, []byte("x")); err != nil {
			return err
		}
		_, _, err := c.ReadFrame(nil, 10)
		return err
	}); err != nil {
		t.Error(err)
	}
}
