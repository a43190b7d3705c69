// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestMemoryStays: on no mesh does the memory of tensors grow from step to step, nor by evaluations.
func TestMemoryStays(t *testing.T) {
	const n = 2
	for _, c := range []struct {
		model    composedModel
		sizes    Sizes
		schedule string
		tp       TPConfig
	}{
		{again(composedLlama), Sizes{TP: n}, "", TPConfig{}},
		{again(composedGPT), Sizes{PP: n, FSDP: n}, "1f1b", TPConfig{}},
		{composedGPT, Sizes{PP: n}, "zbv", TPConfig{}},
		{composedLlama, Sizes{PP: n, TP: n}, "interleaved-zb", TPConfig{Pieces: 2}},
		{busyMoE, Sizes{EP: n, CP: n}, "", TPConfig{}},
	} {
		t.Run(fmt.Sprintf("%s %+v %s", c.model.name, c.sizes, c.schedule), func(t *testing.T) {
			c.sizes.Replicate, c.sizes.FSDP = max(c.sizes.Replicate, 1), max(c.sizes.FSDP, 1)
			var at []int64 // bytes of all ranks after steps
			err := spawn(t, c.sizes.product(), func(ctx context.Context, g *dist.Group) error {
				grid, err := NewMesh(ctx, g, c.sizes)
				if err != nil {
					return err
				}
				defer grid.Close()
				sampler, samplers := Sampler(grid)
				p, err := Parallelize(ctx, c.model.build(&nn.Build{Generator: tensor.NewGenerator(7)}), grid,
					Config{TP: c.tp, Pipeline: PipelineConfig{Schedule: c.schedule, Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, composedRows/samplers, composedTime)}}})
				if err != nil {
					return err
				}
				defer p.Close()
				var params []*nn.Parameter
				for _, q := range nn.Parameters(p.Model) {
					if !p.IsAway(q) {
						params = append(params, q)
					}
				}
				opt := optim.NewSGD(params, optim.SGDOptions{LR: 0.01})
				for step := range 5 {
					opt.ZeroGrad()
					if _, err := p.Step(ctx, c.model.with(composedPasses(p, step, sampler, samplers, 0.5))); err != nil {
						return err
					}
					opt.Step(nil)
					if _, err := evaluated(ctx, p); err != nil {
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					if g.Rank() == 0 && step >= 1 {
						at = append(at, memoryAtRest())
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if first, last := at[0], slices.Min(at[len(at)-2:]); last > first+first/100 {
				t.Errorf("tensors take %v bytes after the steps 2 to 5", at)
			}
		})
	}
}

// memoryAtRest returns the bytes of tensors that are still in use when the garbage collector
// has nothing left to free. A tensor that no scope owns is freed by a cleanup, which runs some
// time after the collection that found it.
func memoryAtRest() int64 {
	now, _ := tensor.MemoryInUse()
	for same, start := 0, time.Now(); same < 3 && time.Since(start) < 10*time.Second; same++ {
		done := make(chan struct{})
		runtime.AddCleanup(new([16]byte), func(done chan struct{}) { close(done) }, done)
		runtime.GC()
		select {
		case <-done: // those found by the same collection are under way, too
		case <-time.After(time.Second):
		}
		before := now
		if now, _ = tensor.MemoryInUse(); now != before {
			same = -1
		}
	}
	return now
}
