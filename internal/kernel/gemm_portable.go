// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"unsafe"
)

// The Go twins of the assembly in gemm_amd64.s, with the same arguments: strides
// and steps count elements, pointers are into slices whose length the caller
// has checked.

// A portable tile is what fits the registers of most machines as scalars.
const (
	portableRows = 4
	portableCols = 4
)

// shift returns the address n elements further.
func shift(p *float32, n int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*n))
}

func at(p *float32, n int) float32 { return *shift(p, n) }

// portableTile computes a tile of rows ≤ 4 by cols ≤ 4 of
// C = alpha·A·B + beta·C + bias; 4 columns of B can be read. Products are
// rounded before they are added, also where the compiler could fuse the two, so
// that an element comes out the same in a full tile and in a small one.
func portableTile(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldc int, alpha, beta float32, bias *float32) {
	var s [portableRows][portableCols]float32
	if rows == portableRows {
		portableTile4(&s, k, a, aRow, aCol, b, bRow)
	} else {
		for l := range k {
			x := (*[portableCols]float32)(unsafe.Pointer(shift(b, l*bRow)))
			for r := range rows {
				y := at(a, r*aRow+l*aCol)
				for j := range x {
					s[r][j] += float32(y * x[j])
				}
			}
		}
	}
	for r := range rows {
		to := unsafe.Slice(shift(c, r*ldc), cols)
		for j := range to {
			y := float32(alpha * s[r][j])
			if bias != nil {
				y += at(bias, j)
			}
			if beta != 0 {
				y += float32(beta * to[j])
			}
			to[j] = y
		}
	}
}

func portableTile4(s *[4][4]float32, k int, a *float32, aRow, aCol int, b *float32, bRow int) {
	var s00, s01, s02, s03, s10, s11, s12, s13 float32
	var s20, s21, s22, s23, s30, s31, s32, s33 float32
	for l := range k {
		x := (*[4]float32)(unsafe.Pointer(shift(b, l*bRow)))
		p := shift(a, l*aCol)
		y := *p
		s00 += float32(y * x[0])
		s01 += float32(y * x[1])
		s02 += float32(y * x[2])
		s03 += float32(y * x[3])
		y = at(p, aRow)
		s10 += float32(y * x[0])
		s11 += float32(y * x[1])
		s12 += float32(y * x[2])
		s13 += float32(y * x[3])
		y = at(p, 2*aRow)
		s20 += float32(y * x[0])
		s21 += float32(y * x[1])
		s22 += float32(y * x[2])
		s23 += float32(y * x[3])
		y = at(p, 3*aRow)
		s30 += float32(y * x[0])
		s31 += float32(y * x[1])
		s32 += float32(y * x[2])
		s33 += float32(y * x[3])
	}
	*s = [4][4]float32{{s00, s01, s02, s03}, {s10, s11, s12, s13}, {s20, s21, s22, s23}, {s30, s31, s32, s33}}
}

// portableAddRows adds to cols sums the rows of B, one after the other, row r
// times x[r].
func portableAddRows(sums, b *float32, bRow int, x *float32, rows, cols int) {
	to := unsafe.Slice(sums, cols)
	for r := range rows {
		y := at(x, r)
		for j, e := range unsafe.Slice(shift(b, r*bRow), cols) {
			to[j] += float32(y * e)
		}
	}
}

// portableDotVector sets sums to the dot products of rows rows and x, each in
// four parts.
func portableDotVector(sums, src *float32, srcStep int, x *float32, rows, k int) {
	y := unsafe.Slice(x, k)
	for r := range rows {
		var s0, s1, s2, s3 float32
		row := unsafe.Slice(shift(src, r*srcStep), k)
		i := 0
		for ; i+4 <= k; i += 4 {
			a, b := row[i:i+4], y[i:i+4]
			s0 += float32(a[0] * b[0])
			s1 += float32(a[1] * b[1])
			s2 += float32(a[2] * b[2])
			s3 += float32(a[3] * b[3])
		}
		for ; i < k; i++ {
			s0 += float32(row[i] * y[i])
		}
		*shift(sums, r) = (s0 + s2) + (s1 + s3)
	}
}

// portablePackRows copies count rows of width elements, with zeros up to pad.
func portablePackRows(dst *float32, dstStep int, src *float32, srcStep, count, width, pad int) {
	for r := range count {
		to := unsafe.Slice(shift(dst, r*dstStep), pad)
		clear(to[copy(to, unsafe.Slice(shift(src, r*srcStep), width)):])
	}
}

// portablePackTransposed writes column j of rows of k elements to
// dst[j·dstStep:][:rows], and zeros up to pad.
func portablePackTransposed(dst *float32, dstStep int, src *float32, srcStep, rows, k, pad int) {
	for j := range k {
		to := unsafe.Slice(shift(dst, j*dstStep), pad)
		for r := range rows {
			to[r] = at(src, r*srcStep+j)
		}
		clear(to[rows:])
	}
}

// portableSoftmaxRows replaces the first n + r·step elements of row r by
// e^(x - top), top being their maximum, and the rest up to end by 0.
func portableSoftmaxRows(x *float32, stride, rows, n, step, end int, top, sum *float32) {
	for r := range rows {
		row := unsafe.Slice(shift(x, r*stride), end)
		visible := min(end, max(0, n+r*step))
		high := float32(math.Inf(-1))
		for _, y := range row[:visible] {
			high = max(high, y)
		}
		var s float32
		for i, y := range row[:visible] {
			y = exp32(y - high)
			row[i] = y
			s += y
		}
		clear(row[visible:])
		*shift(top, r), *shift(sum, r) = high, s
	}
}

// portableGradientRows replaces the first n + r·step elements of row r of x by
// p = e^(x - lse[r]) and of g by p·(g - delta[r])·scale, and the rest by 0.
func portableGradientRows(x, g *float32, stride, rows, n, step, end int, lse, delta *float32, scale float32) {
	for r := range rows {
		xs, gs := unsafe.Slice(shift(x, r*stride), end), unsafe.Slice(shift(g, r*stride), end)
		visible := min(end, max(0, n+r*step))
		for i := range visible {
			p := exp32(xs[i] - at(lse, r))
			xs[i] = p
			gs[i] = p * ((gs[i] - at(delta, r)) * scale)
		}
		clear(xs[visible:])
		clear(gs[visible:])
	}
}

// exp32 is e^x, 0 where the assembly has 0.
func exp32(x float32) float32 {
	if x < -87.3 {
		return 0
	}
	return float32(math.Exp(float64(x)))
}

// portableDotRows sets dst[r] to the dot product of row r of x and of y.
func portableDotRows(dst, x *float32, xStep int, y *float32, yStep, rows, n int) {
	for r := range rows {
		var s float32
		ys := unsafe.Slice(shift(y, r*yStep), n)
		for i, e := range unsafe.Slice(shift(x, r*xStep), n) {
			s += e * ys[i]
		}
		*shift(dst, r) = s
	}
}

// portableScaleRows multiplies row r of n elements by factor[r].
func portableScaleRows(x *float32, step, rows, n int, factor *float32) {
	for r := range rows {
		row := unsafe.Slice(shift(x, r*step), n)
		for i := range row {
			row[i] *= at(factor, r)
		}
	}
}
