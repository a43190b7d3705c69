// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/work"
)

// AdamWScalars are the numbers of one step of [AdamW]: the learning rate, the
// decay rates, and Bias1 = 1-Beta1ᵗ, Bias2 = 1-Beta2ᵗ at step t, counted from
// 1. GradScale multiplies the gradient first.
type AdamWScalars struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Bias1, Bias2                       float64
	GradScale                          float64
}

// SGDScalars are the numbers of one step of [SGD]. First says that the
// momentum buffer holds nothing yet.
type SGDScalars struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov, First                      bool
	GradScale                            float64
}

// AdamW updates param in place from its gradient and moments (Loshchilov and
// Hutter 2019, Algorithm 2), which it updates too. All are contiguous and of
// one shape. It is fused: one pass over memory.
func AdamW(param, grad, m, v *Tensor, s AdamWScalars) {
	for _, t := range []*Tensor{grad, m, v} {
		param.wantSame("adamw", t)
	}
	wantContiguous("adamw", param, grad, m, v)
	params := []float64{s.LR, s.Beta1, s.Beta2, s.Eps, s.WeightDecay, s.Bias1, s.Bias2, s.GradScale}
	fused("adamw", params, []*Tensor{param, grad, m, v}, func(p *work.Pool, a []device.Array) {
		kernel.AdamW(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), kernel.AdamWStep(s))
	})
	written(param, m, v)
}

// SGD updates param in place, with momentum when a buffer is given; the
// arithmetic is PyTorch's bit for bit on a CPU with fused multiply-add.
func SGD(param, grad, momentum *Tensor, s SGDScalars) {
	param.wantSame("sgd", grad)
	wantContiguous("sgd", param, grad)
	if momentum != nil {
		param.wantSame("sgd", momentum)
		wantContiguous("sgd", momentum)
		written(momentum)
	}
	params := []float64{s.LR, s.Momentum, s.Dampening, s.WeightDecay, param01(s.Nesterov), param01(s.First), s.GradScale}
	fused("sgd", params, []*Tensor{param, grad, momentum}, func(p *work.Pool, a []device.Array) {
		kernel.SGD(p, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), kernel.SGDStep(s))
	})
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
