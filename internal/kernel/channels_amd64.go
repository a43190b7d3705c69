// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./vector -set channels -out ../channels_amd64.s -stubs ../channels_stubs_amd64.go -pkg kernel

var channelTables = [...]*channelKernels[float32]{portable: &portableChannel, avx2: &avx2Channel, avx512: &avx512Channel}

var avx512Channel = channelKernels[float32]{
	moments:     moments512,
	norm:        func(dst, x []float32, s channelScalars) { channelNorm512(dst, x, &s.mean) },
	normReLU:    func(dst, x []float32, s channelScalars) { channelNormReLU512(dst, x, &s.mean) },
	normAdd:     func(dst, x, r []float32, s channelScalars) { channelNormAdd512(dst, x, r, &s.mean) },
	normAddReLU: func(dst, x, r []float32, s channelScalars) { channelNormAddReLU512(dst, x, r, &s.mean) },
	sums: func(g, x []float32, s channelScalars) (sum, dot float64) {
		return channelSums512(g, x, &s.mean)
	},
	sumsReLU: func(g, x []float32, s channelScalars) (sum, dot float64) {
		return channelSumsReLU512(g, x, &s.mean)
	},
	sumsMasked: func(g, x, y []float32, s channelScalars) (sum, dot float64) {
		return channelSumsMasked512(g, x, y, &s.mean)
	},
	grad:       func(dx, g, x []float32, s channelScalars) { channelGrad512(dx, g, x, &s.mean) },
	gradReLU:   func(dx, g, x []float32, s channelScalars) { channelGradReLU512(dx, g, x, &s.mean) },
	gradMasked: func(dx, dr, g, x, y []float32, s channelScalars) { channelGradMasked512(dx, dr, g, x, y, &s.mean) },
	largest:    largest512,
}

// channelLow returns the kernels of bfloat16, nil where there are none.
func channelLow() *channelKernels[uint16] {
	if useISA == avx512 {
		return &lowChannel512
	}
	return nil
}

var lowChannel512 = channelKernels[uint16]{
	moments:     momentsLow512,
	norm:        func(dst, x []uint16, s channelScalars) { channelNormLow512(dst, x, &s.mean) },
	normReLU:    func(dst, x []uint16, s channelScalars) { channelNormReLULow512(dst, x, &s.mean) },
	normAdd:     func(dst, x, r []uint16, s channelScalars) { channelNormAddLow512(dst, x, r, &s.mean) },
	normAddReLU: func(dst, x, r []uint16, s channelScalars) { channelNormAddReLULow512(dst, x, r, &s.mean) },
	sums: func(g, x []uint16, s channelScalars) (sum, dot float64) {
		return channelSumsLow512(g, x, &s.mean)
	},
	sumsReLU: func(g, x []uint16, s channelScalars) (sum, dot float64) {
		return channelSumsReLULow512(g, x, &s.mean)
	},
	sumsMasked: func(g, x, y []uint16, s channelScalars) (sum, dot float64) {
		return channelSumsMaskedLow512(g, x, y, &s.mean)
	},
	grad:       func(dx, g, x []uint16, s channelScalars) { channelGradLow512(dx, g, x, &s.mean) },
	gradReLU:   func(dx, g, x []uint16, s channelScalars) { channelGradReLULow512(dx, g, x, &s.mean) },
	gradMasked: func(dx, dr, g, x, y []uint16, s channelScalars) { channelGradMaskedLow512(dx, dr, g, x, y, &s.mean) },
}

var avx2Channel = channelKernels[float32]{
	moments:     moments256,
	norm:        func(dst, x []float32, s channelScalars) { channelNorm256(dst, x, &s.mean) },
	normReLU:    func(dst, x []float32, s channelScalars) { channelNormReLU256(dst, x, &s.mean) },
	normAdd:     func(dst, x, r []float32, s channelScalars) { channelNormAdd256(dst, x, r, &s.mean) },
	normAddReLU: func(dst, x, r []float32, s channelScalars) { channelNormAddReLU256(dst, x, r, &s.mean) },
	sums: func(g, x []float32, s channelScalars) (sum, dot float64) {
		return channelSums256(g, x, &s.mean)
	},
	sumsReLU: func(g, x []float32, s channelScalars) (sum, dot float64) {
		return channelSumsReLU256(g, x, &s.mean)
	},
	sumsMasked: func(g, x, y []float32, s channelScalars) (sum, dot float64) {
		return channelSumsMasked256(g, x, y, &s.mean)
	},
	grad:       func(dx, g, x []float32, s channelScalars) { channelGrad256(dx, g, x, &s.mean) },
	gradReLU:   func(dx, g, x []float32, s channelScalars) { channelGradReLU256(dx, g, x, &s.mean) },
	gradMasked: func(dx, dr, g, x, y []float32, s channelScalars) { channelGradMasked256(dx, dr, g, x, y, &s.mean) },
	largest:    largest256,
}
