// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"
)

// run does one operation, by one or several requests.
func (c *PyTorchClient) run(ctx context.Context, q *request) (r reply, err error) {
	switch q.op {
	case opGet:
		r.value, err = c.get(ctx, q.keys[0])
	case opMultiGet:
		return c.multiGet(ctx, q.keys)
	case opWait:
		if len(q.keys) > 0 {
			err = c.waitFor(ctx, q.keys, nil)
		}
	case opPop:
		return c.pop(ctx, q.keys[0])
	case opCAS:
		return c.compareAndSet(ctx, q)
	case opNumKeys:
		return c.numKeys(ctx, q.keys[0])
	case opSet:
		err = c.quiet(ctx, pyTorchRequest{verb: verbSet, keys: q.keys, value: q.value})
	case opAppend:
		return c.append(ctx, q)
	case opPush:
		err = c.quiet(ctx, pyTorchRequest{verb: verbPush, keys: q.keys, value: q.value})
	case opMultiSet:
		err = c.multiSet(ctx, q)
	case opAdd:
		r.number, err = c.counted(ctx, pyTorchRequest{verb: verbAdd, keys: q.keys, number: q.delta})
	case opQueueLen:
		r.number, err = c.counted(ctx, pyTorchRequest{verb: verbQueueLen, keys: q.keys})
	case opDelete:
		var n int64
		n, err = c.counted(ctx, pyTorchRequest{verb: verbDelete, keys: q.keys})
		r.status = statusNo
		if n > 0 {
			r.status = statusOK
		}
		return r, err
	default:
		return r, fmt.Errorf("%w: %v", ErrUnsupported, q.op)
	}
	r.status = statusOK
	return r, err
}

// counted does a request whose answer is a number.
func (c *PyTorchClient) counted(ctx context.Context, q pyTorchRequest) (n int64, err error) {
	err = c.use(ctx, func(l *pyTorchLine) error {
		c.ask(l, &q)
		if err := l.flush(); err != nil {
			return err
		}
		n, err = l.number()
		return err
	})
	return n, err
}

// quiet does requests without an answer, and one behind them that has one: when that
// comes they have been done.
func (c *PyTorchClient) quiet(ctx context.Context, requests ...pyTorchRequest) error {
	return c.use(ctx, func(l *pyTorchLine) error {
		for i := range requests {
			c.ask(l, &requests[i])
			if len(l.out) > maxOut {
				if err := l.flush(); err != nil {
					return err
				}
			}
		}
		c.ask(l, &pyTorchRequest{verb: verbNumKeys})
		if err := l.flush(); err != nil {
			return err
		}
		_, err := l.number()
		return err
	})
}

func (c *PyTorchClient) multiSet(ctx context.Context, q *request) error {
	if c.gen == PyTorch2 {
		return c.quiet(ctx, pyTorchRequest{verb: verbMultiSet, keys: q.keys, values: q.values})
	}
	sets := make([]pyTorchRequest, len(q.keys))
	for i := range sets {
		sets[i] = pyTorchRequest{verb: verbSet, keys: q.keys[i : i+1], value: q.values[i]}
	}
	return c.quiet(ctx, sets...)
}

// get waits for a key and returns its value.
func (c *PyTorchClient) get(ctx context.Context, key string) (value []byte, err error) {
	err = c.waitFor(ctx, []string{key}, func(l *pyTorchLine) error {
		c.ask(l, &pyTorchRequest{verb: verbGet, keys: []string{key}})
		if err := l.flush(); err != nil {
			return err
		}
		value, err = l.vec()
		return err
	})
	return value, err
}

// waitFor waits until the keys are there, and then does more over the same connection.
func (c *PyTorchClient) waitFor(ctx context.Context, keys []string, more func(l *pyTorchLine) error) error {
	return c.use(ctx, func(l *pyTorchLine) error {
		if err := c.wait(ctx, l, keys); err != nil || more == nil {
			return err
		}
		return more(l)
	})
}

// multiGet waits for keys and returns their values: in one request where the server has
// one for that.
func (c *PyTorchClient) multiGet(ctx context.Context, keys []string) (reply, error) {
	r := reply{status: statusOK, values: make([][]byte, 0, len(keys))}
	if len(keys) == 0 {
		return r, nil
	}
	err := c.waitFor(ctx, keys, func(l *pyTorchLine) error {
		if c.gen == PyTorch2 {
			c.ask(l, &pyTorchRequest{verb: verbMultiGet, keys: keys})
		}
		total := 0
		for i := range keys {
			if c.gen == PyTorch1 {
				c.ask(l, &pyTorchRequest{verb: verbGet, keys: keys[i : i+1]})
			}
			if len(l.out) > 0 {
				if err := l.flush(); err != nil {
					return err
				}
			}
			v, err := l.vec()
			if err != nil {
				return err
			}
			if total += len(v); total > MaxValue {
				r.status = statusTooLarge
				v = nil // the rest is read, for the connection is used again
			}
			r.values = append(r.values, v)
		}
		return nil
	})
	return r, err
}

