// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// Sizes and constants of the handshake; the package comment shows its messages.
const (
	// magic begins with a byte that begins neither an HTTP request nor a TLS record.
	magic     = "\xc0HORT\r\n"
	version   = 1
	maxProto  = 8
	nonceSize = 32
	proofSize = sha256.Size

	helloSize     = len(magic) + 1 + maxProto + nonceSize + proofSize
	challengeSize = nonceSize + proofSize
	verdictSize   = 1 + proofSize
)

// verdict is the server's last word in the handshake.
type verdict byte

const (
	accepted   verdict = 1
	noProtocol verdict = 2
	needsTLS   verdict = 3
)

// transcript proves knowledge of a token over what both sides have said.
type transcript struct {
	token Token
	// session is the key of the TLS session under the handshake, zeros where
	// there is none.
	session [sessionKeySize]byte
	proto   [maxProto]byte
	// client nonce, then server nonce
	nonces [2 * nonceSize]byte
}

// prove returns the HMAC of a message: its label tells messages and
// directions apart, and everything after the label has fixed size.
func (t *transcript) prove(label string, extra byte) []byte {
	mac := hmac.New(sha256.New, t.token.key[:])
	io.WriteString(mac, "cohort transport ")
	mac.Write([]byte{version})
	io.WriteString(mac, label)
	mac.Write([]byte{0, extra})
	mac.Write(t.session[:])
	mac.Write(t.proto[:])
	mac.Write(t.nonces[:])
	return mac.Sum(nil)
}

func (t *transcript) verify(label string, extra byte, proof []byte) bool {
	return hmac.Equal(proof, t.prove(label, extra))
}

func checkProto(proto string) error {
	if proto == "" || len(proto) > maxProto {
		return fmt.Errorf("transport: protocol name %q: want 1 to %d letters a to z or digits", proto, maxProto)
	}
	for _, r := range proto {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return fmt.Errorf("transport: protocol name %q: want 1 to %d letters a to z or digits", proto, maxProto)
		}
	}
	return nil
}

// clientHandshake runs the dialling side over rw, which has a deadline.
// session is the key of the TLS session that rw is, nil for a plain connection.
func clientHandshake(rw io.ReadWriter, proto string, token Token, session []byte) error {
	t := transcript{token: token}
	copy(t.session[:], session)
	copy(t.proto[:], proto)
	rand.Read(t.nonces[:nonceSize])

	hello := make([]byte, 0, helloSize)
	hello = append(hello, magic...)
	hello = append(hello, version)
	hello = append(hello, t.proto[:]...)
	hello = append(hello, t.nonces[:nonceSize]...)
	hello = append(hello, t.prove("hello", 0)...)
	if _, err := rw.Write(hello); err != nil {
		return refusal(err)
	}

	var challenge [challengeSize]byte
	if _, err := io.ReadFull(rw, challenge[:]); err != nil {
		return refusal(err)
	}
	if string(challenge[:]) == notPort {
		return ErrPyTorch
	}
	copy(t.nonces[nonceSize:], challenge[:nonceSize])
	if !t.verify("challenge", 0, challenge[nonceSize:]) {
		return ErrImpostor
	}

	if _, err := rw.Write(t.prove("proof", 0)); err != nil {
		return refusal(err)
	}
	var last [verdictSize]byte
	if _, err := io.ReadFull(rw, last[:]); err != nil {
		return refusal(err)
	}
	if !t.verify("verdict", last[0], last[1:]) {
		return ErrImpostor
	}
	switch verdict(last[0]) {
	case accepted:
		return nil
	case noProtocol:
		return ErrNoProtocol
	case needsTLS:
		return ErrNeedsTLS
	}
	return fmt.Errorf("the peer ended the handshake with verdict %d, which this version does not know", last[0])
}

// refusal says what it means that the peer went away during the handshake.
func refusal(err error) error {
	switch {
	case isReset(err):
		return fmt.Errorf("%w (%w)", ErrNoRoom, plain(err))
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w (%w)", ErrRejected, plain(err))
	}
	return err
}

// serverHandshake runs the accepting side over rw, which has a deadline. It
// returns the protocol, which judge has accepted. On an error nothing, or
// nothing more, has been said to the peer.
func serverHandshake(rw io.ReadWriter, token Token, session []byte, judge func(proto string) verdict) (string, error) {
	var hello [helloSize]byte
	// The first bytes alone decide whether to go on reading, so that a
	// stranger who speaks something else is closed at once.
	if _, err := io.ReadFull(rw, hello[:len(magic)+1]); err != nil {
		return "", err
	}
	if string(hello[:len(magic)]) != magic {
		return "", errGarbage
	}
	if hello[len(magic)] != version {
		return "", errVersion
	}
	if _, err := io.ReadFull(rw, hello[len(magic)+1:]); err != nil {
		return "", err
	}
	t, err := token.provenHello(hello[:], session)
	if err != nil {
		return "", err
	}
	return answerHello(rw, t, judge)
}

// provenHello returns what a hello of this version has said, if it proves the token.
func (t Token) provenHello(hello, session []byte) (*transcript, error) {
	said := saidBy(t, hello, session)
	if !said.verify("hello", 0, hello[helloSize-proofSize:]) {
		return nil, errNoProof
	}
	return said, nil
}

// saidBy returns what a hello of this version has said.
func saidBy(token Token, hello, session []byte) *transcript {
	t := &transcript{token: token}
	copy(t.session[:], session)
	copy(t.proto[:], hello[len(magic)+1:])
	copy(t.nonces[:nonceSize], hello[len(magic)+1+maxProto:])
	return t
}

// answerHello is [serverHandshake] behind a hello that proves the token.
func answerHello(rw io.ReadWriter, t *transcript, judge func(proto string) verdict) (string, error) {
	if !t.token.said.fresh(t.nonces[:nonceSize]) {
		return "", errRepeated
	}
	rand.Read(t.nonces[nonceSize:])
	challenge := append(make([]byte, 0, challengeSize), t.nonces[nonceSize:]...)
	challenge = append(challenge, t.prove("challenge", 0)...)
	if _, err := rw.Write(challenge); err != nil {
		return "", err
	}
	var proof [proofSize]byte
	if _, err := io.ReadFull(rw, proof[:]); err != nil {
		return "", err
	}
	if !t.verify("proof", 0, proof[:]) {
		return "", errNoProof
	}

	proto := protoName(t.proto)
	v := noProtocol
	if checkProto(proto) == nil {
		v = judge(proto)
	}
	last := append(make([]byte, 0, verdictSize), byte(v))
	last = append(last, t.prove("verdict", byte(v))...)
	if _, err := rw.Write(last); err != nil {
		return "", err
	}
	switch v {
	case accepted:
		return proto, nil
	case needsTLS:
		return "", fmt.Errorf("protocol %q: %w", proto, ErrNeedsTLS)
	}
	return "", fmt.Errorf("protocol %q: %w", proto, ErrNoProtocol)
}

// protoName undoes the padding with zeros.
func protoName(padded [maxProto]byte) string {
	n := len(padded)
	for n > 0 && padded[n-1] == 0 {
		n--
	}
	return string(padded[:n])
}
