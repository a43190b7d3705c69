// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// ToBF16 rounds to bfloat16, to nearest even, len(dst) elements. What exceeds
// the largest bfloat16 by half a unit becomes infinite, denormal numbers are
// kept, and a NaN stays one: quiet, with its sign.
func ToBF16(p *work.Pool, dst []uint16, src []float32) { convert(p, toBF16, dst, src) }

// FromBF16 widens len(dst) elements of bfloat16; every one has its float32.
func FromBF16(p *work.Pool, dst []float32, src []uint16) { convert(p, fromBF16, dst, src) }

// ToF16 rounds to IEEE 754 binary16, to nearest even, len(dst) elements, with
// the rules of ToBF16. The largest finite number is 65504.
func ToF16(p *work.Pool, dst []uint16, src []float32) { convert(p, toF16, dst, src) }

// FromF16 widens len(dst) elements of binary16; every one has its float32.
func FromF16(p *work.Pool, dst []float32, src []uint16) { convert(p, fromF16, dst, src) }

// convert runs f in spans, on several threads where that pays.
func convert[D, S uint16 | float32](p *work.Pool, f func(dst []D, src []S), dst []D, src []S) {
	n := len(dst)
	src = src[:n]
	if span := share(p, n); span < n {
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			convert(nil, f, dst[lo:hi], src[lo:hi])
		})
		return
	}
	for lo := 0; lo < n; lo += callElems {
		hi := min(lo+callElems, n)
		f(dst[lo:hi], src[lo:hi])
	}
}
