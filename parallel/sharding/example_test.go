// SPDX-License-Identifier: Apache-2.0

package sharding_test

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// RowParallel is a linear layer. Each rank of the axis tp has some of its inputs.
type RowParallel struct {
	Weight *nn.Parameter // [outputs, inputs of this rank]
	TP     *dist.Group
}

func (l *RowParallel) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	pass := sharding.Of(c.Tape())
	pass.Take("row parallel linear", x, sharding.Type{mesh.Shard(1)})
	part := tensor.Linear(x, c.Param(l.Weight), nil) // Partial(sum)
	y := part.Clone().Keep()
	if err := l.TP.AllReduce(c, y, dist.Sum); err != nil {
		c.Fail(err)
	}
	pass.Give(y, sharding.Boundary{Type: sharding.Type{mesh.Replicate()}})
	return tensor.Record("row parallel linear", y, []*tensor.Tensor{part}, nil, l.backward)
}

// backward gives each rank's part the gradient of the sum.
func (l *RowParallel) backward(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{g}, nil
}

// A wrapper says what it takes and what it gives. The input of the second pass has not
// been split, and the wrapper refuses it.
func ExamplePass_Take() {
	err := dist.Spawn(context.Background(), 2, func(ctx context.Context, g *dist.Group) error {
		l := &RowParallel{Weight: nn.NewParameter(tensor.Full(1, 3, 2)), TP: g}
		_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			pass := sharding.Begin(c.Tape(), sharding.Axis{Name: "tp"})
			pass.Param(l.Weight.Data(), sharding.Parameter{
				Name: "weight", Value: sharding.Type{mesh.Shard(1)}, Gradient: sharding.Type{mesh.Shard(1)},
			})
			x := c.Tape().Const(tensor.Full(1, 4, 2)) // this rank's two of four features
			pass.Give(x, sharding.Boundary{Type: sharding.Type{mesh.Shard(1)}})
			y := c.Call(l, x)
			if g.Rank() == 0 {
				fmt.Println("the result is", pass.TypeOf(y))
			}
			return y.Mean()
		})
		if err != nil {
			return err
		}
		_, err = nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			sharding.Begin(c.Tape(), sharding.Axis{Name: "tp"})
			return c.Call(l, tensor.Full(1, 4, 2)).Mean()
		})
		if g.Rank() == 0 {
			fmt.Println(err)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// the result is [Replicate]
	// forward of *sharding_test.RowParallel: tensor: row parallel linear(float32[4 2]): it takes Shard(1) over axis "tp", and got Replicate (at sharding/example_test.go:24)
}
