// SPDX-License-Identifier: Apache-2.0

package kernel

import "unsafe"

//go:generate go -C _asm run ./gemm -out ../gemm_amd64.s -stubs ../gemm_stubs_amd64.go -pkg kernel

// tileShape returns the rows and columns of a full tile, and how many floats
// apart the columns of a packed panel of A are.
func tileShape() (mr, nr, aStep int) {
	switch useISA {
	case avx512:
		return 12, 32, 12
	case avx2:
		return 6, 16, 8 // packed eight at a time
	}
	return portableRows, portableCols, portableRows
}

func tile(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldc int, alpha, beta float32, bias *float32) {
	switch useISA {
	case avx512:
		gemmTile512(rows, cols, k, a, aRow, aCol, b, bRow, c, ldc, alpha, beta, bias)
	case avx2:
		gemmTile256(rows, cols, k, a, aRow, aCol, b, bRow, c, ldc, alpha, beta, bias)
	default:
		portableTile(rows, cols, k, a, aRow, aCol, b, bRow, c, ldc, alpha, beta, bias)
	}
}

// tiles computes n full tiles, those of tile, whose operands and C are aNext,
// bNext and cNext elements apart; the bias is that of all.
func tiles(n, k int, a *float32, aNext, aRow, aCol int, b *float32, bNext, bRow int, c *float32, cNext, ldc int, alpha, beta float32, bias *float32) {
	if useISA == avx512 {
		gemmTiles512(n, k, a, aNext, aRow, aCol, b, bNext, bRow, c, cNext, ldc, alpha, beta, bias)
		return
	}
	eachTile(n, k, a, aNext, aRow, aCol, b, bNext, bRow, c, cNext, ldc, alpha, beta, bias)
}

// tilePairs is tile for pairs. C is float32, or bfloat16 if half is not 0; then
// beta must be 0. Only where usePairs is set.
func tilePairs(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldcBytes int, alpha, beta float32, bias *float32, half int) {
	gemmTileBF16(rows, cols, k, a, aRow, aCol, b, bRow, c, ldcBytes, alpha, beta, bias, half)
}

// packPairs and its like pack panels of pairs. Only where usePairs is set.
func packPairs(dst *float32, dstStep int, src *float32, srcStep, count, width, pad int) {
	packPairsBF16(dst, dstStep, src, srcStep, count, width, pad)
}

func packPairsHalves(dst *float32, dstStep int, src *uint16, srcStep, count, width, pad int) {
	packPairsHalvesBF16(dst, dstStep, src, srcStep, count, width, pad)
}

func packTransposedPairs(dst *float32, dstStep int, src *float32, srcStep, rows, k, pad int) {
	for at := 0; at < rows; at += 16 {
		packTransposedBF16(shift(dst, at), dstStep, shift(src, at*srcStep), srcStep, min(16, rows-at), k, min(16, pad-at))
	}
}

func packTransposedHalves(dst *float32, dstStep int, src *uint16, srcStep, rows, k, pad int) {
	for at := 0; at < rows; at += 16 {
		from := (*uint16)(unsafe.Add(unsafe.Pointer(src), 2*at*srcStep))
		packTransposedHalvesBF16(shift(dst, at), dstStep, from, srcStep, min(16, rows-at), k, min(16, pad-at))
	}
}

func packRows(dst *float32, dstStep int, src *float32, srcStep, count, width, pad int) {
	switch useISA {
	case avx512:
		packRows512(dst, dstStep, src, srcStep, count, width, pad)
	case avx2:
		packRows256(dst, dstStep, src, srcStep, count, width, pad)
	default:
		portablePackRows(dst, dstStep, src, srcStep, count, width, pad)
	}
}

func packTransposed(dst *float32, dstStep int, src *float32, srcStep, rows, k, pad int) {
	switch useISA {
	case avx512:
		for at := 0; at < rows; at += 16 {
			packTransposed512(shift(dst, at), dstStep, shift(src, at*srcStep), srcStep, min(16, rows-at), k, min(16, pad-at))
		}
	case avx2:
		for at := 0; at < rows; at += 8 {
			packTransposed256(shift(dst, at), dstStep, shift(src, at*srcStep), srcStep, min(8, rows-at), k, min(8, pad-at))
		}
	default:
		portablePackTransposed(dst, dstStep, src, srcStep, rows, k, pad)
	}
}

// transposeRows writes column j of rows of k elements to dst[j·dstStep:][:rows]
// and nothing else.
func transposeRows(dst *float32, dstStep int, src *float32, srcStep, rows, k int) {
	if useISA == avx512 {
		packTransposed(dst, dstStep, src, srcStep, rows, k, rows)
	} else {
		portablePackTransposed(dst, dstStep, src, srcStep, rows, k, rows)
	}
}

func addRows(sums, b *float32, bRow int, x *float32, rows, cols int) {
	switch useISA {
	case avx512:
		addRows512(sums, b, bRow, x, rows, cols)
	case avx2:
		addRows256(sums, b, bRow, x, rows, cols)
	default:
		portableAddRows(sums, b, bRow, x, rows, cols)
	}
}

func dotVector(sums, src *float32, srcStep int, x *float32, rows, k int) {
	switch useISA {
	case avx512:
		dotVector512(sums, src, srcStep, x, rows, k)
	case avx2:
		dotVector256(sums, src, srcStep, x, rows, k)
	default:
		portableDotVector(sums, src, srcStep, x, rows, k)
	}
}

// addRowsHalves is addRows for a B of bfloat16. Only where useISA is avx512.
func addRowsHalves(sums *float32, b *uint16, bRow int, x *float32, rows, cols int) {
	addRowsBF16(sums, b, bRow, x, rows, cols)
}

// dotVectorHalves is dotVector for pairs. Only where usePairs is set.
func dotVectorHalves(sums *float32, src *uint16, srcStep int, x *float32, rows, k int) {
	dotVectorBF16(sums, src, srcStep, x, rows, k)
}

func softmaxRows(x *float32, stride, rows, n, step, end int, top, sum *float32) {
	switch useISA {
	case avx512:
		softmaxRows512(x, stride, rows, n, step, end, top, sum)
	case avx2:
		softmaxRows256(x, stride, rows, n, step, end, top, sum)
	default:
		portableSoftmaxRows(x, stride, rows, n, step, end, top, sum)
	}
}

func gradientRows(x, g *float32, stride, rows, n, step, end int, lse, delta *float32, scale float32) {
	switch useISA {
	case avx512:
		gradientRows512(x, g, stride, rows, n, step, end, lse, delta, scale)
	case avx2:
		gradientRows256(x, g, stride, rows, n, step, end, lse, delta, scale)
	default:
		portableGradientRows(x, g, stride, rows, n, step, end, lse, delta, scale)
	}
}

func dotRows(dst, x *float32, xStep int, y *float32, yStep, rows, n int) {
	switch useISA {
	case avx512:
		dotRows512(dst, x, xStep, y, yStep, rows, n)
	case avx2:
		dotRows256(dst, x, xStep, y, yStep, rows, n)
	default:
		portableDotRows(dst, x, xStep, y, yStep, rows, n)
	}
}

func scaleRows(x *float32, step, rows, n int, factor *float32) {
	switch useISA {
	case avx512:
		scaleRows512(x, step, rows, n, factor)
	case avx2:
		scaleRows256(x, step, rows, n, factor)
	default:
		portableScaleRows(x, step, rows, n, factor)
	}
}
