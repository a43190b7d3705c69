// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestFirstStepRoundsAsLater: the first step of a process, whose sharding types are checked, gives
// the gradients of the same step done again, bit for bit: also those of a table of tokens that
// ranks share, to which a tied head or more than one microbatch adds.
func TestFirstStepRoundsAsLater(t *testing.T) {
	t.Parallel()
	const n = 2
	llama := func(tied bool) composedModel {
		return composedModel{name: fmt.Sprintf("llama, tied %v", tied), build: func(b *nn.Build) nn.Module {
			return models.NewLlama(b, models.LlamaConfig{Vocab: composedVocab, Context: composedTime, Width: 24, Hidden: 33, Heads: 4, KeyHeads: 2, Layers: 2, Tied: tied})
		}}
	}
	again := composedModel{name: "recomputed", build: llama(true).build, around: []nn.Interceptor{nn.Recompute(func(any) bool { return true })}}
	for _, c := range []struct {
		model        composedModel
		sizes        Sizes
		microbatches int
		schedule     string
	}{
		{llama(true), Sizes{TP: n}, 1, ""},
		{llama(true), Sizes{TP: n}, 2, ""},
		{llama(false), Sizes{TP: n}, 2, ""},
		{again, Sizes{TP: n}, 2, ""},
		{llama(true), Sizes{FSDP: n, TP: n}, 2, ""},
		{llama(true), Sizes{CP: n, TP: n}, 2, ""},
		{llama(false), Sizes{PP: n, TP: n}, 2, "1f1b"},
		{llama(true), Sizes{PP: n, TP: n}, 2, "1f1b"},
		{composedGPT, Sizes{PP: n, TP: n}, 2, "interleaved-zb"},
	} {
		t.Run(fmt.Sprintf("%s %+v, %d microbatches %s", c.model.name, c.sizes, c.microbatches, c.schedule), func(t *testing.T) {
			ranks := c.sizes.product()
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				grid, err := NewMesh(ctx, g, c.sizes)
				if err != nil {
					return err
				}
				defer grid.Close()
				sampler, samplers := Sampler(grid)
				example := tensor.New(tensor.Meta, tensor.Int64, composedRows/samplers, composedTime)
				config := Config{Pipeline: PipelineConfig{Schedule: c.schedule, Example: []*tensor.Tensor{example}}}
				p, err := Parallelize(ctx, c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)}), grid, config)
				if err != nil {
					return err
				}
				defer p.Close()
				step := func() (grads map[string][]float32, err error) {
					passes := c.model.with(composedPasses(p, 0, sampler, samplers, 1/float64(c.microbatches)))
					if _, err := p.Step(ctx, passes[:c.microbatches]); err != nil {
						return nil, err
					}
					grads = map[string][]float32{}
					for _, q := range nn.Parameters(p) {
						if q.Data().Device() != tensor.Meta && q.Grad() != nil {
							grads[q.Name()] = slices.Clone(q.Grad().Float32s())
							q.ZeroGrad()
						}
					}
					return grads, nil
				}
				first, err := step()
				if err != nil {
					return err
				}
				second, err := step()
				if err != nil {
					return err
				}
				return sameSteps(first, second)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// sameSteps fails for gradients of a first step that are not those of a second one.
func sameSteps(first, second map[string][]float32) error {
	if len(first) == 0 || len(first) != len(second) {
		return fmt.Errorf("gradients of %d parameters in the first step and of %d in the second", len(first), len(second))
	}
	same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
	for name, g := range first {
		if !slices.EqualFunc(g, second[name], same) {
			return fmt.Errorf("the gradient of %s has other bits in the first step than in the second", name)
		}
	}
	return nil
}
