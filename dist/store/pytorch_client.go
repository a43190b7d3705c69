// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

const (
	// idleLines is how many connections a client keeps for later calls.
	idleLines = 16
	// firstSlice and maxSlice are how long a wait lasts before it is begun anew.
	firstSlice = 20 * time.Millisecond
	maxSlice   = time.Second
	// namedKeys is how many keys are asked for one by one when a wait gave up.
	namedKeys = 256
)

// PyTorchClientOption changes how [DialPyTorch] connects.
type PyTorchClientOption func(*PyTorchClient)

// WithGeneration says which generation of the protocol the server speaks. Without this option
// the client finds out, with servers of 2.4 and later by one connection.
func WithGeneration(g PyTorchGeneration) PyTorchClientOption {
	return func(c *PyTorchClient) { c.gen, c.pings = g, g == PyTorch2 }
}

// PyTorchClient is a [Store] in a process of PyTorch's, or in a [PyTorchServer]. Close it
// when it is no longer needed.
//
// PyTorch's protocol promises less than this package:
//
//   - CompareAndSet may report that it has set a value that another process has set at that
//     moment, if the two values are equal. One that expects no value may replace an empty
//     value that has just been set.
//   - MultiGet is not atomic, and neither is a large MultiSet.
//   - Add reads the number at the beginning of the value (" 12a" is 12), and its sum wraps
//     around beyond 64 bits. Where there is no number the server closes the connection, which
//     ends the client.
//   - A server of 1.13 has neither Append nor queues, one before 2.8 has no queues. A server
//     that cannot list its keys counts them for the prefix "" alone. Other calls fail with
//     [ErrUnsupported].
//
// A value that is set has 8 MiB at most, for PyTorch's servers with libuv take no more. The
// calls of several goroutines use as many connections.
type PyTorchClient struct {
	methods
	addr  string
	gen   PyTorchGeneration // known when the client is made, as is
	pings bool              // whether its greeting has a ping

	mu    sync.Mutex
	idle  []*pyTorchLine
	busy  map[*pyTorchLine]struct{}
	knows map[verb]bool // what the server is known to have, or not to
	err   error         // why there will be no more answers
	gone  chan struct{} // closed with err
}

// DialPyTorch connects to a store of PyTorch's at addr, host:port. It waits for the store until
// ctx ends. The client does not count as a process that has joined: see [PyTorchClient.Join].
func DialPyTorch(ctx context.Context, addr string, opts ...PyTorchClientOption) (*PyTorchClient, error) {
	c := &PyTorchClient{addr: addr, busy: map[*pyTorchLine]struct{}{}, knows: map[verb]bool{}, gone: make(chan struct{})}
	for _, opt := range opts {
		opt(c)
	}
	c.methods.do = c.do
	ctx, release := deadline(ctx)
	defer release()
	l, err := c.open(ctx)
	if err != nil {
		return nil, &Error{Op: "connect", Addr: addr, Err: err}
	}
	c.idle = append(c.idle, l)
	return c, nil
}

// Addr returns the server's address.
func (c *PyTorchClient) Addr() string { return c.addr }

// Generation returns what the server speaks.
func (c *PyTorchClient) Generation() PyTorchGeneration { return c.gen }

// LocalHost returns the IP address of this end of the connection: one that the
// server's host can reach.
func (c *PyTorchClient) LocalHost() (string, error) {
	l, err := c.take(context.Background())
	if err != nil {
		return "", err
	}
	defer c.give(l)
	host, _, err := net.SplitHostPort(l.conn.LocalAddr().String())
	return host, err
}

// Lost returns a channel that is closed when a call has found that the server has gone.
func (c *PyTorchClient) Lost() <-chan struct{} { return c.gone }

// Close closes all connections. Calls under way fail with ErrClosed.
func (c *PyTorchClient) Close() error {
	c.lose(ErrClosed)
	return nil
}

// Join counts this process as one that has joined: PyTorch's process that serves the store
// waits for all to have done so (wait_for_workers). It returns how many have.
func (c *PyTorchClient) Join(ctx context.Context) (int, error) {
	n, err := c.Add(ctx, pyTorchRaw+joinKey, 1)
	return int(n), err
}

