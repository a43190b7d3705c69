// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestPredictionOfComposition: what was predicted of a model that several axes split is what a
// step takes: the bytes between ranks, the state, and the values of the passes, to the byte.
func TestPredictionOfComposition(t *testing.T) {
	for _, c := range []struct {
		model composedModel
		sizes Sizes
	}{
		{composedLlama, Sizes{Replicate: 1, FSDP: 1, TP: 2}},
		{composedGPT, Sizes{Replicate: 1, FSDP: 2, TP: 2}},
		{composedLlama, Sizes{Replicate: 1, FSDP: 1, CP: 2}},
		{composedMoE, Sizes{Replicate: 2, FSDP: 1, EP: 2}},
	} {
		t.Run(fmt.Sprintf("%s %+v", c.model.name, c.sizes), func(t *testing.T) {
			err := spawn(t, c.sizes.product(), func(ctx context.Context, g *dist.Group) error {
				grid, err := NewMesh(ctx, g, c.sizes)
				if err != nil {
					return err
				}
				model := c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)})
				p, err := Parallelize(ctx, model, grid, Config{})
				if err != nil {
					return err
				}
				opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{})
				pass := composedPasses(nil, 0, 0, 1, 1)[0]
				return comparePredictedStep(ctx, g, p, opt, pass)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// comparePredictedStep runs steps and compares them with what was predicted. Where experts are
// split, the bytes and the values of the passes depend on the tokens.
func comparePredictedStep(ctx context.Context, g *dist.Group, p *Parallel, opt optim.Optimizer, pass Microbatch) error {
	varies := p.mesh.Has(expertAxis)
	ids := tensor.FromInt64(make([]int64, composedRows*composedTime), composedRows, composedTime)
	loss := func(c *nn.Ctx, model any) *tensor.Tensor {
		on := ids.ToDevice(c.Device())
		return c.CallN(&nn.CrossEntropyLoss{}, c.Call(model.(nn.Module), on), on)[0]
	}
	want := Predict(ctx, p, PredictOptions{Optimizer: opt, Loss: loss})
	uncounted := want.NoSent != nil
	if want.NoPeak != nil || uncounted && p.mesh.Has(tensorAxis) {
		return fmt.Errorf("not predicted: %w", errors.Join(want.NoPeak, want.NoSent))
	}
	passes := want.PeakBytes - want.StateBytes - bufferBytes(p.Model) - p.forecast().extra
	_, shards := p.engine.(*FSDP)
	for step := range 3 {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		start := g.Traffic()
		opt.ZeroGrad()
		var peak int64
		_, err := p.Step(ctx, []Microbatch{{Carrier: pass.Carrier, Loss: func(c *nn.Ctx) *tensor.Tensor {
			tape := c.Tape()
			tape.OnClose(func() { peak = tape.PeakBytes() })
			return loss(c, p)
		}}})
		if err != nil {
			return err
		}
		opt.Step(nil)
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		sent := g.Traffic().Since(start).SentBytes
		if state := measuredState(p.Model, opt); state != want.StateBytes {
			return fmt.Errorf("the state has %d bytes, predicted were %d", state, want.StateBytes)
		}
		if step == 0 {
			continue // in which units and types are learned
		}
		if !uncounted && sent != want.SentBytes {
			return fmt.Errorf("%d bytes were sent, predicted were %d", sent, want.SentBytes)
		}
		if !shards && !varies && peak != passes {
			return fmt.Errorf("the values of the passes have held %d bytes, predicted were %d", peak, passes)
		}
	}
	return nil
}
