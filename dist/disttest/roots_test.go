// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/tensor"
)

// TestLastRoot has a rank take itself for the root of a job's last broadcast:
// no rank ends well.
func TestLastRoot(t *testing.T) {
	res := disttest.Run(t, 4, func(ctx context.Context, g *dist.Group) error {
		root := 0
		if g.Rank() == 1 {
			root = 1
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		return g.Broadcast(ctx, tensor.Zeros(4), root)
	})
	for i, r := range res.Ranks {
		var m *dist.MismatchError
		if !errors.As(r.Err, &m) {
			t.Errorf("rank %d: not a mismatch: %v", i, r.Err)
		}
	}
}
