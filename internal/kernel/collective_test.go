// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	wire "encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// mergeElem is a type of elements for the oracle: what its bits stand for, and
// what a number becomes in it.
type mergeElem struct {
	name  string
	elem  Elem
	float bool
	// Of floats: exact values, and rounding to the type after a calculation in
	// wide (float32, of which 16 bits make use, or float64).
	value func(bits uint64) float64
	bits  func(x float64) uint64
	wide  func(x float64) float64
	// Of integers: the number that bits stand for.
	integer func(bits uint64) int64
}

func float32Of(x float64) float64 { return float64(float32(x)) }

var mergeElems = []mergeElem{
	{name: "float32", elem: ElemFloat32, float: true, wide: float32Of,
		value: func(b uint64) float64 { return float64(math.Float32frombits(uint32(b))) },
		bits:  func(x float64) uint64 { return uint64(math.Float32bits(float32(x))) }},
	{name: "float64", elem: ElemFloat64, float: true, wide: func(x float64) float64 { return x },
		value: math.Float64frombits, bits: math.Float64bits},
	{name: "bfloat16", elem: ElemBFloat16, float: true, wide: float32Of,
		value: func(b uint64) float64 { return bf16Format.value(uint16(b)) },
		bits:  func(x float64) uint64 { return uint64(bf16(float32(x))) }},
	{name: "float16", elem: ElemFloat16, float: true, wide: float32Of,
		value: func(b uint64) float64 { return f16Format.value(uint16(b)) },
		bits:  func(x float64) uint64 { return uint64(f16(float32(x))) }},
	{name: "int64", elem: ElemInt64, integer: func(b uint64) int64 { return int64(b) }},
	{name: "int32", elem: ElemInt32, integer: func(b uint64) int64 { return int64(int32(b)) }},
	{name: "int8", elem: ElemInt8, integer: func(b uint64) int64 { return int64(int8(b)) }},
	{name: "uint8", elem: ElemUint8, integer: func(b uint64) int64 { return int64(uint8(b)) }},
}

var mergingNames = [numMergings]string{"sum", "product", "min", "max", "and", "or", "xor"}

func getElem(data []byte, size, i int) uint64 {
	var b [8]byte
	copy(b[:], data[i*size:(i+1)*size])
	return wire.LittleEndian.Uint64(b[:])
}

func putElem(data []byte, size, i int, bits uint64) {
	var b [8]byte
	wire.LittleEndian.PutUint64(b[:], bits)
	copy(data[i*size:], b[:size])
}

// oracle merges one element of every source. Two float32 added or multiplied in
// float64 and rounded give what float32 gives (Figueroa, When is double rounding
// innocuous, 1995).
func (e *mergeElem) oracle(m Merging, in []uint64, divisor int) uint64 {
	switch {
	case m >= MergeAnd:
		acc := in[0]
		for _, x := range in[1:] {
			switch m {
			case MergeAnd:
				acc &= x
			case MergeOr:
				acc |= x
			case MergeXor:
				acc ^= x
			}
		}
		return acc
	case e.float:
		acc := e.value(in[0])
		for _, b := range in[1:] {
			switch x := e.value(b); m {
			case MergeSum:
				acc = e.wide(acc + x)
			case MergeProduct:
				acc = e.wide(acc * x)
			case MergeMin:
				acc = min(acc, x)
			case MergeMax:
				acc = max(acc, x)
			}
		}
		return e.bits(e.wide(acc / float64(divisor)))
	}
	acc := e.integer(in[0])
	for _, b := range in[1:] {
		switch x := e.integer(b); m {
		case MergeSum:
			acc = e.integer(uint64(acc + x))
		case MergeProduct:
			acc = e.integer(uint64(acc * x))
		case MergeMin:
			acc = min(acc, x)
		case MergeMax:
			acc = max(acc, x)
		}
	}
	return uint64(acc / int64(divisor))
}

