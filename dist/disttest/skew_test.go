// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/tensor"
)

// TestStraggler: every rank sees who is late, and by how much, within 20 steps.
func TestStraggler(t *testing.T) {
	const straggler, step, late = 2, 50 * time.Millisecond, 15 * time.Millisecond
	var after [4]int
	res := disttest.Run(t, 4, func(ctx context.Context, g *dist.Group) error {
		for i := range 60 {
			time.Sleep(step)
			if g.Rank() == straggler {
				time.Sleep(late)
			}
			if err := g.AllReduce(ctx, tensor.Full(1, 1000), dist.Sum); err != nil {
				return err
			}
			g.StepEnded()
			skew := g.Skew()
			if skew == nil || after[g.Rank()] > 0 {
				continue
			}
			for _, r := range skew {
				if named := r.Late > late*9/10 && r.Late < late*11/10; named != (r.Rank == straggler) {
					t.Errorf("rank %d, after %d steps: rank %d is late by %v", g.Rank(), i+1, r.Rank, r.Late)
				}
			}
			after[g.Rank()] = i + 1
		}
		return nil
	})
	if err := res.Err(); err != nil {
		t.Error(err)
	}
	for r, steps := range after {
		if steps == 0 || steps > 20 {
			t.Errorf("rank %d knew after %d steps, want 1 to 20", r, steps)
		}
	}
	t.Logf("known after steps %v", after)
}
