// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./vector -set transformer -out ../transformer_amd64.s -stubs ../transformer_stubs_amd64.go -pkg kernel

var transformerTables = [...]*transformerKernels{portable: &portableTransformer, avx2: {
	rmsNorm: rmsNorm256, rmsNormBackward: rmsNormBackward256,
	swiGLU: swiGLU256, swiGLUBackward: swiGLUBackward256, rotate: rotate256, prefetch: prefetchRows,
}, avx512: {
	rmsNorm: rmsNorm512, rmsNormBackward: rmsNormBackward512,
	swiGLU: swiGLU512, swiGLUBackward: swiGLUBackward512, rotate: rotate512, prefetch: prefetchRows,
}}
