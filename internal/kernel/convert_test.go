// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// halfFormat is a format of 16 bits for the oracle.
type halfFormat struct {
	exponentBits, fractionBits int
}

var (
	bf16Format = halfFormat{8, 7}
	f16Format  = halfFormat{5, 10}
)

// value returns the number that h stands for.
func (f halfFormat) value(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	top := 1<<f.exponentBits - 1
	exponent, fraction := int(h>>f.fractionBits)&top, float64(int(h)&(1<<f.fractionBits-1))
	bias := top / 2
	switch {
	case exponent == top && fraction != 0:
		return math.NaN()
	case exponent == top:
		return sign * math.Inf(1)
	case exponent == 0:
		return sign * math.Ldexp(fraction, 1-bias-f.fractionBits)
	}
	return sign * math.Ldexp(fraction+math.Ldexp(1, f.fractionBits), exponent-bias-f.fractionBits)
}

// nearest fails the test unless h is the value nearest to x, the even one of two.
func (f halfFormat) nearest(t *testing.T, x float32, h uint16) {
	t.Helper()
	got := f.value(h)
	if x != x || got != got {
		if (x != x) != (got != got) || math.Signbit(float64(x)) != (h>>15 == 1) {
			t.Fatalf("%g (%#x) became %#x", x, math.Float32bits(x), h)
		}
		return
	}
	if math.Signbit(float64(x)) != (h>>15 == 1) {
		t.Fatalf("%g became %#x: another sign", x, h)
	}
	// Beyond the largest number comes, where infinity is, the next power of two.
	value := func(h uint16) float64 {
		if y := f.value(h &^ 0x8000); !math.IsInf(y, 1) {
			return y
		}
		return math.Ldexp(1, 1<<(f.exponentBits-1))
	}
	ax := math.Abs(float64(x))
	if math.IsInf(ax, 1) {
		ax = value(0x7fff &^ (1<<f.fractionBits - 1))
	}
	up, d := h&0x7fff, 0.0
	d = math.Abs(value(up) - ax)
	for _, other := range []uint16{up - 1, up + 1} {
		if up == 0 && other != 1 || math.IsInf(f.value(up), 1) && other > up {
			continue
		}
		if e := math.Abs(value(other) - ax); e < d || e == d && up&1 == 1 {
			t.Fatalf("%g (%#x) became %#x (%g), but %#x (%g) is nearer, or as near and even", x, math.Float32bits(x), h, got, other, f.value(other))
		}
	}
}

func TestConvert(t *testing.T) {
	p := work.New(2)
	defer p.Close()
	r := rand.New(rand.NewPCG(9, 10))
	// Every half, what lies between neighbours, its own neighbours, and any bits.
	var src []float32
	for _, f := range []halfFormat{bf16Format, f16Format} {
		for h := range 1 << 16 {
			x := float32(f.value(uint16(h)))
			mid := float32((f.value(uint16(h)) + f.value(uint16(h)^1)) / 2)
			src = append(src, x, mid, math.Float32frombits(math.Float32bits(mid)+1), math.Float32frombits(math.Float32bits(mid)-1))
		}
	}
	for range 100_000 {
		src = append(src, math.Float32frombits(r.Uint32()))
	}
	src = append(src, 65504, 65519, 65520, 65536, -65520, math.MaxFloat32, float32(math.Inf(-1)))
	all := make([]uint16, 1<<16)
	for h := range all {
		all[h] = uint16(h)
	}
	checked := map[string][]uint16{} // what the first instruction set gave, which is right
	forEachISA(t, func(t *testing.T) {
		for _, c := range []struct {
			name string
			f    halfFormat
			to   func(p *work.Pool, dst []uint16, src []float32)
			from func(p *work.Pool, dst []float32, src []uint16)
		}{
			{"BF16", bf16Format, ToBF16, FromBF16},
			{"F16", f16Format, ToF16, FromF16},
		} {
			t.Run(c.name, func(t *testing.T) {
				dst := make([]uint16, len(src))
				c.to(p, dst, src)
				known := checked[c.name]
				for i, x := range src {
					if known == nil || dst[i] != known[i] {
						c.f.nearest(t, x, dst[i])
					}
				}
				checked[c.name] = dst
				wide := make([]float32, len(all))
				c.from(p, wide, all)
				for h, x := range wide {
					want := float32(c.f.value(uint16(h)))
					if want != want && x != x && math.Signbit(float64(x)) == (h>>15 == 1) {
						continue
					}
					if math.Float32bits(x) != math.Float32bits(want) {
						t.Fatalf("%#x became %g, want %g", h, x, want)
					}
				}
				for n := range 70 { // exactly n elements are written
					dst[n] = 0x1234
					c.to(nil, dst[:n], src[1000:])
					if wide[n] = 42; dst[n] != 0x1234 {
						t.Fatalf("%d elements: one more was written", n)
					}
					c.from(nil, wide[:n], all[20000:])
					if wide[n] != 42 {
						t.Fatalf("%d elements: one more was widened", n)
					}
				}
			})
		}
		got := append([]float32(nil), src...)
		roundBF16(got, got)
		for i, x := range src {
			if want := uint32(bf16(x)) << 16; math.Float32bits(got[i]) != want {
				t.Fatalf("%g (%#x) was rounded to %#x, want %#x", x, math.Float32bits(x), math.Float32bits(got[i]), want)
			}
		}
	})
}
