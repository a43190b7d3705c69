// SPDX-License-Identifier: Apache-2.0

package disttest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// train is a training loop: a line through points, on every rank's own points.
// A step takes 30 ms.
func train(ctx context.Context, g *dist.Group) error {
	line := nn.NewLinear(&nn.Build{}, 1, 1)
	model, err := parallel.NewDDP(ctx, line, g)
	if err != nil {
		return err
	}
	opt := optim.NewSGD(nn.Parameters(line), optim.SGDOptions{LR: 0.1})
	points := tensor.NewGenerator(int64(g.Rank()))
	for step := range 200 {
		x := tensor.Zeros(32, 1)
		points.Uniform(x, -1, 1)
		y := x.MulScalar(3).AddScalar(-1)
		opt.ZeroGrad()
		_, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.MSE(c.Call(model, x), y)
		})
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		opt.Step(nil)
		time.Sleep(30 * time.Millisecond)
	}
	if w := line.Weight.Data().Float32s()[0]; math.Abs(float64(w)-3) > 0.01 {
		return fmt.Errorf("the line has the slope %v, want 3", w)
	}
	return nil
}

// survives is what a test of the loop is like: call it from one.
func survives(t *testing.T) {
	res := disttest.Run(t, 4, train, disttest.WithFaults(disttest.Kill(2).AtCall(2, 100)))
	for r, rank := range res.Ranks {
		var failed *dist.RankError
		if r != 2 && (!errors.As(rank.Err, &failed) || failed.Rank != 2) {
			t.Errorf("rank %d ended with %v, want an error that names rank 2", r, rank.Err)
		}
	}
}

func Example() {
	// In real time, for this is no test.
	res, err := disttest.Simulate(context.Background(), 2, train, disttest.WithLink(disttest.Link{Latency: 100 * time.Microsecond}),
		disttest.WithFaults(disttest.Kill(1).AtCall(1, 20)))
	if err != nil {
		fmt.Println(err)
		return
	}
	var failed *dist.RankError
	fmt.Println("rank 0 knows who failed:", errors.As(res.Ranks[0].Err, &failed) && failed.Rank == 1)
	fmt.Println("rank 1 was killed:", errors.Is(res.Ranks[1].Err, disttest.ErrKilled))
	// Output:
	// rank 0 knows who failed: true
	// rank 1 was killed: true
}
