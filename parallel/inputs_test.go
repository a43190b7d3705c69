// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// towers scores pairs of a user and an item.
type towers struct{ Users, Items *nn.Embedding }

func (m *towers) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	u, v := c.Call(m.Users, in[0]), c.Call(m.Items, in[1])
	return []*tensor.Tensor{u.Mul(v).Sum(-1), u}
}

func newTowers() *towers {
	b := &nn.Build{Generator: tensor.NewGenerator(3)}
	return &towers{nn.NewEmbedding(b, 5, 4), nn.NewEmbedding(b, 7, 4)}
}

// A model with several inputs and results has the average of the ranks'
// gradients.
func TestSeveralInputs(t *testing.T) {
	pass := func(ctx context.Context, m *towers, call nn.ModuleN, user, item int64) error {
		c := nn.Training(ctx)
		defer c.Close()
		out := c.CallN(call, tensor.FromInt64([]int64{user}), tensor.FromInt64([]int64{item}))
		return out[0].Sum().Add(out[1].Mean()).Backward(ctx)
	}
	want := newTowers() // both ranks' pairs, one after the other
	for rank := range int64(2) {
		if err := pass(t.Context(), want, want, rank, rank+3); err != nil {
			t.Fatal(err)
		}
	}
	var sums [][]float32 // over both ranks, by parameter
	for _, p := range nn.Parameters(want) {
		sums = append(sums, p.Grad().Float32s())
	}
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newTowers()
		ddp, err := NewDDP(ctx, m, g)
		if err != nil {
			return err
		}
		if err := pass(ctx, m, ddp, int64(g.Rank()), int64(g.Rank())+3); err != nil {
			return err
		}
		for i, p := range nn.Parameters(m) {
			got, sum := p.Grad().Float32s(), sums[i]
			for j := range got {
				if d := got[j] - sum[j]/2; d > 1e-6 || d < -1e-6 {
					return fmt.Errorf("%s: element %d of the gradient is %v, want %v", p.Name(), j, got[j], sum[j]/2)
				}
			}
		}
		_, err = nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor { return c.Call(ddp, tensor.Zeros(1)) })
		if err == nil || !strings.Contains(err.Error(), "CallN") {
			return fmt.Errorf("Call of a model with several inputs: %w", err)
		}
		if _, err := NewDDP(ctx, &struct{ P *nn.Parameter }{}, g); err == nil || !strings.Contains(err.Error(), "ForwardN") {
			return errors.New("what is no module is accepted")
		}
		if _, err := NewDDP(ctx, (*nn.Linear)(nil), g); err == nil || !strings.Contains(err.Error(), "the model is a nil *nn.Linear") {
			return fmt.Errorf("a nil model: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
