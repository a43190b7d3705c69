// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// steps trains for some steps and returns their losses. Each step has two microbatches; sampler is
// which of the samplers the caller is, and -1 is all of them.
func (cc contextCase) steps(ctx context.Context, s Strategy, numSteps, sampler, samplers int) (losses []float64, err error) {
	r := rand.New(rand.NewPCG(21, 4))
	params := nn.Parameters(s)
	opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 3e-3, Eps: 1e-5})
	for step := range numSteps {
		var passes []Microbatch
		for i := range 2 * samplers {
			b := cc.batch(r)
			if sampler >= 0 && i%samplers != sampler {
				continue
			}
			passes = append(passes, Microbatch{
				Carrier: func(ctx context.Context) *nn.Ctx {
					var opts []nn.CtxOption
					if cc.low {
						opts = append(opts, nn.WithAutocast(tensor.BFloat16))
					}
					c := nn.Training(ctx, append(opts, nn.WithGenerator(tensor.NewGenerator(int64(step*1000+i))))...)
					if cc.recompute {
						c = c.With(recomputeBlocks)
					}
					return c
				},
				Loss: func(c *nn.Ctx) *tensor.Tensor {
					if b.documents != nil {
						c = c.WithDocuments(b.documents)
					}
					share := 0.5
					if sampler < 0 {
						share /= float64(samplers)
					}
					if b.mask != nil {
						return c.CallN(&cc.loss, c.CallN(s, b.ids, nil, b.mask)[0], b.targets)[0].MulScalar(share)
					}
					return c.CallN(&cc.loss, c.Call(s, b.ids), b.targets)[0].MulScalar(share)
				},
			})
		}
		opt.ZeroGrad()
		loss, err := s.Step(ctx, passes)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		_, scale, err := s.ClipGradNorm(ctx, params, 1)
		if err != nil {
			return nil, err
		}
		opt.Step(scale)
		losses = append(losses, loss.Item())
	}
	return losses, nil
}

// TestContextTrains: 30 steps over axis cp, alone and with other axes, have the losses of one
// rank.
func TestContextTrains(t *testing.T) {
	t.Parallel()
	numSteps := 30
	if testing.Short() {
		numSteps = 2
	}
	mixed := contextCase{build: contextLlama(9, 2), time: 26, documents: [][]int{{7, 19}, {12, 3, 11}}, recompute: true}
	dropping := contextCase{build: contextBERT(0.2), time: 21, padding: true}
	low := contextCase{build: contextGPT, time: 24, low: true}
	for _, row := range []struct {
		name  string
		cc    contextCase
		sizes Sizes
		form  string
		bound float64
	}{
		{"ring 2", mixed, Sizes{CP: 2}, ringAttention, 1e-5},
		{"ring 3", dropping, Sizes{CP: 3}, ringAttention, 1e-5},
		{"ring 4", mixed, Sizes{CP: 4}, ringAttention, 1e-5},
		{"heads 2", dropping, Sizes{CP: 2}, headsAttention, 1e-5},
		{"heads 3", mixed, Sizes{CP: 3}, headsAttention, 1e-5},
		{"heads 4", mixed, Sizes{CP: 4}, headsAttention, 1e-5},
		{"ring 2 in bfloat16", low, Sizes{CP: 2}, ringAttention, 2e-2},
		{"heads 2 in bfloat16", low, Sizes{CP: 2}, headsAttention, 2e-2},
		{"fsdp 2, ring 2", mixed, Sizes{FSDP: 2, CP: 2}, ringAttention, 1e-5},
		{"replicate 2, ring 2", dropping, Sizes{Replicate: 2, CP: 2}, ringAttention, 1e-5},
		{"ring 2, tp 2", dropping, Sizes{CP: 2, TP: 2}, ringAttention, 1e-5},
		{"heads 2, tp 2", dropping, Sizes{CP: 2, TP: 2}, headsAttention, 1e-5},
	} {
		t.Run(row.name, func(t *testing.T) {
			samplers := max(1, row.sizes.FSDP) * max(1, row.sizes.Replicate)
			alone, err := NewSingle(row.cc.build(&nn.Build{Generator: tensor.NewGenerator(2)}))
			if err != nil {
				t.Fatal(err)
			}
			want, err := row.cc.steps(t.Context(), alone, numSteps, -1, samplers)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float64, numSteps)
			n := samplers * row.sizes.CP * max(1, row.sizes.TP)
			losses := make([][]float64, n)
			err = spawn(t, n, func(ctx context.Context, g *dist.Group) error {
				m, err := NewMesh(ctx, g, row.sizes)
				if err != nil {
					return err
				}
				defer m.Close()
				p, err := Parallelize(ctx, row.cc.build(&nn.Build{Generator: tensor.NewGenerator(2)}), m, Config{Context: ContextConfig{Attention: row.form}})
				if err != nil {
					return err
				}
				sampler, samplers := Sampler(m)
				losses[g.Rank()], err = row.cc.steps(ctx, p, numSteps, sampler, samplers)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range losses { // of each rank, that of its samples
				for i, x := range l {
					got[i] += x / float64(n)
				}
			}
			for i, w := range want {
				if d := math.Abs(got[i]-w) / w; !(d <= row.bound) {
					t.Fatalf("step %d: the loss is %v, on one rank %v: %.2g apart", i, got[i], w, d)
				}
			}
		})
	}
}
