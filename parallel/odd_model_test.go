// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// The tests of this file train odd models, and models in odd ways, under FullyShard. The oracle
// is one rank with all samples.

const (
	oddSize    = 6
	oddSamples = 12 // of all ranks together
)

// odd is a model of four blocks, each of which is a unit: x [samples, oddSize] to the same.
type odd struct {
	Blocks []*oddBlock
	Head   *nn.Linear
	Scale  *nn.Parameter
	Empty  *nn.Parameter // may be nil

	forward func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor // nil is one block after the other
	step    int
	open    []*nn.Ctx // passes that are still open
}

type oddBlock struct {
	In, Out *nn.Linear
	Scale   *nn.Parameter

	twice bool           // calls itself
	side  *tensor.Tensor // of the last pass: a value that is no output
}

func newOdd() *odd {
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	m := &odd{Head: nn.NewLinear(b, oddSize, oddSize), Scale: b.Normal(1, oddSize)}
	for range 4 {
		m.Blocks = append(m.Blocks, &oddBlock{In: nn.NewLinear(b, oddSize, oddSize), Out: nn.NewLinear(b, oddSize, oddSize), Scale: b.Normal(1, oddSize)})
	}
	return m
}

func (m *odd) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if m.forward != nil {
		return m.forward(m, c, x)
	}
	return m.chain(c, x, 0, 1, 2, 3)
}

// chain calls blocks one after the other, and the head.
func (m *odd) chain(c *nn.Ctx, x *tensor.Tensor, blocks ...int) *tensor.Tensor {
	for _, i := range blocks {
		x = c.Call(m.Blocks[i], x)
	}
	return c.Call(m.Head, x.Mul(c.Param(m.Scale)))
}

func (b *oddBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	h := c.Call(b.In, x).GELU()
	b.side = h.Tanh()
	if b.twice {
		b.twice = false
		h = c.Call(b, b.side)
		b.twice = true
	}
	return x.Add(c.Call(b.Out, h)).Mul(c.Param(b.Scale))
}

// oddPair is a module that returns its inputs, and a value twice.
type oddPair struct{ Block *oddBlock }

func (d *oddPair) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	y := c.Call(d.Block, x[0])
	return []*tensor.Tensor{x[0], y, y, x[1]}
}

func distance(a, b *tensor.Tensor) *tensor.Tensor { d := a.Sub(b); return d.Mul(d).Mean() }

// oddPass runs a forward pass, and the backward pass of what loss makes of the results.
func oddPass(ctx context.Context, loss func(c *nn.Ctx) (*tensor.Tensor, error), opts ...tensor.BackwardOption) (err error) {
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	l, err := loss(c)
	if err != nil {
		return err
	}
	return l.Backward(c, opts...)
}

// plainPass is the usual one.
func plainPass(ctx context.Context, s Strategy, x, y *tensor.Tensor) error {
	return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) { return distance(c.Call(s, x), y), nil })
}

// oddCase is a model and a way to train it. What is nil is as usual.
type oddCase struct {
	name  string
	build func(m *odd)
	opts  []FSDPOption
	step  func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) error
	fails string // words of the error under FullyShard
}

// forwardBy gives a model another forward pass.
func forwardBy(fn func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor) func(m *odd) {
	return func(m *odd) { m.forward = fn }
}

func half(t *tensor.Tensor) *tensor.Tensor { return t.Mul(tensor.Full(0.5, 1)) }

// shuffled calls other blocks in each step.
func shuffled(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m.step++
	for i := range m.Blocks {
		if (i+m.step)%3 != 0 {
			x = c.Call(m.Blocks[i*m.step%4], x)
		}
	}
	return c.Call(m.Head, x.Mul(c.Param(m.Scale)))
}

var never = []FSDPOption{WithReshard(Never)}

