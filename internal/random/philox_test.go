// SPDX-License-Identifier: Apache-2.0

package random

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"testing"
)

// The known answers that Random123 publishes for philox4x32 with ten rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		block, stream, key uint64
		want               [4]uint32
	}{
		{0, 0, 0, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x85a308d3_243f6a88, 0x03707344_13198a2e, 0x299f31d0_a4093822, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := (Philox{Key: c.key}).Block(c.stream, c.block); got != c.want {
			t.Errorf("block %#x of stream %#x, key %#x = %08x, want %08x", c.block, c.stream, c.key, got, c.want)
		}
	}
}

// Any way of cutting a range gives the same elements.
func TestPhiloxIsAFunctionOfTheIndex(t *testing.T) {
	const n, offset = 103, 1<<34 - 50
	p := Philox{Key: 77}
	words := make([]uint32, n)
	p.Uint32s(words, 5, offset)
	normal := make([]float32, n)
	p.Normal(normal, 5, offset, 0.5, 2)
	uniform := make([]float32, n)
	p.Uniform(uniform, 5, offset, -1, 3)
	for cut := range n + 1 {
		w, z, u := make([]uint32, n), make([]float32, n), make([]float32, n)
		p.Uint32s(w[:cut], 5, offset)
		p.Uint32s(w[cut:], 5, offset+uint64(cut))
		p.Normal(z[:cut], 5, offset, 0.5, 2)
		p.Normal(z[cut:], 5, offset+uint64(cut), 0.5, 2)
		p.Uniform(u[:cut], 5, offset, -1, 3)
		p.Uniform(u[cut:], 5, offset+uint64(cut), -1, 3)
		if !slices.Equal(w, words) || !slices.Equal(z, normal) || !slices.Equal(u, uniform) {
			t.Fatalf("cut at %d changes the elements", cut)
		}
	}
	for i, want := range normal {
		if got := p.NormalAt(5, offset+uint64(i), 0.5, 2); got != want {
			t.Fatalf("NormalAt(%d) = %v, want %v", i, got, want)
		}
	}
	other := make([]uint32, n)
	p.Uint32s(other, 6, offset)
	if slices.Equal(other, words) {
		t.Error("two streams are equal")
	}
}

// boxMuller's own logarithm, sine and cosine against math's.
func TestBoxMullerAgainstMath(t *testing.T) {
	check := func(a, b uint32) {
		t.Helper()
		r := math.Sqrt(-2 * math.Log((float64(a)+1)/(1<<32)))
		sin, cos := math.Sincos(2 * math.Pi * float64(b) / (1 << 32))
		x, y := boxMuller(a, b)
		if math.Abs(x-r*cos) > 1e-8*r || math.Abs(y-r*sin) > 1e-8*r {
			t.Fatalf("boxMuller(%#x, %#x) = %v, %v, want %v, %v", a, b, x, y, r*cos, r*sin)
		}
	}
	edges := []uint32{0, 1, 1<<29 - 1, 1 << 29, 1<<29 + 1, 1<<30 - 1, 1 << 30, 3 << 29, 1<<31 - 1, 1 << 31, 5 << 29, 3 << 30, 7 << 29, 7<<29 - 1, math.MaxUint32 - 1, math.MaxUint32}
	for _, a := range edges {
		for _, b := range edges {
			check(a, b)
		}
	}
	w := make([]uint32, 40_000)
	Philox{Key: 3}.Uint32s(w, 0, 0)
	for i := 0; i < len(w); i += 2 {
		check(w[i], w[i+1])
	}
}

func TestNormalMoments(t *testing.T) {
	const n = 1 << 20
	x := make([]float32, n)
	Philox{Key: 1}.Normal(x, 0, 0, 0, 1)
	var m1, m2, m3, m4, lag float64
	for i, v := range x {
		z := float64(v)
		m1, m2, m3, m4 = m1+z, m2+z*z, m3+z*z*z, m4+z*z*z*z
		if i > 0 {
			lag += z * float64(x[i-1])
		}
	}
	for _, c := range []struct {
		name            string
		got, want, step float64 // step is one standard error
	}{
		{"mean", m1 / n, 0, 1.0 / 1024}, {"variance", m2 / n, 1, math.Sqrt2 / 1024}, {"third moment", m3 / n, 0, math.Sqrt(15) / 1024},
		{"fourth moment", m4 / n, 3, math.Sqrt(96) / 1024}, {"lag 1", lag / n, 0, 1.0 / 1024},
	} {
		if math.Abs(c.got-c.want) > 4*c.step {
			t.Errorf("%s = %v, want %v", c.name, c.got, c.want)
		}
	}
}

// The values are promised to be the same on every architecture and in every
// version: a checkpointed run must go on with the same dropout.
func TestPhiloxValuesNeverChange(t *testing.T) {
	x := make([]float32, 1<<16)
	h := sha256.New()
	Philox{Key: 12345}.Normal(x, 9, 3, 0.1, 0.02)
	_ = binary.Write(h, binary.LittleEndian, x)
	Philox{Key: 12345}.Uniform(x, 9, 3, -0.1, 0.3)
	_ = binary.Write(h, binary.LittleEndian, x)
	const want = "5bed6998be980092531a6c7bf26450a66b295f01005695bc2e2bda283f0b1e92"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("SHA-256 of the values = %s, want %s", got, want)
	}
}

func TestFillsDoNotAllocate(t *testing.T) {
	x := make([]float32, 1001)
	g, p := NewMT(1), Philox{Key: 1}
	if n := testing.AllocsPerRun(10, func() {
		g.Uniform(x, 0, 1)
		p.Uniform(x, 1, 1, 0, 1)
		p.Normal(x, 1, 1, 0, 1)
	}); n != 0 {
		t.Errorf("%v allocations a run", n)
	}
}

func BenchmarkPhiloxNormal(b *testing.B) {
	x := make([]float32, 1<<16)
	b.SetBytes(4 << 16)
	for b.Loop() {
		Philox{Key: 1}.Normal(x, 0, 0, 0, 1)
	}
}

func BenchmarkPhiloxUniform(b *testing.B) {
	x := make([]float32, 1<<16)
	b.SetBytes(4 << 16)
	for b.Loop() {
		Philox{Key: 1}.Uniform(x, 0, 0, 0, 1)
	}
}
