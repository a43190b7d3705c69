// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// step makes a context over all workers: worker 0 calls each, and each calls the
// next before it answers.
func step(t *testing.T, cl *cluster, fault func(worker int) error) (*Context, *tensor.Tensor) {
	t.Helper()
	w := param(1, 4)
	dc := newContext(cl.engines[0], nil)
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var hop func(at int, on bool) handler
	hop = func(at int, on bool) handler {
		return func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			c := Ctx(ctx)
			x := in[0].Mul(c.Param(w))
			x = tensor.Record("fault", x.Detach(), []*tensor.Tensor{x}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{g}, fault(at)
			})
			if next := at + 1; on && next < len(cl.engines) {
				out, err := cl.async(c, at, next, "hop", hop(next, false), x)()
				if err != nil {
					return nil, err
				}
				x = x.Add(out[0])
			}
			return []*tensor.Tensor{x}, nil
		}
	}
	x := c.Param(param(2, 4)).Exp()
	sum := x
	for r := range cl.engines {
		sum = sum.Add(cl.call(t, c, 0, r, "hop", hop(r, true), x)[0])
	}
	return dc, sum.Sum()
}

// TestAFailureEndsThePassEverywhere: whoever fails, the error names it and its
// cause, and no process keeps anything of the context.
func TestAFailureEndsThePassEverywhere(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, mode := range []Mode{Smart, Fast} {
		for worker := range 4 {
			cl := newCluster(4)
			dc, loss := step(t, cl, func(at int) error {
				if at == worker {
					return broken
				}
				return nil
			})
			err := dc.Backward(t.Context(), loss, WithMode(mode))
			wantError(t, err, broken, fmt.Sprintf("on worker%d (rank %d): disk on fire", worker, worker))
			cl.wantNothingLeft(t)
			wantError(t, dc.Backward(t.Context(), loss), ErrReleased, "disk on fire")
			if _, err := dc.Pass(t.Context()); !errors.Is(err, ErrReleased) {
				t.Errorf("a pass was begun in a released context: %v", err)
			}
		}
	}
}

// TestADeadWorkerEndsThePass: workers die at any message of a pass.
func TestADeadWorkerEndsThePass(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cl := newCluster(4)
		dc, loss := step(t, cl, func(int) error { return nil })
		victim, at := 1+rng.IntN(3), int64(1+rng.IntN(14))
		var messages atomic.Int64
		cl.before = func(from, to int, what string) error {
			if messages.Add(1) == at {
				cl.dead[victim].Store(true)
			}
			if cl.dead[to].Load() || cl.dead[from].Load() {
				return errLost
			}
			return nil
		}
		err := dc.Backward(t.Context(), loss)
		if !cl.dead[victim].Load() || err == nil {
			// It died after its part, or the pass was over first.
			dc.Close()
		} else if !errors.Is(err, errLost) {
			t.Errorf("seed %d: %v, want %v", seed, err, errLost)
		}
		cl.wantNothingLeft(t)
	}
}

// patient is a wire on which questions to a process that was lost wait for it to come back.
type patient struct {
	line
	hears bool // of the loss, meanwhile
}

func (l patient) prepare(ctx context.Context, to int, in prepareCall) (prepareAnswer, error) {
	if !l.c.dead[to].Load() {
		return l.line.prepare(ctx, to, in)
	}
	if l.hears {
		l.c.engines[l.from].lost(first(to), errLost)
	}
	<-ctx.Done()
	return prepareAnswer{}, ctx.Err()
}

// TestALossEndsTheQuestions before a pass, whoever hears of it.
func TestALossEndsTheQuestions(t *testing.T) {
	for _, hears := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			cl := newCluster(3)
			dc, loss := step(t, cl, func(int) error { return nil })
			cl.dead[2].Store(true)
			cl.engines[0].wire = patient{line{cl, 0}, hears == 0}
			if hears == 1 {
				cl.engines[1].lost(first(2), errLost)
			}
			began := time.Now()
			wantError(t, dc.Backward(t.Context(), loss), nil, "on worker2 (rank 2): it was lost")
			if took := time.Since(began); took > 0 {
				t.Errorf("worker%d hears of it: it took %v", hears, took)
			}
			cl.wantNothingLeft(t)
		})
	}
}

// TestContextsOfADeadMakerAreReleased, and those whose release was lost, within a
// minute; others stay.
func TestContextsOfADeadMakerAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(3)
		var deaf atomic.Bool
		cl.before = func(_, _ int, what string) error {
			if what == "release" && deaf.Load() {
				return errLost
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, e := range cl.engines {
			go e.run(ctx)
		}
		open := func(root int) *Context {
			dc := newContext(cl.engines[root], nil)
			c, _ := dc.Pass(ctx)
			cl.call(t, c, root, 2, "id", func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) { return in, nil }, c.Param(param(1, 4)))
			return dc
		}
		kept, lost, orphan := open(0), open(0), open(1)
		deaf.Store(true)
		lost.Close()
		cl.dead[1].Store(true)
		time.Sleep(2*staleAfter + time.Second)
		for dc, want := range map[*Context]bool{kept: true, lost: false, orphan: false} {
			if _, err := cl.engines[2].state(dc.ID()); (err == nil) != want {
				t.Errorf("%v: worker2 says %v, want it there: %t", dc, err, want)
			}
		}
		deaf.Store(false)
		kept.Close()
		cl.wantNothingLeft(t)
	})
}

