// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

func TestEncryptPolicy(t *testing.T) {
	for text, want := range map[string]struct {
		policy        Encrypt
		control, data bool // between nodes
	}{
		"":        {EncryptControl, true, false},
		"control": {EncryptControl, true, false},
		"all":     {EncryptAll, true, true},
		"none":    {EncryptNone, false, false},
	} {
		t.Setenv(string(envvar.Encrypt), text)
		e, err := EncryptFromEnv()
		if err != nil || e != want.policy || e.TLS(false, false) != want.control || e.TLS(false, true) != want.data {
			t.Errorf("%q: %v, %v", text, e, err)
		}
		if e.TLS(true, false) || e.TLS(true, true) {
			t.Errorf("%v: TLS within a node", e)
		}
		if text != "" && e.String() != text {
			t.Errorf("%q prints as %q", text, e)
		}
	}
	t.Setenv(string(envvar.Encrypt), "some")
	if _, err := EncryptFromEnv(); err == nil || !strings.Contains(err.Error(), string(envvar.Encrypt)) || !strings.Contains(err.Error(), "control") {
		t.Errorf("%v, want the variable's name and what it takes", err)
	}
}

// dialThrough dials a port through a listener that notes what passes.
func dialThrough(t *testing.T, p *Port, token Token, options ...DialOption) (c *Conn, said func() []byte) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []byte
	var running sync.WaitGroup
	running.Go(func() {
		a, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		b, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Error(err)
			return
		}
		pass := func(from, to net.Conn) {
			buf := make([]byte, 4096)
			for {
				n, err := from.Read(buf)
				mu.Lock()
				all = append(all, buf[:n]...)
				mu.Unlock()
				if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
					from.Close()
					to.Close()
					return
				}
			}
		}
		running.Go(func() { pass(a, b) })
		pass(b, a)
	})
	c, err = Dial(soon(t), ln.Addr().String(), "echo", token, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); ln.Close(); running.Wait() })
	return c, func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Clone(all)
	}
}

// What is said through TLS cannot be read on the way, what is said plain can.
func TestTLSHides(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	secret := bytes.Repeat([]byte("weights and gradients "), 2000)
	for _, through := range []bool{true, false} {
		c, said := dialThrough(t, p, token, WithTLS(through))
		c.SetDeadline(time.Now().Add(patience))
		if err := c.WriteFrame(3, secret[:100], secret[100:]); err != nil {
			t.Fatal(err)
		}
		if kind, got, err := c.ReadFrame(nil, len(secret)); err != nil || kind != 3 || !bytes.Equal(got, secret) {
			t.Fatalf("kind %d, %d bytes, %v", kind, len(got), err)
		}
		if hidden := !bytes.Contains(said(), []byte("gradients")); hidden != through {
			t.Errorf("TLS %v: hidden %v", through, hidden)
		}
	}
}

func TestTLSNeedsTheToken(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	if _, err := Dial(soon(t), p.Addr(), "echo", NewToken(), WithTLS(true)); !errors.Is(err, ErrRejected) {
		t.Errorf("another token: %v, want ErrRejected", err)
	}
	mustEcho(t, p, token)
}

// A stranger's client hello gets no byte, whatever it offers.
func TestTLSStrangersGetNothing(t *testing.T) {
	p, _ := newPort(t, "127.0.0.1:0", patience, 10)
	nonce := make([]byte, greetingNonce)
	for name, protos := range map[string][]string{
		"no protocol": nil,
		"http":        {"h2", "http/1.1"},
		"prefix":      {tlsGreeting},
		"other token": {greeting(NewToken(), nonce)},
		"two":         {"h2", greeting(NewToken(), nonce)},
	} {
		nc, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(patience))
		heard := &ear{Conn: nc}
		err = tls.Client(heard, &tls.Config{InsecureSkipVerify: true, NextProtos: protos}).Handshake()
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || heard.n > 0 {
			t.Errorf("%s: %d bytes of answer, %v; want the connection closed", name, heard.n, err)
		}
		nc.Close()
	}
}

// ear counts what is read.
type ear struct {
	net.Conn
	n int
}

func (e *ear) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	e.n += n
	return n, err
}

