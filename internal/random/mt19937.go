// SPDX-License-Identifier: Apache-2.0

// Package random holds the two generators that everything random in Cohort
// comes from. There is no package-level generator: a generator is a value that
// its user owns, seeds, and saves.
//
// [MT] is the Mersenne Twister as PyTorch's CPU generator uses it. It exists
// for equality: a permutation, a DistributedSampler's order, rand and uniform
// initialisation have the same bits as PyTorch's for the same seed. It is a
// stream, so what a draw gives depends on every draw before it.
//
// [Philox] is counter-based: an element is a pure function of (key, stream,
// index). Dropout masks and bulk normals come from it, because their values
// then depend neither on the number of threads nor on how ranks share the
// work, and resuming needs no state beyond the step number. Its values are the
// same on every architecture.
//
// An MT must not be used by two goroutines at once. A Philox is an immutable
// value and may be used by any number.
package random

import (
	"encoding/binary"
	"fmt"
	"math"
)

const (
	mtWords  = 624
	mtShift  = 397
	mtMatrix = 0x9908b0df
	mtUpper  = 0x80000000
	mtLower  = 0x7fffffff

	// permWide is the length from which PyTorch's randperm draws 64-bit
	// numbers and shuffles inside out.
	permWide = math.MaxUint32 / 20

	// intWide is the range from which PyTorch's randint draws 64-bit numbers.
	// (Version 1.13 changed over at 2^32; this is the limit of the 2.x series.)
	intWide = 1 << 28

	stateMagic = 0x3931544d // "MT19", little-endian
	stateSize  = 4 + 4 + 4*mtWords
)

// MT is a 32-bit Mersenne Twister (MT19937) with the seeding and the
// conversions of PyTorch's CPU generator. Make one with [NewMT]; the zero
// value panics when drawn from.
type MT struct {
	words [mtWords]uint32
	next  int // words already handed out; mtWords means twist first
	ready bool
}

// NewMT returns a generator equal to torch.Generator().manual_seed(seed). Only
// the low 32 bits of seed count, as in PyTorch, so that a negative seed is
// its two's complement. To use an unsigned 64-bit seed, convert it to int64.
func NewMT(seed int64) *MT {
	g := &MT{next: mtWords, ready: true}
	g.words[0] = uint32(uint64(seed))
	for i := 1; i < mtWords; i++ {
		prev := g.words[i-1]
		g.words[i] = 1812433253*(prev^(prev>>30)) + uint32(i)
	}
	return g
}

func (g *MT) twist() {
	if !g.ready {
		panic("random: MT used before NewMT or SetState")
	}
	w := &g.words
	for i := 0; i < mtWords-mtShift; i++ {
		w[i] = w[i+mtShift] ^ mix(w[i], w[i+1])
	}
	for i := mtWords - mtShift; i < mtWords-1; i++ {
		w[i] = w[i+mtShift-mtWords] ^ mix(w[i], w[i+1])
	}
	w[mtWords-1] = w[mtShift-1] ^ mix(w[mtWords-1], w[0])
	g.next = 0
}

func mix(a, b uint32) uint32 {
	y := a&mtUpper | b&mtLower
	return y>>1 ^ -(y&1)&mtMatrix
}