var oddCases = []oddCase{
	{name: "a pass stays open", step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) (err error) {
		c := nn.Training(ctx)
		m.open = append(m.open, c)
		defer c.Recover(&err)
		c.Call(s, x) // gathered before the step that follows
		if err := plainPass(ctx, s, x, y); err != nil || len(m.open) < 4 {
			return err
		}
		for _, c := range m.open {
			c.Close()
		}
		return nil
	}},
	{name: "a pass stays open, values kept", opts: never, step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) (err error) {
		for _, c := range m.open {
			defer c.Close()
		}
		c := nn.Training(ctx)
		m.open = []*nn.Ctx{c}
		defer c.Recover(&err)
		c.Call(s, x)
		if m.step++; m.step == 4 {
			defer c.Close()
		}
		return plainPass(ctx, s, x, y)
	}},
	{name: "a parameter of another unit", fails: "read outside of the call of blocks.0", build: forwardBy(func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.chain(c, x, 0, 1).Mul(c.Param(m.Blocks[0].Scale))
	})},
	{name: "values on the side", step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
			l := distance(c.Call(s, x), y)
			for _, b := range m.Blocks {
				l = l.Add(b.side.Mul(b.side).Mean())
			}
			return l, nil
		})
	}},
	{name: "only a value on the side", fails: "memory has been released", step: func(ctx context.Context, s Strategy, m *odd, x, _ *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
			c.Call(s, x)
			return m.Blocks[1].side.Mul(m.Blocks[1].side).Mean(), nil
		})
	}},
	{name: "a unit calls itself", build: func(m *odd) {
		for _, b := range m.Blocks {
			b.twice = true
		}
	}},
	{name: "the last unit is ignored", build: forwardBy(func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		y := m.chain(c, x, 0, 1, 2)
		c.Call(m.Blocks[3], y)
		return y
	})},
	{name: "other units in each step", build: forwardBy(shuffled)},
	{name: "other units in each step, kept", build: forwardBy(shuffled), opts: never},
	{name: "frozen units", build: func(m *odd) {
		for _, p := range append(nn.Parameters(m.Blocks[1]), nn.Parameters(m.Blocks[3])...) {
			p.Frozen = true
		}
	}},
	{name: "all but the first unit frozen", build: func(m *odd) {
		for _, p := range nn.Parameters(m) {
			p.Frozen = true
		}
		for _, p := range nn.Parameters(m.Blocks[0]) {
			p.Frozen = false
		}
	}},
	{name: "frozen for some steps", step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) error {
		for _, p := range nn.Parameters(m.Blocks[m.step%4]) {
			p.Frozen = m.step%2 == 0
		}
		m.step++
		return plainPass(ctx, s, x, y)
	}},
	{name: "thawed", fails: "was frozen when FullyShard was called", build: func(m *odd) { m.Head.Bias.Frozen = true },
		step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) error {
			m.Head.Bias.Frozen = false
			return plainPass(ctx, s, x, y)
		}},
	{name: "a parameter without elements", build: func(m *odd) {
		m.Empty = nn.NewParameter(tensor.New(tensor.CPU(), tensor.Float32, 0, 3))
		m.forward = func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return m.chain(c, x, 0, 1, 2, 3).Add(c.Param(m.Empty).Sum())
		}
	}},
	{name: "a parameter without dims", fails: "scale has no dims", build: func(m *odd) { m.Scale = nn.NewParameter(tensor.Full(1.5)) }},
	{name: "inputs that are outputs", build: forwardBy(func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, b := range m.Blocks {
			x = c.CallN(&oddPair{b}, x, nil)[2]
		}
		return m.chain(c, x)
	})},
	{name: "two backward passes over a tape", step: twoBackwards},
	{name: "two backward passes over a tape, kept", opts: never, step: twoBackwards},
	{name: "the model twice in a pass", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) { return distance(c.Call(s, x), c.Call(s, y)), nil })
	}},
	{name: "two losses under a tape", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
			a, b := distance(c.Call(s, x), y), distance(c.Call(s, y), x)
			return b, a.Backward(c)
		})
	}},
	{name: "two tapes at a time", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
			l := distance(c.Call(s, x), y)
			return l, plainPass(ctx, s, y, x)
		})
	}},
	{name: "the gradient of the input", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
			in := c.Leaf(x)
			out := c.Call(s, in)
			g, err := out.Sum().Grad(c, nil, []*tensor.Tensor{in})
			if err != nil {
				return nil, err
			}
			return distance(out, y.Add(g[0].Detach())), nil
		})
	}},
	{name: "a penalty on the gradient", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
			in := c.Leaf(x)
			out := c.Call(s, in)
			g, err := out.Sum().Grad(c, nil, []*tensor.Tensor{in}, tensor.CreateGraph())
			if err != nil {
				return nil, err
			}
			return distance(out, y).Add(g[0].Mul(g[0]).Mean()), nil
		})
	}},
	{name: "an evaluation before the backward pass", step: evaluateBetween},
	{name: "an evaluation before the backward pass, kept", opts: never, step: evaluateBetween},
	{name: "forward passes alone", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		for range 3 {
			c := nn.Training(ctx)
			c.Call(s, y)
			c.Close()
		}
		return plainPass(ctx, s, x, y)
	}},
	{name: "hooks of gradients", build: func(m *odd) {
		for _, p := range nn.Parameters(m) {
			p.OnGradReady(func(_ context.Context, p *nn.Parameter) error {
				p.Grad().Axpy(1, half(p.Grad()))
				return nil
			})
		}
		m.forward = func(m *odd, c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
			x.OnGrad(half)
			return m.chain(c, c.Call(m.Blocks[0], x), 1, 2, 3)
		}
	}, step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) { return distance(c.Call(s, c.Leaf(x)), y), nil })
	}},
	{name: "gradients that were there", step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) error {
		for i, p := range nn.Parameters(m) {
			if i%2 == 0 {
				p.SetGrad(tensor.Full(0.25, p.Data().Shape()...))
			}
		}
		return plainPass(ctx, s, x, y)
	}},
	{name: "some gradients dropped after NoSync", step: func(ctx context.Context, s Strategy, m *odd, x, y *tensor.Tensor) error {
		if err := s.NoSync(func() error { return plainPass(ctx, s, y, x) }); err != nil {
			return err
		}
		for i, p := range nn.Parameters(m) {
			if i%3 == 0 {
				p.ZeroGrad()
			}
		}
		return plainPass(ctx, s, x, y)
	}},
	{name: "NoSync between two passes", step: func(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
		if err := plainPass(ctx, s, x, y); err != nil {
			return err
		}
		if err := s.NoSync(func() error { return plainPass(ctx, s, y, x) }); err != nil {
			return err
		}
		return plainPass(ctx, s, x, x)
	}},
}

