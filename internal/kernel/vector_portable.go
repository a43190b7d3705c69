// SPDX-License-Identifier: Apache-2.0

package kernel

import "math"

// The portable twins define what the assembly computes. Where an operation
// fuses a multiplication with an addition, so do they, on every architecture;
// elsewhere explicit conversions keep the compiler from fusing.

var portableVector = vectorKernels{
	add:       addGo,
	sub:       subGo,
	mul:       mulGo,
	div:       zip(func(a, b float32) float32 { return a / b }),
	max:       zip(func(a, b float32) float32 { return max(a, b) }),
	min:       zip(func(a, b float32) float32 { return min(a, b) }),
	addScalar: addScalarGo,
	mulScalar: mulScalarGo,
	addScaled: addScaledGo,

	exp:        each(func(a float32) float32 { return float32(math.Exp(float64(a))) }),
	log:        each(func(a float32) float32 { return float32(math.Log(float64(a))) }),
	tanh:       each(func(a float32) float32 { return float32(math.Tanh(float64(a))) }),
	erf:        each(func(a float32) float32 { return float32(math.Erf(float64(a))) }),
	sqrt:       each(func(a float32) float32 { return float32(math.Sqrt(float64(a))) }),
	reciprocal: each(func(a float32) float32 { return 1 / a }),
	neg:        each(func(a float32) float32 { return -a }),

	relu:             reluGo,
	gelu:             each(geluOne),
	geluTanh:         each(geluTanhOne),
	reluBackward:     reluBackwardGo,
	geluBackward:     zip(geluBackwardOne),
	geluTanhBackward: zip(geluTanhBackwardOne),
	sigmoid:          each(sigmoidOne),
	silu:             each(siluOne),
	sigmoidBackward:  zip(func(y, g float32) float32 { return float32(y*(1-y)) * g }),
	siluBackward:     zip(siluBackwardOne),

	sum:        sumGo,
	sumSquares: sumSquaresGo,
	maximum:    maximumGo,
	columnSums: columnSumsGo,

	layerNorm:         layerNormGo,
	layerNormBackward: layerNormBackwardGo,
	softmax:           softmaxGo,
	softmaxBackward:   softmaxBackwardGo,
	maxAndSumExp:      maxAndSumExpGo,
	expShifted:        expShiftedGo,

	optimizerKernels: portableOptimizers,
}

func each(f func(a float32) float32) func(dst, a []float32) {
	return func(dst, a []float32) {
		a = a[:len(dst)]
		for i, v := range a {
			dst[i] = f(v)
		}
	}
}

func zip(f func(a, b float32) float32) func(dst, a, b []float32) {
	return func(dst, a, b []float32) {
		a, b = a[:len(dst)], b[:len(dst)]
		for i, v := range a {
			dst[i] = f(v, b[i])
		}
	}
}

func addGo(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i, v := range a {
		dst[i] = v + b[i]
	}
}

func subGo(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i, v := range a {
		dst[i] = v - b[i]
	}
}

func mulGo(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i, v := range a {
		dst[i] = v * b[i]
	}
}

func addScalarGo(dst, a []float32, s float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = v + s
	}
}

func mulScalarGo(dst, a []float32, s float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = v * s
	}
}

func addScaledGo(dst, a, b []float32, s float32) {
	b = b[:len(dst)]
	for i, v := range a[:len(dst)] {
		dst[i] = fma32(s, b[i], v)
	}
}

// fma32 returns x·y + z with one rounding. The product is exact in float64, and
// rounding the sum twice, to float64 and to float32, goes wrong only where the
// first rounding lands on the middle between two float32. (Between subnormal
// ones the middle looks different; there the last bit may be rounded twice.)
func fma32(x, y, z float32) float32 {
	s := float64(x)*float64(y) + float64(z)
	if math.Float64bits(s)<<35 == 1<<63 {
		return fma32Exact(x, y, z)
	}
	return float32(s)
}

// fma32Exact rounds the sum in float64 to odd, which makes the second rounding
// that of the exact sum.
func fma32Exact(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	// The error of the sum (Knuth's two-sum).
	t := s - p
	e := (p - (s - t)) + (c - t)
	if u := math.Float64bits(s); e != 0 && u&1 == 0 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}

// invSqrt2Pi is the density of the standard normal at 0.
const invSqrt2Pi = 0.39894228040143267794

// normal returns the distribution function and x times the density of the
// standard normal.
func normal(x float64) (cdf, xpdf float64) {
	if math.IsInf(x, 0) {
		return math.Max(0, math.Copysign(1, x)), 0
	}
	return 0.5 * math.Erfc(-x/math.Sqrt2), x * invSqrt2Pi * math.Exp(-0.5*x*x)
}

func geluOne(x float32) float32 {
	if x < -20 { // 0, where -Inf times 0 would be NaN
		return 0
	}
	cdf, _ := normal(float64(x))
	return float32(float64(x) * cdf)
}

func geluBackwardOne(x, g float32) float32 {
	cdf, xpdf := normal(float64(x))
	return float32(cdf+xpdf) * g
}

// The tanh form is x·s(x) with s the logistic function of 2√(2/π)(x + cubic·x³).
const (
	geluTanhScale = 2 * 0.79788456080286535588
	geluTanhCubic = 0.044715
)

