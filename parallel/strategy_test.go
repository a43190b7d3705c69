// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// trainedBy takes three steps by a strategy, of two passes each, as a training loop
// does, and returns the bits of the norms and of the model.
func trainedBy(ctx context.Context, s Strategy, m *toy) (string, error) {
	params := nn.Parameters(m)
	opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 0.01})
	var norms []float64
	for step := range int64(3) {
		opt.ZeroGrad()
		for pass := range int64(2) {
			run := func() error {
				_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
					ids := tensor.FromInt64([]int64{step, 3 * step, pass + 7})
					return tensor.CrossEntropy(c.Call(s, ids), tensor.FromInt64([]int64{1, 2, pass}))
				})
				return err
			}
			if pass == 0 {
				inner := run
				run = func() error { return s.NoSync(inner) }
			}
			if err := run(); err != nil {
				return "", err
			}
		}
		norm, scale, err := s.ClipGradNorm(ctx, params, 0.5)
		if err != nil {
			return "", err
		}
		opt.Step(scale)
		norms = append(norms, norm.Item())
	}
	return fmt.Sprint(norms, stateDigest(m)), nil
}

// TestStrategiesOfOneRank: on one rank every strategy computes what the model
// alone does, to the bit, and has the model's state by its names.
func TestStrategiesOfOneRank(t *testing.T) {
	err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
		want := ""
		for _, c := range []struct {
			name string
			wrap func(model any) (Strategy, error)
		}{
			{"one rank", func(m any) (Strategy, error) { return NewSingle(m) }},
			{"DDP over 1 rank", func(m any) (Strategy, error) { return NewDDP(ctx, m, g, small) }},
			{"DDP over 1 rank", func(m any) (Strategy, error) { return NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{})) }},
		} {
			m := newToy(3, width)
			s, err := c.wrap(m)
			if err != nil {
				return err
			}
			if s.String() != c.name {
				t.Errorf("%T says that it is %q, want %q", s, s, c.name)
			}
			got, err := trainedBy(ctx, s, m)
			if err != nil {
				return err
			}
			if want == "" {
				want = got
			}
			if got != want {
				t.Errorf("%v ends with\n%s, want\n%s", s, got, want)
			}
			if !slices.Equal(s.StateDict(), nn.StateDict(m)) {
				t.Errorf("the state of %v is not the model's", s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBadModelsForOneRank: what cannot be trained is told when it is wrapped, and
// what is called in the wrong way when it is called.
func TestBadModelsForOneRank(t *testing.T) {
	type holder struct {
		nn.ReLU
		P *nn.Parameter
	}
	for want, m := range map[string]any{
		"it needs a method Forward or ForwardN":  &struct{ P *nn.Parameter }{},
		"p is on device meta, which has no data": &holder{P: nn.NewParameter(tensor.New(tensor.Meta, tensor.Float32, 3))},
		"p is int64, which has no gradient":      &holder{P: nn.NewParameter(tensor.FromInt64([]int64{3}))},
	} {
		if _, err := NewSingle(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, model := range map[string]any{"call it by CallN": newTowers(), "call it by Call": newToy(0, width)} {
		s, err := NewSingle(model)
		if err != nil {
			t.Fatal(err)
		}
		_, err = nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
			if _, ok := model.(nn.Module); ok {
				return c.CallN(s, tensor.Zeros(1))[0]
			}
			return c.Call(s, tensor.Zeros(1))
		})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
