// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// Fit a line: two parameter groups, a warm-up, clipping, and an average of the
// parameters for evaluation.
func Example() {
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	model := nn.NewLinear(b, 1, 1)
	params := nn.Parameters(model)

	// The weight decays, the bias does not and learns faster.
	opt := optim.NewAdamW(params[:1], optim.AdamWOptions{LR: 0.05, WeightDecay: 1e-4})
	opt.AddGroup(params[1:], optim.AdamWOptions{LR: 0.1})
	const steps = 400
	schedule := optim.SequentialLR([]optim.Schedule{optim.LinearLR(0.1, 1, 20), optim.CosineAnnealingLR(steps-20, 0)}, []int{20})
	ema := optim.NewEMA(params, 0.9)

	x := tensor.FromFloat32([]float32{-1, 0, 1, 2}, 4, 1)
	y := tensor.FromFloat32([]float32{-1, 1, 3, 5}, 4, 1) // 2x + 1
	ctx := context.Background()
	for step := range steps {
		c := nn.Training(ctx)
		opt.ZeroGrad()
		loss := tensor.MSE(c.Call(model, x), y)
		if err := loss.Backward(ctx); err != nil {
			log.Fatal(err)
		}
		norm, scale := optim.ClipGradNorm(params, 10)
		if err := optim.CheckGradNorm(params, norm.Item()); err != nil {
			log.Fatal(err)
		}
		schedule.Apply(opt, step)
		opt.Step(scale)
		ema.Update()
		c.Close()
	}
	ema.Swap() // evaluate with the averages
	fmt.Printf("y = %.2f·x + %.2f\n", params[0].Data().Item(), params[1].Data().Item())
	// Output: y = 2.00·x + 1.00
}
