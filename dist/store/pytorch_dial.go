// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// probeTime is how long a server may take to say something to what it knows.
	probeTime = 10 * time.Second
	// silentTime is how long a server is listened to that knows a request that has no answer.
	silentTime = time.Second
	// longestPause is how long a client sleeps between two tries to connect.
	longestPause = time.Second
)

var errHungUp = errors.New("the server hung up")

// pyTorchLine is one connection of a PyTorchClient. It has one request under way at most.
type pyTorchLine struct {
	conn  *transport.Conn
	in    *bufio.Reader
	out   []byte
	spins spinner
	// forgot says that a wait has ended with its context, and that the server has
	// forgotten it.
	forgot bool
	ended  chan struct{} // takes one: a call's context has ended, and its deadline is set
}

func newPyTorchLine(c net.Conn) *pyTorchLine {
	l := &pyTorchLine{conn: transport.NewConn(c, "PyTorch's store"), ended: make(chan struct{}, 1)}
	l.in = bufio.NewReader(l)
	return l
}

// Read reads from the connection for the buffer: a call that is alone asks for its answer
// for a moment, before it leaves the thread to others.
func (l *pyTorchLine) Read(b []byte) (int, error) {
	if underWay.Load() == 1 {
		l.spins.wait(l.conn, nil)
	}
	return l.conn.Read(b)
}

// dialPyTorch connects, trying again until ctx ends: the server may yet come.
func dialPyTorch(ctx context.Context, addr string) (*pyTorchLine, error) {
	var dialer net.Dialer
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		c, err := dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			return newPyTorchLine(c), nil
		}
		if ctx.Err() == nil {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				timer.Stop()
			}
		}
		return nil, fmt.Errorf("no server: %w (%w)", ctxerr.Of(ctx), err)
	}
}

// greeting is what a connection of 2.2 and later begins with, and a ping if wanted.
//
// To a server of 1.13 it says that a key of more bytes than there are follows, and
// such a server ends the connection at once and is none the worse for it: so the
// nonce's third byte is one that makes the length negative.
func greeting(ping bool) (b []byte, nonce uint32) {
	b = binary.LittleEndian.AppendUint32([]byte{byte(verbValidate)}, pyTorchMagic)
	if !ping {
		return b, 0
	}
	nonce = rand.Uint32() | 0x00FF0000
	return appendPyTorch(b, PyTorch2, &pyTorchRequest{verb: verbPing, number: int64(nonce)}), nonce
}

// greet does the greeting with a ping, and says whether the server knew it.
func (l *pyTorchLine) greet(ctx context.Context) (known bool, err error) {
	b, nonce := greeting(true)
	answer, err := l.exchange(ctx, b, 4, probeTime)
	if errors.Is(err, errHungUp) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if binary.LittleEndian.Uint32(answer) != nonce {
		return false, fmt.Errorf("it is no store of PyTorch's: it answered a ping with % x", answer)
	}
	return true, nil
}

// exchange writes b and reads an answer of n bytes, which has to come in time.
func (l *pyTorchLine) exchange(ctx context.Context, b []byte, n int, patience time.Duration) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { l.conn.SetDeadline(past) })
	defer stop()
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	answer := make([]byte, n)
	_, err := l.conn.Write(b)
	if err == nil {
		_, err = io.ReadFull(l.in, answer)
	}
	if err == nil && stop() {
		return answer, l.conn.SetDeadline(time.Time{})
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("it took the connection and has not answered: %w", ctxerr.Of(ctx))
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return nil, fmt.Errorf("it has not answered within %v: %w", patience, err)
	}
	return nil, errHungUp // an end, or a reset
}

// past is a deadline that ends what is under way.
var past = time.Unix(1, 0)

// probe finds out what a server is that did not know the greeting: each question
// goes over a connection of its own, for a server ends those that it does not understand.
func probe(ctx context.Context, addr string) (PyTorchGeneration, error) {
	ask := func(b []byte, n int, patience time.Duration) error {
		l, err := dialPyTorch(ctx, addr)
		if err != nil {
			return err
		}
		defer l.conn.Close()
		_, err = l.exchange(ctx, b, n, patience)
		return err
	}
	// 2.2 to 2.4 know the greeting without the ping. What begins behind the question makes
	// the length of 1.13 negative here, too; and 2.4 says nothing where a greeting is missing,
	// so that this is asked first.
	b, _ := greeting(false)
	b = append(appendPyTorch(b, PyTorch2, &pyTorchRequest{verb: verbNumKeys}), byte(verbCheck), 0, 0x80)
	if err := ask(b, 8, probeTime); err == nil {
		return PyTorch2, nil
	} else if !errors.Is(err, errHungUp) {
		return 0, err
	}
	code, _ := opcodeOf(verbNumKeys, PyTorch1)
	if err := ask([]byte{code}, 8, probeTime); errors.Is(err, errHungUp) {
		return 0, errors.New("it is no store of PyTorch's, or does not admit this host: it hung up at the greetings of 1.13 and of 2.2 and later")
	} else if err != nil {
		return 0, err
	}
	// 2.1 answers this, 2.0 keeps it without a word, 1.13 hangs up.
	err := ask(append([]byte{11}, make([]byte, 8)...), 1, silentTime)
	if !errors.Is(err, errHungUp) {
		if ctx.Err() != nil {
			return 0, err
		}
		return 0, errors.New("it is the store of PyTorch 2.0 or 2.1, whose protocol is not supported: use 1.13, or 2.2 and later")
	}
	return PyTorch1, nil
}

// open connects and greets, and finds out the generation if it is not known: gen and
// ping say what is.
func (c *PyTorchClient) open(ctx context.Context) (*pyTorchLine, error) {
	l, err := dialPyTorch(ctx, c.addr)
	if err != nil || c.gen == PyTorch1 {
		return l, err
	}
	if c.gen == PyTorch2 && !c.pings {
		b, _ := greeting(false)
		if _, err = l.conn.Write(b); err == nil {
			return l, nil
		}
		l.conn.Close()
		return nil, err
	}
	known, err := l.greet(ctx)
	if known {
		c.gen, c.pings = PyTorch2, true
		return l, nil
	}
	l.conn.Close()
	if err != nil {
		return nil, err
	}
	if c.pings {
		return nil, errHungUp
	}
	if c.gen, err = probe(ctx, c.addr); err != nil {
		return nil, err
	}
	return c.open(ctx)
}
