// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func tileOfPairs(rows, cols, k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, ldc int, alpha, beta float32) {
	panic(noPairs)
}