func twoBackwards(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
	return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
		out := c.Call(s, x)
		return out.Mul(out).Mean(), distance(out, y).Backward(c, tensor.RetainGraph())
	})
}

func evaluateBetween(ctx context.Context, s Strategy, _ *odd, x, y *tensor.Tensor) error {
	return oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
		l := distance(c.Call(s, x), y)
		e := nn.Evaluation(ctx)
		defer e.Close()
		e.Call(s, y)
		return l, nil
	})
}

// train runs four steps on a rank's share of the samples.
func (k *oddCase) train(ctx context.Context, rank, world int, s Strategy, m *odd) error {
	opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.05, Momentum: 0.9})
	b := &nn.Build{Generator: tensor.NewGenerator(77)}
	n := oddSamples / world
	share := func() *tensor.Tensor { return b.Normal(1, oddSamples, oddSize).Data().Narrow(0, rank*n, n) }
	for i := range 4 {
		opt.ZeroGrad()
		x, y := share(), share()
		err := error(nil)
		if k.step != nil {
			err = k.step(ctx, s, m, x, y)
		} else {
			err = plainPass(ctx, s, x, y)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		opt.Step(nil)
	}
	return nil
}

func (k *oddCase) model() *odd {
	m := newOdd()
	if k.build != nil {
		k.build(m)
	}
	return m
}

// compare trains on a rank, and compares the parameters with those of one rank.
func (k *oddCase) compare(ctx context.Context, g *dist.Group, want map[string][]float32) error {
	m := k.model()
	f, err := sharded(ctx, g, m, 1, k.opts...)
	if err != nil {
		return err
	}
	if err := k.train(ctx, g.Rank(), g.Size(), f, m); err != nil {
		return err
	}
	if err := compareWhole(ctx, f, want, 3e-5); err != nil {
		return err
	}
	return nothingHeld(f)
}

// compareWhole compares the parameters with those of one rank, by name.
func compareWhole(ctx context.Context, f *FSDP, want map[string][]float32, within float64) error {
	got, err := wholeOf(ctx, f, dataOf)
	if err != nil {
		return err
	}
	for name, w := range want {
		off, largest := 0.0, 1e-3
		for i := range w {
			off, largest = max(off, abs(w[i]-got[name][i])), max(largest, abs(w[i]))
		}
		if off > within*largest {
			return fmt.Errorf("%s differs by %v from that of one rank, whose largest element is %v", name, off, largest)
		}
	}
	return nil
}

