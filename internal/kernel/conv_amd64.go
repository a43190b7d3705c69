// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./conv -out ../conv_amd64.s -stubs ../conv_stubs_amd64.go -pkg kernel

import "math"

// gatherFast fills the lanes by assembly, and reports false where there is none.
func (g *gatherer) gatherFast(b *gatherBlock, dst *float32, tapStep, channelStep int, src *float32, count int) bool {
	switch {
	case useISA == avx2 && g.strideX == 1 && b.numRuns <= 4:
		convGather1x256(dst, tapStep, channelStep, src, g.plane, count, &g.taps[0].offset, len(g.taps), &b.runs[0].base, b.numRuns, &b.rowMasks[0], &b.colMasks[0])
	case useISA != avx512:
		return false
	case g.strideX == 1 && b.numRuns <= 4:
		convGather1x512(dst, tapStep, channelStep, src, g.plane, count, &g.taps[0].offset, len(g.taps), &b.runs[0].base, b.numRuns, &b.rowMasks[0], &b.colMasks[0])
	case g.strideX == 2 && b.numRuns <= 3:
		convGather2x512(dst, tapStep, channelStep, src, g.plane, count, &g.taps[0].offset, len(g.taps), &b.runs[0].base, b.numRuns, &b.rowMasks[0], &b.colMasks[0])
	case 2*g.image+g.plane < math.MaxInt32:
		first := b.runs[0].base / 4
		var lanes [convLanes]int32
		for i, r := range b.runs[:b.numRuns] {
			for l := b.place[i].from; l < b.place[i].to; l++ {
				lanes[l] = int32(r.base/4 + l*g.strideX - first)
			}
		}
		convGatherAny512(dst, tapStep, channelStep, shift(src, first), g.plane, count, &g.taps[0].offset, len(g.taps), &lanes[0], &b.rowMasks[0], &b.colMasks[0])
	default:
		return false
	}
	return true
}

// gatherLowFast is gatherFast for bfloat16.
func (g *gatherer) gatherLowFast(b *gatherBlock, dst *uint16, tapStep, channelStep int, src *uint16, count int) bool {
	if useISA != avx512 || g.strideX > 2 || b.numRuns > 5 {
		return false
	}
	gather := convGatherHalves1x512
	if g.strideX == 2 {
		gather = convGatherHalves2x512
	}
	gather(dst, tapStep, channelStep, src, g.plane, count, &g.taps[0].offset, len(g.taps), &b.runs[0].base, b.numRuns, &b.rowMasks[0], &b.colMasks[0])
	return true
}

// spreadHalves is spreadRows for bfloat16.
func spreadHalves(dst *uint16, dstStep int, src *uint16, srcStep, rows, n, gap int) {
	if useISA == avx512 && gap == 2 {
		for at := 0; at < n; at += 16 {
			convSpreadHalves2x512(shiftHalves(dst, 2*at), dstStep, shiftHalves(src, at), srcStep, rows, min(16, n-at))
		}
		return
	}
	portableSpreadHalves(dst, dstStep, src, srcStep, rows, n, gap)
}

func spreadRows(dst *float32, dstStep int, src *float32, srcStep, rows, n, gap int) {
	if useISA == avx512 && gap == 2 {
		for at := 0; at < n; at += 16 {
			convSpread2x512(shift(dst, 2*at), dstStep, shift(src, at), srcStep, rows, min(16, n-at))
		}
		return
	}
	portableSpreadRows(dst, dstStep, src, srcStep, rows, n, gap)
}

func winogradInput(dst *float32, xiStep, step int, src *float32, count, lanes int) {
	if useISA == avx512 {
		winogradInput512(dst, xiStep, step, src, count)
		return
	}
	portableWinogradInput(dst, xiStep, step, src, count, lanes)
}

func winogradKernels(dst *float32, xiStep, step int, src *float32, tapStep, kernelStep, count, lanes int) {
	if useISA == avx512 {
		winogradWeights512(dst, xiStep, step, src, tapStep, kernelStep, count, lanes)
		return
	}
	portableWinogradWeights(dst, xiStep, step, src, tapStep, kernelStep, count, lanes)
}

func winogradOutput(dst *float32, lineStep, dstStep int, src *float32, xiStep, srcStep, rows int, bias *float32, lanes int) {
	if useISA == avx512 {
		winogradOutput512(dst, lineStep, dstStep, src, xiStep, srcStep, rows, bias)
		return
	}
	portableWinogradOutput(dst, lineStep, dstStep, src, xiStep, srcStep, rows, bias, lanes)
}

func winogradGrad(dst *float32, xiStep, step int, src *float32, count, lanes int) {
	if useISA == avx512 {
		winogradGrad512(dst, xiStep, step, src, count)
		return
	}
	portableWinogradGrad(dst, xiStep, step, src, count, lanes)
}

func winogradKernel(dst *float32, tapStep int, src *float32, xiStep, lanes int) {
	if useISA == avx512 {
		winogradKernel512(dst, tapStep, src, xiStep)
		return
	}
	portableWinogradKernel(dst, tapStep, src, xiStep, lanes)
}
