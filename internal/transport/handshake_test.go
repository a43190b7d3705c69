// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func offersTest(proto string) verdict {
	if proto == "test" {
		return accepted
	}
	return noProtocol
}

// meet runs both sides over a pipe and returns their errors.
func meet(client, server Token, proto string) (clientErr, serverErr error) {
	near, far := Pipe("")
	done := make(chan error, 1)
	go func() {
		_, err := serverHandshake(far, server, nil, offersTest)
		far.Close()
		done <- err
	}()
	clientErr = clientHandshake(near, proto, client, nil)
	near.Close()
	return clientErr, <-done
}

func TestHandshake(t *testing.T) {
	token := NewToken()
	if c, s := meet(token, token, "test"); c != nil || s != nil {
		t.Errorf("equal tokens: client %v, server %v", c, s)
	}
	if c, s := meet(NewToken(), token, "test"); !errors.Is(c, ErrRejected) || s == nil {
		t.Errorf("different tokens: client %v, server %v", c, s)
	}
	if c, s := meet(token, token, "other"); !errors.Is(c, ErrNoProtocol) || !errors.Is(s, ErrNoProtocol) {
		t.Errorf("protocol not offered: client %v, server %v", c, s)
	}
}

// tape records what is written through it.
type tape struct {
	io.ReadWriter
	written bytes.Buffer
}

func (r *tape) Write(p []byte) (int, error) {
	r.written.Write(p)
	return r.ReadWriter.Write(p)
}

// record returns what client and server said in a handshake that succeeded.
func record(t testing.TB, token Token) (client, server []byte) {
	t.Helper()
	near, far := Pipe("")
	defer near.Close()
	defer far.Close()
	nearTape, farTape := &tape{ReadWriter: near}, &tape{ReadWriter: far}
	done := make(chan error, 1)
	go func() {
		_, err := serverHandshake(farTape, token, nil, offersTest)
		done <- err
	}()
	if err := clientHandshake(nearTape, "test", token, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return nearTape.written.Bytes(), farTape.written.Bytes()
}

// converse gives bytes to the server's side and returns what it answers.
func converse(token Token, said []byte) (answer []byte, err error) {
	near, far := Pipe("")
	done := make(chan error, 1)
	go func() {
		_, err := serverHandshake(far, token, nil, offersTest)
		far.Close()
		done <- err
	}()
	near.Write(said)
	shutWrite(near)
	answer, _ = io.ReadAll(near)
	near.Close()
	return answer, <-done
}

// shutWrite ends one direction of a pipe, so that the other side reads EOF
// and can still answer.
func shutWrite(c *Conn) {
	out := c.nc.(*pipeEnd).out
	out.mu.Lock()
	defer out.mu.Unlock()
	out.writerGone = true
	out.cond.Broadcast()
}

func TestSecretIsNotOnTheWire(t *testing.T) {
	token := NewToken()
	client, server := record(t, token)
	if len(client) != helloSize+proofSize || len(server) != challengeSize+verdictSize {
		t.Errorf("%d and %d bytes, want %d and %d", len(client), len(server), helloSize+proofSize, challengeSize+verdictSize)
	}
	for _, said := range [][]byte{client, server} {
		if bytes.Contains(said, token.key[:]) || bytes.Contains(said, []byte(token.Text())) {
			t.Error("the token was sent")
		}
	}
}

func TestReplayIsRefused(t *testing.T) {
	token := NewToken()
	client, server := record(t, token)
	answer, err := converse(token, client)
	if err == nil {
		t.Error("the server accepted a replay")
	}
	if len(answer) > 0 {
		t.Errorf("the server answered %d bytes to a replay", len(answer))
	}
	if !errors.Is(err, errRepeated) {
		t.Errorf("%v, want errRepeated", err)
	}
	// A process that has not heard it answers with a challenge, and no more.
	elsewhere, _ := ParseToken(token.Text())
	if answer, err := converse(elsewhere, client); err == nil || len(answer) != challengeSize {
		t.Errorf("another process answered %d bytes to a replay, %v", len(answer), err)
	}

	// A recorded server does not convince a new client.
	near, far := Pipe("")
	defer near.Close()
	far.Write(server)
	if err := clientHandshake(near, "test", token, nil); !errors.Is(err, ErrImpostor) {
		t.Errorf("the client met a recording: %v, want ErrImpostor", err)
	}
	far.Close()
}

// newHello returns a hello that was never said.
func newHello(token Token, proto string) []byte {
	tr := transcript{token: token}
	copy(tr.proto[:], proto)
	rand.Read(tr.nonces[:nonceSize])
	hello := append([]byte(magic), version)
	hello = append(hello, tr.proto[:]...)
	hello = append(hello, tr.nonces[:nonceSize]...)
	return append(hello, tr.prove("hello", 0)...)
}

// What the server says cannot be used to answer it, on the same connection
// or on another one.
func TestReflectionIsRefused(t *testing.T) {
	token := NewToken()
	near, far := Pipe("")
	defer near.Close()
	go func() { // an impostor that sends the client's own words back
		buf := make([]byte, 1000)
		n, _ := far.Read(buf)
		far.Write(buf[:n])
	}()
	if err := clientHandshake(near, "test", token, nil); !errors.Is(err, ErrImpostor) {
		t.Errorf("the client met its mirror: %v, want ErrImpostor", err)
	}
	far.Close()

	near, far = Pipe("")
	done := make(chan error, 1)
	go func() {
		_, err := serverHandshake(far, token, nil, offersTest)
		far.Close()
		done <- err
	}()
	near.Write(newHello(token, "test"))
	challenge := make([]byte, challengeSize)
	if _, err := io.ReadFull(near, challenge); err != nil {
		t.Fatal(err)
	}
	near.Write(challenge[nonceSize:])
	if err := <-done; err == nil {
		t.Error("the server took its own challenge for a proof")
	}
	near.Close()
}

func TestEveryBitOfTheHandshakeCounts(t *testing.T) {
	token := NewToken()
	client, _ := record(t, token)
	for i := range helloSize * 8 {
		said := bytes.Clone(client[:helloSize])
		said[i/8] ^= 1 << (i % 8)
		if answer, err := converse(token, said); err == nil || len(answer) > 0 {
			t.Errorf("bit %d of the hello flipped: %d bytes of answer, error %v", i, len(answer), err)
		}
	}
}

func TestStrangersGetNothing(t *testing.T) {
	token := NewToken()
	client, _ := record(t, NewToken())
	for name, said := range map[string][]byte{
		"nothing":     nil,
		"http":        []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat("x", 200)),
		"tls":         append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, pattern(300, 1)...),
		"pytorch":     append([]byte{9, 0x5a, 0x41, 0xb1, 0x3c}, make([]byte, 200)...),
		"other token": client,
		"magic only":  []byte(magic),
		"version":     append([]byte(magic+"\x02"), make([]byte, 200)...),
		"cut hello":   client[:helloSize-1],
		"random":      pattern(1000, 2),
	} {
		answer, err := converse(token, said)
		if err == nil || len(answer) > 0 {
			t.Errorf("%s: the server answered %d bytes, error %v", name, len(answer), err)
		}
	}
}

