// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// cluster is engines in one process, joined by function calls: a stand-in for
// agents that takes every message apart as they do.
type cluster struct {
	engines []*engine
	dead    []atomic.Bool
	before  func(from, to int, what string) error // of each message between engines
}

// first is the first process of a rank.
func first(rank int) member { return member{rank, 1 << 60 >> rank} }

var errLost = errors.New("the connection was lost")

func newCluster(n int) *cluster {
	c := &cluster{dead: make([]atomic.Bool, n)}
	for r := range n {
		c.engines = append(c.engines, newEngine(r, n, first(r).Life, line{c, r}))
	}
	return c
}

// line is the wire of one engine.
type line struct {
	c    *cluster
	from int
}

func (l line) name(rank int) string { return fmt.Sprintf("worker%d", rank) }

// reach returns the engine at the other end.
func (l line) reach(to int, what string) (*engine, error) {
	if l.c.dead[to].Load() || l.c.dead[l.from].Load() {
		return nil, errLost
	}
	if l.c.before != nil {
		if err := l.c.before(l.from, to, what); err != nil {
			return nil, err
		}
	}
	return l.c.engines[to], nil
}

func (l line) prepare(ctx context.Context, to int, in prepareCall) (prepareAnswer, error) {
	e, err := l.reach(to, "prepare")
	if err != nil {
		return prepareAnswer{}, err
	}
	return e.onPrepare(ctx, in)
}

func (l line) walk(ctx context.Context, to int, in walkCall) error {
	e, err := l.reach(to, "walk")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := make(chan error, 1)
	go func() { end <- e.onWalk(ctx, l.from, in) }()
	for {
		select {
		case err := <-end:
			return err
		case <-ctx.Done():
			if err := <-end; err != nil {
				return err
			}
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
			if l.c.dead[to].Load() {
				cancel(errLost)
				<-end
				return errLost
			}
		}
	}
}

func (l line) gradient(_ context.Context, to int, in gradientCall) func() error {
	if in.Grad != nil {
		in.Grad = copyOf(in.Grad)
	}
	end := make(chan error, 1)
	go func() {
		e, err := l.reach(to, "gradient")
		if err == nil {
			err = e.onGradient(l.from, in)
		}
		end <- err
	}()
	return func() error { return <-end }
}

func (l line) missing(ctx context.Context, to int, in missingCall) (bool, error) {
	e, err := l.reach(to, "missing")
	if err != nil {
		return false, err
	}
	return e.onMissing(ctx, in)
}

func (l line) release(to int, in releaseCall) {
	if e, err := l.reach(to, "release"); err == nil {
		e.onRelease(l.from, in)
	}
}

func (l line) alive(_ context.Context, to int, in aliveCall) (aliveAnswer, error) {
	e, err := l.reach(to, "alive")
	if err != nil {
		return aliveAnswer{}, err
	}
	return e.onAlive(in), nil
}

func copyOf(t *tensor.Tensor) *tensor.Tensor { return tensor.FromFloat32(t.Float32s(), t.Shape()...) }

func copies(ts []*tensor.Tensor) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(ts))
	for i, t := range ts {
		out[i] = copyOf(t)
	}
	return out
}

type handler func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error)

// call is a call between workers, with its hooks. The returned function waits for
// the answer.
func (c *cluster) async(ctx context.Context, from, to int, method string, h handler, args ...*tensor.Tensor) func() ([]*tensor.Tensor, error) {
	extra, err := c.engines[from].sendCall(ctx, first(to), method, args)
	if err != nil {
		return func() ([]*tensor.Tensor, error) { return nil, err }
	}
	args = copies(args)
	type answer struct {
		out   []*tensor.Tensor
		extra []byte
		err   error
	}
	end := make(chan answer, 1)
	go func() {
		e := c.engines[to]
		hctx, err := e.receiveCall(context.WithoutCancel(plain{ctx}), first(from), method, extra, args)
		if err != nil {
			end <- answer{err: err}
			return
		}
		out, err := h(hctx, args)
		extra, hookErr := e.sendReply(hctx, from, method, err != nil, out)
		if err == nil {
			err = hookErr
		}
		end <- answer{copies(out), extra, err}
	}()
	return func() ([]*tensor.Tensor, error) {
		a := <-end
		if a.err != nil {
			return nil, a.err
		}
		err := c.engines[from].receiveReply(ctx, to, method, false, a.extra, a.out)
		return a.out, err
	}
}

// plain hides what a context carries: values do not cross the wire.
type plain struct{ context.Context }

func (plain) Value(any) any { return nil }

func (c *cluster) call(t testing.TB, ctx context.Context, from, to int, method string, h handler, args ...*tensor.Tensor) []*tensor.Tensor {
	t.Helper()
	out, err := c.async(ctx, from, to, method, h, args...)()
	if err != nil {
		t.Fatalf("%s on worker%d: %v", method, to, err)
	}
	return out
}

// wantNothingLeft fails when an engine still knows a context.
func (c *cluster) wantNothingLeft(t testing.TB) {
	t.Helper()
	for _, e := range c.engines {
		if c.dead[e.rank].Load() {
			continue
		}
		e.mu.Lock()
		for id := range e.states {
			t.Errorf("worker%d still has context %s", e.rank, contextName(id))
		}
		e.mu.Unlock()
	}
}
