// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/tensor"
)

func isRowDType(d tensor.DType) bool {
	return d == tensor.Float32 || d == tensor.BFloat16 || d == tensor.Float16 || d == tensor.Int8
}

// rowBytes returns the bytes of a row.
func rowBytes(d tensor.DType, width int) int {
	if d == tensor.Int8 {
		return width + 4
	}
	return width * d.Size()
}

// view returns memory as numbers, nil if it does not begin where they may.
func view[T float32 | uint16](b []byte) []T {
	var zero T
	size := unsafe.Sizeof(zero)
	start := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(start)%size != 0 {
		return nil
	}
	return unsafe.Slice((*T)(start), uintptr(len(b))/size)
}

// decode writes rows as float32: len(dst) is a multiple of width.
func decode(dst []float32, src []byte, d tensor.DType, width int) {
	switch d {
	case tensor.Float32:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)), src)
	case tensor.BFloat16, tensor.Float16:
		halves := view[uint16](src)
		if halves == nil {
			halves = make([]uint16, len(dst))
			for i := range halves {
				halves[i] = binary.LittleEndian.Uint16(src[2*i:])
			}
		}
		if d == tensor.BFloat16 {
			kernel.FromBF16(nil, dst, halves)
		} else {
			kernel.FromF16(nil, dst, halves)
		}
	case tensor.Int8:
		for ; len(dst) > 0; dst, src = dst[width:], src[width+4:] {
			scale := math.Float32frombits(binary.LittleEndian.Uint32(src[width:]))
			row, values := dst[:width], src[:width]
			for i, v := range values {
				row[i] = float32(int8(v)) * scale
			}
		}
	}
}

// encode writes float32 rows in a dtype.
func encode(dst []byte, src []float32, d tensor.DType, width int) {
	switch d {
	case tensor.Float32:
		copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), 4*len(src)))
	case tensor.BFloat16, tensor.Float16:
		halves := view[uint16](dst)
		aligned := halves != nil
		if !aligned {
			halves = make([]uint16, len(src))
		}
		if d == tensor.BFloat16 {
			kernel.ToBF16(nil, halves[:len(src)], src)
		} else {
			kernel.ToF16(nil, halves[:len(src)], src)
		}
		if !aligned {
			for i, h := range halves {
				binary.LittleEndian.PutUint16(dst[2*i:], h)
			}
		}
	case tensor.Int8:
		for ; len(src) > 0; dst, src = dst[width+4:], src[width:] {
			encodeInt8(dst[:width+4], src[:width])
		}
	}
}

// encodeInt8 writes a row as numbers from -127 to 127 times a scale: the largest value over
// 127. Values are rounded to the nearest, ties to even.
func encodeInt8(dst []byte, src []float32) {
	largest := float32(0)
	for _, x := range src {
		largest = max(largest, x, -x)
	}
	scale := largest / 127
	inverse := float32(0)
	if scale > 0 {
		inverse = 127 / largest
	}
	if inverse > math.MaxFloat32 { // of values so small that 127 of them have no inverse
		scale, inverse = 0, 0
	}
	for i, x := range src {
		// Adding 1.5·2²³ leaves a rounded integer in the last bits.
		const shift = 1<<23 + 1<<22
		n := int32(math.Float32bits(float32(x*inverse)+shift)) - int32(math.Float32bits(shift))
		dst[i] = byte(int8(max(-127, min(127, n))))
	}
	binary.LittleEndian.PutUint32(dst[len(src):], math.Float32bits(scale))
}

// DecodeRows writes rows of a dtype, as Gather and Record have them, as float32.
func DecodeRows(dst []float32, src []byte, d tensor.DType, width int) error {
	if !isRowDType(d) || width < 1 || len(dst)%width != 0 || len(src) != len(dst)/width*rowBytes(d, width) {
		return &Error{Kind: KindDType, Text: "the bytes are not rows of this dtype and width"}
	}
	decode(dst, src, d, width)
	return nil
}