// lose ends the client for a reason; the first one counts.
func (c *PyTorchClient) lose(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.gone)
		for _, l := range c.idle {
			l.conn.Close()
		}
		for l := range c.busy {
			l.conn.Close()
		}
		c.idle = nil
	}
	return c.err
}

// take gets a connection that has nothing under way.
func (c *PyTorchClient) take(ctx context.Context) (*pyTorchLine, error) {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	if n := len(c.idle); n > 0 {
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.busy[l] = struct{}{}
		c.mu.Unlock()
		return l, nil
	}
	c.mu.Unlock()
	l, err := c.another(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		l.conn.Close()
		return nil, c.err
	}
	c.busy[l] = struct{}{}
	return l, nil
}

// another makes one more connection, to a server that has to be there.
func (c *PyTorchClient) another(ctx context.Context) (*pyTorchLine, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctxerr.Of(ctx)
		}
		return nil, c.lose(fmt.Errorf("%w: %w", ErrLost, err))
	}
	l := newPyTorchLine(conn)
	switch {
	case c.gen == PyTorch1:
		return l, nil
	case !c.pings:
		l.out, _ = greeting(false) // goes with the first request
		return l, nil
	}
	known, err := l.greet(ctx)
	if known {
		return l, nil
	}
	l.conn.Close()
	if err == nil {
		err = c.lose(fmt.Errorf("%w: %w at the greeting", ErrLost, errHungUp))
	}
	return nil, err
}

// give puts a connection back that has nothing under way.
func (c *PyTorchClient) give(l *pyTorchLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, l)
	if c.err != nil || len(c.idle) >= idleLines {
		l.conn.Close()
		return
	}
	c.idle = append(c.idle, l)
}

// drop closes a connection that is of no more use.
func (c *PyTorchClient) drop(l *pyTorchLine) {
	l.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, l)
}

// use runs a conversation over a connection. When ctx ends, what it reads or writes
// fails, and the connection is given up.
func (c *PyTorchClient) use(ctx context.Context, talk func(l *pyTorchLine) error) error {
	l, err := c.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		l.conn.SetDeadline(past)
		l.ended <- struct{}{}
	})
	err = talk(l)
	whole := err == nil || l.forgot
	if !stop() { // the deadline is set, or about to be: not for who uses the connection next
		<-l.ended
		whole = whole && l.conn.SetDeadline(time.Time{}) == nil
	}
	if whole {
		l.forgot = false
		c.give(l)
		return err
	}
	c.drop(l)
	if err == nil {
		return nil
	}
	if errors.Is(err, errWaitEnded) {
		return err
	}
	select {
	case <-c.gone:
		return c.lose(nil) // the reason is there
	default:
	}
	var timeout net.Error
	if ctx.Err() != nil && errors.As(err, &timeout) && timeout.Timeout() {
		return ctxerr.Of(ctx)
	}
	if errors.Is(err, ErrUnsupported) || errors.Is(err, errNonsense) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errHungUp
	}
	return c.lose(fmt.Errorf("%w: %w", ErrLost, err))
}

var (
	// errWaitEnded is a wait that its context has ended.
	errWaitEnded = errors.New("the wait has ended")
	errNonsense  = errors.New("an answer that does not parse")
)

// ask gathers a request.
func (c *PyTorchClient) ask(l *pyTorchLine, q *pyTorchRequest) {
	l.out = appendPyTorch(l.out, c.gen, q)
}

// flush sends what has been gathered.
func (l *pyTorchLine) flush() error {
	_, err := l.conn.Write(l.out)
	if l.out = l.out[:0]; cap(l.out) > 1<<20 {
		l.out = nil
	}
	return err
}

// byte reads an answer of one byte.
func (l *pyTorchLine) byte() (byte, error) { return l.in.ReadByte() }

// number reads an answer that is a number.
func (l *pyTorchLine) number() (int64, error) {
	b, err := l.in.Peek(8)
	if err != nil {
		return 0, err
	}
	n := int64(binary.LittleEndian.Uint64(b))
	_, err = l.in.Discard(8)
	return n, err
}

