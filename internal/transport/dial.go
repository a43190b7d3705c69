// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

const (
	// dialPatience bounds a Dial whose context has no deadline.
	dialPatience = time.Minute
	// A name that does not resolve may belong to a host that is still being
	// started, but more likely to nobody.
	namePatience = 10 * time.Second
	// A handshake that the peer ends is tried again for a while: the peer may
	// have been closing an earlier listener. One that is reset found no room, which
	// strangers had taken: it is tried for longer, for a server of another kind may hang up
	// so too, but at every try.
	rejectPatience = 500 * time.Millisecond
	resetPatience  = 5 * time.Second
	// How long a try may take to connect, and then for the handshake, before another one
	// is made. Longer each time, for a network or a peer that is slow. The system
	// repeats what was dropped on the way to a full queue after one second, three and
	// seven; a new try finds room sooner.
	connectPatience    = 250 * time.Millisecond
	answerPatience     = time.Second
	maxConnectPatience = 15 * time.Second
	maxAnswerPatience  = 45 * time.Second
	// A protocol that is not offered may be about to be: a port listens before
	// its protocols are added.
	offerPatience = time.Second
	firstPause    = 5 * time.Millisecond
	maxPause      = 250 * time.Millisecond
)

// A DialOption changes how Dial connects.
type DialOption func(*dialing)

type dialing struct {
	tls    bool
	dialer DialFunc
	there  bool
	failed func(err error)
}

// WithFailures makes Dial tell f why each try failed after which it tries again.
func WithFailures(f func(err error)) DialOption { return func(d *dialing) { d.failed = f } }

// WithTLS makes Dial go through TLS if on. Unix sockets do not leave the host:
// for them it has no effect.
func WithTLS(on bool) DialOption { return func(d *dialing) { d.tls = on } }

// WithListener says that the port has been listening: when its system says that
// nobody does, Dial returns an error for which [NobodyListens] is true, instead
// of trying again.
func WithListener() DialOption { return func(d *dialing) { d.there = true } }

// NobodyListens reports whether an error of [Dial] is that the system of the
// other side was reached, and nobody listened at the address.
func NobodyListens(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// Reached reports whether the system of the other side has made a connection, in one
// of the tries of a [Dial] that has failed: the way there is not cut.
func Reached(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.reached
}

// Alive reports whether a process of the other side has done something with a
// connection, in one of the tries of a [Dial] that has failed, if only to end it.
func Alive(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.alive
}

// Dial connects to the port at addr, proves the token and asks for a
// protocol. While nobody listens there, or the port has no room or does not answer, it
// tries again, until ctx is done, or for a minute when ctx has no deadline; a peer with
// another token, or without the protocol, is an error within about a second, and one that
// resets each connection for five, unless it is known to have been a port ([WithListener]).
func Dial(ctx context.Context, addr, proto string, token Token, options ...DialOption) (*Conn, error) {
	var with dialing
	for _, option := range options {
		option(&with)
	}
	d := &redial{dialing: with, began: time.Now(), pause: firstPause, connect: connectPatience, answer: answerPatience}
	fail := func(op string, err error) (*Conn, error) {
		return nil, &Error{Op: op, Proto: proto, Addr: addr, Err: err, reached: d.reached, alive: d.alive}
	}
	if token.IsZero() {
		return fail("dial", ErrNoToken)
	}
	if err := checkProto(proto); err != nil {
		return nil, err
	}
	network, address, err := parseAddress(addr)
	if err != nil {
		return fail("dial", err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialPatience)
		defer cancel()
	}
	var last error // what kept us from connecting, as long as it was worth another try
	for tries := 1; ; tries++ {
		conn, op, err := d.try(ctx, network, address, proto, token)
		if err == nil {
			return conn, nil
		}
		if by, _ := ctx.Deadline(); !time.Now().Before(by) {
			<-ctx.Done() // its timer is about to fire; the socket's was first
		}
		if ctx.Err() == nil { // else the deadline speaks, not the peer
			last = plain(err)
			if d.final {
				return fail(op, last)
			}
			if with.failed != nil {
				with.failed(last)
			}
			if d.rest(ctx, err) {
				continue
			}
		}
		if last == nil {
			last = plain(err)
		}
		return fail(op, fmt.Errorf("gave up after %v and %d tries: %w (%w)", time.Since(d.began).Round(time.Millisecond), tries, last, ctxerr.Of(ctx)))
	}
}

// redial is what a Dial knows of its tries so far.
type redial struct {
	dialing
	began           time.Time
	pause           time.Duration // before the next try
	connect, answer time.Duration // for how long the next try waits
	reached, alive  bool          // see Reached and Alive
	// When the peer first said so, without another answer in between.
	rejected, notOffered, reset time.Time
	final                       bool // the last try's error does not go away
}

// try makes one connection. op is what failed: to dial, or the handshake.
func (d *redial) try(ctx context.Context, network, address, proto string, token Token) (conn *Conn, op string, err error) {
	nc, err := d.open(ctx, network, address, d.connect)
	if err != nil {
		if isReset(err) { // when it had just been made
			d.reached, d.alive = true, true
		} else { // whoever hung up before is not there any more
			d.rejected, d.reset = time.Time{}, time.Time{}
		}
		if isLate(err) {
			d.connect = min(d.connect+d.connect/2, maxConnectPatience)
		}
		d.final = !worthRetrying(err, time.Since(d.began)) || d.there && NobodyListens(err)
		return nil, "dial", err
	}
	d.reached = true
	link, err := shake(ctx, nc, proto, token, d.tls && network == "tcp", d.answer)
	if err == nil {
		return NewConn(link, proto), "", nil
	}
	nc.Close()
	d.refused(err)
	return nil, "handshake", err
}

// refused takes the error of a handshake, and decides whether it goes away.
func (d *redial) refused(err error) {
	since := func(first *time.Time) time.Duration {
		if first.IsZero() {
			*first = time.Now()
		}
		return time.Since(*first)
	}
	switch {
	case isLate(err):
		d.reset = time.Time{}
		d.answer = min(2*d.answer, maxAnswerPatience)
		d.final = false
	case errors.Is(err, ErrNoRoom):
		d.alive = true
		d.final = since(&d.reset) > resetPatience && !d.there
	case errors.Is(err, ErrRejected):
		d.alive = true
		d.final = since(&d.rejected) > rejectPatience
	case errors.Is(err, ErrNoProtocol):
		d.final = since(&d.notOffered) > offerPatience
	default:
		d.final = !worthRetrying(err, time.Since(d.began))
	}
}

// rest waits for the time of the next try; false if ctx has ended before.
func (d *redial) rest(ctx context.Context, err error) bool {
	// Ranks start together: spread their tries.
	jittered := d.pause
	if d.dialer == nil {
		jittered = d.pause/2 + rand.N(d.pause)
	}
	if d.pause = min(2*d.pause, maxPause); errors.Is(err, syscall.EAGAIN) {
		d.pause = firstPause // the queue of a unix socket is full: a place may be free at any moment
	}
	timer := time.NewTimer(jittered)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		timer.Stop()
		return false
	}
}

