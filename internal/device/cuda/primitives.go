// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// class returns which kernel computes a dtype. What has sixteen bits is computed as float32.
func class(t device.DType) string {
	switch t {
	case device.Float64:
		return "double"
	case device.Int64:
		return "i64"
	case device.Int32:
		return "i32"
	case device.Int8:
		return "i8"
	case device.Uint8, device.Bool:
		return "u8"
	}
	return "float"
}

// Fill sets all elements.
func (d *Device) Fill(dst device.Array, value float64) {
	n := dst.NumElems()
	if n == 0 {
		return
	}
	d.launch("fill", "fill", overElements(n), dst.Ptr, int32(dst.DType), value, newLayout(dst.Shape, dst), n)
}

// Copy copies and converts elements.
func (d *Device) Copy(dst, src device.Array) {
	n := dst.NumElems()
	if n == 0 {
		return
	}
	if dst.DType == src.DType && dst.IsContiguous() && src.IsContiguous() {
		d.copyBytes(dst.Ptr, src.Ptr, n*dst.DType.Size())
		return
	}
	d.launch("copy", "copy", overElements(n), dst.Ptr, int32(dst.DType), src.Ptr, int32(src.DType), newLayout(dst.Shape, dst, src), n)
}

// copyBytes copies memory of the device.
func (d *Device) copyBytes(dst, src unsafe.Pointer, size int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead != nil {
		panic(d.dead)
	}
	d.calls++
	d.last = "copy"
	if err := d.context.in(callMemcpyDtoD, uintptr(dst), uintptr(src), uintptr(size), d.streams[0]); err != nil {
		panic(d.failed(err))
	}
}

// Axpy adds alpha·x to dst.
func (d *Device) Axpy(dst device.Array, alpha float64, x device.Array) {
	if n := dst.NumElems(); n > 0 {
		d.launch("axpy", "axpy_"+class(dst.DType), overElements(n), dst.Ptr, x.Ptr, int32(dst.DType), alpha, n)
	}
}

// Unary applies a function of one operand.
func (d *Device) Unary(op device.Unary, dst, x device.Array) {
	if n := dst.NumElems(); n > 0 {
		d.launch("unary", "unary_"+class(x.DType), overElements(n), dst.Ptr, int32(dst.DType), x.Ptr, int32(x.DType), int32(op), newLayout(dst.Shape, x), n)
	}
}

// ofBool returns the function that means for Bool what op means.
func ofBool(op device.Binary, t device.DType) device.Binary {
	if t == device.Bool {
		switch op {
		case device.Add:
			return device.Maximum
		case device.Mul:
			return device.Minimum
		}
	}
	return op
}

// Binary applies a function of two operands.
func (d *Device) Binary(op device.Binary, dst, a, b device.Array) {
	n := dst.NumElems()
	if n == 0 {
		return
	}
	op = ofBool(op, a.DType)
	d.launch("binary", "binary_"+class(a.DType), overElements(n), dst.Ptr, int32(dst.DType), a.Ptr, int32(a.DType), b.Ptr, int32(b.DType), 0.0, int32(op), newLayout(dst.Shape, a, b), n)
}

// BinaryScalar applies a function of an operand and a number.
func (d *Device) BinaryScalar(op device.Binary, dst, a device.Array, scalar float64) {
	n := dst.NumElems()
	if n == 0 {
		return
	}
	if a.DType == device.Bool && scalar != 0 {
		scalar = 1
	}
	if !a.DType.IsFloat() {
		scalar = math.Trunc(scalar)
	}
	op = ofBool(op, a.DType)
	d.launch("binary scalar", "binary_"+class(a.DType), overElements(n), dst.Ptr, int32(dst.DType), a.Ptr, int32(a.DType), unsafe.Pointer(nil), int32(0), scalar, int32(op), newLayout(dst.Shape, a), n)
}

// Where chooses between the elements of two operands.
func (d *Device) Where(dst, cond, a, b device.Array) {
	if n := dst.NumElems(); n > 0 {
		d.launch("where", "where", overElements(n), dst.Ptr, cond.Ptr, a.Ptr, b.Ptr, int32(dst.DType.Size()), newLayout(dst.Shape, cond, a, b), n)
	}
}

