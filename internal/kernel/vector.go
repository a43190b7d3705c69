// SPDX-License-Identifier: Apache-2.0

package kernel

// vectorKernels is one variant of the kernels that work on vectors and rows.
// They compute len(dst) elements, or whole rows; operands are as long as the
// exported functions have cut them.
type vectorKernels struct {
	add, sub, mul, div, max, min func(dst, a, b []float32)
	addScalar, mulScalar         func(dst, a []float32, s float32)
	addScaled                    func(dst, a, b []float32, s float32)

	exp, log, tanh, erf, sqrt, reciprocal, neg func(dst, a []float32)

	relu, gelu, geluTanh, sigmoid, silu          func(dst, x []float32)
	reluBackward, geluBackward, geluTanhBackward func(dst, x, g []float32)
	sigmoidBackward, siluBackward                func(dst, x, g []float32) // sigmoid's x is its result

	sum, sumSquares func(x []float32) float64
	maximum         func(x []float32) float32 // -Inf for no elements
	// columnSums overwrites dst with the sums over rows rows, stride apart.
	columnSums func(dst, x []float32, rows, stride int)

	// layerNorm does len(mean) rows of len(gamma) columns.
	layerNorm func(dst, mean, rstd, x, gamma, beta []float32, eps float32)
	// layerNormBackward adds to dgamma and dbeta.
	layerNormBackward func(dx, dgamma, dbeta, g, x, mean, rstd, gamma []float32)

	softmax         func(dst, x []float32, rows, cols int)
	softmaxBackward func(dx, y, g []float32, rows, cols int)
	// maxAndSumExp computes for each of len(maximum) rows its maximum and the
	// sum of exp(x - maximum).
	maxAndSumExp func(maximum, sum, x []float32, cols int)
	// expShifted computes scale·exp(x - shift).
	expShifted func(dst, x []float32, shift, scale float32)

	optimizerKernels
}

// vec returns the variant in use.
func vec() *vectorKernels { return vectorTables[useISA] }
