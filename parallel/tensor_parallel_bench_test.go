// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// BenchmarkSharedPass is a training pass of a GPT on one rank, and on two that share its modules.
// cpu-ms/op is the time of all processors for all ranks together, which other programs on the
// machine disturb less than the time of the pass: what two ranks need more than one is the cost
// of sharing.
//
//	go test ./parallel -run '^$' -bench SharedPass -benchtime 20x
func BenchmarkSharedPass(b *testing.B) {
	s := sharedCase{batch: 8, time: 128, vocab: 256}
	build := func() nn.Module {
		return models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(7)}, models.GPTConfig{Vocab: s.vocab, Context: s.time, Width: 256, Heads: 8, Layers: 4})
	}
	b.Run("one rank", func(b *testing.B) {
		m := build()
		before := processorTime()
		for b.Loop() {
			if _, err := nn.Backward(b.Context(), func(c *nn.Ctx) *tensor.Tensor { return s.compute(c, m) }); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(processorTime()-before)/1e6/float64(b.N), "cpu-ms/op")
	})
	for _, config := range []TPConfig{{WholeSequence: true}, {}, {KeepGathered: true}, {Pieces: 2}, {Pieces: 4}} {
		b.Run(fmt.Sprintf("%+v", config), func(b *testing.B) {
			err := dist.Spawn(b.Context(), 2, func(ctx context.Context, g *dist.Group) error {
				m := build()
				shared, err := shareModel(ctx, g, m, nil, config)
				if err != nil {
					return err
				}
				shared.check = false
				shared.t.lossFollows = func(*tensor.Tape) bool { return true }
				pass := func() error {
					_, err := shared.pass(ctx, func(c *nn.Ctx) *tensor.Tensor { return s.compute(c, m) })
					return err
				}
				if err := pass(); err != nil {
					return err
				}
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				before := processorTime()
				if g.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N { // both ranks make as many
					if err := pass(); err != nil {
						return err
					}
				}
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if g.Rank() == 0 {
					b.ReportMetric(float64(processorTime()-before)/1e6/float64(b.N), "cpu-ms/op")
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// processorTime returns how long processors have run this process.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
