// SPDX-License-Identifier: Apache-2.0

package random

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

//go:embed testdata/golden.json
var goldenJSON []byte

// golden is what testdata/golden.py wrote.
type golden struct {
	Seeds []struct {
		Seed           string            `json:"seed"`
		RandBits       []uint32          `json:"rand_bits"`
		RandSHA        string            `json:"rand_sha256_2000"`
		Rand64         []string          `json:"rand64"`
		RandInt        []int64           `json:"randint_1000"`
		RandIntWide    []int64           `json:"randint_wide"`
		RandInt28      []int64           `json:"randint_2_28"`
		RandInt28Below []int64           `json:"randint_2_28_less"`
		RandomInt64    []int64           `json:"random_int64"`
		Mixed          []json.RawMessage `json:"mixed"`
	} `json:"seeds"`
	Perms []struct {
		Seed string `json:"seed"`
		N    int    `json:"n"`
		Head []int  `json:"head"`
		SHA  string `json:"sha256"`
	} `json:"perms"`
	Uniforms []struct {
		Seed   string   `json:"seed"`
		N      int      `json:"n"`
		LoBits uint32   `json:"lo_bits"`
		HiBits uint32   `json:"hi_bits"`
		Head   []uint32 `json:"head"`
		SHA    string   `json:"sha256"`
	} `json:"uniforms"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	var g golden
	if err := json.Unmarshal(goldenJSON, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func parseSeed(t *testing.T, s string) int64 {
	t.Helper()
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func floatBits(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i, v := range x {
		b[i] = math.Float32bits(v)
	}
	return b
}

func digest32(x []float32) string {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, x)
	return hex.EncodeToString(h.Sum(nil))
}

func TestSpecVectors(t *testing.T) {
	g := NewMT(7)
	for i, want := range []float32{0.53492254, 0.19880319, 0.65921170} {
		if got := g.Float32(); math.Abs(float64(got-want)) > 5e-9 {
			t.Errorf("rand %d = %v, want %v", i, got, want)
		}
	}
	g = NewMT(7)
	for i, want := range []int64{615, 892, 721, 286, 283} {
		if got := g.IntN(1000); got != want {
			t.Errorf("randint %d = %v, want %v", i, got, want)
		}
	}
	// The reference implementation's first word for its usual seed.
	if got := NewMT(5489).Uint32(); got != 3499211612 {
		t.Errorf("first word of seed 5489 = %d, want 3499211612", got)
	}
}

func TestAgainstPyTorch(t *testing.T) {
	for _, e := range readGolden(t).Seeds {
		seed := parseSeed(t, e.Seed)
		fill := func(n int) []float32 {
			g, x := NewMT(seed), make([]float32, n)
			for i := range x {
				x[i] = g.Float32()
			}
			return x
		}
		if got := floatBits(fill(8)); !slices.Equal(got, e.RandBits) {
			t.Errorf("seed %d: rand = %x, want %x", seed, got, e.RandBits)
		}
		if got := digest32(fill(2000)); got != e.RandSHA {
			t.Errorf("seed %d: 2000 numbers differ from PyTorch's", seed)
		}
		g := NewMT(seed)
		for i, s := range e.Rand64 {
			want, err := strconv.ParseFloat(s, 64)
			if err != nil {
				t.Fatal(err)
			}
			if got := g.Float64(); got != want {
				t.Errorf("seed %d: rand float64 %d = %v, want %v", seed, i, got, want)
			}
		}
		ints := func(n int, draw func(*MT) int64) []int64 {
			g, x := NewMT(seed), make([]int64, n)
			for i := range x {
				x[i] = draw(g)
			}
			return x
		}
		for _, c := range []struct {
			op   string
			want []int64
			draw func(*MT) int64
		}{
			{"randint(1000)", e.RandInt, func(g *MT) int64 { return g.IntN(1000) }},
			{"randint(10^12)", e.RandIntWide, func(g *MT) int64 { return g.IntN(1e12) }},
			{"randint(2^28)", e.RandInt28, func(g *MT) int64 { return g.IntN(1 << 28) }},
			{"randint(2^28-1)", e.RandInt28Below, func(g *MT) int64 { return g.IntN(1<<28 - 1) }},
			{"random_()", e.RandomInt64, (*MT).Int63},
		} {
			if got := ints(len(c.want), c.draw); !slices.Equal(got, c.want) {
				t.Errorf("seed %d: %s = %d, want %d", seed, c.op, got, c.want)
			}
		}
		// 623 numbers, then a permutation over the edge of the first 624 words.
		g = NewMT(seed)
		for range 623 {
			g.Float32()
		}
		var perm5, perm7 []int
		var bits3 []uint32
		for i, p := range []any{&perm5, &bits3, &perm7} {
			if err := json.Unmarshal(e.Mixed[i], p); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.Perm(5); !slices.Equal(got, perm5) {
			t.Errorf("seed %d: mixed permutation = %d, want %d", seed, got, perm5)
		}
		if got := floatBits([]float32{g.Float32(), g.Float32(), g.Float32()}); !slices.Equal(got, bits3) {
			t.Errorf("seed %d: mixed rand = %x, want %x", seed, got, bits3)
		}
		if got := g.Perm(7); !slices.Equal(got, perm7) {
			t.Errorf("seed %d: second mixed permutation = %d, want %d", seed, got, perm7)
		}
	}
}

func TestPermAgainstPyTorch(t *testing.T) {
	for _, e := range readGolden(t).Perms {
		p := NewMT(parseSeed(t, e.Seed)).Perm(e.N)
		if got := p[:len(e.Head)]; !slices.Equal(got, e.Head) {
			t.Errorf("randperm(%d) of seed %s begins %d, want %d", e.N, e.Seed, got, e.Head)
		}
		h := sha256.New()
		wide := make([]int64, len(p))
		for i, v := range p {
			wide[i] = int64(v)
		}
		_ = binary.Write(h, binary.LittleEndian, wide)
		if got := hex.EncodeToString(h.Sum(nil)); got != e.SHA {
			t.Errorf("randperm(%d) of seed %s differs from PyTorch's", e.N, e.Seed)
		}
	}
}

func TestUniformAgainstPyTorch(t *testing.T) {
	for _, e := range readGolden(t).Uniforms {
		x := make([]float32, e.N)
		lo, hi := math.Float32frombits(e.LoBits), math.Float32frombits(e.HiBits)
		NewMT(parseSeed(t, e.Seed)).Uniform(x, lo, hi)
		if got := floatBits(x[:len(e.Head)]); !slices.Equal(got, e.Head) {
			t.Errorf("uniform_(%v, %v) begins %x, want %x", lo, hi, got, e.Head)
		}
		if got := digest32(x); got != e.SHA {
			t.Errorf("%d numbers of uniform_(%v, %v) differ from PyTorch's", e.N, lo, hi)
		}
	}
}

func TestPermWideIsAPermutation(t *testing.T) {
	p := make([]int, 1000)
	NewMT(1).permWide(p)
	if slices.IsSorted(p) {
		t.Error("not shuffled")
	}
	slices.Sort(p)
	for i, v := range p {
		if i != v {
			t.Fatalf("element %d of the sorted permutation is %d", i, v)
		}
	}
}

func TestStateRoundTrip(t *testing.T) {
	for _, before := range []int{0, 1, 623, 624, 625, 2000} {
		g := NewMT(99)
		for range before {
			g.Uint32()
		}
		var h MT
		if err := h.SetState(g.State()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(g.State(), h.State()) {
			t.Fatalf("state changed on the way, %d draws in", before)
		}
		for i := range 1500 {
			if a, b := g.Uint32(), h.Uint32(); a != b {
				t.Fatalf("%d draws in, draw %d after the state = %d, want %d", before, i, b, a)
			}
		}
	}
}

func TestSetStateRefusesDamage(t *testing.T) {
	good := NewMT(1).State()
	magic := slices.Clone(good)
	magic[0]++
	position := slices.Clone(good)
	position[5] = 0xff
	for name, bad := range map[string][]byte{"empty": nil, "short": good[:100], "long": append(slices.Clone(good), 0), "magic": magic, "position": position} {
		g := NewMT(5)
		if err := g.SetState(bad); err == nil {
			t.Errorf("%s state accepted", name)
		}
		if g.Uint32() != NewMT(5).Uint32() {
			t.Errorf("%s state changed the generator", name)
		}
	}
}

func FuzzSetState(f *testing.F) {
	f.Add(NewMT(3).State())
	f.Add([]byte("MT19"))
	f.Fuzz(func(t *testing.T, state []byte) {
		g := NewMT(1)
		if g.SetState(state) == nil {
			for range 700 {
				g.Uint32()
			}
		}
	})
}

func TestZeroMTPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("drawing from a zero MT did not panic")
		}
	}()
	var g MT
	g.Uint32()
}

// TestFMA32 compares with exact arithmetic, on numbers chosen so that rounding
// twice would often be wrong: sums close to the middle between two float32.
func TestFMA32(t *testing.T) {
	const seed = 20
	r := rand.New(rand.NewPCG(seed, 0))
	naive := 0
	for range 200_000 {
		x := float32(r.IntN(1<<24)) * (1.0 / (1 << 24))
		y := math.Float32frombits(r.Uint32()&(1<<23-1) | uint32(97+r.IntN(60))<<23)
		z := math.Float32frombits(r.Uint32()&(1<<31|1<<23-1) | uint32(97+r.IntN(60))<<23)
		if r.IntN(3) == 0 { // half-way but for a tiny rest
			k := float32(1+r.IntN(8)) * 0x1p-23
			x, y = 1+k, (1-k)*0x1p-24
			z = 1 + float32(r.IntN(1<<23))*0x1p-23
			if r.IntN(2) == 0 {
				y, z = -y, -z
			}
		}
		exact := new(big.Float).SetPrec(400).SetFloat64(float64(x) * float64(y))
		exact.Add(exact, big.NewFloat(float64(z)))
		want, _ := exact.Float32()
		got := fma32(x, y, z)
		if got != want {
			t.Fatalf("seed %d: fma32(%x, %x, %x) = %x, want %x", seed, x, y, z, got, want)
		}
		if float32(float64(x)*float64(y)+float64(z)) != want {
			naive++
		}
	}
	if naive == 0 {
		t.Error("no case in which rounding twice is wrong: the test shows nothing")
	}
}

func BenchmarkPerm(b *testing.B) {
	for b.Loop() {
		NewMT(1).Perm(100_000)
	}
}

func BenchmarkMTUniform(b *testing.B) {
	g, x := NewMT(1), make([]float32, 1<<16)
	b.SetBytes(4 << 16)
	for b.Loop() {
		g.Uniform(x, -0.1, 0.1)
	}
}