// append appends, within the limit: PyTorch's servers know none for the sum.
func (c *PyTorchClient) append(ctx context.Context, q *request) (reply, error) {
	return reply{status: statusOK}, c.quiet(ctx, pyTorchRequest{verb: verbAppend, keys: q.keys, value: q.value})
}

// pop waits for a queue to have something, and takes it if nobody else has.
func (c *PyTorchClient) pop(ctx context.Context, key string) (r reply, err error) {
	r.status = statusOK
	for come := false; !come && err == nil; {
		err = c.waitFor(ctx, []string{key}, func(l *pyTorchLine) error {
			c.ask(l, &pyTorchRequest{verb: verbPop, keys: []string{key}})
			if err := l.flush(); err != nil {
				return err
			}
			n, err := l.number()
			if err != nil || n == 0 {
				return err
			}
			come = true
			r.value, err = l.vec()
			return err
		})
		if err == nil && !come {
			err = c.breathe(ctx)
		}
	}
	return r, err
}

// breathe waits a moment before a pop is tried again: another process was faster, or
// there is a key of the queue's name, for which PyTorch's wait is too.
func (c *PyTorchClient) breathe(ctx context.Context) error {
	timer := time.NewTimer(firstLook)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errWaitEnded
	}
}

// compareAndSet looks before it asks, for PyTorch's answer does not say whether
// anything was set, and an empty value that is expected is the same as none to it.
func (c *PyTorchClient) compareAndSet(ctx context.Context, q *request) (r reply, err error) {
	set := pyTorchRequest{verb: verbCompareSet, keys: q.keys, expected: q.expected, value: q.value}
	err = c.use(ctx, func(l *pyTorchLine) error {
		c.ask(l, &pyTorchRequest{verb: verbCheck, keys: q.keys})
		if err := l.flush(); err != nil {
			return err
		}
		b, err := l.byte()
		if err != nil {
			return err
		}
		if b != saysReady {
			if q.expected != nil {
				r.status = statusNo
				return nil
			}
		} else {
			c.ask(l, &pyTorchRequest{verb: verbGet, keys: q.keys})
			if err := l.flush(); err != nil {
				return err
			}
			current, err := l.vec()
			if err != nil {
				return err
			}
			if q.expected == nil || !bytes.Equal(current, q.expected) {
				r = reply{status: statusNo, value: current}
				return nil
			}
		}
		c.ask(l, &set)
		if err := l.flush(); err != nil {
			return err
		}
		current, err := l.vec()
		if err != nil {
			return err
		}
		switch r.value = current; {
		case bytes.Equal(current, q.value):
			r.status = statusOK
		case len(q.expected) > 0 && bytes.Equal(current, q.expected):
			r = reply{status: statusNo} // there is none: PyTorch answers with what was expected
		default:
			r.status = statusNo
		}
		return nil
	})
	return r, err
}

// numKeys counts keys by their list, which leaves out PyTorch's own; a server without
// one counts all.
func (c *PyTorchClient) numKeys(ctx context.Context, prefix string) (r reply, err error) {
	r.status = statusOK
	listed, err := c.has(ctx, verbListKeys)
	if err != nil {
		return r, err
	}
	if listed {
		keys, err := c.listKeys(ctx)
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) && !strings.HasPrefix(k, pyTorchRaw) {
				r.number++
			}
		}
		return r, err
	}
	if prefix != "" {
		return r, fmt.Errorf("%w, for it does not list its keys: it is one of %s", ErrUnsupported, c.kind())
	}
	err = c.use(ctx, func(l *pyTorchLine) error {
		c.ask(l, &pyTorchRequest{verb: verbCheck, keys: []string{pyTorchRaw + joinKey}})
		c.ask(l, &pyTorchRequest{verb: verbNumKeys})
		if err := l.flush(); err != nil {
			return err
		}
		b, err := l.byte()
		if err != nil {
			return err
		}
		r.number, err = l.number()
		if b == saysReady {
			r.number--
		}
		return err
	})
	return r, err
}

// listKeys returns all keys, as those of a store of Cohort's.
func (c *PyTorchClient) listKeys(ctx context.Context) (keys []string, err error) {
	err = c.use(ctx, func(l *pyTorchLine) error {
		c.ask(l, &pyTorchRequest{verb: verbListKeys})
		if err := l.flush(); err != nil {
			return err
		}
		n, err := l.number()
		if err != nil {
			return err
		}
		total := 0
		for range n {
			k, err := l.vec()
			if err != nil {
				return err
			}
			if total += len(k) + 1; total > MaxValue {
				return fmt.Errorf("%w: a list of keys of more than %d bytes", errNonsense, MaxValue)
			}
			keys = append(keys, fromPyTorch(k))
		}
		return nil
	})
	return keys, err
}
