// SPDX-License-Identifier: Apache-2.0

package kernel

import "math"

// optimizerKernels is the part of [vectorKernels] that updates parameters. A
// slice that a variant does not use may be nil. The assembly takes the address
// of the scalars' first field.
type optimizerKernels struct {
	sgd, sgdFirst, sgdFirstNesterov, sgdMomentum, sgdNesterov func(param, grad, buf []float32, s sgdScalars)

	adam, adamW, adamAMSGrad, adamWAMSGrad func(param, grad, m, v, most []float32, s adamScalars)

	adagrad func(param, grad, sum []float32, s adagradScalars)

	rmsprop, rmspropMomentum, rmspropCentered, rmspropCenteredMomentum func(param, grad, square, mean, buf []float32, s rmspropScalars)

	sparseAdam    func(param, grad, m, v []float32, s sparseAdamScalars)
	sparseAdagrad func(param, grad, sum []float32, s adagradScalars)

	lerp  func(dst, src []float32, s lerpScalars)
	clamp func(x []float32, limit float32)
}

type sgdScalars struct {
	gradScale, decay, momentum, oneMinusDampening, negLR float32
}

// adamScalars: decay multiplies the parameter in AdamW, and is the factor of
// the parameter that is added to the gradient in Adam.
type adamScalars struct {
	gradScale, decay                              float32
	lerp                                          lerpScalars
	beta2, oneMinusBeta2, rootBias2, eps, negStep float32
}

type adagradScalars struct {
	gradScale, decay, eps, negLR float32
}

type rmspropScalars struct {
	gradScale, decay, alpha, oneMinusAlpha, eps, negLR, momentum float32
	lerp                                                         lerpScalars
}

type sparseAdamScalars struct {
	gradScale, oneMinusBeta1, oneMinusBeta2, eps, negStep float32
}

// lerpScalars are the weight of a linear interpolation as PyTorch computes it:
// a + w·(b-a) for small weights; for w ≥ 1/2, so that nothing cancels,
// b - (1-w)·(b-a), which late says, with -(1-w) as the weight.
type lerpScalars struct {
	weight, late float32
}

func lerpOf(weight float64) lerpScalars {
	w := float32(weight)
	if w < 0.5 {
		return lerpScalars{weight: w}
	}
	return lerpScalars{weight: w - 1, late: 1}
}

func lerp32(a, b float32, s lerpScalars) float32 {
	from := a
	if s.late > 0 {
		from = b
	}
	return fma32(s.weight, b-a, from)
}

func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

var portableOptimizers = optimizerKernels{
	sgd:              sgdGo(false, false, false),
	sgdFirst:         sgdGo(true, true, false),
	sgdFirstNesterov: sgdGo(true, true, true),
	sgdMomentum:      sgdGo(true, false, false),
	sgdNesterov:      sgdGo(true, false, true),

	adam:         adamGo(false, false),
	adamW:        adamGo(true, false),
	adamAMSGrad:  adamGo(false, true),
	adamWAMSGrad: adamGo(true, true),

	adagrad: adagradGo,

	rmsprop:                 rmspropGo(false, false),
	rmspropMomentum:         rmspropGo(false, true),
	rmspropCentered:         rmspropGo(true, false),
	rmspropCenteredMomentum: rmspropGo(true, true),

	sparseAdam:    sparseAdamGo,
	sparseAdagrad: sparseAdagradGo,

	lerp:  lerpGo,
	clamp: clampGo,
}

func sgdGo(momentum, first, nesterov bool) func(param, grad, buf []float32, s sgdScalars) {
	return func(param, grad, buf []float32, s sgdScalars) {
		grad = grad[:len(param)]
		for i, p := range param {
			g := fma32(s.decay, p, float32(s.gradScale*grad[i]))
			d := g
			if momentum {
				if !first {
					d = fma32(s.oneMinusDampening, g, float32(s.momentum*buf[i]))
				}
				buf[i] = d
				if nesterov {
					d = fma32(s.momentum, d, g)
				}
			}
			param[i] = fma32(s.negLR, d, p)
		}
	}
}

func adamGo(decoupled, amsgrad bool) func(param, grad, m, v, most []float32, s adamScalars) {
	return func(param, grad, m, v, most []float32, s adamScalars) {
		n := len(param)
		grad, m, v = grad[:n], m[:n], v[:n]
		for i, p := range param {
			g := float32(s.gradScale * grad[i])
			if decoupled {
				p = float32(p * s.decay)
			} else {
				g = fma32(s.decay, p, g)
			}
			m[i] = lerp32(m[i], g, s.lerp)
			v[i] = fma32(float32(s.oneMinusBeta2*g), g, float32(v[i]*s.beta2))
			under := v[i]
			if amsgrad {
				most[i] = max(most[i], under)
				under = most[i]
			}
			denom := float32(sqrt32(under)/s.rootBias2) + s.eps
			param[i] = p + float32(float32(s.negStep*m[i])/denom)
		}
	}
}

func adagradGo(param, grad, sum []float32, s adagradScalars) {
	n := len(param)
	grad, sum = grad[:n], sum[:n]
	for i, p := range param {
		g := fma32(s.decay, p, float32(s.gradScale*grad[i]))
		sum[i] = fma32(g, g, sum[i])
		param[i] = p + float32(float32(s.negLR*g)/(sqrt32(sum[i])+s.eps))
	}
}

func rmspropGo(centered, momentum bool) func(param, grad, square, mean, buf []float32, s rmspropScalars) {
	return func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		n := len(param)
		grad, square = grad[:n], square[:n]
		for i, p := range param {
			g := fma32(s.decay, p, float32(s.gradScale*grad[i]))
			square[i] = fma32(float32(s.oneMinusAlpha*g), g, float32(square[i]*s.alpha))
			under := square[i]
			if centered {
				mean[i] = lerp32(mean[i], g, s.lerp)
				under = fma32(-mean[i], mean[i], under)
			}
			denom := sqrt32(under) + s.eps
			if !momentum {
				param[i] = p + float32(float32(s.negLR*g)/denom)
				continue
			}
			buf[i] = float32(buf[i]*s.momentum) + float32(g/denom)
			param[i] = fma32(s.negLR, buf[i], p)
		}
	}
}

func sparseAdamGo(param, grad, m, v []float32, s sparseAdamScalars) {
	n := len(param)
	grad, m, v = grad[:n], m[:n], v[:n]
	for i, p := range param {
		g := float32(s.gradScale * grad[i])
		m[i] += float32((g - m[i]) * s.oneMinusBeta1)
		v[i] += float32((float32(g*g) - v[i]) * s.oneMinusBeta2)
		param[i] = p + float32(float32(m[i]/(sqrt32(v[i])+s.eps))*s.negStep)
	}
}

func sparseAdagradGo(param, grad, sum []float32, s adagradScalars) {
	n := len(param)
	grad, sum = grad[:n], sum[:n]
	for i, p := range param {
		g := float32(s.gradScale * grad[i])
		sum[i] += float32(g * g)
		param[i] = fma32(s.negLR, float32(g/(sqrt32(sum[i])+s.eps)), p)
	}
}

func lerpGo(dst, src []float32, s lerpScalars) {
	src = src[:len(dst)]
	for i, v := range dst {
		dst[i] = lerp32(v, src[i], s)
	}
}

func clampGo(x []float32, limit float32) {
	for i, v := range x {
		x[i] = max(min(v, limit), -limit)
	}
}