// A peer that falls silent anywhere in the handshake is given up at the deadline.
func TestHandshakeDeadline(t *testing.T) {
	token := NewToken()
	client, server := record(t, token)
	for n := 0; n < len(client); n += 13 {
		synctest.Test(t, func(t *testing.T) {
			near, far := Pipe("")
			defer near.Close()
			defer far.Close()
			far.SetDeadline(time.Now().Add(time.Second))
			near.Write(client[:n])
			began := time.Now()
			if _, err := serverHandshake(far, token, nil, offersTest); err == nil {
				t.Errorf("%d bytes: the server accepted half a handshake", n)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("%d bytes: the server waited %v", n, d)
			}
		})
	}
	for n := 0; n < len(server); n += 13 {
		synctest.Test(t, func(t *testing.T) {
			near, far := Pipe("")
			defer near.Close()
			defer far.Close()
			far.Write(server[:n])
			began := time.Now()
			if _, err := shake(context.Background(), near.nc, "test", token, false, answerPatience); err == nil {
				t.Errorf("%d bytes: the client accepted half a handshake", n)
			}
			if d := time.Since(began); d > answerPatience {
				t.Errorf("%d bytes: the client waited %v", n, d)
			}
		})
	}
}

func TestShakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := Pipe("")
		defer near.Close()
		defer far.Close()
		ctx, cancel := context.WithCancelCause(context.Background())
		why := errors.New("enough")
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		if _, err := shake(ctx, near.nc, "test", NewToken(), false, answerPatience); err == nil {
			t.Error("no error")
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("ended after %v, want when the context did", d)
		}
	})
}

// FuzzServerHandshake gives arbitrary bytes to the accepting side. Nobody can
// guess a token: it accepts nothing, and answers nothing unless the bytes
// begin with the one hello that is known to verify.
func FuzzServerHandshake(f *testing.F) {
	token, err := ParseToken(strings.Repeat("5c", 32))
	if err != nil {
		f.Fatal(err)
	}
	// The same in every fuzzing process: its nonce is zeros.
	tr := transcript{token: token}
	copy(tr.proto[:], "test")
	hello := append([]byte(magic), version)
	hello = append(hello, tr.proto[:]...)
	hello = append(hello, make([]byte, nonceSize)...)
	hello = append(hello, tr.prove("hello", 0)...)
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(hello)
	f.Add(append(bytes.Clone(hello), make([]byte, proofSize)...))
	f.Fuzz(func(t *testing.T, said []byte) {
		answer, err := converse(token, said)
		if err == nil {
			t.Fatal("accepted")
		}
		if len(answer) > 0 && !bytes.HasPrefix(said, hello) {
			t.Fatalf("answered %d bytes to a stranger", len(answer))
		}
	})
}

// FuzzClientHandshake gives arbitrary bytes to the dialling side.
func FuzzClientHandshake(f *testing.F) {
	_, server := record(f, NewToken())
	f.Add([]byte{})
	f.Add(server)
	f.Add(make([]byte, challengeSize+verdictSize))
	f.Fuzz(func(t *testing.T, said []byte) {
		near, far := Pipe("")
		defer near.Close()
		defer far.Close()
		far.Write(said)
		shutWrite(far)
		if err := clientHandshake(near, "test", NewToken(), nil); err == nil {
			t.Fatal("accepted")
		}
	})
}

func TestProtocolNames(t *testing.T) {
	for _, good := range []string{"a", "store", "coll", "rpc2", "12345678"} {
		if err := checkProto(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "123456789", "Store", "a b", "a\x00", "é"} {
		if checkProto(bad) == nil {
			t.Errorf("%q is allowed", bad)
		}
		if _, err := Dial(context.Background(), "127.0.0.1:1", bad, NewToken()); err == nil {
			t.Errorf("Dial took protocol %q", bad)
		}
	}
}

var _ net.Conn = (*Conn)(nil)
