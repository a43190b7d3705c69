// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	. "github.com/mmcloughlin/avo/reg"
)

// TestEncode compares with what GNU as 2.40 writes. objdump -d of a binary shows
// the same names again.
func TestEncode(t *testing.T) {
	for _, c := range []struct {
		got  [6]byte
		want string
		text string
	}{
		{encode(prefixF3, 0x52, Z2, Z1, Z0), "62f2764852c2", "vdpbf16ps %zmm2,%zmm1,%zmm0"},
		{encode(prefixF3, 0x52, Z24, Z27, Z23), "6282264052f8", "vdpbf16ps %zmm24,%zmm27,%zmm23"},
		{encode(prefixF3, 0x52, Z31, Z8, Z17), "62823e4852cf", "vdpbf16ps %zmm31,%zmm8,%zmm17"},
		{encode(prefixF2, 0x72, Z2, Z1, Z0), "62f2774872c2", "vcvtne2ps2bf16 %zmm2,%zmm1,%zmm0"},
		{encode(prefixF2, 0x72, Z17, Z30, Z9), "62320f4072c9", "vcvtne2ps2bf16 %zmm17,%zmm30,%zmm9"},
		{encode(prefixF2, 0x72, Z9, Z15, Z31), "6242074872f9", "vcvtne2ps2bf16 %zmm9,%zmm15,%zmm31"},
	} {
		if got := fmt.Sprintf("%x", c.got); got != c.want {
			t.Errorf("%s is %s, want %s", c.text, got, c.want)
		}
	}
}
