// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/cohort-ml/cohort/internal/device"

// AdamWScalars are the numbers of one step of [AdamW]: the learning rate, the
// decay rates, and Bias1 = 1-Beta1ᵗ, Bias2 = 1-Beta2ᵗ at step t, counted from
// 1. GradScale multiplies the gradient first.
type AdamWScalars = device.AdamW

// SGDScalars are the numbers of one step of [SGD]. First says that the
// momentum buffer holds nothing yet.
type SGDScalars = device.SGD

// AdamW updates param in place from its gradient and moments (Loshchilov and
// Hutter 2019, Algorithm 2), which it updates too. All are contiguous and of
// one shape. It is fused: one pass over memory.
func AdamW(param, grad, m, v *Tensor, s AdamWScalars) {
	for _, t := range []*Tensor{grad, m, v} {
		param.wantSame("adamw", t)
	}
	wantContiguous("adamw", param, grad, m, v)
	param.Device().AdamW(s, param.array(), grad.array(), m.array(), v.array())
	written(param, m, v)
}

// SGD updates param in place, with momentum when a buffer is given; the
// arithmetic is PyTorch's bit for bit on a CPU with fused multiply-add.
func SGD(param, grad, momentum *Tensor, s SGDScalars) {
	param.wantSame("sgd", grad)
	wantContiguous("sgd", param, grad)
	var buf device.Array
	if momentum != nil {
		param.wantSame("sgd", momentum)
		wantContiguous("sgd", momentum)
		buf = momentum.array()
		written(momentum)
	}
	param.Device().SGD(s, param.array(), grad.array(), buf)
	written(param)
}

func wantContiguous(op string, ts ...*Tensor) {
	for _, t := range ts {
		t.wantDType(op, Float32)
		if !t.IsContiguous() {
			fail(op, ts, "wants contiguous tensors")
		}
	}
}

func written(ts ...*Tensor) {
	for _, t := range ts {
		t.storage.version++
	}
}
