// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/store"
)

// certificates makes an authority, and a certificate of it with its key.
func certificates(t *testing.T) (key, cert, ca string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	make := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = k
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &k.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return k, der
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	signer, der := make(authority, authority, nil)
	ca = write("ca.pem", "CERTIFICATE", der)
	rank := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "rank"}, KeyUsage: x509.KeyUsageDigitalSignature}
	own, der := make(rank, authority, signer)
	cert = write("cert.pem", "CERTIFICATE", der)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return write("key.pem", "PRIVATE KEY", der), cert, ca
}

// TestTLS has Go ranks talk through TLS.
func TestTLS(t *testing.T) {
	key, cert, ca := certificates(t)
	for _, g := range []Generation{PerPair, PerDevice} {
		together(t, g, 3, func(cfg *Config) {
			var err error
			if cfg.TLS, err = LoadTLS(key, cert, "", filepath.Dir(ca)); err != nil {
				t.Error(err)
			}
		}, func(b *Communicator) error { return everything(b, 5000) })
	}
}

// TestTLSOfAnother: who shows a certificate of another authority is not taken, and
// the error says who was waited for.
func TestTLSOfAnother(t *testing.T) {
	s := store.NewMemory()
	var all sync.WaitGroup
	for r := range 2 {
		key, cert, ca := certificates(t)
		all.Go(func() {
			cfg := config(s, PerDevice, r, 2)
			cfg.Timeout = 500 * time.Millisecond
			var err error
			if cfg.TLS, err = LoadTLS(key, cert, ca, ""); err != nil {
				t.Error(err)
				return
			}
			_, err = Open(context.Background(), cfg)
			var late *fault.TimeoutError
			var other *fault.RankError
			switch {
			case errors.As(err, &late) && len(late.Missing) == 1 && late.Missing[0].Rank == 1-r:
			case errors.As(err, &other) && other.Rank == 1-r:
			default:
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
}

// TestFailureWhileConnecting: what is wrong with one rank is not kept back until a
// connection to another one has run out of time.
func TestFailureWhileConnecting(t *testing.T) {
	key, cert, ca := certificates(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // it never answers
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	s := store.NewMemory()
	info := rankInfo{host: "mute", addr: address{netip.MustParseAddrPort(mute.Addr().String()), noSequence}, ids: []int64{0, 1, 2}}
	if err := s.Set(t.Context(), "0/0", info.encode()); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "0/1", []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	cfg := config(s, PerDevice, 2, 3)
	cfg.Addrs = []netip.Addr{netip.MustParseAddr("127.0.0.2")} // the greater one, which connects
	if cfg.TLS, err = LoadTLS(key, cert, ca, ""); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if b, err := Open(t.Context(), cfg); err == nil {
		b.Close()
		t.Error("the group was formed")
	} else if of := (*fault.RankError)(nil); !errors.As(err, &of) || of.Rank != 1 {
		t.Errorf("%v, want an error of rank 1", err)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("the error came after %v", d)
	}
}

// TestTLSRefused: that a rank's certificate, or what it says instead, is not taken is told,
// with whose it said that it was.
func TestTLSRefused(t *testing.T) {
	key, cert, ca := certificates(t)
	cfg := config(nil, PerDevice, 0, 2)
	var err error
	if cfg.TLS, err = LoadTLS(key, cert, ca, ""); err != nil {
		t.Fatal(err)
	}
	var told []string
	cfg.Refused = func(from netip.AddrPort, rank int, err error) {
		told = append(told, fmt.Sprint(from, " ", rank, " ", err))
	}
	cfg.Addrs = make([]netip.Addr, 1)
	b := newCommunicator(cfg)
	m := &rendezvous{b: b, mesh: b.contexts[0], attached: make(chan struct{}, 1)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if _, err := peer.Write([]byte("no TLS at all")); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if m.accept(conn, func(net.Conn) (int, error) { return 1, nil }) {
		t.Error("it is taken")
	}
	if want := peer.LocalAddr().String() + " 1 tls: "; len(told) != 1 || !strings.HasPrefix(told[0], want) {
		t.Errorf("told of %q, want one that begins with %q", told, want)
	}
}