// Uint32 returns the next word of the stream.
func (g *MT) Uint32() uint32 {
	if g.next >= mtWords || !g.ready {
		g.twist()
	}
	y := g.words[g.next]
	g.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// Uint64 returns two words of the stream, the first one in the high half.
func (g *MT) Uint64() uint64 {
	hi := uint64(g.Uint32())
	return hi<<32 | uint64(g.Uint32())
}

// Int63 is torch.empty((), dtype=torch.int64).random_(): uniform over the
// non-negative 64-bit integers. PyTorch's samplers and loaders draw their
// seeds so.
func (g *MT) Int63() int64 { return int64(g.Uint64() & math.MaxInt64) }

// Float32 is one element of torch.rand in float32: 24 bits in [0, 1).
func (g *MT) Float32() float32 { return unit24(g.Uint32()) }

// Float64 is one element of torch.rand in float64: 53 bits in [0, 1).
func (g *MT) Float64() float64 {
	return float64(g.Uint64()&(1<<53-1)) * (1.0 / (1 << 53))
}

// IntN is one element of torch.randint(n): the stream modulo n, in [0, n). It
// panics if n is not positive.
func (g *MT) IntN(n int64) int64 {
	if n <= 0 {
		panic(fmt.Sprintf("random: IntN(%d): the range must be positive", n))
	}
	if n >= intWide {
		return int64(g.Uint64() % uint64(n))
	}
	return int64(g.Uint32() % uint32(n))
}

// Perm is torch.randperm(n): a permutation of 0..n-1. It panics if n is
// negative.
func (g *MT) Perm(n int) []int {
	if n < 0 {
		panic(fmt.Sprintf("random: Perm(%d): the length must not be negative", n))
	}
	r := make([]int, n)
	if n >= permWide {
		g.permWide(r)
		return r
	}
	for i := range r {
		r[i] = i
	}
	for i := 0; i < n-1; i++ {
		z := int(g.Uint32() % uint32(n-i))
		r[i], r[i+z] = r[i+z], r[i]
	}
	return r
}

func (g *MT) permWide(r []int) {
	for i := range r {
		z := int(g.Uint64() % uint64(i+1))
		r[i] = r[z] // i itself when z == i: overwritten on the next line
		r[z] = i
	}
}

// Uniform fills dst as torch's uniform_(lo, hi) does on a CPU with fused
// multiply-add (AVX2, AVX-512, arm64): lo + u·(hi-lo) rounded once.
func (g *MT) Uniform(dst []float32, lo, hi float32) {
	width := hi - lo
	for i := range dst {
		dst[i] = fma32(unit24(g.Uint32()), width, lo)
	}
}

// Skip passes over the next n words of the stream, in about a fifth of the time that
// drawing numbers of them takes.
func (g *MT) Skip(n int) {
	for n > 0 {
		if g.next >= mtWords || !g.ready {
			g.twist()
		}
		k := min(n, mtWords-g.next)
		g.next += k
		n -= k
	}
}

// State returns everything that decides the draws to come, for a checkpoint.
func (g *MT) State() []byte {
	b := make([]byte, 0, stateSize)
	b = binary.LittleEndian.AppendUint32(b, stateMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(g.next))
	for _, w := range g.words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// SetState takes up a state that [MT.State] returned. On error the generator
// is as it was.
func (g *MT) SetState(state []byte) error {
	if len(state) != stateSize {
		return fmt.Errorf("random: generator state is %d bytes long, want %d: is this a state saved by MT.State?", len(state), stateSize)
	}
	if m := binary.LittleEndian.Uint32(state); m != stateMagic {
		return fmt.Errorf("random: generator state begins with %#08x, want %#08x: is this a state saved by MT.State?", m, stateMagic)
	}
	next := binary.LittleEndian.Uint32(state[4:])
	if next > mtWords {
		return fmt.Errorf("random: generator state has position %d, want 0..%d: the state is damaged", next, mtWords)
	}
	for i := range g.words {
		g.words[i] = binary.LittleEndian.Uint32(state[8+4*i:])
	}
	g.next, g.ready = int(next), true
	return nil
}

// unit24 maps a word to [0, 1) by its low 24 bits, as PyTorch does.
func unit24(w uint32) float32 { return float32(w&(1<<24-1)) * (1.0 / (1 << 24)) }

// fma32 is x·y+z rounded once to float32. The product of two float32 is exact
// in float64; the sum is not always, and rounding it to nearest there and once
// more to float32 could differ in the last bit. So the float64 sum is rounded
// to odd, which keeps the second rounding right.
func fma32(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	if math.IsInf(s, 0) || math.IsNaN(s) {
		return float32(s)
	}
	// The exact error of the sum (Knuth's TwoSum).
	pp := s - c
	e := (p - pp) + (c - (s - pp))
	if e == 0 {
		return float32(s)
	}
	b := math.Float64bits(s)
	if b&1 == 0 {
		if (e > 0) == (s > 0) {
			b++
		} else {
			b--
		}
	}
	return float32(math.Float64frombits(b))
}
