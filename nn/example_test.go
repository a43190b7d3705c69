// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The gradient penalty of Gulrajani et al. 2017 (Improved Training of
// Wasserstein GANs, equation 3): the gradient of the critic with respect to its
// input is to have norm 1, and is differentiated again for that.
func ExampleCtx_Leaf() {
	critic := nn.NewLinear(&nn.Build{}, 2, 1)
	critic.Weight.Data().WithFloat32s(func(w []float32) { w[0], w[1] = 3, 4 })
	samples := tensor.Full(1, 6, 2) // between true and generated ones

	loss, err := nn.Backward(context.Background(), func(c *nn.Ctx) *tensor.Tensor {
		x := c.Leaf(samples)
		grads, err := c.Call(critic, x).Grad(c, nil, []*tensor.Tensor{x}, tensor.CreateGraph())
		if err != nil {
			c.Fail(err)
		}
		return grads[0].Norm(2, 1).SubScalar(1).Square().Mean()
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("penalty", loss) // (5 - 1)²
	fmt.Printf("gradient of the weight %.3f\n", critic.Weight.Grad().Float32s())
	// Output:
	// penalty 16
	// gradient of the weight [4.800 6.400]
}
