// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"encoding/binary"
	"math"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/half"
)

// decoder returns the function that gives the values of elements, and the bytes of an
// element; nil for a dtype whose elements are not whole bytes, or are pairs of numbers
// with a scale elsewhere. A complex number is two values.
func decoder(d safetensors.DType) (decode func(dst []float64, b []byte), size int) {
	each := func(size int, value func(b []byte) float64) (func([]float64, []byte), int) {
		return func(dst []float64, b []byte) {
			for i := range dst {
				dst[i] = value(b[i*size:])
			}
		}, size
	}
	le := binary.LittleEndian
	switch d {
	case safetensors.F32, safetensors.C64:
		return func(dst []float64, b []byte) {
			for i := range dst {
				dst[i] = float64(math.Float32frombits(le.Uint32(b[4*i:])))
			}
		}, 4
	case safetensors.BF16:
		return func(dst []float64, b []byte) {
			for i := range dst {
				dst[i] = float64(half.FromBFloat16(le.Uint16(b[2*i:])))
			}
		}, 2
	case safetensors.F16:
		return each(2, func(b []byte) float64 { return float64(half.FromFloat16(le.Uint16(b))) })
	case safetensors.F64:
		return each(8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) })
	case safetensors.I64:
		return each(8, func(b []byte) float64 { return float64(int64(le.Uint64(b))) })
	case safetensors.U64:
		return each(8, func(b []byte) float64 { return float64(le.Uint64(b)) })
	case safetensors.I32:
		return each(4, func(b []byte) float64 { return float64(int32(le.Uint32(b))) })
	case safetensors.U32:
		return each(4, func(b []byte) float64 { return float64(le.Uint32(b)) })
	case safetensors.I16:
		return each(2, func(b []byte) float64 { return float64(int16(le.Uint16(b))) })
	case safetensors.U16:
		return each(2, func(b []byte) float64 { return float64(le.Uint16(b)) })
	case safetensors.I8:
		return each(1, func(b []byte) float64 { return float64(int8(b[0])) })
	case safetensors.U8, safetensors.Bool:
		return each(1, func(b []byte) float64 { return float64(b[0]) })
	case safetensors.F8E4M3:
		return each(1, func(b []byte) float64 { return eightBits(b[0], 3, 7, false) })
	case safetensors.F8E5M2:
		return each(1, func(b []byte) float64 { return eightBits(b[0], 2, 15, true) })
	}
	return nil, 0
}

// eightBits is a number with a sign, an exponent and a mantissa of m bits. With
// infinities the largest exponent stands for them and for NaN, as in IEEE 754; without,
// only the largest number of all is NaN.
func eightBits(b byte, m, bias int, infinities bool) float64 {
	exponent, mantissa := int(b&0x7f)>>m, float64(int(b)&(1<<m-1))
	scale := float64(int(1) << m)
	var v float64
	switch {
	case infinities && exponent == 1<<(7-m)-1:
		v = math.Inf(1)
		if mantissa != 0 {
			return math.NaN()
		}
	case !infinities && b&0x7f == 0x7f:
		return math.NaN()
	case exponent == 0:
		v = math.Ldexp(mantissa/scale, 1-bias)
	default:
		v = math.Ldexp(1+mantissa/scale, exponent-bias)
	}
	if b&0x80 != 0 {
		v = -v
	}
	return v
}
