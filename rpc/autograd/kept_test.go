// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestAnArgumentThatIsKept: a handler keeps what it got, and others of the context
// compute with it and send it on. What comes back to it goes to whom it came from.
func TestAnArgumentThatIsKept(t *testing.T) {
	w, v := param(1, 4), param(2, 4)
	one := nn.Training(t.Context())
	h := one.Param(w).Exp()
	if err := h.Tanh().Mul(one.Param(v)).Add(h).Sum().Backward(one); err != nil {
		t.Fatal(err)
	}
	one.Close()

	for _, mode := range []Mode{Smart, Fast} {
		cl := newCluster(2)
		dc := newContext(cl.engines[0], nil)
		c, _ := dc.Pass(t.Context())
		var shelf *tensor.Tensor
		cl.call(t, c, 0, 1, "put", func(_ context.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			shelf = in[0]
			return nil, nil
		}, c.Param(w).Exp())
		got := cl.call(t, c, 0, 1, "use", func(ctx context.Context, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
			h, err := Bring(ctx, shelf)
			if err != nil {
				return nil, err
			}
			return []*tensor.Tensor{h.Tanh().Mul(Ctx(ctx).Param(v))}, nil
		})[0]
		raw := cl.call(t, c, 0, 1, "get", func(context.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{shelf}, nil
		})[0]
		if err := dc.Backward(t.Context(), got.Add(raw).Sum(), WithMode(mode)); err != nil {
			t.Fatal(err)
		}
		wantBits(t, "w", dc.Gradient(w), w.Grad())
		wantBits(t, "v", (&Context{s: stateOf(t, cl.engines[1], dc.ID())}).Gradient(v), v.Grad())
		dc.Close()
		cl.wantNothingLeft(t)
	}
}