// Reduce combines the dims of x in which dst has one element.
func (d *Device) Reduce(op device.Reduction, dst, x device.Array) {
	n := dst.NumElems()
	if n == 0 {
		return
	}
	if x.NumElems() == 0 {
		d.Fill(dst, identity(op, dst.DType))
		return
	}
	kept, gone := x, x
	kept.Shape, gone.Shape = make([]int, len(x.Shape)), make([]int, len(x.Shape))
	size := 1
	for i, s := range x.Shape {
		kept.Shape[i], gone.Shape[i] = s, 1
		if dst.Shape[i] == 1 {
			kept.Shape[i], gone.Shape[i] = 1, s
			size *= s
		}
	}
	d.launch("reduce", "reduce_"+class(x.DType), overRows(n), dst.Ptr, x.Ptr, int32(op), newLayout(kept.Shape, kept), newLayout(gone.Shape, gone), n, size)
}

// identity is the result of combining nothing.
func identity(op device.Reduction, t device.DType) float64 {
	switch {
	case op == device.Prod, op == device.Min && t == device.Bool:
		return 1
	case op == device.Sum, t == device.Bool:
		return 0
	case op == device.Min:
		return math.Inf(1)
	}
	return math.Inf(-1)
}

// ArgReduce finds the first greatest or smallest elements.
func (d *Device) ArgReduce(op device.Reduction, dst, x device.Array, dim int) {
	n, inner := dst.NumElems(), 1
	for _, s := range x.Shape[dim+1:] {
		inner *= s
	}
	if n > 0 {
		d.launch("arg reduce", "arg_reduce_"+class(x.DType), overRows(n), dst.Ptr, x.Ptr, int32(x.DType), int32(op), x.Shape[dim], inner, n)
	}
}

// SumSquares writes the sum of the squares of each operand.
func (d *Device) SumSquares(dst device.Array, xs ...device.Array) {
	const perBlock = 1 << 14
	for i, x := range xs {
		n := x.NumElems()
		g := grid{x: max(1, min(256, (n+perBlock-1)/perBlock)), threads: blockThreads}
		parts := g.x * g.threads / 32
		scratch := d.Alloc(8*parts, false)
		d.launch("sum squares", "sum_squares", g, scratch.Ptr, x.Ptr, n)
		d.launch("sum squares", "sum_doubles", oneWarp, unsafe.Add(dst.Ptr, 8*i), scratch.Ptr, parts)
		d.Free(scratch)
	}
}

// matrix is struct matrix of matmul.cu.
type matrix struct {
	p               unsafe.Pointer
	dtype, row, col int64
}

func newMatrix(a device.Array) matrix {
	n := len(a.Shape)
	return matrix{a.Ptr, int64(a.DType), int64(a.Strides[n-2]), int64(a.Strides[n-1])}
}

// MatMul multiplies matrices.
func (d *Device) MatMul(dst, a, b, bias device.Array, beta float32) {
	n := len(dst.Shape)
	rows, cols, inner := dst.Shape[n-2], dst.Shape[n-1], a.Shape[len(a.Shape)-1]
	batch := dst.Shape[:n-2]
	num := 1
	for _, s := range batch {
		num *= s
	}
	if rows == 0 || cols == 0 || num == 0 {
		return
	}
	low := int32(0)
	for _, x := range []device.Array{dst, a, b} {
		if x.DType == device.BFloat16 {
			low = 1
		}
	}
	ofBatch := func(x device.Array) device.Array {
		return device.Array{Shape: batch, Strides: x.Strides[:len(x.Strides)-2]}
	}
	const tile, maxGrid = 64, 1<<16 - 1
	g := grid{x: (cols + tile - 1) / tile, y: (rows + tile - 1) / tile, z: min(num, maxGrid), threads: blockThreads}
	d.launch("matmul", "matmul", g, dst.Ptr, int32(dst.DType), newMatrix(a), newMatrix(b), bias.Ptr, beta, low, newLayout(batch, ofBatch(a), ofBatch(b)), num, rows, cols, inner)
}

// Gather copies rows of a table.
func (d *Device) Gather(dst, table, ids device.Array, check *device.Check) {
	if n := dst.NumElems(); n > 0 {
		word, op, site := d.checked("embedding", check)
		d.launch("embedding", "gather", overElements(n), dst.Ptr, table.Ptr, ids.Ptr, table.Shape[0], table.Shape[1], word, op, site, n)
	}
}

// checked returns where and as what a kernel notes a fault.
func (d *Device) checked(op string, check *device.Check) (word uintptr, number uint32, site uint64) {
	if check == nil {
		return 0, 0, 0
	}
	return d.faults.address, d.names.of(op), check.Site
}

// ScatterAdd adds rows to a table.
func (d *Device) ScatterAdd(dst, g, ids device.Array) {
	if n := ids.NumElems(); n > 0 && g.NumElems() > 0 {
		d.launch("scatter add", "scatter_add", overElements(dst.Shape[1]), dst.Ptr, g.Ptr, ids.Ptr, dst.Shape[0], dst.Shape[1], n)
	}
}