func TestOddModels(t *testing.T) {
	t.Parallel()
	for _, k := range oddCases {
		t.Run(k.name, func(t *testing.T) {
			m := k.model()
			s, err := NewSingle(m)
			if err != nil {
				t.Fatal(err)
			}
			if err := k.train(t.Context(), 0, 1, s, m); err != nil {
				t.Fatal("one rank:", err)
			}
			want := map[string][]float32{}
			for _, p := range nn.Parameters(m) {
				want[p.Name()] = p.Data().Float32s()
			}
			err = spawn(t, 3, func(ctx context.Context, g *dist.Group) error { return k.compare(ctx, g, want) })
			if k.opts == nil && k.fails == "" {
				k.opts = groups
				err = errors.Join(err, spawn(t, 4, func(ctx context.Context, g *dist.Group) error { return k.compare(ctx, g, want) }))
			}
			switch {
			case k.fails == "" && err != nil:
				t.Error(err)
			case k.fails != "" && (err == nil || !strings.Contains(err.Error(), k.fails)):
				t.Errorf("the error is %v, want one with %q", err, k.fails)
			}
		})
	}
}

// TestShardsTakenForWhole: who takes a shard for the whole parameter is told so.
func TestShardsTakenForWhole(t *testing.T) {
	failure := func(fn func()) (err error) {
		defer func() { err, _ = recover().(error) }()
		fn()
		return nil
	}
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		b := &nn.Build{Generator: tensor.NewGenerator(1)}
		lora, err := nn.NewLoRA(b, &toy{
			Tokens: nn.NewEmbedding(b, numIDs, width), Hidden: nn.NewSequential(nn.NewLinear(b, width, width)),
			Norm: nn.NewLayerNorm(b, width), Head: nn.NewLinear(b, width, classes),
		}, nn.LoRAOptions{Rank: 2, Targets: []string{"head"}})
		if err != nil {
			return err
		}
		f, err := sharded(ctx, g, lora, 1)
		if err != nil {
			return err
		}
		ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
		if _, err := backward(ctx, f, ids, targets); err != nil {
			return err
		}
		_, again := sharded(ctx, g, lora, 1)
		_, replica := NewDDP(ctx, lora, g)
		_, single := NewSingle(lora)
		_, called := backward(ctx, lora, ids, targets)
		for _, k := range []struct {
			name string
			err  error
			want string
		}{
			{"FullyShard again", again, "a shard already, of shape"},
			{"NewDDP", replica, "a shard already, of shape"},
			{"NewSingle", single, "a shard already, of shape"},
			{"a call of the model", called, "call the model by the strategy"},
			{"LoRA.Merge", failure(lora.Merge), "merge there"},
			{"optim.ClipGradNorm", failure(func() { optim.ClipGradNorm(nn.Parameters(lora), 1) }), "clip by ClipGradNorm of the strategy"},
		} {
			if k.err == nil || !strings.Contains(k.err.Error(), k.want) {
				return fmt.Errorf("%s gives %v, want %q", k.name, k.err, k.want)
			}
		}
		_, err = backward(ctx, f, ids, targets)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNothingToShard: a model may have no parameter that is sharded, or none at all.
func TestNothingToShard(t *testing.T) {
	for name, sparse := range map[string]bool{"sparse": true, "without parameters": false} {
		t.Run(name, func(t *testing.T) {
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				var model nn.Module = &nn.GELU{}
				if sparse {
					e := nn.NewEmbedding(&nn.Build{Generator: tensor.NewGenerator(1)}, numIDs, width)
					e.Weight.Sparse = true
					model = e
				}
				f, err := sharded(ctx, g, model, 1)
				if err != nil {
					return err
				}
				err = oddPass(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
					if sparse {
						return c.Call(f, tensor.FromInt64([]int64{1, 2, int64(3 + g.Rank())})).Mean(), nil
					}
					return c.Call(f, c.Leaf(tensor.Full(1, 4))).Mean(), nil
				})
				if err != nil {
					return err
				}
				norm, _, err := f.ClipGradNorm(ctx, nn.Parameters(model), 1)
				if err != nil {
					return err
				}
				if got := norm.Item(); (got > 0) != sparse {
					return fmt.Errorf("the norm is %v", got)
				}
				return nothingHeld(f)
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
