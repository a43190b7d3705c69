// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// BenchmarkStep is a step of a model that computes next to nothing: by Run, and
// by a loop of its own over the same loader, without log, votes and reports.
// Their difference is what Run costs a step.
func BenchmarkStep(b *testing.B) {
	group := func(b *testing.B) *dist.Group {
		g, err := dist.Init(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { g.Close() })
		return g
	}
	b.Run("run", func(b *testing.B) {
		g := group(b)
		f := &fitting{out: filepath.Join(b.TempDir(), "run"), batch: 24, epoch: 1000}
		task, o := f.task(g, dataParallel(g))
		o.Steps, o.EvalEvery, o.SaveEvery, o.Clip = b.N, 0, 0, 1
		b.ResetTimer()
		if err := Run(b.Context(), g, task, o, Discard); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("loop", func(b *testing.B) {
		ctx, g := context.WithoutCancel(b.Context()), group(b)
		f := &fitting{batch: 24, epoch: 1000}
		task, _ := f.task(g, dataParallel(g))
		model, err := parallel.NewDDP(ctx, task.Model, g)
		if err != nil {
			b.Fatal(err)
		}
		feed, err := task.Feed(ctx, data.LoaderState{})
		if err != nil {
			b.Fatal(err)
		}
		defer feed.Close()
		params, dropout := nn.Parameters(task.Model), tensor.NewGenerator(1)
		opt := task.Optimizer(params)
		step := func() (err error) {
			batch, err := feed.Next(ctx)
			if err != nil {
				return err
			}
			c := nn.Training(ctx, nn.WithGenerator(dropout))
			defer c.Close()
			defer c.Recover(&err)
			opt.ZeroGrad()
			loss := task.Loss(c, model, batch)
			loss.Item()
			if err := loss.Backward(ctx); err != nil {
				return err
			}
			_, scale := optim.ClipGradNorm(params, 1)
			opt.Step(scale)
			return nil
		}
		b.ResetTimer()
		for range b.N {
			if err := step(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
