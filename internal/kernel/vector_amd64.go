// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./vector -out ../vector_amd64.s -stubs ../vector_stubs_amd64.go -pkg kernel
//go:generate go -C _asm run ./vector -set optimizers -out ../optimizer_amd64.s -stubs ../optimizer_stubs_amd64.go -pkg kernel

var vectorTables = [...]*vectorKernels{portable: &portableVector, avx2: &avx2Vector, avx512: &avx512Vector}

var avx512Vector = vectorKernels{
	add: add512, sub: sub512, mul: mul512, div: div512, max: max512, min: min512,
	addScalar: addScalar512, mulScalar: mulScalar512, addScaled: addScaled512,
	exp: exp512, log: log512, tanh: tanh512, erf: erf512, sqrt: sqrt512, reciprocal: reciprocal512, neg: neg512,
	relu: relu512, gelu: gelu512, geluTanh: geluTanh512,
	sigmoid: sigmoid512, silu: silu512, sigmoidBackward: sigmoidBackward512, siluBackward: siluBackward512,
	reluBackward: reluBackward512, geluBackward: geluBackward512, geluTanhBackward: geluTanhBackward512,
	sum: sum512, sumSquares: sumSquares512, maximum: maximumGo, columnSums: columnSums512,
	layerNorm: layerNorm512, layerNormBackward: layerNormBackward512,
	softmax: softmax512, softmaxBackward: softmaxBackward512,
	maxAndSumExp: maxAndSumExp512, expShifted: expShifted512,
	optimizerKernels: optimizers512,
}

var avx2Vector = vectorKernels{
	add: add256, sub: sub256, mul: mul256, div: div256, max: max256, min: min256,
	addScalar: addScalar256, mulScalar: mulScalar256, addScaled: addScaled256,
	exp: exp256, log: log256, tanh: tanh256, erf: erf256, sqrt: sqrt256, reciprocal: reciprocal256, neg: neg256,
	relu: relu256, gelu: gelu256, geluTanh: geluTanh256,
	sigmoid: sigmoid256, silu: silu256, sigmoidBackward: sigmoidBackward256, siluBackward: siluBackward256,
	reluBackward: reluBackward256, geluBackward: geluBackward256, geluTanhBackward: geluTanhBackward256,
	sum: sum256, sumSquares: sumSquares256, maximum: maximumGo, columnSums: columnSums256,
	layerNorm: layerNorm256, layerNormBackward: layerNormBackward256,
	softmax: softmax256, softmaxBackward: softmaxBackward256,
	maxAndSumExp: maxAndSumExp256, expShifted: expShifted256,
	optimizerKernels: optimizers256,
}
