// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func (g *gatherer) gatherFast(b *gatherBlock, dst *float32, tapStep, channelStep int, src *float32, count int) bool {
	return false
}

func spreadRows(dst *float32, dstStep int, src *float32, srcStep, rows, n, gap int) {
	portableSpreadRows(dst, dstStep, src, srcStep, rows, n, gap)
}
