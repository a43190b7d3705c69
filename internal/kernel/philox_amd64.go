// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./vector -set philox -out ../philox_amd64.s -stubs ../philox_stubs_amd64.go -pkg kernel

// philoxLanes is how many blocks the variant in use computes at once; 0 is none.
func philoxLanes() int {
	switch useISA {
	case avx512:
		return 16
	case avx2:
		return 8
	}
	return 0
}

func vectorPhilox(dst []uint32, s *philoxState) {
	if useISA == avx512 {
		philoxWords512(dst, &s.keys[0])
	} else {
		philoxWords256(dst, &s.keys[0])
	}
}

func wordScales(dst []float32, words []uint32, limit uint32, scale float32) {
	switch useISA {
	case avx512:
		wordScales512(dst, words, limit, scale)
	case avx2:
		wordScales256(dst, words, limit, scale)
	default:
		wordScalesGo(dst, words, limit, scale)
	}
}
