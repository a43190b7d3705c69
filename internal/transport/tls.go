// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Encrypt is a job's policy on what goes through TLS between nodes.
type Encrypt int

const (
	// EncryptControl protects everything but the data of collectives, whose
	// connections are authenticated when they are made and then plain.
	EncryptControl Encrypt = iota
	// EncryptAll protects data too.
	EncryptAll
	// EncryptNone protects nothing: for a network that is trusted.
	EncryptNone
)

// EncryptFromEnv returns the policy in COHORT_ENCRYPT, EncryptControl when it
// is not set.
func EncryptFromEnv() (Encrypt, error) {
	text, err := envvar.Encrypt.OneOf("control", "all", "none")
	if err != nil {
		return 0, err
	}
	return map[string]Encrypt{"control": EncryptControl, "all": EncryptAll, "none": EncryptNone}[text], nil
}

// String returns the policy as COHORT_ENCRYPT has it.
func (e Encrypt) String() string { return [...]string{"control", "all", "none"}[e] }

// TLS says whether a connection is to go through TLS: one to another node,
// which carries data of collectives or not. Nothing within a node does.
func (e Encrypt) TLS(sameNode, data bool) bool {
	return !sameNode && (e == EncryptAll || e == EncryptControl && !data)
}

const (
	// tlsFirst is the first byte of a TLS connection: a handshake record.
	tlsFirst = 22
	// tlsName stands in certificates, and is what peers are asked to prove. The
	// token is what makes a peer, so there is one name for all.
	tlsName = "member.cohort"
	// tlsGreeting begins the one application protocol that a client offers.
	tlsGreeting = "cohort1."
	// sessionKeyLabel names the key that both ends of a session derive from it.
	sessionKeyLabel = "EXPORTER-cohort-transport"
	sessionKeySize  = 32

	greetingNonce = 16
	greetingSize  = len(tlsGreeting) + 2*(greetingNonce+sha256.Size)
	maxRecord     = 16 << 10
	// tlsBuffer gathers records, so that a call moves several of them: a fifth
	// of the processor time of long transfers less than record by record.
	tlsBuffer = 128 << 10
	// helloBuffer is what a stranger gets instead: a client hello fits.
	helloBuffer = 2 << 10
)

// anyTime is a time at which all certificates hold.
var anyTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// tlsConfig makes the configuration of a member: a certificate authority,
// the same for all who know the token, and a certificate by it, whose key is
// new and never leaves this process. Certificates hold for ever and are not
// held against a clock: hosts' clocks differ, and the job's end is theirs.
func tlsConfig(token Token) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, token.key[:], nil, "cohort transport certificate authority", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	authorityKey := ed25519.NewKeyFromSeed(seed)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "job.cohort"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, err
	}
	if authority, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: tlsName}, DNSNames: []string{tlsName},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, authority, public, authorityKey); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, ServerName: tlsName,
		// Certificates do not end, and no host's clock has a say in that.
		Time: func() time.Time { return anyTime },
		// Every session is new, so that each has fresh keys.
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
	}, nil
}

// greeting returns a word for a client hello that only a member can make, so
// that a stranger is turned away before anything is answered or computed. It
// is in the clear: a process takes each once, and the certificates are the proof.
func greeting(token Token, nonce []byte) string {
	mac := hmac.New(sha256.New, token.key[:])
	io.WriteString(mac, "cohort transport greeting\x00")
	mac.Write(nonce)
	return tlsGreeting + hex.EncodeToString(nonce) + hex.EncodeToString(mac.Sum(nil))
}

// greets says whether a word is a member's greeting, and gives its nonce.
func greets(token Token, word string) (nonce []byte, ok bool) {
	text, ok := strings.CutPrefix(word, tlsGreeting)
	if !ok || len(word) != greetingSize {
		return nil, false
	}
	nonce, err := hex.DecodeString(text[:2*greetingNonce])
	return nonce, err == nil && hmac.Equal([]byte(word), []byte(greeting(token, nonce)))
}

// clientTLS puts a session over nc, which has a deadline, and returns it with
// the key that both its ends derive.
func clientTLS(nc net.Conn, token Token) (*tlsLink, []byte, error) {
	config, err := tlsConfig(token)
	if err != nil {
		return nil, nil, err
	}
	nonce := make([]byte, greetingNonce)
	rand.Read(nonce)
	config.NextProtos = []string{greeting(token, nonce)}
	w := newWire(nc)
	w.open = true
	link := &tlsLink{Conn: tls.Client(w, config), wire: w}
	key, err := link.shake()
	var untrusted *tls.CertificateVerificationError
	var wrongPeer tls.RecordHeaderError
	var alert *net.OpError
	switch {
	case err == nil:
		return link, key, nil
	case errors.As(err, &untrusted):
		return nil, nil, fmt.Errorf("%w (%w)", ErrImpostor, err)
	case errors.As(err, &wrongPeer), errors.As(err, &alert) && alert.Op == "remote error":
		return nil, nil, fmt.Errorf("%w (%w)", ErrRejected, err)
	}
	return nil, nil, refusal(err)
}

