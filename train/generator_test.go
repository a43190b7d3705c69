// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// What is random in a pass is of that pass alone: no other step has it, no run
// with another seed, and neither have the model's first weights, which are drawn
// from the seed itself.
func TestGeneratorsDiffer(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(_ context.Context, g *dist.Group) error {
		seen := make(map[float64]string)
		for seed := range 8 {
			seen[tensor.NewGenerator(int64(seed)).Float64()] = fmt.Sprintf("the weights of seed %d", seed)
		}
		for seed := range 8 {
			for step := range 8 {
				for pass := range 2 {
					r := &trainer[int]{o: Options{Seed: int64(seed)}, axes: dataParallel(g), step: step}
					what := fmt.Sprintf("rank %d, seed %d, step %d, pass %d", g.Rank(), seed, step, pass)
					v := r.generator(pass).Float64()
					if other := seen[v]; other != "" {
						return fmt.Errorf("%s draws what %s does", what, other)
					}
					seen[v] = what
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