// vec reads an answer that is a value.
func (l *pyTorchLine) vec() ([]byte, error) {
	n, err := l.number()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > maxServedValue {
		return nil, fmt.Errorf("%w: a value of %d bytes, at most %d", errNonsense, n, maxServedValue)
	}
	return readBytes(l.in, int(n), nil)
}

// wait waits until the keys are there. What ends it is ctx, which then must not
// have closed the connection: a server of 2.2 and later is asked to forget the wait.
//
// PyTorch's servers without libuv, and all of 1.13, do not wake those who wait for a
// key that COMPARE_SET makes. So the wait is begun anew now and then, and is for 1.13,
// which cannot forget one, a question asked again and again.
func (c *PyTorchClient) wait(ctx context.Context, l *pyTorchLine, keys []string) error {
	if c.gen == PyTorch1 {
		return c.lookFor(ctx, l, keys)
	}
	for slice := firstSlice; ; slice = min(2*slice, maxSlice) {
		c.ask(l, &pyTorchRequest{verb: verbWait, keys: keys})
		if err := l.conn.SetReadDeadline(time.Now().Add(slice)); err != nil {
			return err
		}
		if ctx.Err() != nil { // that it has ended may have been said before this deadline
			return errWaitEnded
		}
		if err := l.flush(); err != nil {
			return err
		}
		b, err := l.byte()
		if err == nil {
			if b != saysReady {
				return fmt.Errorf("%w: %d for a wait", errNonsense, b)
			}
			return l.conn.SetReadDeadline(time.Time{})
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return err
		}
		come, err := c.cancelWait(ctx, l)
		switch {
		case come:
			return nil
		case ctx.Err() != nil:
			l.forgot = err == nil
			return errWaitEnded
		case err != nil:
			return err
		}
	}
}

// lookFor asks a server of 1.13 for keys until they are there.
func (c *PyTorchClient) lookFor(ctx context.Context, l *pyTorchLine, keys []string) error {
	for pause := firstLook; ; pause = min(2*pause, maxLook) {
		c.ask(l, &pyTorchRequest{verb: verbCheck, keys: keys})
		if err := l.flush(); err != nil {
			return err
		}
		if b, err := l.byte(); err != nil || b == saysReady {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errWaitEnded
		case <-c.gone:
			timer.Stop()
			return net.ErrClosed // the reason is there
		}
	}
}

// cancelWait has the server forget a wait, of which the time or the context has ended. It may
// have come just before: then it counts. The server may take its time over that until ctx
// ends, and a moment longer. The connection has no deadline afterwards, if there is no error.
func (c *PyTorchClient) cancelWait(ctx context.Context, l *pyTorchLine) (come bool, err error) {
	if err := l.conn.SetDeadline(time.Time{}); err != nil {
		return false, err
	}
	last := ctx.Err() != nil
	if last {
		err = l.conn.SetDeadline(time.Now().Add(cancelGrace))
	}
	answer := func() (byte, error) {
		b, err := l.byte()
		var timeout net.Error
		if !last && ctx.Err() != nil && errors.As(err, &timeout) && timeout.Timeout() {
			last = true
			if err := l.conn.SetDeadline(time.Now().Add(cancelGrace)); err != nil {
				return 0, err
			}
			b, err = l.byte()
		}
		return b, err
	}
	c.ask(l, &pyTorchRequest{verb: verbCancelWait})
	if err == nil {
		err = l.flush()
	}
	var b byte
	if err == nil {
		b, err = answer()
	}
	if err == nil && b == saysReady {
		come = true
		b, err = answer()
	}
	if err == nil && b != saysCancelled {
		err = fmt.Errorf("%w: %d for the end of a wait", errNonsense, b)
	}
	if err == nil {
		err = l.conn.SetDeadline(time.Time{})
	}
	return come && err == nil, err
}

