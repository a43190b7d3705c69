// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

//go:embed testdata/hooks_2.15.json
var hooksGolden []byte

// hookCase is what testdata/hooks.py has written of a case.
type hookCase struct {
	Hook    string
	Ranks   int
	Bucket  int
	Rank    int
	Least   float64
	Seed    int64
	Epsilon float64
	// Feedback and Warm are nil for true.
	Feedback, Warm *bool

	Losses  []float64
	Weights string
}

// pattern is the function of that name in hooks.py.
func pattern(at int, shape ...int) *tensor.Tensor {
	data := make([]float32, numElemsOf(shape))
	for i := range data {
		data[i] = float32((i*37+at*101+(i*i)%29)%61-30) / 64
	}
	return tensor.FromFloat32(data).Reshape(shape...)
}

// ownHook is the function own of hooks.py.
func ownHook(ctx context.Context, group *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
	out := tensor.New(tensor.CPU(), tensor.Float32, b.Buffer.NumElems())
	out.CopyFrom(b.Buffer)
	out.WithFloat32s(func(data []float32) {
		for i, v := range data {
			if !(math.Abs(float64(v)) > float64(float32(0.01))) {
				data[i] = 0
			}
		}
	})
	out.Scale(1 / float64(2*group.Size()))
	return out, group.AllReduce(ctx, out, dist.Sum)
}

func (c hookCase) option() DDPOption {
	switch c.Hook {
	case "bf16":
		return WithHook(BF16Hook())
	case "fp16":
		return WithHook(FP16Hook())
	case "own":
		return WithHook(HookFunc(ownHook))
	case "powersgd":
		return WithHook(PowerSGDHook(PowerSGD{Rank: c.Rank, StartStep: 2, MinCompression: c.Least, Seed: c.Seed, Epsilon: c.Epsilon,
			NoErrorFeedback: c.Feedback != nil && !*c.Feedback, ColdStart: c.Warm != nil && !*c.Warm}))
	}
	return func(*ddpOptions) {}
}

// hookModel is the model of hooks.py.
func hookModel() *nn.Sequential {
	b := &nn.Build{Generator: tensor.NewGenerator(0)}
	m := nn.NewSequential(nn.NewLinear(b, 24, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 32), &nn.Tanh{}, nn.NewLinear(b, 32, 6))
	for i, p := range nn.Parameters(m) {
		p.Data().CopyFrom(pattern(i, p.Data().Shape()...))
	}
	return m
}

// hookStep runs a pass of step `at` of hooks.py.
func hookStep(ctx context.Context, m nn.Module, at int) (loss float64, err error) {
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	delta := c.Call(m, pattern(at, 8, 24)).Sub(pattern(at+7, 8, 6))
	l := delta.Mul(delta).Mean()
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	return l.Item(), nil
}

// run does what hooks.py does, and returns the losses and the weights of rank 0.
func (c hookCase) run(t *testing.T, opts ...DDPOption) (losses []float64, weights []float32) {
	t.Helper()
	ranks := max(2, c.Ranks)
	if c.Bucket > 0 {
		opts = append(opts, WithBucketBytes(c.Bucket, c.Bucket))
	}
	err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
		m := hookModel()
		d, err := NewDDP(ctx, m, g, append(opts[:len(opts):len(opts)], c.option())...) // hooks have state: each rank has its own
		if err != nil {
			return err
		}
		opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.05, Momentum: 0.9})
		for step := range 20 {
			opt.ZeroGrad()
			loss, err := hookStep(ctx, d, step*ranks+g.Rank())
			if err != nil {
				return err
			}
			opt.Step(nil)
			if g.Rank() == 0 {
				losses = append(losses, loss)
			}
		}
		if g.Rank() == 0 {
			for _, p := range nn.Parameters(m) {
				weights = append(weights, p.Data().Float32s()...)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return losses, weights
}

// TestHooksAsPyTorch: 20 steps with each hook give what PyTorch's DDP gives with its own.
func TestHooksAsPyTorch(t *testing.T) {
	t.Parallel()
	var golden struct {
		Version string
		Cases   map[string]hookCase
	}
	if err := json.Unmarshal(hooksGolden, &golden); err != nil {
		t.Fatal(err)
	}
	for name, c := range golden.Cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			losses, weights := c.run(t)
			plain := c
			plain.Hook = ""
			_, without := plain.run(t)
			// A gradient that differs in its last bit may be rounded to another one of few bits.
			limit := 2e-5
			switch {
			case c.Hook == "bf16" || c.Hook == "fp16" && c.Ranks > 2:
				limit = 5e-4
			case c.Hook == "fp16":
				limit = 5e-5
			}
			off, apart, lossOff := 0.0, 0.0, 0.0
			for i, w := range weightsOf(t, c.Weights) {
				off = max(off, math.Abs(float64(weights[i]-w)))
				apart = max(apart, math.Abs(float64(without[i]-w)))
			}
			for i, l := range c.Losses {
				lossOff = max(lossOff, math.Abs(losses[i]-l))
			}
			t.Logf("weights are off by %.1e, losses by %.1e; without the hook weights would be off by %.1e", off, lossOff, apart)
			if !(off < limit) || !(lossOff < limit) {
				t.Errorf("more than %.0e from PyTorch %s", limit, golden.Version)
			}
			if c.Hook != "" && c.Ranks == 0 && apart < 2*limit {
				t.Errorf("the case shows nothing: without the hook the weights are the same")
			}
		})
	}
}

