// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestPlanCountsTraffic: over connections, the ranks together send the elements of the plan, to the
// byte. Small all-reduces among three and more ranks are left out: dist does these in fewer rounds
// that send more.
func TestPlanCountsTraffic(t *testing.T) {
	seed := seeded.Of(t)
	for i, meshShape := range [][]int{{2}, {3}, {2, 2}, {2, 3}} {
		r := rand.New(rand.NewPCG(seed, uint64(100+i)))
		var draws []*redistribution
		var plans []*Plan
		for len(draws) < 20 {
			d := &redistribution{shape: drawShape(r)}
			d.from, d.to = drawPlacements(r, d.shape, meshShape, dist.Sum), drawPlacements(r, d.shape, meshShape, dist.Sum)
			d.values = make([]float64, product(d.shape))
			d.parts = partsOf(r, d.values, meshShape, d.from)
			plan, err := NewPlan(d.shape, meshShape, d.from, d.to, true)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(plan.Steps, func(s Step) bool { return s.Kind == StepAllReduce && meshShape[s.Axis] > 2 }) {
				continue
			}
			draws, plans = append(draws, d), append(plans, plan)
		}
		sent := make([]atomic.Int64, len(draws))
		onEveryTransport(t, product(meshShape), func(ctx context.Context, g *dist.Group) error {
			if !strings.HasPrefix(g.Transport(), "tcp") {
				return nil
			}
			m, err := New(ctx, g, axesOfShape(meshShape)...)
			if err != nil {
				return err
			}
			defer m.Close()
			for i, d := range draws {
				before := g.Traffic()
				if _, err := d.local(t, m, meshShape).Redistribute(ctx, d.to...); err != nil {
					return err
				}
				if err := g.Barrier(ctx); err != nil { // then the calls have ended on all ranks
					return err
				}
				sent[i].Add(g.Traffic().Since(before).SentBytes)
			}
			return nil
		})
		for i, d := range draws {
			if got, want := sent[i].Load(), 8*plans[i].NumElems(); got != want {
				t.Errorf("%v of %v over %v to %v: the ranks sent %d bytes, the plan says %d:\n%v", d.from, d.shape, meshShape, d.to, got, want, plans[i])
			}
		}
	}
}
