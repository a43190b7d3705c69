// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/lobby"
)

// stranger connects to a port, says something, and returns what it gets.
func stranger(t *testing.T, p *Port, said []byte, closeWrite bool) []byte {
	t.Helper()
	network, address, err := parseAddress(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(patience))
	nc.Write(said)
	if half, ok := nc.(interface{ CloseWrite() error }); ok && closeWrite {
		half.CloseWrite()
	}
	answer, err := io.ReadAll(nc)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q: the port neither answers nor closes", said[:min(len(said), 20)])
	}
	return answer
}

// ledger keeps a port's reports.
type ledger struct {
	mu    sync.Mutex
	lines []Refusals
}

func (l *ledger) add(r Refusals) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r)
}

func (l *ledger) all() []Refusals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

// Whatever a stranger says, it gets nothing, and the port says why in words of its own.
func TestRefusalsLeaveATrace(t *testing.T) {
	token := NewToken()
	recorded, _ := record(t, token)
	for _, tt := range []struct {
		name  string
		said  []byte
		close bool
		why   error
	}{
		{"scan", nil, true, errNoWord},
		{"http", []byte("GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"), false, errText},
		{"pytorch", append([]byte{9, 0x5a, 0x41, 0xb1, 0x3c}, make([]byte, 200)...), false, errGarbage},
		{"pytorch 2", []byte("\x00\xce\xf7\x85\x3c\x0d"), false, errPyTorch},
		{"pytorch 1.13", []byte("\x03\x05\x00\x00\x00\x00\x00\x00\x00init/"), false, errPyTorch},
		{"one wrong byte", []byte{1}, false, errGarbage},
		{"magic, then garbage", append([]byte(magic[:4]), pattern(100, 1)...), false, errGarbage},
		{"version", append([]byte(magic+"\x02"), make([]byte, 200)...), false, errVersion},
		{"other token", newHello(NewToken(), "echo"), false, errNoProof},
		{"a hello cut short", newHello(token, "echo")[:helloSize-1], true, errCut},
		{"too little", []byte(magic), false, errSlow},
		{"replay", recorded, false, errRepeated},
		{"tls without a greeting", append([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 0}, pattern(300, 1)...), false, errGarbage},
		{"tls, a record too long", append([]byte{22, 3, 1, 0xff, 0xff}, pattern(300, 1)...), false, errGarbage},
	} {
		limit := patience
		if tt.why == errSlow {
			limit = 50 * time.Millisecond
		}
		p, err := listen("127.0.0.1:0", token, limit, 10)
		if err != nil {
			t.Fatal(err)
		}
		var reports ledger
		p.OnRefusal(reports.add)
		if answer := stranger(t, p, tt.said, tt.close); len(answer) > 0 {
			t.Errorf("%s: the stranger got %d bytes", tt.name, len(answer))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		got := reports.all()
		if len(got) != 1 || !errors.Is(got[0].Why, tt.why) || got[0].Num != 1 || len(got[0].From) != 1 || got[0].From[0] != "127.0.0.1" {
			t.Errorf("%s: reports %v, want one because %v", tt.name, got, tt.why)
		}
		for _, r := range got {
			if line := r.String(); strings.Contains(line, "secret") || !strings.Contains(line, p.Addr()) || strings.Contains(line, "\n") {
				t.Errorf("%s: %q", tt.name, line)
			}
		}
	}
}

// host is a source.
func host(addr string) lobby.Source { return lobby.Host(netip.MustParseAddr(addr)) }

// Many refusals make one report at once, and one of the others when the port closes;
// those for one reason do not hide those for another.
func TestRefusalsAreGathered(t *testing.T) {
	var reports ledger
	var r refusals
	r.report = reports.add
	now := time.Now()
	for i := range 1000 {
		r.add("here:1", host(fmt.Sprintf("10.0.0.%d", 1+min(i%10, 4))), errNoProof, now.Add(time.Duration(i)*time.Microsecond))
	}
	r.add("here:1", host("10.0.0.9"), errNoProof, now.Add(refusalPause))
	r.add("here:1", host("10.0.0.9"), errNoWord, now.Add(refusalPause+1))
	r.add("here:1", host("10.0.0.9"), errNoProof, now.Add(refusalPause+2))
	r.add("here:1", host("10.0.0.9"), errNoWord, now.Add(refusalPause+3))
	r.flush("here:1")
	r.flush("here:1")
	got := reports.all()
	if len(got) != 5 || got[0].Num != 1 || got[1].Num != 1000 || len(got[1].From) != maxSources || got[1].Others != 2 || got[2].Num != 1 || got[2].Why != errNoWord ||
		got[3].Num != 1 || got[4].Num != 1 || errors.Is(got[3].Why, got[4].Why) || got[4].Total != 1004 {
		t.Fatalf("reports %+v", got)
	}
	want := "turned away 1000 connections to here:1 from 10.0.0.5, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 2 others: " + errNoProof.Error()
	if line := got[1].String(); line != want {
		t.Error(line)
	}
}

// A member that asks for what is not offered yet is no stranger, one that
// breaks the policy is worth a line.
func TestMembersAreNoStrangers(t *testing.T) {
	p, token := newPort(t, "127.0.0.1:0", patience, 10)
	for range 3 {
		mustEcho(t, p, token)
	}
	// It gives up between two tries: within one, it would look like a stranger.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	giveUp := WithFailures(func(error) { cancel() })
	if c, err := Dial(ctx, p.Addr(), "nothing", token, giveUp); err == nil {
		c.Close()
		t.Error("connected to what is not offered")
	}
	if n := p.Refused(); n != 0 {
		t.Errorf("%d members were counted as strangers", n)
	}
}

func TestSeenForgetsTheOldest(t *testing.T) {
	var s nonces
	nonce := make([]byte, nonceSize)
	say := func(i int) bool {
		nonce[0], nonce[1], nonce[2] = byte(i), byte(i>>8), byte(i>>16)
		return s.fresh(nonce)
	}
	for i := range maxSeen + 10 {
		if !say(i) {
			t.Fatalf("nonce %d was seen before", i)
		}
	}
	if say(maxSeen+9) || say(10) {
		t.Error("what was said lately is taken again")
	}
	if !say(0) || len(s.known) != maxSeen || len(s.order) != maxSeen {
		t.Errorf("%d nonces, %d in order, want %d", len(s.known), len(s.order), maxSeen)
	}
}

// traceMain makes the test binary panic with a token in its hands.
const traceMain = "TRANSPORT_TEST_TRACE"

//go:noinline
func panicWith(t Token, tr transcript, holder struct{ token Token }) { panic(any(holder)) }

// The trace of a panic, which may end up in a log or a report, does not show
// the token that is among its arguments.
func TestTokenIsNotInTraces(t *testing.T) {
	if text := os.Getenv(traceMain); text != "" {
		token, err := ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		panicWith(token, transcript{token: token}, struct{ token Token }{token})
	}
	token := NewToken()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTokenIsNotInTraces$")
	cmd.Env = append(os.Environ(), traceMain+"="+token.Text(), "GOTRACEBACK=system")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panicWith(") {
		t.Fatalf("no trace: %v\n%s", err, out)
	}
	if hidden := strings.ToLower(string(out)); strings.Contains(hidden, token.Text()[:16]) || strings.Contains(hidden, fmt.Sprintf("%#x, %#x, %#x", token.key[0], token.key[1], token.key[2])) {
		t.Errorf("the token is in the trace:\n%s", out)
	}
}

// Certificates that are not the job's, or have ended, say so on the side that
// refuses. Neither can occur between members; who has heard a greeting can try.
func TestRefusalOfCertificates(t *testing.T) {
	token := NewToken()
	ended, err := tlsConfig(token)
	if err != nil {
		t.Fatal(err)
	}
	ended.Certificates = []tls.Certificate{endedCertificate(t, token)}
	for name, config := range map[string]*tls.Config{"self-signed": selfSigned(t), "ended": ended} {
		p, err := listen("127.0.0.1:0", token, patience, 10)
		if err != nil {
			t.Fatal(err)
		}
		var reports ledger
		p.OnRefusal(reports.add)
		nonce := make([]byte, greetingNonce)
		rand.Read(nonce)
		config.InsecureSkipVerify = true
		config.NextProtos = []string{greeting(token, nonce)}
		nc, err := tls.Dial("tcp", p.Addr(), config)
		if err == nil { // the client is done first
			nc.SetDeadline(time.Now().Add(patience))
			_, err = nc.Read(make([]byte, 1))
			nc.Close()
		}
		if err == nil {
			t.Errorf("%s: the port has something to say", name)
		}
		for by := time.Now().Add(patience); p.Refused() == 0 && time.Now().Before(by); { // the alert comes first
			time.Sleep(time.Millisecond)
		}
		p.Close()
		if got := reports.all(); len(got) != 1 || !errors.Is(got[0].Why, errNoTrust) {
			t.Errorf("%s: reports %v, want one because %v", name, got, errNoTrust)
		}
	}
}

// endedCertificate is a certificate by the job's authority that no longer holds.
func endedCertificate(t *testing.T, token Token) tls.Certificate {
	seed, err := hkdf.Key(sha256.New, token.key[:], nil, "cohort transport certificate authority", ed25519.SeedSize)
	if err != nil {
		t.Fatal(err)
	}
	authorityKey := ed25519.NewKeyFromSeed(seed)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "job.cohort"}, IsCA: true, BasicConstraintsValid: true}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{tlsName}, NotBefore: anyTime.AddDate(-2, 0, 0), NotAfter: anyTime.AddDate(-1, 0, 0),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(nil, leaf, authority, public, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}
