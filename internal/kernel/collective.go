// SPDX-License-Identifier: Apache-2.0

package kernel

// The reductions of collectives run on the goroutine that communicates, not on
// the pool. They combine len(dst) elements of src into dst.

// AddTo computes dst += src.
func AddTo(dst, src []float32) { combine(vec().add, dst, src) }

// MulTo computes dst *= src.
func MulTo(dst, src []float32) { combine(vec().mul, dst, src) }

// MaxTo computes dst = max(dst, src); NaN wins.
func MaxTo(dst, src []float32) { combine(vec().max, dst, src) }

// MinTo computes dst = min(dst, src); NaN wins.
func MinTo(dst, src []float32) { combine(vec().min, dst, src) }

func combine(f func(dst, a, b []float32), dst, src []float32) {
	src = src[:len(dst)]
	for len(dst) > callElems {
		f(dst[:callElems], dst[:callElems], src[:callElems])
		dst, src = dst[callElems:], src[callElems:]
	}
	f(dst, dst, src)
}

// AddInt64To computes dst += src, wrapping around on overflow.
func AddInt64To(dst, src []int64) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] += v
	}
}

// MulInt64To computes dst *= src, wrapping around on overflow.
func MulInt64To(dst, src []int64) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] *= v
	}
}

// MaxInt64To computes dst = max(dst, src).
func MaxInt64To(dst, src []int64) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = max(dst[i], v)
	}
}

// MinInt64To computes dst = min(dst, src).
func MinInt64To(dst, src []int64) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = min(dst[i], v)
	}
}
