// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func prefetch(at *unsafe.Pointer, n, bytes int)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVD at+0(FP), R0
	MOVD n+8(FP), R1
	MOVD bytes+16(FP), R2
	CMP  $0, R1
	BLE  done

record:
	MOVD (R0), R3
	ADD  R2, R3, R4

line:
	PRFM (R3), PLDL1KEEP
	ADD  $64, R3
	CMP  R4, R3
	BLO  line
	ADD  $8, R0
	SUBS $1, R1
	BNE  record

done:
	RET
