// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// SecurityOptions choose what Security measures.
type SecurityOptions struct {
	Cases []string // of [SecurityCases]
	Links []string // of [SecurityLinks]
	Bytes []int    // sizes of what the case send sends
	Reps  int      // connections, round trips or frames; 0 chooses by the time of one
}

// SecurityCases are what can be measured of a link: to connect and close, a
// round trip of 64 bytes, to send, and to turn a stranger away.
func SecurityCases() []string { return []string{"connect", "round_trip", "send", "refuse"} }

// SecurityLinks are connections with more and more protection: TCP without any
// handshake, TCP on which both ends have proven the job's token, and TLS with a
// certificate on both sides under that.
func SecurityLinks() []string { return []string{"bare", "token", "tls"} }

const (
	roundTripBytes = 64
	// numRefused is how many strangers come: few enough that the port does not
	// make them wait.
	numRefused = 30
	// maxFrameBytes bounds a frame of the case send.
	maxFrameBytes = 1 << 30
	// securityTime is how long one of three rounds takes.
	securityTime = 200 * time.Millisecond
	endPatience  = 10 * time.Second
)

// Validate reports the first option that makes no sense.
func (o SecurityOptions) Validate() error {
	for _, c := range o.Cases {
		if err := oneOf("case", c, SecurityCases()); err != nil {
			return err
		}
	}
	for _, l := range o.Links {
		if err := oneOf("link", l, SecurityLinks()); err != nil {
			return err
		}
	}
	for _, n := range o.Bytes {
		if n < 1 || n > maxFrameBytes {
			return fmt.Errorf("%d bytes: want 1 to %d", n, maxFrameBytes)
		}
	}
	if o.Reps < 0 || o.Reps > maxSteps {
		return fmt.Errorf("%d repetitions: want 1 to %d, or 0 to choose by time", o.Reps, maxSteps)
	}
	return nil
}

// Security measures what the token and TLS cost, over the loopback interface
// with both ends in this process: its processor time is that of both.
func Security(ctx context.Context, o SecurityOptions, emit func(Result) error) error {
	err := o.Validate()
	for _, name := range o.Cases {
		for _, link := range o.Links {
			if err != nil {
				return err
			}
			sizes := []int{0}
			switch name {
			case "refuse":
				if link == "bare" {
					continue // nobody is refused there
				}
			case "round_trip":
				sizes = []int{roundTripBytes}
			case "send":
				sizes = o.Bytes
			}
			for _, bytes := range sizes {
				if err == nil {
					err = securityCase(ctx, name, link, bytes, o.Reps, emit)
				}
			}
		}
	}
	return err
}

func securityCase(ctx context.Context, name, link string, bytes, reps int, emit func(Result) error) error {
	fail := func(err error) error { return fmt.Errorf("bench security: %s over %s: %w", name, link, err) }
	l, err := openPair(link)
	if err != nil {
		return fail(err)
	}
	defer l.close()
	var op func() error
	switch name {
	case "connect":
		op = func() error {
			near, far, err := l.connect(ctx)
			if err != nil {
				return err
			}
			return errors.Join(near.Close(), far.Close())
		}
	case "refuse":
		if op, err = l.stranger(ctx); err != nil {
			return fail(err)
		}
		if reps == 0 || reps > numRefused {
			reps = numRefused
		}
	default:
		near, far, err := l.connect(ctx)
		if err != nil {
			return fail(err)
		}
		echoed := make(chan error, 1)
		go func() { echoed <- answer(far, bytes, name == "round_trip") }()
		defer func() {
			near.Close()
			<-echoed
			far.Close()
		}()
		defer context.AfterFunc(ctx, func() { near.Close() })()
		op = exchanger(near, bytes, name == "round_trip")
	}
	r := Result{Bench: "security", Case: name, Transport: link, Bytes: bytes}
	if err := timeSecurity(&r, op, reps); err != nil {
		return fail(err)
	}
	return emit(r)
}

