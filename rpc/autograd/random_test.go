// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

func errorsIs(err, target error) bool { return errors.Is(err, target) }

// world is where a random program runs: on workers, or in one process.
type world interface {
	// param reads parameter i of a worker in a pass on it.
	param(ctx context.Context, worker, i int) *tensor.Tensor
	call(ctx context.Context, from, to, depth, numOut int, args ...*tensor.Tensor) []*tensor.Tensor
}

const (
	paramsPerWorker = 3
	width           = 3
)

// program is a function of random operations and calls, the same in every world:
// its choices come from rng in the order in which it runs.
type program struct {
	rng     *rand.Rand
	workers int
	calls   int // left to be made
	w       world
}

const callsOfProgram = 12

func newProgram(seed uint64, workers int) *program {
	return &program{rng: rand.New(rand.NewPCG(seed, 7)), workers: workers, calls: callsOfProgram}
}

// callee is the handler of a call that the program makes.
func (p *program) callee(to, depth, numOut int) handler {
	return func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		return p.body(ctx, to, in, depth, numOut), nil
	}
}

// body runs on a worker, given the tensors of a call, and returns up to max values.
func (p *program) body(ctx context.Context, at int, in []*tensor.Tensor, depth, max int) []*tensor.Tensor {
	vals := append([]*tensor.Tensor{p.w.param(ctx, at, p.rng.IntN(paramsPerWorker))}, in...)
	pick := func() *tensor.Tensor { return vals[p.rng.IntN(len(vals))] }
	for range 2 + p.rng.IntN(5) {
		switch k := p.rng.IntN(8); {
		case k == 0:
			vals = append(vals, p.w.param(ctx, at, p.rng.IntN(paramsPerWorker)))
		case k == 1:
			vals = append(vals, pick().Add(pick()))
		case k == 2:
			vals = append(vals, pick().Mul(pick()))
		case k == 3:
			vals = append(vals, pick().Tanh())
		case k == 4:
			vals = append(vals, pick().Sub(pick().MulScalar(0.5)))
		case depth < 4 && p.calls > 0:
			p.calls--
			to := p.rng.IntN(p.workers)
			args := []*tensor.Tensor{pick()}
			for range p.rng.IntN(3) {
				args = append(args, pick())
			}
			if p.rng.IntN(4) == 0 {
				args = append(args, pick().Detach())
			}
			vals = append(vals, p.w.call(ctx, at, to, depth+1, 1+p.rng.IntN(2), args...)...)
		}
	}
	out := []*tensor.Tensor{vals[len(vals)-1]}
	for len(out) < max {
		out = append(out, pick())
	}
	return out
}

// run computes a loss on a worker.
func (p *program) run(ctx context.Context, at int) *tensor.Tensor {
	out := p.body(ctx, at, nil, 0, 3)
	return out[0].Mul(out[1]).Add(out[2]).Sum()
}

// together runs a program on a cluster.
type together struct {
	*program
	t      testing.TB
	cl     *cluster
	params [][]*nn.Parameter
}

func (w together) param(ctx context.Context, worker, i int) *tensor.Tensor {
	return Ctx(ctx).Param(w.params[worker][i])
}

func (w together) call(ctx context.Context, from, to, depth, numOut int, args ...*tensor.Tensor) []*tensor.Tensor {
	args, places := once(args)
	out := w.cl.call(w.t, ctx, from, to, "body", func(ctx context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		out, err := w.callee(to, depth, numOut)(ctx, again(in, places))
		out, places = once(out)
		return out, err
	}, args...)
	return again(out, places)
}

// once lists each tensor once, as a message does, and says where it was.
func once(ts []*tensor.Tensor) (each []*tensor.Tensor, places []int) {
	for _, t := range ts {
		i := slices.Index(each, t)
		if i < 0 {
			i = len(each)
			each = append(each, t)
		}
		places = append(places, i)
	}
	return each, places
}

func again(each []*tensor.Tensor, places []int) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(places))
	for i, j := range places {
		out[i] = each[j]
	}
	return out
}

// alone runs it under one tape. What would cross between workers is copied by an
// operation, and each call reads a parameter for itself, so that sums have the same
// order.
type alone struct {
	*program
	tape   *tensor.Tape
	params [][]*nn.Parameter
	grads  *gradients
	parts  *[]*part
}

type leavesKey struct{}

func (w alone) enter(ctx context.Context) context.Context {
	return context.WithValue(ctx, leavesKey{}, make(map[*nn.Parameter]*tensor.Tensor))
}

func (w alone) param(ctx context.Context, worker, i int) *tensor.Tensor {
	leaves := ctx.Value(leavesKey{}).(map[*nn.Parameter]*tensor.Tensor)
	p := w.params[worker][i]
	if leaves[p] == nil {
		l := w.grads.leaf(p)
		*w.parts = append(*w.parts, l)
		leaves[p] = w.tape.Watch(p.Data(), l)
	}
	return leaves[p]
}

func (w alone) cross(ts []*tensor.Tensor) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(ts))
	for i, t := range ts {
		if j := slices.Index(ts, t); j < i { // one tensor travels once
			out[i] = out[j]
			continue
		}
		out[i] = tensor.Record("cross", copyOf(t), []*tensor.Tensor{t}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{g}, nil
		})
	}
	return out
}

func (w alone) call(ctx context.Context, _, to, depth, numOut int, args ...*tensor.Tensor) []*tensor.Tensor {
	return w.cross(w.body(w.enter(ctx), to, w.cross(args), depth, numOut))
}

// TestRandomGraphsHaveTheBitsOfOneProcess: programs of nested calls over three to
// five workers, with values that are used several times, on several workers, or not
// at all.
func TestRandomGraphsHaveTheBitsOfOneProcess(t *testing.T) {
	numPrograms := 300
	if testing.Short() {
		numPrograms = 50
	}
	crossed := 0
	for seed := range uint64(numPrograms) {
		workers := 3 + int(seed%3)
		want := inOneProcess(t, seed, workers, 0)
		params := make([][]*nn.Parameter, workers)
		for r := range params {
			params[r] = newTestWorker(r).params
		}
		cl := newCluster(workers)
		cl.before = func(int, int, string) error {
			for range rand.IntN(3) {
				runtime.Gosched()
			}
			return nil
		}
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		p := newProgram(seed, workers)
		p.w = together{p, t, cl, params}
		if err := dc.Backward(t.Context(), p.run(c, 0)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		crossed += callsOfProgram - p.calls
		for r := range params {
			s, err := cl.engines[r].state(dc.ID())
			for i, q := range params[r] {
				var got *tensor.Tensor
				if err == nil {
					got, _ = s.grads.get(q)
				}
				wantBits(t, fmt.Sprintf("seed %d: parameter %d of worker %d", seed, i, r), got, want[r][i])
			}
		}
		dc.Close()
		cl.wantNothingLeft(t)
		if t.Failed() {
			return
		}
	}
	if crossed < 3*numPrograms {
		t.Errorf("%d calls in %d programs are too few to show anything", crossed, numPrograms)
	}
}