// A member's greeting that somebody repeats leads to certificates, which
// nobody has without the token.
func TestTLSGreetingAloneIsNotEnough(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	config := selfSigned(t)
	config.InsecureSkipVerify = true
	config.NextProtos = []string{greeting(token, make([]byte, greetingNonce))}
	nc, err := tls.Dial("tcp", p.Addr(), config)
	if err == nil { // the client is done first, the server then refuses it
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		if err = clientHandshake(nc, "echo", token, nil); err == nil {
			t.Error("a client with a certificate of its own was accepted")
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// selfSigned is a certificate that no job's authority has given.
func selfSigned(t *testing.T) *tls.Config {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{tlsName}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, leaf, leaf, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}
}

// A server that has no certificate of the job's is found out before anything
// is said to it.
func TestTLSImpostorServer(t *testing.T) {
	config := selfSigned(t)
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := selfSigned(t)
		c.NextProtos = hello.SupportedProtos
		return c, nil
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		if n, err := io.Copy(io.Discard, nc); n > 0 || err == nil {
			t.Errorf("the impostor got %d bytes, %v", n, err)
		}
	}()
	if _, err := Dial(soon(t), ln.Addr().String(), "echo", NewToken(), WithTLS(true)); !errors.Is(err, ErrImpostor) {
		t.Errorf("%v, want ErrImpostor", err)
	}
	<-done
	ln.Close()
}

// Proofs of one session are worth nothing in another.
func TestSessionKeyJoinsTheProofs(t *testing.T) {
	token := NewToken()
	one, two := bytes.Repeat([]byte{1}, sessionKeySize), bytes.Repeat([]byte{2}, sessionKeySize)
	for _, c := range []struct {
		client, server []byte
		ok             bool
	}{{one, one, true}, {nil, nil, true}, {one, two, false}, {nil, one, false}, {one, nil, false}} {
		near, far := Pipe("")
		done := make(chan error, 1)
		go func() {
			_, err := serverHandshake(far, token, c.server, offersTest)
			far.Close()
			done <- err
		}()
		err := clientHandshake(near, "test", token, c.client)
		near.Close()
		if served := <-done; (err == nil) != c.ok || (served == nil) != c.ok {
			t.Errorf("%v and %v: client %v, server %v", c.client[:min(1, len(c.client))], c.server[:min(1, len(c.server))], err, served)
		}
	}
}

// A clock that is wrong by decades on one host keeps nobody out, and a
// certificate of another job is refused whatever its dates.
func TestTLSAsksNoClock(t *testing.T) {
	config, err := tlsConfig(NewToken())
	if err != nil {
		t.Fatal(err)
	}
	now := config.Time()
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		t.Errorf("certificates hold from %v to %v, the time that is asked about is %v", leaf.NotBefore, leaf.NotAfter, now)
	}
	if d := time.Since(now); d < 365*24*time.Hour {
		t.Errorf("the host's clock is asked: it is %v away", d)
	}
}

func TestPortThatRequiresTLS(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	p.Handle("data", func(c *Conn) { c.Close() })
	p.RequireTLS("echo")
	if v := p.judge("echo", true); v != needsTLS {
		t.Errorf("exposed echo: verdict %d", v)
	}
	if v := p.judge("data", true); v != accepted {
		t.Errorf("exposed data: verdict %d", v)
	}
	p.RequireTLS()
	if v := p.judge("data", true); v != needsTLS {
		t.Errorf("exposed data, all required: verdict %d", v)
	}
	if v := p.judge("none", true); v != noProtocol {
		t.Errorf("exposed and not offered: verdict %d", v)
	}
	mustEcho(t, p, token) // this host's own connections stay plain
	c, err := Dial(soon(t), p.Addr(), "echo", token, WithTLS(true))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()

	near, far := Pipe("")
	defer near.Close()
	go func() {
		serverHandshake(far, token, nil, func(proto string) verdict { return p.judge(proto, true) })
		far.Close()
	}()
	if err := clientHandshake(near, "echo", token, nil); !errors.Is(err, ErrNeedsTLS) || !strings.Contains(err.Error(), string(envvar.Encrypt)) {
		t.Errorf("%v, want ErrNeedsTLS", err)
	}
}

