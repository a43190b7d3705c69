// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func ID() uintptr
TEXT ·ID(SB), NOSPLIT|NOFRAME, $0-8
	MOVD g, ret+0(FP)
	RET
