// SPDX-License-Identifier: Apache-2.0

package half

import (
	"math"
	"testing"
)

// nearest finds the format's value next to x by looking at all of them.
func nearest(values map[uint16]float64, x float64) (best uint16) {
	distance := math.Inf(1)
	for h, v := range values {
		d := math.Abs(v - x)
		if d < distance || d == distance && h&1 == 0 {
			best, distance = h, d
		}
	}
	return best
}

func TestRoundTripsAreExact(t *testing.T) {
	for bits := range 1 << 16 {
		h := uint16(bits)
		if x := FromBFloat16(h); x == x && BFloat16(x) != h {
			t.Fatalf("bfloat16 %#04x is %v and comes back as %#04x", h, x, BFloat16(x))
		} else if x != x && FromBFloat16(BFloat16(x)) == FromBFloat16(BFloat16(x)) {
			t.Fatalf("bfloat16 %#04x is NaN and comes back as a number", h)
		}
		if x := FromFloat16(h); x == x && Float16(x) != h {
			t.Fatalf("float16 %#04x is %v and comes back as %#04x", h, x, Float16(x))
		} else if x != x && FromFloat16(Float16(x)) == FromFloat16(Float16(x)) {
			t.Fatalf("float16 %#04x is NaN and comes back as a number", h)
		}
	}
}

func TestRoundingIsToTheNearestEven(t *testing.T) {
	// Positive, finite values, with the first one that is too large.
	f16, bf16 := map[uint16]float64{}, map[uint16]float64{}
	for h := uint16(0); h < 0x7c00; h++ {
		f16[h] = float64(FromFloat16(h))
	}
	f16[0x7c00] = 65536
	for h := uint16(0x3f00); h < 0x4100; h++ {
		bf16[h] = float64(FromBFloat16(h))
	}
	for _, x := range []float32{
		1, 1.0004883, 1.0009766, 1.0014648, 0.33333334, 65519.996, 65520, 65535, 6.1e-5, 6.097555e-5, 5.9604645e-8, 2.9802322e-8, 2.98e-8, 8.940697e-8, 1e-9,
	} {
		if got, want := Float16(x), nearest(f16, float64(x)); got != want {
			t.Errorf("float16 of %v is %#04x, the nearest is %#04x", x, got, want)
		}
	}
	for _, x := range []float32{1, 1.00390625, 1.01171875, 1.0117188, 0.7, 3.1415927, 5.01} {
		if got, want := BFloat16(x), nearest(bf16, float64(x)); got != want {
			t.Errorf("bfloat16 of %v is %#04x, the nearest is %#04x", x, got, want)
		}
	}
	if got := FromBFloat16(BFloat16(math.MaxFloat32)); !math.IsInf(float64(got), 1) {
		t.Errorf("the largest float32 rounds to the bfloat16 %v, not to infinity", got)
	}
	if got := FromFloat16(Float16(float32(math.Copysign(0, -1)))); !math.Signbit(float64(got)) {
		t.Error("minus zero has lost its sign")
	}
}