// randomElem gives common numbers, and now and then zeros of both signs, the
// smallest and greatest, infinities, NaN, or any bits.
func (e *mergeElem) randomElem(rng *rand.Rand) uint64 {
	if !e.float {
		if rng.IntN(3) == 0 {
			return uint64(int64(rng.IntN(20)) - 10)
		}
		return rng.Uint64()
	}
	switch rng.IntN(24) {
	case 0:
		return e.bits(math.Copysign(0, -1))
	case 1:
		return e.bits(0)
	case 2:
		return e.bits(math.Inf(1))
	case 3:
		return e.bits(math.Inf(-1))
	case 4:
		return e.bits(math.NaN())
	case 5:
		return e.bits(math.Float64frombits(rng.Uint64()))
	case 6, 7:
		return rng.Uint64() >> (64 - 8*elemSizes[e.elem])
	}
	return e.bits((rng.Float64() - 0.5) * 8)
}

func (e *mergeElem) equal(a, b uint64) bool {
	mask := ^uint64(0) >> (64 - 8*elemSizes[e.elem])
	if a&mask == b&mask {
		return true
	}
	return e.float && math.IsNaN(e.value(a&mask)) && math.IsNaN(e.value(b&mask))
}

// mergeCase is what TestMerge does with one set of slices.
type mergeCase struct {
	numSrcs, numOther int   // sources, and destinations that are none of them
	places            []int // the sources that are destinations too
	divisor           int
}

var mergeCases = []mergeCase{
	{1, 1, nil, 1}, {1, 0, []int{0}, 3},
	{2, 0, []int{0}, 1}, {2, 0, []int{1}, 1}, {2, 1, nil, 2}, {2, 0, []int{0, 1}, 2},
	{3, 0, []int{2}, 3}, {3, 1, []int{2, 0}, 1}, {3, 0, []int{2, 1, 0}, 7},
	{4, 0, []int{0, 1, 2, 3}, 4}, {5, 2, []int{4}, 300}, {8, 1, nil, 8}, {8, 0, []int{7}, 1},
	{17, 0, []int{3, 16}, 17},
}

// TestMerge holds every type and merging against the oracle on every
// instruction set: tails, starts that are aligned to elements only, sources that
// are destinations, nothing written beside them.
func TestMerge(t *testing.T) {
	lengths := []int{1, 2, 7, 15, 16, 31, 33, 64, 127, 200, 515, 2077}
	if testing.Short() {
		lengths = []int{1, 7, 33, 515}
	}
	forEachISA(t, func(t *testing.T) {
		for i := range mergeElems {
			e := &mergeElems[i]
			for m := range numMergings {
				t.Run(e.name+"/"+mergingNames[m], func(t *testing.T) {
					rng := rand.New(rand.NewPCG(testSeed, uint64(m)))
					for _, c := range mergeCases {
						for _, n := range lengths {
							e.check(t, rng, m, c, n)
						}
					}
				})
			}
		}
	})
}

// mergeSlice is a slice within room that must stay as it is around it.
type mergeSlice struct {
	room, before []byte
	at           int
	data         []byte
	written      bool
}

func (e *mergeElem) check(t *testing.T, rng *rand.Rand, m Merging, c mergeCase, n int) {
	t.Helper()
	if m != MergeSum {
		c.divisor = 1
	}
	const guard = 64
	size := elemSizes[e.elem]
	slices := make([]mergeSlice, c.numSrcs+c.numOther)
	var srcs, dsts [][]byte
	for i := range slices {
		s := &slices[i]
		s.room, s.at = make([]byte, (n+guard)*size), rng.IntN(guard)*size
		for j := range n + guard {
			putElem(s.room, size, j, e.randomElem(rng))
		}
		s.before = bytes.Clone(s.room)
		s.data = s.room[s.at : s.at+n*size]
		if i < c.numSrcs {
			srcs = append(srcs, s.data)
		} else {
			dsts, s.written = append(dsts, s.data), true
		}
	}
	for _, p := range c.places {
		dsts, slices[p].written = append(dsts, slices[p].data), true
	}
	in, want := make([]uint64, c.numSrcs), make([]uint64, n)
	for j := range want {
		for i, s := range srcs {
			in[i] = getElem(s, size, j)
		}
		want[j] = e.oracle(m, in, c.divisor)
	}
	Merge(e.elem, m, dsts, srcs, c.divisor, rng.IntN(2) == 0)
	what := fmt.Sprintf("%s %s of %d elements, %+v", e.name, mergingNames[m], n, c)
	for _, d := range dsts {
		for j := range n {
			if got := getElem(d, size, j); !e.equal(got, want[j]) {
				for i := range slices[:c.numSrcs] {
					in[i] = getElem(slices[i].before[slices[i].at:], size, j)
				}
				t.Fatalf("%s: element %d is %#x of %#x, want %#x", what, j, got, in, want[j])
			}
		}
	}
	for i, s := range slices {
		if s.written {
			copy(s.data, s.before[s.at:])
		}
		if !bytes.Equal(s.room, s.before) {
			t.Fatalf("%s: slice %d changed where it must not", what, i)
		}
	}
}