// open makes a connection, within some time where it is the system's network.
func (d *dialing) open(ctx context.Context, network, address string, patience time.Duration) (net.Conn, error) {
	if d.dialer != nil {
		return d.dialer(ctx, network, address)
	}
	dialer := net.Dialer{KeepAliveConfig: keepAlive, Timeout: patience}
	return dialer.DialContext(ctx, network, address)
}

// shake runs the client's side of the handshake within ctx and some time, through TLS if
// asked to, and returns what the connection then is.
func shake(ctx context.Context, nc net.Conn, proto string, token Token, through bool, patience time.Duration) (net.Conn, error) {
	by := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(by) {
		by = d
	}
	nc.SetDeadline(by)
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	link, err := clientSide(nc, proto, token, through)
	if !stop() {
		if err == nil {
			err = ctxerr.Of(ctx)
		}
		return nil, err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("it took the connection, and no answer came within %v: %w", patience, err)
	}
	nc.SetDeadline(time.Time{})
	return link, err
}

func clientSide(nc net.Conn, proto string, token Token, through bool) (net.Conn, error) {
	if !through {
		return nc, clientHandshake(nc, proto, token, nil)
	}
	link, key, err := clientTLS(nc, token)
	if err != nil {
		return nil, err
	}
	return link, clientHandshake(link, proto, token, key)
}

// worthRetrying says whether the cause of a failed connect may go away.
func worthRetrying(err error, waited time.Duration) bool {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Temporary() || waited < namePatience
	}
	for _, cause := range []syscall.Errno{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
		syscall.ETIMEDOUT, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
		syscall.ENOENT, // a unix socket that is yet to be made
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return isLate(err)
}

func isLate(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// DialFunc connects like [net.Dialer.DialContext].
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// WithDialer makes Dial connect through d in place of the system's network, and
// pause between its tries for times that can be foretold: for a network inside
// the process. A nil d is the system's network.
func WithDialer(d DialFunc) DialOption { return func(o *dialing) { o.dialer = d } }
