// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// Add computes dst = a + b.
func Add(p *work.Pool, dst, a, b []float32) { binary(p, vec().add, dst, a, b) }

// Sub computes dst = a - b.
func Sub(p *work.Pool, dst, a, b []float32) { binary(p, vec().sub, dst, a, b) }

// Mul computes dst = a * b.
func Mul(p *work.Pool, dst, a, b []float32) { binary(p, vec().mul, dst, a, b) }

// Div computes dst = a / b, correctly rounded.
func Div(p *work.Pool, dst, a, b []float32) { binary(p, vec().div, dst, a, b) }

// AddScalar computes dst = a + s.
func AddScalar(p *work.Pool, dst, a []float32, s float32) { scalar(p, vec().addScalar, dst, a, s) }

// MulScalar computes dst = a * s.
func MulScalar(p *work.Pool, dst, a []float32, s float32) { scalar(p, vec().mulScalar, dst, a, s) }

// AddScaled computes dst = a + s*b with one rounding.
func AddScaled(p *work.Pool, dst, a []float32, s float32, b []float32) {
	n := len(dst)
	a, b = a[:n], b[:n]
	if span := share(p, n); span < n {
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			AddScaled(nil, dst[lo:hi], a[lo:hi], s, b[lo:hi])
		})
		return
	}
	for lo := 0; lo < n; lo += callElems {
		hi := min(lo+callElems, n)
		vec().addScaled(dst[lo:hi], a[lo:hi], b[lo:hi], s)
	}
}

// Fill sets every element of dst to v.
func Fill(p *work.Pool, dst []float32, v float32) {
	unary(p, func(dst, _ []float32) {
		if math.Float32bits(v) == 0 {
			clear(dst)
			return
		}
		// Doubling copies run at the speed of memmove.
		const seed = 64
		for i := range dst[:min(seed, len(dst))] {
			dst[i] = v
		}
		for done := seed; done < len(dst); done *= 2 {
			copy(dst[done:], dst[:done])
		}
	}, dst, dst)
}

// Copy copies src to dst, len(dst) elements.
func Copy(p *work.Pool, dst, src []float32) {
	unary(p, func(dst, a []float32) { copy(dst, a) }, dst, src)
}

// Exp computes dst = eᵃ.
func Exp(p *work.Pool, dst, a []float32) { unary(p, vec().exp, dst, a) }

// Log computes the natural logarithm.
func Log(p *work.Pool, dst, a []float32) { unary(p, vec().log, dst, a) }

// Tanh computes the hyperbolic tangent.
func Tanh(p *work.Pool, dst, a []float32) { unary(p, vec().tanh, dst, a) }

// Erf computes the error function.
func Erf(p *work.Pool, dst, a []float32) { unary(p, vec().erf, dst, a) }

// Sqrt computes the square root, correctly rounded.
func Sqrt(p *work.Pool, dst, a []float32) { unary(p, vec().sqrt, dst, a) }

// Reciprocal computes dst = 1/a, correctly rounded.
func Reciprocal(p *work.Pool, dst, a []float32) { unary(p, vec().reciprocal, dst, a) }

// Neg computes dst = -a.
func Neg(p *work.Pool, dst, a []float32) { unary(p, vec().neg, dst, a) }

// AddRow adds the row vector to every row: dst[r,c] = a[r,c] + row[c], all
// [rows, cols].
func AddRow(p *work.Pool, dst, a, row []float32, rows, cols int) {
	withRow(p, vec().add, dst, a, row, rows, cols)
}

// MulRow multiplies every row by the row vector: dst[r,c] = a[r,c] * row[c].
func MulRow(p *work.Pool, dst, a, row []float32, rows, cols int) {
	withRow(p, vec().mul, dst, a, row, rows, cols)
}

func withRow(p *work.Pool, f func(dst, a, b []float32), dst, a, row []float32, rows, cols int) {
	dst, a, row = dst[:rows*cols], a[:rows*cols], row[:cols]
	if cols > callElems { // few wide rows: each is an operation of its own
		for r := range rows {
			binary(p, f, dst[r*cols:(r+1)*cols], a[r*cols:(r+1)*cols], row)
		}
		return
	}
	overRows(p, rows, cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			f(dst[r*cols:(r+1)*cols], a[r*cols:(r+1)*cols], row)
		}
	})
}

// AddColumn adds an element of the column to each row: dst[r,c] = a[r,c] +
// column[r], dst and a [rows, cols].
func AddColumn(p *work.Pool, dst, a, column []float32, rows, cols int) {
	withColumn(p, vec().addScalar, dst, a, column, rows, cols)
}

// MulColumn multiplies each row by an element of the column: dst[r,c] = a[r,c] *
// column[r].
func MulColumn(p *work.Pool, dst, a, column []float32, rows, cols int) {
	withColumn(p, vec().mulScalar, dst, a, column, rows, cols)
}

func withColumn(p *work.Pool, f func(dst, a []float32, s float32), dst, a, column []float32, rows, cols int) {
	dst, a, column = dst[:rows*cols], a[:rows*cols], column[:rows]
	if cols > callElems { // few wide rows: each is an operation of its own
		for r, s := range column {
			scalar(p, f, dst[r*cols:(r+1)*cols], a[r*cols:(r+1)*cols], s)
		}
		return
	}
	overRows(p, rows, cols, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			f(dst[r*cols:(r+1)*cols], a[r*cols:(r+1)*cols], column[r])
		}
	})
}

// Maximum computes dst = max(a, b), NaN if either is.
func Maximum(p *work.Pool, dst, a, b []float32) { binary(p, vec().max, dst, a, b) }

// Minimum computes dst = min(a, b), NaN if either is.
func Minimum(p *work.Pool, dst, a, b []float32) { binary(p, vec().min, dst, a, b) }
