// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestRanksBeginUnlikeSteps: ranks that share the work on samples and take others, or other numbers of them,
// return the same error in the first step.
func TestRanksBeginUnlikeSteps(t *testing.T) {
	const n = 2
	samples := func(p *Parallel, rank int) []Microbatch { return composedPasses(p, rank, 0, 1, 1) }
	number := func(p *Parallel, rank int) []Microbatch {
		return composedPasses(p, 0, 0, 1, 1)[:1+rank%2]
	}
	evaluates := func(p *Parallel, _ int) []Microbatch {
		passes := composedPasses(p, 0, 0, 1, 1)
		for i := range passes {
			loss := passes[i].Loss
			passes[i].Loss = func(c *nn.Ctx) *tensor.Tensor {
				if _, err := evaluated(c, p); err != nil {
					c.Fail(err)
				}
				return loss(c)
			}
		}
		return passes
	}
	after := func(p *Parallel, rank int) []Microbatch {
		passes := evaluates(p, rank)
		for i, once := range composedPasses(p, 0, 0, 1, 1) {
			passes[i].Loss = func(c *nn.Ctx) *tensor.Tensor {
				loss := once.Loss(c)
				if _, err := evaluated(c, p); err != nil {
					c.Fail(err)
				}
				return loss
			}
		}
		return passes
	}
	for _, c := range []struct {
		want   string
		model  composedModel
		sizes  Sizes
		passes func(p *Parallel, rank int) []Microbatch
	}{
		{"axis tp: rank 1 has other samples than rank 0", composedGPT, Sizes{TP: n}, samples},
		{"axis cp: rank 1 has other samples than rank 0", composedGPT, Sizes{CP: n}, samples},
		{"give ranks that differ on pp alone the same microbatches", composedGPT, Sizes{PP: n}, samples},
		{"other samples than rank 0", composedGPT, Sizes{PP: n, TP: n}, samples},
		{"rank 1 has 2 microbatches in the first step, and rank 0 has 1", composedGPT, Sizes{TP: n}, number},
		{"rank 1 has 2 microbatches in the first step, and rank 0 has 1", composedGPT, Sizes{CP: n}, number},
		{"rank 1 has 2 microbatches in the first step, and rank 0 has 1", composedMoE, Sizes{EP: n}, number},
		{"rank 1 has 2 microbatches in the first step, and rank 0 has 1", composedGPT, Sizes{FSDP: n}, number},
		{"rank 1 has 2 microbatches in the first step, and rank 0 has 1", composedGPT, Sizes{Replicate: n, TP: n}, number},
		{"evaluate outside of Strategy.Step", composedGPT, Sizes{PP: n}, evaluates},
		{"evaluate outside of Strategy.Step", composedGPT, Sizes{PP: n}, after},
	} {
		t.Run(fmt.Sprintf("%+v %s", c.sizes, c.want), func(t *testing.T) {
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			var mu sync.Mutex
			var errs []error
			_ = spawn(t, c.sizes.product(), func(ctx context.Context, g *dist.Group) error {
				grid, err := NewMesh(ctx, g, c.sizes)
				if err != nil {
					return err
				}
				p, err := Parallelize(ctx, c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)}), grid,
					Config{Pipeline: PipelineConfig{Schedule: "gpipe", Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, composedRows, composedTime)}}})
				if err != nil {
					return err
				}
				_, err = p.Step(ctx, c.passes(p, g.Rank()))
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				g.Fail(err) // as dist.Main does
				return nil
			})
			if len(errs) != c.sizes.product() {
				t.Fatalf("%d ranks returned from Step", len(errs))
			}
			for _, err := range errs {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want an error that says %q", err, c.want)
				}
			}
		})
	}
}

// TestStepAfterAFailure: where all ranks have failed in a forward pass, the next step is what it would
// have been.
func TestStepAfterAFailure(t *testing.T) {
	const n = 2
	for _, c := range []struct {
		model composedModel
		sizes Sizes
	}{
		{composedGPT, Sizes{FSDP: n, TP: n}},
		{composedGPT, Sizes{CP: n}},
		{composedMoE, Sizes{EP: n}},
		{composedGPT, Sizes{PP: n, FSDP: n}},
	} {
		for _, when := range []string{"before", "after", "second"} {
			if c.sizes.PP > 0 && when != "before" {
				continue
			}
			t.Run(fmt.Sprintf("%s %+v %s", c.model.name, c.sizes, when), func(t *testing.T) {
				ranks := c.sizes.product()
				samplers := max(c.sizes.Replicate, 1) * max(c.sizes.FSDP, 1) * max(c.sizes.EP, 1)
				c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
				want := c.model.alone(t, samplers)
				err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
					grid, err := NewMesh(ctx, g, c.sizes)
					if err != nil {
						return err
					}
					defer grid.Close()
					sampler, samplers := Sampler(grid)
					p, err := Parallelize(ctx, c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)}), grid,
						Config{Pipeline: PipelineConfig{Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, composedRows/samplers, composedTime)}}})
					if err != nil {
						return err
					}
					defer p.Close()
					bad := composedPasses(p, 0, sampler, samplers, 0.5)
					for i := range bad {
						if when == "second" && i == 0 {
							continue
						}
						once := bad[i].Loss
						bad[i].Loss = func(c *nn.Ctx) *tensor.Tensor {
							if when == "before" {
								c.Fail(errors.New("bad sample"))
							}
							once(c)
							c.Fail(errors.New("bad sample"))
							return nil
						}
					}
					if _, err := p.Step(ctx, bad); err == nil {
						return errors.New("no error")
					}
					run := &composedRun{}
					passes := func(step int) []Microbatch { return composedPasses(p, step, sampler, samplers, 0.5) }
					mean := func(x float64) (float64, error) {
						t := tensor.New(tensor.CPU(), tensor.Float64)
						t.Fill(x)
						err := g.AllReduce(ctx, t, dist.Avg)
						return t.Item(), err
					}
					whole := func(of func(q *nn.Parameter) *tensor.Tensor) (map[string][]float32, error) {
						return wholeValues(ctx, p, of)
					}
					if err := run.train(ctx, p, passes, mean, whole); err != nil {
						return err
					}
					return run.difference(t, want)
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}