// missing says which of the keys are not there, when a wait for them has ended. Those
// of which it cannot be told count as missing.
func (c *PyTorchClient) missing(keys []string) []string {
	if len(keys) == 1 || len(keys) > namedKeys {
		return keys
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
	defer cancel()
	missing := keys
	_ = c.use(ctx, func(l *pyTorchLine) error {
		for _, k := range keys {
			c.ask(l, &pyTorchRequest{verb: verbCheck, keys: []string{k}})
		}
		if err := l.flush(); err != nil {
			return err
		}
		var lacking []string
		for _, k := range keys {
			b, err := l.byte()
			if err != nil {
				return err
			}
			if b != saysReady {
				lacking = append(lacking, k)
			}
		}
		missing = lacking
		return nil
	})
	return missing
}

// do runs a request.
func (c *PyTorchClient) do(ctx context.Context, q request) (reply, error) {
	fail := func(keys []string, err error) (reply, error) {
		return reply{}, &Error{Op: q.op.String(), Keys: keys, Addr: c.addr, Err: err}
	}
	if keys, err := q.check(); err != nil {
		return fail(keys, err)
	}
	if keys, err := q.checkPyTorch(); err != nil {
		return fail(keys, err)
	}
	if ctx.Err() != nil {
		return fail(q.keys, ctxerr.Of(ctx))
	}
	underWay.Add(1)
	defer underWay.Add(-1)
	ctx, release := deadline(ctx)
	defer release()
	if err := c.supports(ctx, q.op); err != nil {
		return fail(q.keys, err)
	}
	r, err := c.run(ctx, &q)
	switch {
	case errors.Is(err, errWaitEnded) || err != nil && ctx.Err() != nil && q.op.waits() && c.reason() == nil:
		missing := q.keys
		if q.op != opPop {
			missing = c.missing(q.keys)
		}
		return fail(missing, missingError(ctxerr.Of(ctx), q.op))
	case err != nil:
		return fail(q.keys, err)
	}
	if err := r.err(); err != nil {
		return fail(q.keys, err)
	}
	return r, nil
}

// reason says why the client has ended; nil if it has not.
func (c *PyTorchClient) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// checkPyTorch tests a request against the limits of PyTorch's servers.
func (q *request) checkPyTorch() ([]string, error) {
	for i, v := range slices.Concat([][]byte{q.value, q.expected}, q.values) {
		if len(v) > maxPyTorchValue {
			keys := q.keys
			if i >= 2 {
				keys = q.keys[i-2 : i-1]
			}
			return keys, fmt.Errorf("%w: a value of %d bytes, at most %d with PyTorch", ErrLimit, len(v), maxPyTorchValue)
		}
	}
	return nil, nil
}

// feature is the verb that an operation needs and some servers do not have.
func (o opcode) feature() (v verb, needed bool) {
	switch o {
	case opAppend:
		return verbAppend, true
	case opPush, opPop, opQueueLen:
		return verbQueueLen, true
	}
	return 0, false
}

// supports says whether the server has what an operation needs.
func (c *PyTorchClient) supports(ctx context.Context, o opcode) error {
	v, needed := o.feature()
	if !needed {
		return nil
	}
	known, err := c.has(ctx, v)
	if err == nil && !known {
		err = fmt.Errorf("%w: it is one of %s", ErrUnsupported, c.kind())
	}
	return err
}

// kind says what the server is.
func (c *PyTorchClient) kind() string {
	if c.gen == PyTorch1 {
		return "PyTorch 1.13 or before"
	}
	return "a version of PyTorch 2 that is too old, or without libuv"
}

// has says whether the server has a verb. It asks once, over a connection of its own,
// which a server that has not ends.
func (c *PyTorchClient) has(ctx context.Context, v verb) (bool, error) {
	if c.gen == PyTorch1 {
		_, ok := opcodeOf(v, PyTorch1)
		return ok, nil
	}
	if v == verbAppend {
		return true, nil // all of 2.2 and later have it
	}
	c.mu.Lock()
	known, asked := c.knows[v]
	c.mu.Unlock()
	if asked {
		return known, nil
	}
	l, err := c.another(ctx)
	if err != nil {
		return false, err
	}
	defer l.conn.Close()
	q := pyTorchRequest{verb: v}
	if v == verbQueueLen {
		q.keys = []string{"a queue that nobody has"}
	}
	c.ask(l, &q)
	_, err = l.exchange(ctx, l.out, 8, probeTime)
	if err != nil && !errors.Is(err, errHungUp) {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.knows[v] = err == nil
	return err == nil, nil
}