func weightsOf(t *testing.T, text string) []float32 {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out
}

// TestHookBytes: BF16Hook and FP16Hook send half of the bytes of the gradients. Beside them four
// bytes tell for each parameter how many ranks have used it.
func TestHookBytes(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		sent := func(opts ...DDPOption) (int64, error) {
			d, err := NewDDP(ctx, hookModel(), g, opts...)
			if err != nil {
				return 0, err
			}
			if err := g.Barrier(ctx); err != nil { // until rank 1 has read what rank 0 broadcast: readers count
				return 0, err
			}
			before := g.Traffic()
			if _, err := hookStep(ctx, d, g.Rank()); err != nil {
				return 0, err
			}
			err = g.Barrier(ctx)
			return g.Traffic().Since(before).SentBytes, err
		}
		whole, err := sent()
		if err != nil {
			return err
		}
		counts := int64(4 * len(nn.Parameters(hookModel())))
		for _, make := range []func() Hook{BF16Hook, FP16Hook} {
			h := make()
			half, err := sent(WithHook(h))
			if err != nil {
				return err
			}
			if 2*(half-counts) != whole-counts {
				return fmt.Errorf("%s sends %d bytes, and DDP without a hook %d: want half, beside %d of each", h, half, whole, counts)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDifferentHooks: every rank hears of it when NewDDP is called.
func TestDifferentHooks(t *testing.T) {
	options := []DDPOption{
		WithHook(BF16Hook()), WithHook(FP16Hook()), WithHook(PowerSGDHook(PowerSGD{})), WithHook(PowerSGDHook(PowerSGD{Rank: 2})),
		WithHook(HookFunc(ownHook)), func(*ddpOptions) {},
	}
	for i, first := range options {
		second := options[(i+1)%len(options)]
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			_, err := NewDDP(ctx, newToy(0, width), g, []DDPOption{first, second}[g.Rank()])
			var e *OptionsError
			if !errors.As(err, &e) || e.Rank != 1 || !strings.Contains(err.Error(), "give the same options") {
				return fmt.Errorf("rank %d: %v", g.Rank(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestHookOfTwo: a hook with state that two DDPs get is an error of every rank: of one rank, or of two
// ranks of a process. A hook is free again if no DDP was made.
func TestHookOfTwo(t *testing.T) {
	for _, make := range []func() Hook{BF16Hook, FP16Hook, func() Hook { return PowerSGDHook(PowerSGD{}) }} {
		shared := make()
		err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
			_, err := NewDDP(ctx, newToy(0, width), g, WithHook(shared))
			if err == nil || !strings.Contains(err.Error(), "with a hook that another DDP has") {
				return fmt.Errorf("rank %d of three that share %s: %v", g.Rank(), shared, err)
			}
			own := make()
			if _, err := NewDDP(ctx, newToy(0, width+g.Rank()), g, WithHook(own)); err == nil {
				return errors.New("NewDDP takes other models on other ranks")
			}
			if _, err := NewDDP(ctx, newToy(0, width), g, WithHook(own)); err != nil {
				return fmt.Errorf("after a NewDDP that failed: %w", err)
			}
			if _, err := NewDDP(ctx, newToy(0, width), g, WithHook(own)); err == nil || !strings.Contains(err.Error(), "make one for each DDP") {
				return fmt.Errorf("rank %d, a second DDP: %v", g.Rank(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestWrongHooks: what a hook does wrong on one rank is an error of all, which names the rank.
func TestWrongHooks(t *testing.T) {
	good := HookFunc(func(ctx context.Context, g *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
		return b.Buffer, g.AllReduce(ctx, b.Buffer, dist.Sum)
	})
	for name, c := range map[string]struct {
		bad  HookFunc
		says string
	}{
		"another shape": {func(ctx context.Context, g *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
			_, err := good(ctx, g, b)
			return b.Buffer.Narrow(0, 1, b.Buffer.NumElems()-1), err
		}, "of shape"},
		"another dtype": {func(ctx context.Context, g *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
			_, err := good(ctx, g, b)
			return b.Buffer.To(tensor.BFloat16), err
		}, "bfloat16"},
		"nothing": {func(ctx context.Context, g *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
			_, err := good(ctx, g, b)
			return nil, err
		}, "no tensor"},
		"an error": {func(context.Context, *dist.Group, *GradBucket) (*tensor.Tensor, error) {
			return nil, errors.New("no such luck")
		}, "no such luck"},
		"a panic": {func(_ context.Context, _ *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
			return b.Buffer.Reshape(3, 2, 1), nil
		}, "reshape"},
		"a panic of Go": {func(_ context.Context, _ *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
			return b.Grads[len(b.Grads)], nil
		}, "it panicked at hook_test.go:"},
		"the end of its goroutine": {func(context.Context, *dist.Group, *GradBucket) (*tensor.Tensor, error) {
			runtime.Goexit()
			return nil, nil
		}, "ended its goroutine"},
	} {
		for _, at := range []int{0, 2} { // the bucket that goes wrong
			t.Run(fmt.Sprintf("%s in bucket %d", name, at), func(t *testing.T) {
				t.Parallel()
				err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
					hook := HookFunc(func(ctx context.Context, own *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
						if g.Rank() == 1 && b.Index == at {
							return c.bad(ctx, own, b)
						}
						return good(ctx, own, b)
					})
					d, err := NewDDP(ctx, newToy(0, width), g, small, WithHook(hook))
					if err != nil {
						return err
					}
					ids, targets := newBatches(g.Rank(), g.Size(), 4).next()
					_, err = backward(ctx, d, ids, targets)
					var e *HookError
					if g.Rank() == 1 && (!errors.As(err, &e) || e.Rank != 1 || e.Bucket != at) {
						return fmt.Errorf("rank 1 gets %v", err)
					}
					if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "rank 1") ||
						!strings.Contains(err.Error(), fmt.Sprintf("bucket %d", at)) || strings.Contains(err.Error(), "\n") {
						return fmt.Errorf("rank %d gets %v", g.Rank(), err)
					}
					if _, err := backward(ctx, d, ids, targets); !errors.Is(err, errUnfinished) {
						return fmt.Errorf("the next pass gives %v", err)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestEndlessHook: a hook that never returns on one rank, and does not mind its context, is an error of
// that rank with its name and bucket, and an error of the others that names the rank. No rank waits for
// longer than the error says. The time is virtual.
func TestEndlessHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute + abandonTime
		never, errs, took := make(chan struct{}), make([]error, 3), make([]time.Duration, 3)
		err := dist.Spawn(t.Context(), len(errs), func(ctx context.Context, g *dist.Group) error {
			hook := HookFunc(func(ctx context.Context, own *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
				if g.Rank() == 1 && b.Index == 1 {
					<-never
				}
				return b.Buffer, own.AllReduce(ctx, b.Buffer, dist.Sum)
			})
			d, err := NewDDP(ctx, newToy(0, width), g, small, WithHook(hook))
			if err != nil {
				return err
			}
			ids, targets := newBatches(g.Rank(), g.Size(), 4).next()
			begun := time.Now()
			_, errs[g.Rank()] = backward(ctx, d, ids, targets)
			took[g.Rank()] = time.Since(begun)
			return errs[g.Rank()]
		}, dist.WithTimeout(time.Minute))
		close(never)
		var e *HookError
		if !errors.As(errs[1], &e) || e.Rank != 1 || e.Bucket != 1 || !strings.Contains(e.Error(), "it has not returned for 1m2s") {
			t.Errorf("rank 1: %v", errs[1])
		}
		for _, rank := range []int{0, 2} {
			if errs[rank] == nil || !strings.Contains(errs[rank].Error(), "rank 1") {
				t.Errorf("rank %d: %v", rank, errs[rank])
			}
		}
		if err == nil {
			t.Error("the job has not failed")
		}
		for rank, took := range took {
			if took > limit+abandonTime {
				t.Errorf("rank %d: its step took %v, want %v", rank, took, limit)
			}
		}
	})
}

// TestNoHook: a hook that is none, on one rank or on all, is an error of every rank.
func TestNoHook(t *testing.T) {
	for name, c := range map[string]struct {
		options [2]DDPOption
		says    string
	}{
		"on one rank":              {[2]DDPOption{func(*ddpOptions) {}, WithHook(nil)}, "WithHook(nil)"},
		"settings on one rank":     {[2]DDPOption{WithHook(BF16Hook()), WithHook(PowerSGDHook(PowerSGD{Rank: -1}))}, "Rank:-1"},
		"no function on a rank":    {[2]DDPOption{WithHook(HookFunc(ownHook)), WithHook(HookFunc(nil))}, "WithHook()"},
		"on all ranks":             {[2]DDPOption{WithHook(nil), WithHook(nil)}, "got no hook"},
		"no function on all ranks": {[2]DDPOption{WithHook(HookFunc(nil)), WithHook(HookFunc(nil))}, "HookFunc that is nil"},
	} {
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			if _, err := NewDDP(ctx, newToy(0, width), g, c.options[g.Rank()]); err == nil || !strings.Contains(err.Error(), c.says) {
				return fmt.Errorf("rank %d: %v, want %q", g.Rank(), err, c.says)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPowerSGDAfterNaN: a step whose gradients are not finite, and which the loop leaves out, leaves
// nothing in the hook that the next steps would take for gradients.
func TestPowerSGDAfterNaN(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m := hookModel()
			d, err := NewDDP(ctx, m, g, WithBucketBytes(2000, 2000), WithHook(PowerSGDHook(PowerSGD{Rank: 2, StartStep: 1})))
			if err != nil {
				return err
			}
			for step := range 6 {
				for _, p := range nn.Parameters(m) {
					p.ZeroGrad()
				}
				weight := nn.Parameters(m)[2].Data()
				was := weight.Clone()
				if step == 3 && g.Rank() == 1 {
					weight.Fill(bad)
				}
				if _, err := hookStep(ctx, d, step*2+g.Rank()); err != nil {
					return err
				}
				weight.CopyFrom(was)
				norm, _ := optim.ClipGradNorm(nn.Parameters(m), 1)
				if finite := isFinite32(float32(norm.Item())); finite != (step != 3) {
					return fmt.Errorf("rank %d, step %d: the norm is %v", g.Rank(), step, norm.Item())
				}
				sum := tensor.FromFloat64([]float64{norm.Item()})
				if err := g.AllReduce(ctx, sum, dist.Sum); err != nil {
					return err
				}
				if step != 3 && sum.Item() != 2*norm.Item() {
					return fmt.Errorf("rank %d, step %d: the ranks have different gradients", g.Rank(), step)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestHookState: a DDP that loads what the hook of another one keeps goes on as that one does, bit for
// bit: before it compresses, after, with new random matrices in each step, and without error
// feedback. Without that state it does not.
func TestHookState(t *testing.T) {
	for name, o := range map[string]PowerSGD{
		"before": {Rank: 2, StartStep: 14}, "within": {Rank: 2, StartStep: 3},
		"cold": {Rank: 2, StartStep: 3, ColdStart: true, Seed: 5}, "no feedback": {Rank: 1, StartStep: 3, NoErrorFeedback: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, forget := range []bool{false, true} {
				same := true
				err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
					made := func() (*DDP, *nn.Sequential, error) {
						m := hookModel()
						d, err := NewDDP(ctx, m, g, WithBucketBytes(2000, 2000), WithHook(PowerSGDHook(o)))
						return d, m, err
					}
					steps := func(d *DDP, m nn.Module, from, to int) error {
						opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.05})
						for step := from; step < to; step++ {
							opt.ZeroGrad()
							if _, err := hookStep(ctx, d, step*2+g.Rank()); err != nil {
								return err
							}
							opt.Step(nil)
						}
						return nil
					}
					straight, m, err := made()
					if err == nil {
						err = steps(straight, m, 0, 10)
					}
					if err != nil {
						return err
					}
					resumed, again, err := made()
					if err != nil {
						return err
					}
					for i, p := range nn.Parameters(again) {
						p.Data().CopyFrom(nn.Parameters(m)[i].Data())
					}
					if !forget {
						from := straight.HookState()
						for i, to := range resumed.HookState() {
							if from[i].Name != to.Name {
								return fmt.Errorf("tensor %d is %s, want %s", i, to.Name, from[i].Name)
							}
							to.Local.CopyFrom(from[i].Local)
						}
						if err := resumed.HookResumed(); err != nil {
							return err
						}
					}
					if err := errors.Join(steps(straight, m, 10, 20), steps(resumed, again, 10, 20)); err != nil {
						return err
					}
					if g.Rank() == 0 {
						for i, p := range nn.Parameters(m) {
							same = same && slices.Equal(p.Data().Float32s(), nn.Parameters(again)[i].Data().Float32s())
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if same == forget {
					t.Errorf("the weights are the same: %v; the state was left out: %v", same, forget)
				}
			}
		})
	}
}

// TestHookStateRefuses: numbers that no hook has are an error. A hook without state has none.
func TestHookStateRefuses(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		d, err := NewDDP(ctx, hookModel(), g, WithHook(PowerSGDHook(PowerSGD{})))
		if err != nil {
			return err
		}
		for i, bad := range []int64{-1, 1 << 40} {
			d.HookState()[0].Local.Narrow(0, i, 1).Fill(float64(bad))
			if err := d.HookResumed(); err == nil || !strings.Contains(err.Error(), "take another checkpoint") {
				return fmt.Errorf("number %d: %v", i, err)
			}
		}
		plain, err := NewDDP(ctx, hookModel(), g, WithHook(BF16Hook()))
		if err == nil && (plain.HookState() != nil || plain.HookResumed() != nil) {
			err = errors.New("the bf16 hook keeps something")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHookMemory: the memory that is predicted for a step of PowerSGD has what the hook keeps once it
// compresses, to the byte.
func TestHookMemory(t *testing.T) {
	for _, o := range []PowerSGD{{Rank: 1, StartStep: 1}, {Rank: 2, StartStep: 1}, {Rank: 1, StartStep: 1, NoErrorFeedback: true}} {
		err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			d, err := NewDDP(ctx, newToy(1, width), g, small, WithHook(PowerSGDHook(o)))
			if err != nil {
				return err
			}
			nothing := HookFunc(func(_ context.Context, _ *dist.Group, b *GradBucket) (*tensor.Tensor, error) { return b.Buffer, nil })
			bare, err := NewDDP(ctx, newToy(1, width), g, small, WithHook(nothing))
			if err != nil {
				return err
			}
			predicted := d.forecast().extra - bare.forecast().extra
			for step := range 3 {
				if _, err := nn.Backward(ctx, toyBatch(d, int64(step)).Loss); err != nil {
					return err
				}
			}
			kept, compressed := int64(0), 0
			for _, s := range d.hook.(*powerSGD).buckets {
				compressed += len(s.matrices)
				for _, x := range []*tensor.Tensor{s.errors, s.whole, s.ps, s.qs} {
					if x != nil {
						kept += sizeOf(x.Shape(), x.DType())
					}
				}
			}
			if kept != predicted || compressed == 0 {
				return fmt.Errorf("%+v keeps %d bytes for %d matrices, predicted were %d", o, kept, compressed, predicted)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
