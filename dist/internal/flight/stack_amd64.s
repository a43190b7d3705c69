// SPDX-License-Identifier: Apache-2.0

#include "go_asm.h"
#include "textflag.h"

// A frame pointer points at the caller's frame pointer; the return address is
// the word above. The goroutine's descriptor begins with the bounds of its stack.

// func hashStack() uint64
TEXT ·hashStack(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ (TLS), DX
	MOVQ 8(DX), DX              // the stack's end
	SUBQ $16, DX                // the last place of a frame
	MOVQ $0x9E3779B97F4A7C15, R8
	MOVQ R8, AX
	MOVL $const_maxFrames, BX
	MOVQ BP, CX
	CMPQ CX, SP
	JCS  done
	PCALIGN $16
loop:
	CMPQ  CX, DX
	JHI   done
	XORQ  8(CX), AX
	IMULQ R8, AX
	MOVQ  0(CX), DI
	CMPQ  DI, CX                // callers lie above
	JLS   done
	MOVQ  DI, CX
	DECL  BX
	JNZ   loop
done:
	MOVQ AX, ret+0(FP)
	RET
