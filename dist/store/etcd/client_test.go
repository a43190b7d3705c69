// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/dist/store/etcd"
	"github.com/cohort-ml/cohort/internal/transport"
)

// member starts an etcd of the test's own, which ends with the test, and returns its URL.
func member(t *testing.T, scheme string, args ...string) string {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("there is no etcd on the PATH (Debian's package etcd-server has it): " + err.Error())
	}
	var urls [2]string
	for i, scheme := range []string{scheme, "http"} {
		port, err := transport.HoldPort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		defer port.Close()
		urls[i] = scheme + "://" + port.Addr()
	}
	cmd := exec.Command(exe, append([]string{"--data-dir", t.TempDir(), "--name", "test", "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "test=" + urls[1]}, args...)...)
	cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=arm64")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return urls[0]
}

// minute is the time of a test.
func minute(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// A member that was started without its gateway says what to change.
func TestNoGateway(t *testing.T) {
	at := member(t, "http", "--enable-grpc-gateway=false")
	_, _, err := etcd.Dial(minute(t), []string{at}, "job", etcd.Options{})
	if err == nil || !strings.Contains(err.Error(), at+" has no JSON gateway") || !strings.Contains(err.Error(), "--enable-grpc-gateway=false") {
		t.Errorf("%v, want the flag", err)
	}
	// Another member may have one.
	s := etcd.New(newClient(t, etcd.Options{}, at, client(t).String()), root(t))
	if err := s.Set(minute(t), "key", []byte("value")); err != nil {
		t.Error(err)
	}
}

// certificate writes a certificate for 127.0.0.1, and its key.
func certificate(t *testing.T) (certFile, keyFile string, trusted *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(os.WriteFile(certFile, text, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)); err != nil {
		t.Fatal(err)
	}
	trusted = x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	return certFile, keyFile, trusted
}

// A cluster with certificates and passwords is used with them, and refuses without.
func TestTLSAndUser(t *testing.T) {
	cert, key, trusted := certificate(t)
	at := member(t, "https", "--cert-file", cert, "--key-file", key)
	conf := &tls.Config{RootCAs: trusted}
	ctx := minute(t)
	if _, err := etcd.New(newClient(t, etcd.Options{TLS: conf}, at), "job").NumKeys(ctx, ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, body string }{
		{"/v3/auth/user/add", `{"name":"root","password":"top"}`},
		{"/v3/auth/role/add", `{"name":"root"}`},
		{"/v3/auth/user/grant", `{"user":"root","role":"root"}`},
		{"/v3/auth/user/add", `{"name":"none","password":"of"}`},
		{"/v3/auth/enable", `{}`},
	} {
		h := &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
		r, err := h.Post(at+c.path, "application/json", strings.NewReader(c.body))
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatal(c.path, r, err)
		}
		_ = r.Body.Close()
		h.CloseIdleConnections()
	}
	s := etcd.New(newClient(t, etcd.Options{TLS: conf, User: "root", Password: "top"}, at), "job")
	got := make(chan error, 1)
	go func() {
		v, err := s.Get(ctx, "key")
		if err == nil && string(v) != "value" {
			err = fmt.Errorf("got %q", v)
		}
		got <- err
	}()
	if err := s.Set(ctx, "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		name string
		at   string
		o    etcd.Options
		want []string
	}{
		{"no user", at, etcd.Options{TLS: conf}, []string{"user name is empty"}},
		{"wrong password", at, etcd.Options{TLS: conf, User: "root", Password: "tip"}, []string{`user "root"`, "invalid user ID or password"}},
		{"no permission", at, etcd.Options{TLS: conf, User: "none", Password: "of"}, []string{"permission denied"}},
		{"unknown certificate", at, etcd.Options{}, []string{at, "unknown authority"}},
	} {
		_, err := etcd.New(newClient(t, c.o, c.at), "job").NumKeys(ctx, "")
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", c.name, err, w)
			}
		}
	}
}

// A member that wants a certificate is asked once. By TLS 1.3 it says what it wants.
func TestCertificateRequired(t *testing.T) {
	cert, key, trusted := certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[uint16]string{tls.VersionTLS12: "remote error: tls: handshake failure", tls.VersionTLS13: "wants a certificate of its clients"} {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert, MaxVersion: version}
		s.StartTLS()
		_, err = etcd.New(newClient(t, etcd.Options{TLS: &tls.Config{RootCAs: trusted}}, s.URL), "job").NumKeys(minute(t), "")
		s.Close()
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), s.URL) || !strings.Contains(err.Error(), want) {
			t.Errorf("TLS %x: %v", version, err)
		}
	}
}

// A member that speaks TLS ends connections that do not, and gives no reason.
func TestPlainToTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1000))
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = etcd.New(newClient(t, etcd.Options{}, l.Addr().String()), "job").NumKeys(ctx, "")
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "https://HOST:PORT if it speaks TLS") {
		t.Errorf("%v, want the hint", err)
	}
}

// relay passes connections on to an address until it is cut.
type relay struct {
	l     net.Listener
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l}
	r.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				r.wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(r.cut)
	return r
}

// num returns how many connections there have been.
func (r *relay) num() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) / 2
}

func (r *relay) cut() {
	_ = r.l.Close()
	r.mu.Lock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// A wait whose member dies goes on with another one, and misses nothing.
func TestAnotherMember(t *testing.T) {
	_, to, _ := strings.Cut(client(t).String(), "://")
	first, at, ctx := newRelay(t, to), root(t), minute(t)
	a := etcd.New(newClient(t, etcd.Options{}, first.l.Addr().String(), to), at)
	b := etcd.New(client(t), at)
	got := make(chan error, 2)
	go func() { _, err := a.Get(ctx, "key"); got <- err }()
	go func() { _, err := a.QueuePop(ctx, "queue"); got <- err }()
	for first.num() < 2 { // both watch
		time.Sleep(time.Millisecond)
	}
	first.cut()
	if err := errors.Join(b.Set(ctx, "key", nil), b.QueuePush(ctx, "queue", nil), <-got, <-got); err != nil {
		t.Fatal(err)
	}
	if err := a.Set(ctx, "other", nil); err != nil {
		t.Error(err)
	}
}

// Servers that are no members, and members that answer nonsense, are named.
func TestStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a page":         {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>\nWelcome\a") }, `is no etcd: it answers with HTTP 200, "<html> Welcome "`},
		"another server": {http.NotFound, "has no JSON gateway"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/login", http.StatusTemporaryRedirect)
		}, "answers with HTTP 307, which sends elsewhere"},
		"no number": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"count":"many"}`) }, "is no etcd"},
		"too much":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte(" "), 17<<20)) }, "an answer of more than 16777216 bytes"},
		"an error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			io.WriteString(w, `{"code":2,"message":"mvcc: database space exceeded"}`)
		}, "database space exceeded"},
		"an error of old": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			io.WriteString(w, `{"error":"too much","message":"etcdserver: request is too large","code":3}`)
		}, store.ErrLimit.Error()},
		"a proxy's denial": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, `is no etcd: it answers with HTTP 403, ""`},
	} {
		server := httptest.NewServer(c.answer)
		_, err := etcd.New(newClient(t, etcd.Options{}, server.URL), "job").NumKeys(minute(t), "")
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), server.URL) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		server.Close()
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, err := etcd.New(newClient(t, etcd.Options{}, "https://"+server.Listener.Addr().String()), "job").NumKeys(minute(t), "")
	if err == nil || !strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		t.Errorf("%v, want that it speaks no TLS", err)
	}
}

// A change whose answer is lost is an error, and is not made twice.
func TestLostAnswer(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		first := asked[r.URL.Path] == 1
		mu.Unlock()
		if first {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, `{"header":{"revision":"5"},"count":"3"}`)
	}))
	defer server.Close()
	times := func(path string) int {
		mu.Lock()
		defer mu.Unlock()
		return asked[path]
	}
	s := etcd.New(newClient(t, etcd.Options{}, server.URL), "job")
	if err := s.Set(minute(t), "key", nil); err == nil || !strings.Contains(err.Error(), "EOF") || times("/v3/kv/put") != 1 {
		t.Errorf("%v after %d requests, want the lost answer of one", err, times("/v3/kv/put"))
	}
	if n, err := s.NumKeys(minute(t), ""); n != 3 || err != nil || times("/v3/kv/range") != 2 {
		t.Errorf("%d, %v after %d requests: what reads is repeated", n, err, times("/v3/kv/range"))
	}
}

func TestBadEndpoints(t *testing.T) {
	for _, endpoints := range [][]string{nil, {""}, {"ftp://a"}, {"http://user:secret@a:1"}, {"a:1/path"}, {"a:1", "http://"}, {"a:1?b"}} {
		if c, err := etcd.NewClient(endpoints, etcd.Options{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v", endpoints, c, err)
		}
	}
	if _, err := etcd.NewClient([]string{"a:1"}, etcd.Options{Password: "x"}); err == nil {
		t.Error("a password without a user is taken")
	}
}