// TestMergeLong crosses the borders of calls, and writes past the caches to
// what begins within a line.
func TestMergeLong(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed, 5))
	n := mergeCallBytes + 100_002
	room, a, b := make([]byte, n+102), make([]byte, n), make([]byte, n)
	for i := range a {
		a[i], b[i] = byte(rng.Uint32()), byte(rng.Uint32())
	}
	forEachISA(t, func(t *testing.T) {
		for i := range mergeElems {
			e := &mergeElems[i]
			for _, at := range []int{0, 24} {
				clear(room)
				size := elemSizes[e.elem]
				dst := room[at : at+n/size*size]
				Merge(e.elem, MergeMin, [][]byte{dst}, [][]byte{a, b}, 1, true)
				for j := 0; j < n/size; j += 1 + rng.IntN(200) {
					want := e.oracle(MergeMin, []uint64{getElem(a, size, j), getElem(b, size, j)}, 1)
					if got := getElem(dst, size, j); !e.equal(got, want) {
						t.Fatalf("%s at %d: element %d is %#x, want %#x", e.name, at, j, got, want)
					}
				}
				for j, x := range room {
					if x != 0 && (j < at || j >= at+len(dst)) {
						t.Fatalf("%s at %d: byte %d of %d was written", e.name, at, j, len(dst))
					}
				}
			}
			// The same bits as in place, which is in the caches.
			size := elemSizes[e.elem]
			dst, again := room[8:8+n/size*size], bytes.Clone(a)
			Merge(e.elem, MergeSum, [][]byte{dst}, [][]byte{a, b}, 1, true)
			Merge(e.elem, MergeSum, [][]byte{again}, [][]byte{again, b}, 1, false)
			for j := range n / size {
				if got, want := getElem(dst, size, j), getElem(again, size, j); got != want && !e.equal(got, want) {
					t.Fatalf("%s: element %d is %#x, %#x in place", e.name, j, got, want)
				}
			}
		}
	})
}

// TestMergeAllocatesNothing: neither slices of slices nor room for sums.
func TestMergeAllocatesNothing(t *testing.T) {
	a, b, c := make([]byte, 4004), make([]byte, 4004), make([]byte, 4004)
	forEachISA(t, func(t *testing.T) {
		for _, e := range mergeElems {
			if got := testing.AllocsPerRun(10, func() {
				dsts, srcs := [2][]byte{c, b}, [3][]byte{a, b, c}
				Merge(e.elem, MergeSum, dsts[:], srcs[:], 3, false)
				Merge(e.elem, MergeMax, dsts[:1], srcs[:2], 1, true)
				if e.float {
					Premultiply(e.elem, a, a, 1)
				}
			}); got != 0 {
				t.Errorf("%s: %v allocations", e.name, got)
			}
		}
	})
}

// TestPremultiply: one rounding of factor·x.
func TestPremultiply(t *testing.T) {
	const factor = 0.3
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 6))
		for i := range mergeElems {
			e := &mergeElems[i]
			if !e.float {
				continue
			}
			size := elemSizes[e.elem]
			for _, n := range []int{0, 1, 31, 100, 1111} {
				src := make([]byte, n*size)
				for j := range n {
					putElem(src, size, j, e.randomElem(rng))
				}
				dst := make([]byte, n*size)
				Premultiply(e.elem, dst, src, factor)
				for j := range n {
					x := getElem(src, size, j)
					want := e.bits(e.wide(e.value(x) * float64(float32(factor))))
					if got := getElem(dst, size, j); !e.equal(got, want) {
						t.Fatalf("%s: %#x became %#x, want %#x", e.name, x, got, want)
					}
				}
				Premultiply(e.elem, src, src, factor)
				if !bytes.Equal(src, dst) {
					t.Fatalf("%s: in place, something else", e.name)
				}
			}
		}
	})
}
