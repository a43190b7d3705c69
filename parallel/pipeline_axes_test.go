// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// TestPipelineWithOtherAxes: a pipeline whose stages are split over other axes trains as one rank
// does.
func TestPipelineWithOtherAxes(t *testing.T) {
	t.Parallel()
	const n = 2
	for _, c := range []struct {
		model    composedModel
		schedule string
		sizes    Sizes
		onMeta   bool
	}{
		{composedGPT, "1f1b", Sizes{PP: n, Replicate: n}, false},
		{composedLlama, "zbv", Sizes{PP: n, Replicate: n}, false},
		{composedGPT, "1f1b", Sizes{PP: n, FSDP: n}, false},
		{composedLlama, "interleaved-zb", Sizes{PP: n, FSDP: n}, true},
		{composedGPT, "zbv", Sizes{PP: n, FSDP: n}, false},
		{composedMoE, "interleaved-zb", Sizes{PP: n, FSDP: n}, false},
		{composedGPT, "gpipe", Sizes{PP: n, TP: n}, true},
		{composedLlama, "interleaved", Sizes{PP: n, TP: n}, false},
		{composedLlama, "zbv", Sizes{PP: n, CP: n}, false},
		{composedGPT, "1f1b", Sizes{PP: n, CP: n}, false},
		{composedMoE, "1f1b", Sizes{PP: n, EP: n}, false},
		{composedMoE, "zbv", Sizes{PP: n, EP: n}, true},
		{composedGPT, "1f1b", Sizes{PP: n, FSDP: n, TP: n}, false},
	} {
		t.Run(fmt.Sprintf("%s %s %+v", c.model.name, c.schedule, c.sizes), func(t *testing.T) {
			ranks := c.sizes.product()
			samplers := 1
			for _, size := range []int{c.sizes.Replicate, c.sizes.FSDP, c.sizes.EP} {
				samplers *= max(size, 1)
			}
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			want := c.model.alone(t, samplers)
			example := tensor.New(tensor.Meta, tensor.Int64, composedRows/samplers, composedTime)
			config := Config{Pipeline: PipelineConfig{Schedule: c.schedule, Example: []*tensor.Tensor{example}}}
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				run, err := c.model.split(ctx, g, c.sizes, config, c.onMeta)
				if err == nil {
					err = run.difference(t, want.of(run))
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// of returns the part of a run of one rank that a rank of a pipeline has.
func (run *composedRun) of(part *composedRun) *composedRun {
	has := func(all, some map[string][]float32) map[string][]float32 {
		out := map[string][]float32{}
		for name, values := range all {
			if some[name] != nil {
				out[name] = values
			}
		}
		return out
	}
	out := *run
	out.grads, out.values = has(run.grads, part.grads), has(run.values, part.values)
	return &out
}