func TestSameHost(t *testing.T) {
	addr := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	for _, c := range []struct {
		local, remote string
		same          bool
	}{
		{"127.0.0.1:1", "127.0.0.1:2", true},
		{"[::1]:1", "[::1]:2", true},
		{"10.0.0.1:1", "10.0.0.1:2", true},
		{"[::ffff:10.0.0.1]:1", "10.0.0.1:2", true},
		{"10.0.0.1:1", "10.0.0.2:1", false},
	} {
		if got := sameHost(placed{local: addr(c.local), remote: addr(c.remote)}); got != c.same {
			t.Errorf("%s and %s: %v", c.local, c.remote, got)
		}
	}
	near, _ := connect(t, "unix:")
	if !sameHost(near) {
		t.Error("a unix socket led to another host")
	}
}

// placed is a connection between two addresses.
type placed struct {
	net.Conn
	local, remote net.Addr
}

func (p placed) LocalAddr() net.Addr  { return p.local }
func (p placed) RemoteAddr() net.Addr { return p.remote }

func TestTLSOverAUnixSocketIsPlain(t *testing.T) {
	near, _ := connect(t, "unix:", WithTLS(true))
	if _, secure := near.nc.(*tlsLink); secure {
		t.Error("TLS within a host")
	}
}

func TestGreeting(t *testing.T) {
	token := NewToken()
	word := greeting(token, make([]byte, greetingNonce))
	if !saluted(token, word) || len(word) > 255 {
		t.Errorf("%q is no greeting", word)
	}
	for i := range word {
		bad := []byte(word)
		bad[i] ^= 1
		if saluted(token, string(bad)) {
			t.Errorf("%q is a greeting", bad)
		}
	}
	for _, bad := range []string{"", tlsGreeting, word[:len(word)-2], word + "00", strings.ToUpper(word)} {
		if saluted(token, bad) {
			t.Errorf("%q is a greeting", bad)
		}
	}
}

// FuzzTLSHello gives arbitrary bytes to the accepting side of TLS: it ends,
// accepts nothing, and answers nobody who has not greeted.
func FuzzTLSHello(f *testing.F) {
	token, err := ParseToken(strings.Repeat("5c", 32))
	if err != nil {
		f.Fatal(err)
	}
	config, err := tlsConfig(token)
	if err != nil {
		f.Fatal(err)
	}
	word := greeting(token, make([]byte, greetingNonce))
	hello := func(proto string) []byte {
		near, far := Pipe("")
		defer near.Close()
		go func() {
			tls.Client(far, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}}).Handshake()
			far.Close()
		}()
		b := make([]byte, 8<<10)
		n, _ := near.Read(b)
		return b[:n]
	}
	f.Add([]byte{tlsFirst})
	f.Add(hello("h2"))
	f.Add(hello(word))
	f.Fuzz(func(t *testing.T, said []byte) {
		near, far := Pipe("")
		done := make(chan error, 1)
		go func() {
			_, _, err := serverTLS(far, nil, token, config, func() {})
			far.Close()
			done <- err
		}()
		near.Write(said)
		shutWrite(near)
		answer, _ := io.ReadAll(near)
		near.Close()
		if <-done == nil {
			t.Fatal("accepted")
		}
		if len(answer) > 0 && !bytes.Contains(said, []byte(word)) {
			t.Fatalf("answered %d bytes to a stranger", len(answer))
		}
	})
}

// FuzzGreeting reads arbitrary words as greetings.
func FuzzGreeting(f *testing.F) {
	token, err := ParseToken(strings.Repeat("5c", 32))
	if err != nil {
		f.Fatal(err)
	}
	word := greeting(token, make([]byte, greetingNonce))
	f.Add(word)
	f.Add(tlsGreeting + "00")
	f.Fuzz(func(t *testing.T, said string) {
		if saluted(token, said) && said != word {
			t.Fatalf("%q passes for a greeting", said)
		}
	})
}

// saluted is greets without the nonce.
func saluted(token Token, word string) bool {
	_, ok := greets(token, word)
	return ok
}