// serverTLS is the accepting side of clientTLS, for a connection of which the
// bytes in said have been read. A client that is no member gets no answer;
// greeted is called for one that is.
func serverTLS(nc net.Conn, said []byte, token Token, config *tls.Config, greeted func()) (*tlsLink, []byte, error) {
	w := newWire(nc)
	w.in = said
	c := config.Clone()
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.SupportedProtos) != 1 {
			return nil, errNoProof
		}
		nonce, ok := greets(token, hello.SupportedProtos[0])
		if !ok {
			return nil, errNoProof
		}
		if !token.said.fresh(nonce) {
			return nil, errRepeated
		}
		w.open = true
		greeted()
		member := config.Clone()
		member.NextProtos = hello.SupportedProtos
		return member, nil
	}
	link := &tlsLink{Conn: tls.Server(w, c), wire: w}
	key, err := link.shake()
	return link, key, err
}

// tlsLink is a connection through a session.
type tlsLink struct {
	*tls.Conn
	wire    *wire
	scratch []byte // the first record of a long write
}

func (l *tlsLink) shake() ([]byte, error) {
	if err := l.Handshake(); err != nil {
		return nil, err
	}
	state := l.ConnectionState()
	return state.ExportKeyingMaterial(sessionKeyLabel, nil, sessionKeySize)
}

// Close closes the connection without the words that TLS has for it: they
// could wait for a peer that does not read, and frames tell an end from a cut.
func (l *tlsLink) Close() error { return l.wire.Conn.Close() }

// writev implements [vectorWriter]. Full records, several a call.
func (l *tlsLink) writev(bufs [][]byte) error {
	l.scratch = l.scratch[:0]
	for len(bufs) > 0 && len(l.scratch) < maxRecord {
		n := min(len(bufs[0]), maxRecord-len(l.scratch))
		l.scratch = append(l.scratch, bufs[0][:n]...)
		if bufs[0] = bufs[0][n:]; len(bufs[0]) == 0 {
			bufs = bufs[1:]
		}
	}
	l.wire.hold()
	_, err := l.Conn.Write(l.scratch)
	for _, b := range bufs {
		if err == nil && len(b) > 0 {
			_, err = l.Conn.Write(b)
		}
	}
	if flushed := l.wire.release(); err == nil {
		err = flushed
	}
	return err
}

// poll implements [poller]: records that have come are read, others waited for as h says.
func (l *tlsLink) poll(p []byte, h PollOptions) (int, error) {
	l.wire.polling = &h
	n, err := l.Conn.Read(p)
	l.wire.polling = nil
	if errors.Is(err, errNotYet) {
		err = errNothing
	}
	return n, err
}

// errNotYet is what a session reads of a wire during a poll. What it has had of a
// record it keeps, for the error is a passing one.
var errNotYet net.Error = notYet{}

type notYet struct{}

func (notYet) Error() string   { return errNothing.Error() }
func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }

// wire is what a session's records travel over.
type wire struct {
	net.Conn
	src     io.Reader
	polling *PollOptions // of the poll in progress, or nil
	in      []byte       // read and not yet taken
	buf     []byte
	open    bool // whether anything may be written

	mu   sync.Mutex // the reader answers when the peer changes keys
	held bool
	out  []byte
}

func newWire(nc net.Conn) *wire {
	w := &wire{Conn: nc, src: nc}
	if _, ok := nc.(*net.UnixConn); !ok { // whose descriptors would come to nothing
		w.src, _ = newSource(nc)
	}
	return w
}

// Read implements io.Reader. It reads ahead, for records are asked for one by one.
func (w *wire) Read(p []byte) (int, error) {
	if len(w.in) == 0 {
		if w.buf == nil {
			w.buf = make([]byte, helloBuffer)
		}
		if w.open && len(w.buf) < tlsBuffer {
			w.buf = make([]byte, tlsBuffer)
		}
		n, err := w.receive()
		if err != nil {
			return 0, err
		}
		w.in = w.buf[:n]
	}
	n := copy(p, w.in)
	w.in = w.in[n:]
	return n, nil
}

// receive fills the buffer, within the time of a poll if there is one.
func (w *wire) receive() (int, error) {
	if w.polling == nil {
		return w.src.Read(w.buf)
	}
	n, err := w.src.(poller).poll(w.buf, *w.polling)
	if errors.Is(err, errNothing) {
		return 0, errNotYet
	}
	return n, err
}

// Write implements io.Writer.
func (w *wire) Write(p []byte) (int, error) {
	if !w.open {
		return 0, net.ErrClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.held {
		sending()
		return w.Conn.Write(p)
	}
	if len(w.out)+len(p) > cap(w.out) {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	w.out = append(w.out, p...)
	return len(p), nil
}

// hold keeps what is written until release.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = true
	if w.out == nil {
		w.out = make([]byte, 0, tlsBuffer)
	}
}

func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = false
	return w.flush()
}

// flush is called with the lock held.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	sending()
	_, err := w.Conn.Write(w.out)
	w.out = w.out[:0]
	return err
}
