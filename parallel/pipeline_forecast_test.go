// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestPipelineSends: the bytes that each rank of a pipeline sends in a step, from the second one on,
// are those that Predict has said before the first one.
func TestPipelineSends(t *testing.T) {
	for _, c := range []struct {
		schedule     string
		sizes        Sizes
		stages       int
		microbatches int
		untied       bool
	}{
		{"gpipe", Sizes{PP: 2}, 0, 3, true},
		{"1f1b", Sizes{PP: 2}, 0, 2, false},
		{"1f1b", Sizes{PP: 4}, 0, 6, false},
		{"1f1b", Sizes{PP: 2, Replicate: 2}, 0, 4, false},
		{"interleaved", Sizes{PP: 2}, 4, 4, false},
		{"interleaved-zb", Sizes{PP: 2}, 4, 4, true},
		{"zbv", Sizes{PP: 2}, 4, 4, false},
		{"zbv", Sizes{PP: 2, Replicate: 2}, 4, 5, true},
	} {
		t.Run(fmt.Sprintf("%s %+v %d", c.schedule, c.sizes, c.microbatches), func(t *testing.T) {
			t.Parallel()
			k := gptTask(4, c.untied)
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			err := spawn(t, c.sizes.product(), func(ctx context.Context, g *dist.Group) error {
				m, err := NewMesh(ctx, g, c.sizes)
				if err != nil {
					return err
				}
				p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Schedule: c.schedule, NumStages: c.stages, Example: k.example}})
				if err != nil {
					return err
				}
				defer p.Close()
				ids, targets := k.batch(0, 0)
				want := Predict(ctx, p, PredictOptions{Microbatches: c.microbatches, Loss: func(c *nn.Ctx, model any) *tensor.Tensor {
					logits := c.Call(model.(nn.Module), ids[0].ToDevice(c.Device()))
					return tensor.CrossEntropy(logits.Reshape(-1, logits.Dim(-1)), targets.ToDevice(c.Device()))
				}})
				if want.NoSent != nil || want.NoPeak != nil || want.SentBytes == 0 {
					return fmt.Errorf("predicted are %d bytes: %v, %v", want.SentBytes, want.NoSent, want.NoPeak)
				}
				for step := range 3 {
					for _, q := range nn.Parameters(p.Model) {
						q.ZeroGrad()
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					start := g.Traffic()
					if _, err := p.Step(ctx, k.microbatches(p, step, c.microbatches)); err != nil {
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					if sent := g.Traffic().Since(start).SentBytes; step > 0 && sent != want.SentBytes {
						return fmt.Errorf("rank %d sent %d bytes in step %d, predicted were %d", g.Rank(), sent, step, want.SentBytes)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPipelinePeak: the most that the tensors of all ranks hold in a step is about the sum of what
// Predict has said of each rank: not all come to their most at the same time.
func TestPipelinePeak(t *testing.T) {
	const rows, width, n = 32, 64, 8
	for _, name := range []string{"gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv"} {
		k := timedTask(8, rows, width, 0)
		in, classes := k.batch(0, 0)
		k.batch = func(int, int) ([]*tensor.Tensor, *tensor.Tensor) { return in, classes }
		var sum, most atomic.Int64
		before := memoryAtRest()
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m, err := NewMesh(ctx, g, Sizes{PP: 2, Replicate: 1, FSDP: 1})
			if err != nil {
				return err
			}
			p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Schedule: name, Example: k.example}})
			if err != nil {
				return err
			}
			defer p.Close()
			x, targets := k.batch(0, 0)
			want := Predict(ctx, p, PredictOptions{Microbatches: n, Loss: func(c *nn.Ctx, model any) *tensor.Tensor {
				return tensor.CrossEntropy(c.Call(model.(nn.Module), x[0].ToDevice(c.Device())), targets.ToDevice(c.Device()))
			}})
			if want.NoPeak != nil {
				return want.NoPeak
			}
			sum.Add(want.PeakBytes)
			for step := range 3 {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if g.Rank() == 0 {
					memoryAtRest()
					tensor.ResetMemoryPeak()
				}
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if _, err := p.Step(ctx, k.microbatches(p, step, n)); err != nil {
					return err
				}
			}
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			if _, peak := tensor.MemoryInUse(); g.Rank() == 0 {
				most.Store(peak - before)
			}
			return g.Barrier(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: the tensors have held %d bytes, predicted were %d", name, most.Load(), sum.Load())
		if got, want := float64(most.Load()), float64(sum.Load()); got < 0.85*want || got > 1.2*want {
			t.Errorf("%s: the tensors have held %.0f bytes, predicted were %.0f", name, got, want)
		}
	}
}
