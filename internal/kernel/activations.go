// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

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
