// SPDX-License-Identifier: Apache-2.0

#include "go_asm.h"
#include "textflag.h"

// A frame pointer points at the caller's frame pointer; the return address is
// the word above. The goroutine's descriptor begins with the bounds of its stack.

// func hashStack() uint64
TEXT ·hashStack(SB), NOSPLIT|NOFRAME, $0-8
	MOVD 8(g), R1               // the stack's end
	SUB  $16, R1                // the last place of a frame
	MOVD 0(g), R7               // the stack's beginning
	MOVD $0x9E3779B97F4A7C15, R8
	MOVD R8, R0
	MOVD $const_maxFrames, R3
	MOVD R29, R2
	CMP  R7, R2
	BLO  done
loop:
	CMP  R1, R2
	BHI  done
	MOVD 8(R2), R4
	EOR  R4, R0
	MUL  R8, R0
	MOVD (R2), R5
	CMP  R2, R5                 // callers lie above
	BLS  done
	MOVD R5, R2
	SUBS $1, R3
	BNE  loop
done:
	MOVD R0, ret+0(FP)
	RET
