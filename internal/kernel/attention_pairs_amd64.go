// SPDX-License-Identifier: Apache-2.0

package kernel

// tileOfPairs is tile with pairs of bfloat16 as the elements of A and B. Only
// where takesPairs says so.
func tileOfPairs(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldc int, alpha, beta float32) {
	gemmTileBF16(rows, cols, k, a, aRow, aCol, b, bRow, c, 4*ldc, alpha, beta, nil, 0)
}
