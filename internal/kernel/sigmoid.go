// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// Sigmoid computes the logistic function 1/(1 + e⁻ˣ).
func Sigmoid(p *work.Pool, dst, x []float32) { unary(p, vec().sigmoid, dst, x) }

// SigmoidBackward computes dst = g·y(1-y), y being the result of [Sigmoid].
func SigmoidBackward(p *work.Pool, dst, y, g []float32) {
	binary(p, vec().sigmoidBackward, dst, y, g)
}

// SiLU computes x/(1 + e⁻ˣ) (Elfwing, Uchibe and Doya 2018), also called swish.
func SiLU(p *work.Pool, dst, x []float32) { unary(p, vec().silu, dst, x) }

// SiLUBackward computes the gradient of [SiLU] at x, times g.
func SiLUBackward(p *work.Pool, dst, x, g []float32) { binary(p, vec().siluBackward, dst, x, g) }

// Maximum computes dst = max(a, b), NaN if either is.
func Maximum(p *work.Pool, dst, a, b []float32) { binary(p, vec().max, dst, a, b) }

// Minimum computes dst = min(a, b), NaN if either is.
func Minimum(p *work.Pool, dst, a, b []float32) { binary(p, vec().min, dst, a, b) }

func sigmoidOne(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

func siluOne(x float32) float32 {
	if x < -120 { // 0, where -Inf times 0 would be NaN
		return 0
	}
	v := float64(x)
	return float32(v / (1 + math.Exp(-v)))
}

func siluBackwardOne(x, g float32) float32 {
	v := max(min(float64(x), 120), -120) // the slope is 1 or 0 there
	s := 1 / (1 + math.Exp(-v))
	return float32(s*(1+v*(1-s))) * g
}
