// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// convertChunk is the part of a dense conversion that one task does.
const convertChunk = 1 << 15

// convertDense converts contiguous arrays on all threads.
func (c *CPU) convertDense(dst, src device.Array) {
	n := dst.NumElems()
	c.threads.Run((n+convertChunk-1)/convertChunk, func(i int) {
		at := i * convertChunk
		convertRun(dst.DType, src.DType, unsafe.Add(dst.Ptr, at*dst.DType.Size()), unsafe.Add(src.Ptr, at*src.DType.Size()), min(convertChunk, n-at))
	})
}

// convertRun is convert of dense elements; the commonest conversions are direct.
func convertRun(to, from device.DType, dst, src unsafe.Pointer, n int) {
	switch {
	case to == device.Float32 && isHalf(from):
		widen(unsafe.Slice((*float32)(dst), n), unsafe.Slice((*uint16)(src), n), from)
	case from == device.Float32 && isHalf(to):
		narrow(unsafe.Slice((*uint16)(dst), n), unsafe.Slice((*float32)(src), n), to)
	default:
		convert(to, from, dst, 1, src, 1, n)
	}
}

// convert writes n elements of one dtype from those of another. Integers are
// converted as such, everything else goes through float64, which holds every
// other dtype exactly; a fraction is cut off, and anything but 0 is true.
func convert(to, from device.DType, dst unsafe.Pointer, dstStride int, src unsafe.Pointer, srcStride, n int) {
	if !to.IsFloat() && !from.IsFloat() {
		var buf [256]int64
		for at := 0; at < n; at += len(buf) {
			part := buf[:min(len(buf), n-at)]
			loadInts(part, from, unsafe.Add(src, at*srcStride*from.Size()), srcStride)
			storeInts(part, to, unsafe.Add(dst, at*dstStride*to.Size()), dstStride)
		}
		return
	}
	var buf [256]float64
	for at := 0; at < n; at += len(buf) {
		part := buf[:min(len(buf), n-at)]
		loadFloats(part, from, unsafe.Add(src, at*srcStride*from.Size()), srcStride)
		storeFloats(part, to, unsafe.Add(dst, at*dstStride*to.Size()), dstStride)
	}
}

func loadInts(dst []int64, from device.DType, src unsafe.Pointer, stride int) {
	switch from {
	case device.Int64:
		load(dst, src, stride, func(x int64) int64 { return x })
	case device.Int32:
		load(dst, src, stride, func(x int32) int64 { return int64(x) })
	case device.Int8:
		load(dst, src, stride, func(x int8) int64 { return int64(x) })
	default: // Uint8, Bool
		load(dst, src, stride, func(x uint8) int64 { return int64(x) })
	}
}

func storeInts(src []int64, to device.DType, dst unsafe.Pointer, stride int) {
	switch to {
	case device.Int64:
		store(dst, stride, src, func(x int64) int64 { return x })
	case device.Int32:
		store(dst, stride, src, func(x int64) int32 { return int32(x) })
	case device.Int8:
		store(dst, stride, src, func(x int64) int8 { return int8(x) })
	case device.Uint8:
		store(dst, stride, src, func(x int64) uint8 { return uint8(x) })
	default: // Bool
		store(dst, stride, src, func(x int64) uint8 { return truth(x != 0) })
	}
}

func loadFloats(dst []float64, from device.DType, src unsafe.Pointer, stride int) {
	switch from {
	case device.Float32:
		load(dst, src, stride, func(x float32) float64 { return float64(x) })
	case device.Float64:
		load(dst, src, stride, func(x float64) float64 { return x })
	case device.BFloat16:
		load(dst, src, stride, func(x uint16) float64 { return float64(half.FromBFloat16(x)) })
	case device.Float16:
		load(dst, src, stride, func(x uint16) float64 { return float64(half.FromFloat16(x)) })
	default:
		var ints [256]int64
		loadInts(ints[:len(dst)], from, src, stride)
		for i := range dst {
			dst[i] = float64(ints[i])
		}
	}
}

func storeFloats(src []float64, to device.DType, dst unsafe.Pointer, stride int) {
	switch to {
	case device.Float32:
		store(dst, stride, src, func(x float64) float32 { return float32(x) })
	case device.Float64:
		store(dst, stride, src, func(x float64) float64 { return x })
	case device.BFloat16:
		store(dst, stride, src, func(x float64) uint16 { return half.BFloat16(float32(x)) })
	case device.Float16:
		store(dst, stride, src, func(x float64) uint16 { return half.Float16(float32(x)) })
	case device.Bool:
		store(dst, stride, src, func(x float64) uint8 { return truth(x != 0) })
	default:
		var ints [256]int64
		for i, x := range src {
			ints[i] = int64(math.Trunc(x))
		}
		storeInts(ints[:len(src)], to, dst, stride)
	}
}

func load[T, U any](dst []U, src unsafe.Pointer, stride int, fn func(T) U) {
	for i := range dst {
		dst[i] = fn(*elem[T](src, i*stride))
	}
}

func store[T, U any](dst unsafe.Pointer, stride int, src []U, fn func(U) T) {
	for i, x := range src {
		*elem[T](dst, i*stride) = fn(x)
	}
}

func truth(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func isHalf(d device.DType) bool { return d == device.BFloat16 || d == device.Float16 }

// widen converts elements of sixteen bits to float32, on this thread.
func widen(dst []float32, src []uint16, from device.DType) {
	if from == device.BFloat16 {
		kernel.FromBF16(nil, dst, src)
		return
	}
	kernel.FromF16(nil, dst, src)
}

// narrow rounds float32 elements to sixteen bits, on this thread.
func narrow(dst []uint16, src []float32, to device.DType) {
	if to == device.BFloat16 {
		kernel.ToBF16(nil, dst, src[:len(dst)])
		return
	}
	kernel.ToF16(nil, dst, src[:len(dst)])
}
