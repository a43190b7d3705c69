// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// ReLU computes dst = max(x, 0). NaN stays NaN.
func ReLU(p *work.Pool, dst, x []float32) { unary(p, vec().relu, dst, x) }

// ReLUBackward computes dst = g where x > 0 and 0 elsewhere. x may be the
// output of ReLU as well as its input.
func ReLUBackward(p *work.Pool, dst, x, g []float32) { binary(p, vec().reluBackward, dst, x, g) }

// GELU computes the exact form x·Φ(x), Φ being the distribution function of
// the standard normal.
func GELU(p *work.Pool, dst, x []float32) { unary(p, vec().gelu, dst, x) }

// GELUBackward computes dst = g·(Φ(x) + x·φ(x)), the gradient of [GELU] at x.
func GELUBackward(p *work.Pool, dst, x, g []float32) { binary(p, vec().geluBackward, dst, x, g) }

// GELUTanh computes ½x(1 + tanh(√(2/π)(x + 0.044715x³))), the form of GPT-2.
func GELUTanh(p *work.Pool, dst, x []float32) { unary(p, vec().geluTanh, dst, x) }

// GELUTanhBackward computes the gradient of [GELUTanh] at x, times g.
func GELUTanhBackward(p *work.Pool, dst, x, g []float32) {
	binary(p, vec().geluTanhBackward, dst, x, g)
}

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
