// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func ID() uintptr
TEXT ·ID(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET
