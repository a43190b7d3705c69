// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	wire "encoding/binary"
	"math"
	"math/bits"
	"unsafe"
)

// mergeBlockBytes is how much the portable merge completes before it goes on:
// what is accumulated stays in the first-level cache. It is a multiple of every
// unit of the assembly.
const mergeBlockBytes = 4 << 10

// number is an element that is computed with as it is.
type number interface {
	float32 | float64 | int64 | int32 | int8 | uint8
}

// mergeGo is the portable twin of the assembly: it merges the bytes [lo, hi).
func mergeGo(e Elem, m Merging, dsts, srcs [][]byte, lo, hi, divisor int) {
	into := accumulator(dsts, srcs)
	if into == nil {
		mergeAside(e, m, dsts, srcs, lo, hi, divisor)
		return
	}
	for at := lo; at < hi; at += mergeBlockBytes {
		end := min(at+mergeBlockBytes, hi)
		sum := into[at:end]
		mergeBlock(e, m, sum, srcs, at, end, divisor)
		for _, d := range dsts {
			if !same(d, into) {
				copy(d[at:end], sum)
			}
		}
	}
}

// accumulator returns a destination that can be written before the third source
// is read, nil if there is none.
func accumulator(dsts, srcs [][]byte) []byte {
	late := srcs[min(2, len(srcs)):]
	for _, d := range dsts {
		if !isOneOf(d, late) {
			return d
		}
	}
	return nil
}

func isOneOf(d []byte, srcs [][]byte) bool {
	for _, s := range srcs {
		if same(d, s) {
			return true
		}
	}
	return false
}

func same(a, b []byte) bool { return unsafe.SliceData(a) == unsafe.SliceData(b) }

// mergeAside merges in memory of its own.
func mergeAside(e Elem, m Merging, dsts, srcs [][]byte, lo, hi, divisor int) {
	var room [mergeBlockBytes / 8]uint64
	for at := lo; at < hi; at += mergeBlockBytes {
		end := min(at+mergeBlockBytes, hi)
		sum := unsafe.Slice((*byte)(unsafe.Pointer(&room)), end-at)
		mergeBlock(e, m, sum, srcs, at, end, divisor)
		for _, d := range dsts {
			copy(d[at:end], sum)
		}
	}
}

// mergeBlock merges the bytes [at, end) of the sources into sum, which may be
// that part of the first or the second.
func mergeBlock(e Elem, m Merging, sum []byte, srcs [][]byte, at, end, divisor int) {
	switch {
	case m >= MergeAnd:
		mergeBits(m, sum, srcs, at, end)
	case e == ElemFloat32:
		mergeNumbers[float32](m, sum, srcs, at, end, divisor)
	case e == ElemFloat64:
		mergeNumbers[float64](m, sum, srcs, at, end, divisor)
	case e == ElemInt64:
		mergeNumbers[int64](m, sum, srcs, at, end, divisor)
	case e == ElemInt32:
		mergeNumbers[int32](m, sum, srcs, at, end, divisor)
	case e == ElemInt8:
		mergeNumbers[int8](m, sum, srcs, at, end, divisor)
	case e == ElemUint8:
		mergeNumbers[uint8](m, sum, srcs, at, end, divisor)
	case end-at < 128:
		mergeFewHalves(e, m, sum, srcs, at, end, divisor)
	default:
		mergeHalves(e, m, sum, srcs, at, end, divisor)
	}
}

func mergeNumbers[T number](m Merging, sum []byte, srcs [][]byte, at, end, divisor int) {
	acc, first := elemsOf[T](sum), elemsOf[T](srcs[0][at:end])
	if len(srcs) == 1 {
		copy(acc, first)
	}
	for _, s := range srcs[1:] {
		mergeTwo(m, acc, first, elemsOf[T](s[at:end]))
		first = acc
	}
	if divisor != 1 {
		divide(acc, divisor)
	}
}

// mergeTwo computes dst = a ∘ b.
func mergeTwo[T number](m Merging, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch m {
	case MergeSum:
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	case MergeProduct:
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
	case MergeMin:
		for i := range dst {
			dst[i] = min(a[i], b[i])
		}
	case MergeMax:
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
	}
}

