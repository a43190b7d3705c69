// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// transformerBlock has the parameters of a transformer's block.
type transformerBlock struct {
	QKV, Out, Up, Down *nn.Linear
	Norm1, Norm2       *nn.LayerNorm
}

func (*transformerBlock) Forward(_ *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return x }

// BenchmarkUnit gathers and reduces the parameters of a block on two ranks: each by a collective
// of its own (limit 0), small ones together (the limit of the package), all together. It reports
// the least times, which other work on the machine disturbs least.
func BenchmarkUnit(b *testing.B) {
	for _, width := range []int{64, 256, 1024} {
		for _, limit := range []int{0, packLimit, 1 << 30} {
			b.Run(fmt.Sprintf("width=%d/limit=%d", width, limit), func(b *testing.B) {
				gather, reduce := time.Hour, time.Hour
				err := dist.Spawn(b.Context(), 2, func(ctx context.Context, g *dist.Group) error {
					build := &nn.Build{}
					m := &transformerBlock{
						QKV: nn.NewLinear(build, width, 3*width), Out: nn.NewLinear(build, width, width),
						Up: nn.NewLinear(build, width, 4*width), Down: nn.NewLinear(build, 4*width, width),
						Norm1: nn.NewLayerNorm(build, width), Norm2: nn.NewLayerNorm(build, width),
					}
					f, err := sharded(ctx, g, m, 1)
					if err != nil {
						return err
					}
					u := f.units[0]
					u.calls, u.sums = pack(u.params, fullDType, limit), pack(u.params, gradDType, limit)
					used := make([]int64, 1)
					for range b.N {
						if err := g.Barrier(ctx); err != nil {
							return err
						}
						began := time.Now()
						if err := u.hold(ctx); err != nil {
							return err
						}
						took := time.Since(began)
						u.drop()
						u.lendGrads()
						for _, s := range u.params {
							s.holds = true
						}
						if err := g.Barrier(ctx); err != nil {
							return err
						}
						began = time.Now()
						u.reduce(ctx, used)
						if err := u.scattered(ctx); err != nil {
							return err
						}
						if g.Rank() == 0 {
							gather, reduce = min(gather, took), min(reduce, time.Since(began))
						}
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(gather)/1e3, "gather-µs")
				b.ReportMetric(float64(reduce)/1e3, "reduce-µs")
			})
		}
	}
}