// TestWhatComesAfterARelease does not bring the context back.
func TestWhatComesAfterARelease(t *testing.T) {
	cl := newCluster(2)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	id := func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) { return in, nil }
	x := c.Param(param(1, 4))
	extra, err := cl.engines[0].sendCall(c, first(1), "id", []*tensor.Tensor{x})
	if err != nil {
		t.Fatal(err)
	}
	cl.call(t, c, 0, 1, "id", id, x)
	dc.Close()
	_, err = cl.engines[1].receiveCall(t.Context(), first(0), "id", extra, []*tensor.Tensor{copyOf(x)})
	wantError(t, err, ErrReleased, "id from worker0")
	if _, err := cl.async(c, 0, 1, "id", id, tensor.Full(1, 2))(); !errors.Is(err, ErrReleased) {
		t.Errorf("a call in a closed context gave %v", err)
	}
	cl.wantNothingLeft(t)
}

// TestLiesAreRefused: what other processes say is compared with what is known.
func TestLiesAreRefused(t *testing.T) {
	cl := newCluster(3)
	dc := newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	x := c.Param(param(1, 4))
	id := func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) { return in, nil }
	cl.call(t, c, 0, 1, "id", id, x)
	e, one := cl.engines[0], stateOf(t, cl.engines[0], dc.ID())
	var message uint64
	for message = range one.sends {
	}
	for what, in := range map[string]struct {
		from int
		gradientCall
	}{
		"which was not sent to it":       {2, gradientCall{dc.ID(), 1, message, nil}},
		"answers message 0/99":           {1, gradientCall{dc.ID(), 1, 99, nil}},
		"a gradient float32[5]":          {1, gradientCall{dc.ID(), 1, message, tensor.Zeros(5)}},
		"a gradient int64[4]":            {1, gradientCall{dc.ID(), 1, message, tensor.FromInt64(make([]int64, 4), 4)}},
		"backward pass 7":                {1, gradientCall{dc.ID(), 7, message, nil}},
		"there is no context 0/77":       {1, gradientCall{77, 1, message, nil}},
		"rank 9, of 3 ranks":             {1, gradientCall{9<<counterBits | 1, 1, message, nil}},
		"there is no context 1/1 here: ": {2, gradientCall{1<<counterBits | 1, 1, message, nil}},
	} {
		wantError(t, e.onGradient(in.from, in.gradientCall), nil, what)
	}
	wantError(t, cl.engines[1].onWalk(t.Context(), 2, walkCall{Context: dc.ID(), Walk: 1}), nil, "worker2 asks for a pass in the context of worker0")
	two := []*tensor.Tensor{tensor.Zeros(4), tensor.FromInt64(make([]int64, 2), 2)}
	for what, h := range map[string]header{
		"are not of rank 1":    {context: dc.ID(), first: 5, crossed: []int{0}},
		"which has no grad":    {context: dc.ID(), first: 1<<counterBits | 5, crossed: []int{1}},
		"names tensor 2, of 2": {context: dc.ID(), first: 1<<counterBits | 5, crossed: []int{2}},
		"lists 3 tensors":      {context: dc.ID(), first: 1<<counterBits | 5, crossed: []int{0, 1, 2}},
		"of rank 7, of 3":      {context: 7<<counterBits | 1},
		"there is no context":  {context: 2<<counterBits | 1},
	} {
		_, err := cl.engines[2].receiveCall(t.Context(), first(1), "id", h.append(nil), two)
		wantError(t, err, nil, what)
	}
	one.learn(first(2)) // worker 2 was brought in behind the maker's back
	dc.Close()
	cl.wantNothingLeft(t)
}

// TestMistakesAreNamed: what a program does wrong with contexts.
func TestMistakesAreNamed(t *testing.T) {
	cl := newCluster(2)
	dc, other := newContext(cl.engines[0], nil), newContext(cl.engines[0], nil)
	c, _ := dc.Pass(t.Context())
	d, _ := other.Pass(t.Context())
	foreign := nn.Training(t.Context())
	defer foreign.Close()
	p := param(1, 4)
	id := func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) { return in, nil }
	for _, x := range []*tensor.Tensor{d.Param(p), foreign.Param(p)} {
		_, err := cl.async(c, 0, 1, "id", id, x)()
		wantError(t, err, nil, "argument of id 0 was computed outside of the context")
		wantError(t, dc.Backward(t.Context(), x.Sum()), nil, "loss 0 was not computed in a pass of the context")
	}
	wantError(t, dc.Backward(t.Context(), nil), nil, "loss 0 is nil")
	wantError(t, dc.Backward(t.Context(), c.Param(p)), nil, "has shape [4], one element is wanted")
	wantError(t, dc.Backward(t.Context(), c.Param(p).Sum(), WithLosses(tensor.Zeros())), nil, "loss 1 was not computed")
	wantError(t, dc.Backward(t.Context(), c.Param(p).Sum(), WithMode(3)), nil, "Mode(3)")
	if _, err := cl.engines[1].sendCall(c, first(0), "id", nil); err == nil {
		t.Error("a call through the agent of another worker was taken")
	}
	y := cl.call(t, c, 0, 1, "id", id, c.Param(p))[0]
	func() {
		defer func() {
			if _, ok := recover().(*tensor.Error); !ok {
				t.Error("Tensor.Backward went over a value that was received")
			}
		}()
		_ = y.Sum().Backward(t.Context())
	}()
	dc.Close()
	dc.Close()
	other.Close()
	cl.wantNothingLeft(t)
}