func geluTanhOne(x float32) float32 {
	if x < -20 {
		return 0
	}
	v := float64(x)
	return float32(v / (1 + math.Exp(-geluTanhScale*(v+geluTanhCubic*v*v*v))))
}

func geluTanhBackwardOne(x, g float32) float32 {
	v := max(min(float64(x), 20), -20) // the gradient is 1 or 0 long before
	s := 1 / (1 + math.Exp(-geluTanhScale*(v+geluTanhCubic*v*v*v)))
	d := s + v*s*(1-s)*geluTanhScale*(1+3*geluTanhCubic*v*v)
	return float32(d) * g
}

func reluGo(dst, x []float32) {
	for i, v := range x[:len(dst)] {
		dst[i] = max(v, 0)
	}
}

func reluBackwardGo(dst, x, g []float32) {
	g = g[:len(dst)]
	for i, v := range x[:len(dst)] {
		d := g[i]
		if !(v > 0) {
			d = 0
		}
		dst[i] = d
	}
}

func sumGo(x []float32) float64 {
	var s0, s1 float64
	for ; len(x) >= 2; x = x[2:] {
		s0 += float64(x[0])
		s1 += float64(x[1])
	}
	for _, v := range x {
		s0 += float64(v)
	}
	return s0 + s1
}

func sumSquaresGo(x []float32) float64 {
	var s0, s1 float64
	for ; len(x) >= 2; x = x[2:] {
		a, b := float64(x[0]), float64(x[1])
		s0 += a * a
		s1 += b * b
	}
	for _, v := range x {
		s0 += float64(v) * float64(v)
	}
	return s0 + s1
}

func maximumGo(x []float32) float32 {
	best := negInf
	for _, v := range x {
		best = max(best, v)
	}
	return best
}

func columnSumsGo(dst, x []float32, rows, stride int) {
	cols := len(dst)
	copy(dst, x[:cols])
	for r := 1; r < rows; r++ {
		row := x[r*stride : r*stride+cols]
		for c, v := range row {
			dst[c] += v
		}
	}
}

func layerNormGo(dst, mean, rstd, x, gamma, beta []float32, eps float32) {
	cols := len(gamma)
	beta = beta[:cols]
	for r := range mean {
		row, out := x[r*cols:(r+1)*cols], dst[r*cols:(r+1)*cols]
		m := sumGo(row) / float64(cols)
		var ss float64
		for _, v := range row {
			d := float64(v) - m
			ss += d * d
		}
		s := 1 / math.Sqrt(ss/float64(cols)+float64(eps))
		mean[r], rstd[r] = float32(m), float32(s)
		m32, s32 := float32(m), float32(s)
		for c, v := range row {
			out[c] = (v-m32)*s32*gamma[c] + beta[c]
		}
	}
}

func layerNormBackwardGo(dx, dgamma, dbeta, g, x, mean, rstd, gamma []float32) {
	cols := len(gamma)
	dgamma, dbeta = dgamma[:cols], dbeta[:cols]
	for r := range mean {
		gr, row, out := g[r*cols:(r+1)*cols], x[r*cols:(r+1)*cols], dx[r*cols:(r+1)*cols]
		m, s := mean[r], rstd[r]
		var sumG, sumGX float64
		for c, v := range gr {
			xhat := (row[c] - m) * s
			dgamma[c] += v * xhat
			dbeta[c] += v
			gg := v * gamma[c]
			sumG += float64(gg)
			sumGX += float64(gg) * float64(xhat)
		}
		c1, c2 := float32(sumG/float64(cols)), float32(sumGX/float64(cols))
		for c, v := range gr {
			xhat := (row[c] - m) * s
			out[c] = s * (v*gamma[c] - c1 - xhat*c2)
		}
	}
}

func softmaxGo(dst, x []float32, rows, cols int) {
	for r := range rows {
		row, out := x[r*cols:(r+1)*cols], dst[r*cols:(r+1)*cols]
		top := maximumGo(row)
		var sum float64
		for c, v := range row {
			e := float32(math.Exp(float64(v - top)))
			out[c] = e
			sum += float64(e)
		}
		mulScalarGo(out, out, float32(1/sum))
	}
}

func softmaxBackwardGo(dx, y, g []float32, rows, cols int) {
	for r := range rows {
		yr, gr, out := y[r*cols:(r+1)*cols], g[r*cols:(r+1)*cols], dx[r*cols:(r+1)*cols]
		var dot float64
		for c, v := range yr {
			dot += float64(v) * float64(gr[c])
		}
		d := float32(dot)
		for c, v := range yr {
			out[c] = v * (gr[c] - d)
		}
	}
}

func maxAndSumExpGo(maximum, sum, x []float32, cols int) {
	for r := range maximum {
		row := x[r*cols : (r+1)*cols]
		top := maximumGo(row)
		var s float64
		for _, v := range row {
			s += math.Exp(float64(v - top))
		}
		maximum[r], sum[r] = top, float32(s)
	}
}

func expShiftedGo(dst, x []float32, shift, scale float32) {
	for i, v := range x[:len(dst)] {
		dst[i] = scale * float32(math.Exp(float64(v-shift)))
	}
}
