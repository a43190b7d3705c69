// SPDX-License-Identifier: Apache-2.0

package kernel

//go:generate go -C _asm run ./gemm -part bf16 -out ../bf16_amd64.s -stubs ../bf16_stubs_amd64.go -pkg kernel

// wholeBlocks is the part of n elements that assembly converts.
func wholeBlocks(n int) int { return n &^ 31 }

func toBF16(dst []uint16, src []float32) {
	if n := wholeBlocks(len(dst)); n > 0 && useISA >= avx2 {
		if useISA == avx512 {
			toBF16512(&dst[0], &src[0], n)
		} else {
			toBF16256(&dst[0], &src[0], n)
		}
		dst, src = dst[n:], src[n:]
	}
	portableToBF16(dst, src)
}

func fromBF16(dst []float32, src []uint16) {
	if n := wholeBlocks(len(dst)); n > 0 && useISA >= avx2 {
		if useISA == avx512 {
			fromBF16512(&dst[0], &src[0], n)
		} else {
			fromBF16256(&dst[0], &src[0], n)
		}
		dst, src = dst[n:], src[n:]
	}
	portableFromBF16(dst, src)
}

// roundBF16 rounds floats to those that bfloat16 has.
func roundBF16(dst, src []float32) {
	if n := wholeBlocks(len(dst)); n > 0 && useISA >= avx2 {
		if useISA == avx512 {
			roundBF16512(&dst[0], &src[0], n)
		} else {
			roundBF16256(&dst[0], &src[0], n)
		}
		dst, src = dst[n:], src[n:]
	}
	portableRoundBF16(dst, src)
}

func toF16(dst []uint16, src []float32) {
	if n := wholeBlocks(len(dst)); n > 0 && useISA >= avx2 && hasF16C {
		if useISA == avx512 {
			toF16512(&dst[0], &src[0], n)
		} else {
			toF16256(&dst[0], &src[0], n)
		}
		dst, src = dst[n:], src[n:]
	}
	portableToF16(dst, src)
}

func fromF16(dst []float32, src []uint16) {
	if n := wholeBlocks(len(dst)); n > 0 && useISA >= avx2 && hasF16C {
		if useISA == avx512 {
			fromF16512(&dst[0], &src[0], n)
		} else {
			fromF16256(&dst[0], &src[0], n)
		}
		dst, src = dst[n:], src[n:]
	}
	portableFromF16(dst, src)
}
