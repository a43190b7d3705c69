// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// toyPasses are two microbatches of a step of a rank, which use s.
func toyPasses(s Strategy, rank, step int64) []Microbatch {
	var passes []Microbatch
	for pass := range int64(2) {
		passes = append(passes, Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				ids := tensor.FromInt64([]int64{step, 3*step + rank, pass + 7})
				return tensor.CrossEntropy(c.Call(s, ids), tensor.FromInt64([]int64{1, 2 + rank, pass})).MulScalar(0.5)
			},
		})
	}
	return passes
}

// TestStepIsItsPasses: Step has the bits of the passes that it is made of, and returns the sum
// of their losses.
func TestStepIsItsPasses(t *testing.T) {
	axes := func(sizes ...mesh.Axis) func(ctx context.Context, g *dist.Group, m any) (Strategy, error) {
		return func(ctx context.Context, g *dist.Group, m any) (Strategy, error) {
			grid, err := mesh.New(ctx, g, sizes...)
			if err != nil {
				return nil, err
			}
			return Parallelize(ctx, m, grid, Config{})
		}
	}
	for _, c := range []struct {
		name  string
		ranks int
		wrap  func(ctx context.Context, g *dist.Group, m any) (Strategy, error)
	}{
		{"one rank", 1, func(_ context.Context, _ *dist.Group, m any) (Strategy, error) { return NewSingle(m) }},
		{"DDP", 2, func(ctx context.Context, g *dist.Group, m any) (Strategy, error) { return NewDDP(ctx, m, g, small) }},
		{"FSDP", 2, func(ctx context.Context, g *dist.Group, m any) (Strategy, error) { return sharded(ctx, g, m, 1) }},
		{"replicate", 2, axes(mesh.Axis{Name: "replicate"})},
		{"fsdp", 2, axes(mesh.Axis{Name: "fsdp"})},
		{"replicate × fsdp", 4, axes(mesh.Axis{Name: "replicate", Size: 2}, mesh.Axis{Name: "fsdp"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := spawn(t, c.ranks, func(ctx context.Context, g *dist.Group) error {
				byHand, stepped := newToy(3, width), newToy(3, width)
				h, err := c.wrap(ctx, g, byHand)
				if err != nil {
					return err
				}
				s, err := c.wrap(ctx, g, stepped)
				if err != nil {
					return err
				}
				for step := range int64(2) {
					sum := 0.0
					for i, m := range toyPasses(h, int64(g.Rank()), step) {
						run := func() error {
							loss, err := nn.Backward(ctx, m.Loss)
							sum += loss
							return err
						}
						if shards := strings.Contains(strings.ToLower(c.name), "fsdp"); i == 0 && !shards {
							err = h.NoSync(run)
						} else { // each pass reduces its gradients
							err = run()
						}
						if err != nil {
							return err
						}
					}
					loss, err := s.Step(ctx, toyPasses(s, int64(g.Rank()), step))
					if err != nil {
						return err
					}
					if math.Abs(loss.Item()-sum) > 1e-6 {
						return fmt.Errorf("the loss of step %d is %v, that of its passes %v", step, loss.Item(), sum)
					}
				}
				if !sameBits(gradients(stepped), gradients(byHand)) {
					return fmt.Errorf("rank %d: the gradients of Step are not those of its passes", g.Rank())
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBadSteps: what is no step is told before anything is summed.
func TestBadSteps(t *testing.T) {
	s, err := NewSingle(newToy(3, width))
	if err != nil {
		t.Fatal(err)
	}
	training := func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) }
	for want, passes := range map[string][]Microbatch{
		"no microbatches": nil,
		"returned nil":    {{Carrier: training, Loss: func(*nn.Ctx) *tensor.Tensor { return nil }}},
		"of dims [2]":     {{Carrier: training, Loss: func(*nn.Ctx) *tensor.Tensor { return tensor.Zeros(2) }}},
	} {
		if _, err := s.Step(t.Context(), passes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
