// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func prefetch(at *unsafe.Pointer, n, bytes int)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ at+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ bytes+16(FP), DX
	TESTQ CX, CX
	JLE  done

record:
	MOVQ (SI), AX
	XORQ BX, BX

line:
	PREFETCHT0 (AX)(BX*1)
	ADDQ $64, BX
	CMPQ BX, DX
	JLT  line
	ADDQ $8, SI
	DECQ CX
	JNZ  record

done:
	RET