// timeSecurity repeats op and fills in the figures: medians of single calls,
// and the processor time by their number.
func timeSecurity(r *Result, op func() error, reps int) error {
	if reps == 0 {
		start := time.Now()
		const trials = 5
		for range trials {
			if err := op(); err != nil {
				return err
			}
		}
		reps = int(min(20000, max(trials, trials*securityTime/max(1, time.Since(start)))))
	}
	var rounds, calls, spent times
	numRounds := 3
	if r.Case == "refuse" {
		numRounds = 1
	}
	for range numRounds {
		before, start := readUsage(), time.Now()
		for range reps {
			began := time.Now()
			if err := op(); err != nil {
				return err
			}
			calls = append(calls, time.Since(began))
		}
		rounds = append(rounds, time.Since(start)/time.Duration(reps))
		spent = append(spent, time.Duration(readUsage().since(before).cpuSeconds*float64(time.Second))/time.Duration(reps))
	}
	r.MedianMicros, r.MinMicros, r.P99Micros = micros(max(1, calls.median())), micros(calls.quantile(0)), micros(calls.quantile(0.99))
	r.CPUMicros = micros(spent.median())
	if r.Case == "send" {
		// A frame is sent when the system has it, which tells little of single
		// ones: the rate is that of whole rounds.
		r.MinMicros, r.P99Micros = 0, 0
		r.MedianMicros, r.GBPerSec = micros(rounds.median()), perSecond(float64(r.Bytes), rounds.median())
	}
	return nil
}

// exchanger returns what sends a frame, and waits for the answer if there is one.
func exchanger(c *transport.Conn, bytes int, answered bool) func() error {
	data := make([]byte, bytes)
	for i := range data {
		data[i] = 1 // pages that are there
	}
	return func() error {
		if err := c.WriteFrame(1, data); err != nil || !answered {
			return err
		}
		_, _, err := c.ReadFrame(data, bytes)
		return err
	}
}

// answer reads frames until the end, and sends each back if that is wanted.
func answer(c *transport.Conn, bytes int, back bool) error {
	data := make([]byte, bytes)
	for {
		if _, _, err := c.ReadFrame(data, bytes); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if back {
			if err := c.WriteFrame(1, data); err != nil {
				return err
			}
		}
	}
}

// securityPair makes connections of one kind within this process.
type securityPair struct {
	link  string
	token transport.Token
	ln    net.Listener    // of the bare link
	port  *transport.Port // of the others
	came  chan *transport.Conn
}

const securityProto = "bench"

func openPair(link string) (*securityPair, error) {
	l := &securityPair{link: link, token: transport.NewToken(), came: make(chan *transport.Conn, 1)}
	var err error
	if link == "bare" {
		l.ln, err = net.Listen("tcp", "127.0.0.1:0")
		return l, err
	}
	if l.port, err = transport.Listen("127.0.0.1:0", l.token); err != nil {
		return nil, err
	}
	l.port.Handle(securityProto, func(c *transport.Conn) {
		select {
		case l.came <- c:
		default:
			c.Close()
		}
	})
	return l, nil
}

func (l *securityPair) close() {
	if l.ln != nil {
		_ = l.ln.Close()
		return
	}
	_ = l.port.Close()
}

// connect makes a connection and returns both ends.
func (l *securityPair) connect(ctx context.Context) (near, far *transport.Conn, err error) {
	if l.link == "bare" {
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", l.ln.Addr().String())
		if err != nil {
			return nil, nil, err
		}
		accepted, err := l.ln.Accept()
		if err != nil {
			nc.Close()
			return nil, nil, err
		}
		return transport.NewConn(nc, securityProto), transport.NewConn(accepted, securityProto), nil
	}
	if near, err = transport.Dial(ctx, l.port.Addr(), securityProto, l.token, transport.WithTLS(l.link == "tls")); err != nil {
		return nil, nil, err
	}
	select {
	case far = <-l.came:
		return near, far, nil
	case <-ctx.Done():
		near.Close()
		return nil, nil, context.Cause(ctx)
	}
}

// stranger returns what connects, says what somebody with another token would,
// and waits until it is turned away.
func (l *securityPair) stranger(ctx context.Context) (func() error, error) {
	said, err := firstWords(ctx, l.link == "tls")
	if err != nil {
		return nil, err
	}
	return func() error {
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", l.port.Addr())
		if err != nil {
			return err
		}
		defer nc.Close()
		if err := nc.SetDeadline(time.Now().Add(endPatience)); err != nil {
			return err
		}
		if _, err := nc.Write(said); err != nil {
			return nil // turned away already
		}
		if n, err := nc.Read(make([]byte, 1)); n > 0 || isTimeout(err) {
			return fmt.Errorf("a stranger read %d bytes: %w", n, err)
		}
		return nil
	}, nil
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// firstWords returns what a process with another token says first.
func firstWords(ctx context.Context, through bool) ([]byte, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	dialled := make(chan struct{})
	go func() {
		defer close(dialled)
		if c, err := transport.Dial(ctx, ln.Addr().String(), securityProto, transport.NewToken(), transport.WithTLS(through)); err == nil {
			c.Close()
		}
	}()
	defer func() { <-dialled }()
	defer cancel()
	nc, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(endPatience)); err != nil {
		return nil, err
	}
	buf := make([]byte, 16<<10)
	n, err := nc.Read(buf)
	return slices.Clone(buf[:n]), err
}
