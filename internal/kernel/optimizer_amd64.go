// SPDX-License-Identifier: Apache-2.0

package kernel

// The wrappers keep the scalars on the stack: an address that went through a
// function value would not be known to stay there.

var optimizers512 = optimizerKernels{
	sgd:              func(param, grad, buf []float32, s sgdScalars) { sgd512(param, grad, buf, &s.gradScale) },
	sgdFirst:         func(param, grad, buf []float32, s sgdScalars) { sgdFirst512(param, grad, buf, &s.gradScale) },
	sgdFirstNesterov: func(param, grad, buf []float32, s sgdScalars) { sgdFirstNesterov512(param, grad, buf, &s.gradScale) },
	sgdMomentum:      func(param, grad, buf []float32, s sgdScalars) { sgdMomentum512(param, grad, buf, &s.gradScale) },
	sgdNesterov:      func(param, grad, buf []float32, s sgdScalars) { sgdNesterov512(param, grad, buf, &s.gradScale) },

	adam: func(param, grad, m, v, most []float32, s adamScalars) { adam512(param, grad, m, v, most, &s.gradScale) },
	adamW: func(param, grad, m, v, most []float32, s adamScalars) {
		adamW512(param, grad, m, v, most, &s.gradScale)
	},
	adamAMSGrad: func(param, grad, m, v, most []float32, s adamScalars) {
		adamAMSGrad512(param, grad, m, v, most, &s.gradScale)
	},
	adamWAMSGrad: func(param, grad, m, v, most []float32, s adamScalars) {
		adamWAMSGrad512(param, grad, m, v, most, &s.gradScale)
	},

	adagrad: func(param, grad, sum []float32, s adagradScalars) { adagrad512(param, grad, sum, &s.gradScale) },

	rmsprop: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmsprop512(param, grad, square, mean, buf, &s.gradScale)
	},
	rmspropMomentum: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmspropMomentum512(param, grad, square, mean, buf, &s.gradScale)
	},
	rmspropCentered: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmspropCentered512(param, grad, square, mean, buf, &s.gradScale)
	},
	rmspropCenteredMomentum: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmspropCenteredMomentum512(param, grad, square, mean, buf, &s.gradScale)
	},

	sparseAdam:    func(param, grad, m, v []float32, s sparseAdamScalars) { sparseAdam512(param, grad, m, v, &s.gradScale) },
	sparseAdagrad: func(param, grad, sum []float32, s adagradScalars) { sparseAdagrad512(param, grad, sum, &s.gradScale) },

	lerp:  func(dst, src []float32, s lerpScalars) { lerp512(dst, src, &s.weight) },
	clamp: clamp512,
}

var optimizers256 = optimizerKernels{
	sgd:              func(param, grad, buf []float32, s sgdScalars) { sgd256(param, grad, buf, &s.gradScale) },
	sgdFirst:         func(param, grad, buf []float32, s sgdScalars) { sgdFirst256(param, grad, buf, &s.gradScale) },
	sgdFirstNesterov: func(param, grad, buf []float32, s sgdScalars) { sgdFirstNesterov256(param, grad, buf, &s.gradScale) },
	sgdMomentum:      func(param, grad, buf []float32, s sgdScalars) { sgdMomentum256(param, grad, buf, &s.gradScale) },
	sgdNesterov:      func(param, grad, buf []float32, s sgdScalars) { sgdNesterov256(param, grad, buf, &s.gradScale) },

	adam: func(param, grad, m, v, most []float32, s adamScalars) { adam256(param, grad, m, v, most, &s.gradScale) },
	adamW: func(param, grad, m, v, most []float32, s adamScalars) {
		adamW256(param, grad, m, v, most, &s.gradScale)
	},
	adamAMSGrad: func(param, grad, m, v, most []float32, s adamScalars) {
		adamAMSGrad256(param, grad, m, v, most, &s.gradScale)
	},
	adamWAMSGrad: func(param, grad, m, v, most []float32, s adamScalars) {
		adamWAMSGrad256(param, grad, m, v, most, &s.gradScale)
	},

	adagrad: func(param, grad, sum []float32, s adagradScalars) { adagrad256(param, grad, sum, &s.gradScale) },

	rmsprop: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmsprop256(param, grad, square, mean, buf, &s.gradScale)
	},
	rmspropMomentum: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmspropMomentum256(param, grad, square, mean, buf, &s.gradScale)
	},
	rmspropCentered: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmspropCentered256(param, grad, square, mean, buf, &s.gradScale)
	},
	rmspropCenteredMomentum: func(param, grad, square, mean, buf []float32, s rmspropScalars) {
		rmspropCenteredMomentum256(param, grad, square, mean, buf, &s.gradScale)
	},

	sparseAdam:    func(param, grad, m, v []float32, s sparseAdamScalars) { sparseAdam256(param, grad, m, v, &s.gradScale) },
	sparseAdagrad: func(param, grad, sum []float32, s adagradScalars) { sparseAdagrad256(param, grad, sum, &s.gradScale) },

	lerp:  func(dst, src []float32, s lerpScalars) { lerp256(dst, src, &s.weight) },
	clamp: clamp256,
}
