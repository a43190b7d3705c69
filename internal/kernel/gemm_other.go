// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func tileShape() (mr, nr, aStep int) { return portableRows, portableCols, portableRows }

func tile(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldc int, alpha, beta float32, bias *float32) {
	portableTile(rows, cols, k, a, aRow, aCol, b, bRow, c, ldc, alpha, beta, bias)
}

func tiles(n, k int, a *float32, aNext, aRow, aCol int, b *float32, bNext, bRow int, c *float32, cNext, ldc int, alpha, beta float32, bias *float32) {
	eachTile(n, k, a, aNext, aRow, aCol, b, bNext, bRow, c, cNext, ldc, alpha, beta, bias)
}

func packRows(dst *float32, dstStep int, src *float32, srcStep, count, width, pad int) {
	portablePackRows(dst, dstStep, src, srcStep, count, width, pad)
}

func packTransposed(dst *float32, dstStep int, src *float32, srcStep, rows, k, pad int) {
	portablePackTransposed(dst, dstStep, src, srcStep, rows, k, pad)
}

// Without AVX512_BF16 nobody calls what works on pairs of bfloat16.
const noPairs = "kernel: no AVX512_BF16 here"

func tilePairs(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldcBytes int, alpha, beta float32, bias *float32, half int) {
	panic(noPairs)
}

func packPairs(dst *float32, dstStep int, src *float32, srcStep, count, width, pad int) {
	panic(noPairs)
}

func packPairsHalves(dst *float32, dstStep int, src *uint16, srcStep, count, width, pad int) {
	panic(noPairs)
}

func packTransposedPairs(dst *float32, dstStep int, src *float32, srcStep, rows, k, pad int) {
	panic(noPairs)
}

func packTransposedHalves(dst *float32, dstStep int, src *uint16, srcStep, rows, k, pad int) {
	panic(noPairs)
}

func transposeRows(dst *float32, dstStep int, src *float32, srcStep, rows, k int) {
	portablePackTransposed(dst, dstStep, src, srcStep, rows, k, rows)
}

func addRows(sums, b *float32, bRow int, x *float32, rows, cols int) {
	portableAddRows(sums, b, bRow, x, rows, cols)
}

func dotVector(sums, src *float32, srcStep int, x *float32, rows, k int) {
	portableDotVector(sums, src, srcStep, x, rows, k)
}

func addRowsHalves(sums *float32, b *uint16, bRow int, x *float32, rows, cols int) {
	panic(noPairs)
}

func dotVectorHalves(sums *float32, src *uint16, srcStep int, x *float32, rows, k int) {
	panic(noPairs)
}

func softmaxRows(x *float32, stride, rows, n, step, end int, top, sum *float32) {
	portableSoftmaxRows(x, stride, rows, n, step, end, top, sum)
}

func gradientRows(x, g *float32, stride, rows, n, step, end int, lse, delta *float32, scale float32) {
	portableGradientRows(x, g, stride, rows, n, step, end, lse, delta, scale)
}

func dotRows(dst, x *float32, xStep int, y *float32, yStep, rows, n int) {
	portableDotRows(dst, x, xStep, y, yStep, rows, n)
}

func scaleRows(x *float32, step, rows, n int, factor *float32) {
	portableScaleRows(x, step, rows, n, factor)
}