// divide computes x /= divisor, which need not be a number that T has.
func divide[T number](x []T, divisor int) {
	half := T(1)
	if half /= 2; half != 0 {
		for i := range x {
			x[i] /= T(divisor)
		}
		return
	}
	if unsafe.Sizeof(half) == 8 || divisor >= math.MaxInt32 {
		for i := range x {
			x[i] = T(int64(x[i]) / int64(divisor))
		}
		return
	}
	// With m = ⌈2⁶⁴/d⌉ and |x| ≤ 2³¹, m·|x|/2⁶⁴ exceeds |x|/d by less than
	// |x|/2⁶⁴, which is less than the 1/d that is missing to the next integer.
	m := math.MaxUint64/uint64(divisor) + 1
	for i := range x {
		v := int64(x[i])
		sign := v >> 63
		q, _ := bits.Mul64(m, uint64((v^sign)-sign))
		x[i] = T((int64(q) ^ sign) - sign)
	}
}

// mergeBits takes eight bytes at a time, for which it needs no alignment.
func mergeBits(m Merging, sum []byte, srcs [][]byte, at, end int) {
	first := srcs[0][at:end]
	if len(srcs) == 1 {
		copy(sum, first)
	}
	for _, s := range srcs[1:] {
		mergeTwoBits(m, sum, first, s[at:end])
		first = sum
	}
}

func mergeTwoBits(m Merging, dst, a, b []byte) {
	le, words := wire.LittleEndian, len(dst)&^7
	switch m {
	case MergeAnd:
		for i := 0; i < words; i += 8 {
			le.PutUint64(dst[i:], le.Uint64(a[i:])&le.Uint64(b[i:]))
		}
		for i := words; i < len(dst); i++ {
			dst[i] = a[i] & b[i]
		}
	case MergeOr:
		for i := 0; i < words; i += 8 {
			le.PutUint64(dst[i:], le.Uint64(a[i:])|le.Uint64(b[i:]))
		}
		for i := words; i < len(dst); i++ {
			dst[i] = a[i] | b[i]
		}
	case MergeXor:
		for i := 0; i < words; i += 8 {
			le.PutUint64(dst[i:], le.Uint64(a[i:])^le.Uint64(b[i:]))
		}
		for i := words; i < len(dst); i++ {
			dst[i] = a[i] ^ b[i]
		}
	}
}

// mergeFewHalves needs no room: it goes from element to element, not from source
// to source.
func mergeFewHalves(e Elem, m Merging, sum []byte, srcs [][]byte, at, end, divisor int) {
	dst, first := elemsOf[uint16](sum), elemsOf[uint16](srcs[0][at:end])
	for i := range dst {
		x := wide(e, first[i])
		for _, s := range srcs[1:] {
			x = mergeFloats(m, x, wide(e, elemsOf[uint16](s[at:end])[i]))
		}
		if divisor != 1 {
			x /= float32(divisor)
		}
		dst[i] = narrow(e, x)
	}
}

func wide(e Elem, h uint16) float32 {
	if e == ElemBFloat16 {
		return math.Float32frombits(uint32(h) << 16)
	}
	return fromF16Bits(h)
}

func narrow(e Elem, x float32) uint16 {
	if e == ElemBFloat16 {
		return bf16(x)
	}
	return f16(x)
}

func mergeFloats(m Merging, x, y float32) float32 {
	switch m {
	case MergeProduct:
		return x * y
	case MergeMin:
		return min(x, y)
	case MergeMax:
		return max(x, y)
	}
	return x + y
}

// mergeHalves accumulates in float32.
func mergeHalves(e Elem, m Merging, sum []byte, srcs [][]byte, at, end, divisor int) {
	var accRoom, nextRoom [256]float32
	dst := elemsOf[uint16](sum)
	for lo := 0; lo < len(dst); lo += len(accRoom) {
		hi := min(lo+len(accRoom), len(dst))
		acc, next := accRoom[:hi-lo], nextRoom[:hi-lo]
		for r, s := range srcs {
			to := next
			if r == 0 {
				to = acc
			}
			if src := elemsOf[uint16](s[at:end])[lo:hi]; e == ElemBFloat16 {
				fromBF16(to, src)
			} else {
				fromF16(to, src)
			}
			if r > 0 {
				mergeTwo(m, acc, acc, next)
			}
		}
		if divisor != 1 {
			divide(acc, divisor)
		}
		if e == ElemBFloat16 {
			toBF16(dst[lo:hi], acc)
		} else {
			toF16(dst[lo:hi], acc)
		}
	}
}
