// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func (g *gatherer) gatherFast(b *gatherBlock, dst *float32, tapStep, channelStep int, src *float32, count int) bool {
	return false
}

func (g *gatherer) gatherLowFast(b *gatherBlock, dst *uint16, tapStep, channelStep int, src *uint16, count int) bool {
	return false
}

func spreadHalves(dst *uint16, dstStep int, src *uint16, srcStep, rows, n, gap int) {
	portableSpreadHalves(dst, dstStep, src, srcStep, rows, n, gap)
}

func spreadRows(dst *float32, dstStep int, src *float32, srcStep, rows, n, gap int) {
	portableSpreadRows(dst, dstStep, src, srcStep, rows, n, gap)
}

func winogradInput(dst *float32, xiStep, step int, src *float32, count, lanes int) {
	portableWinogradInput(dst, xiStep, step, src, count, lanes)
}

func winogradKernels(dst *float32, xiStep, step int, src *float32, tapStep, kernelStep, count, lanes int) {
	portableWinogradWeights(dst, xiStep, step, src, tapStep, kernelStep, count, lanes)
}

func winogradOutput(dst *float32, lineStep, dstStep int, src *float32, xiStep, srcStep, rows int, bias *float32, lanes int) {
	portableWinogradOutput(dst, lineStep, dstStep, src, xiStep, srcStep, rows, bias, lanes)
}

func winogradGrad(dst *float32, xiStep, step int, src *float32, count, lanes int) {
	portableWinogradGrad(dst, xiStep, step, src, count, lanes)
}

func winogradKernel(dst *float32, tapStep int, src *float32, xiStep, lanes int) {
	portableWinogradKernel(dst, tapStep, src, xiStep, lanes)
}
