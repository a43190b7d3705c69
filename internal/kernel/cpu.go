// SPDX-License-Identifier: Apache-2.0

package kernel

import "golang.org/x/sys/cpu"

// isa is a set of instructions that kernels are written for. Each step up
// includes the ones below it.
type isa uint8

const (
	portable isa = iota // Go only
	avx2                // AVX2 and FMA: 16 registers of 8 floats
	avx512              // AVX-512 F, BW, DQ, VL: 32 registers of 16 floats, masks
)

func (i isa) String() string {
	switch i {
	case avx512:
		return "avx512"
	case avx2:
		return "avx2"
	}
	return "portable"
}

// bestISA is what this machine can run. The kernels ask useISA.
var bestISA = detectISA()

// useISA is what the kernels run. Only tests change it (see forEachISA), while
// no kernel runs.
var useISA = bestISA

// InstructionSet names the set of instructions that the kernels use on this machine:
// avx512, avx2 or portable.
func InstructionSet() string { return bestISA.String() }

// hasPairs tells whether this machine multiplies pairs of bfloat16
// (AVX512_BF16), usePairs whether the kernels do, if useISA is avx512. Only tests
// change the latter.
var (
	hasPairs = bestISA == avx512 && cpu.X86.HasAVX512BF16
	usePairs = hasPairs
)

// hasF16C tells whether this machine converts float16.
var hasF16C = cpu.X86.HasF16C

func detectISA() isa {
	x := &cpu.X86 // all false on other architectures
	switch {
	case !x.HasAVX2 || !x.HasFMA:
		return portable
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL:
		return avx512
	}
	return avx2
}
