// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/trace"
	"github.com/cohort-ml/cohort/internal/work"
)

// Unary applies an elementwise function; see device.Kernels.
func (c *CPU) Unary(op device.Unary, dst, x device.Array) {
	if trace.On() {
		defer traced("unary", 0, dst, x).End()
	}
	defer hold(dst, x)
	operands := []device.Array{x}
	switch x.DType {
	case device.Float32, device.BFloat16, device.Float16:
		if op.IsPredicate() {
			fn := unaryPredicate[float32](op)
			tiles(c, dst, operands, func(d []uint8, in [][]float32) { fn(d, in[0]) })
			return
		}
		if fn := unaryKernel(op); fn != nil {
			if x.DType == device.Float32 && x.IsContiguous() {
				fn(c.threads, dst.Float32s(), x.Float32s())
				return
			}
			tiles(c, dst, operands, func(d []float32, in [][]float32) { fn(nil, d, in[0]) })
			return
		}
		fn := unaryFloat[float32](op)
		tiles(c, dst, operands, func(d []float32, in [][]float32) { fn(d, in[0]) })
	case device.Float64:
		if op.IsPredicate() {
			fn := unaryPredicate[float64](op)
			tiles(c, dst, operands, func(d []uint8, in [][]float64) { fn(d, in[0]) })
			return
		}
		fn := unaryFloat[float64](op)
		tiles(c, dst, operands, func(d []float64, in [][]float64) { fn(d, in[0]) })
	case device.Int64:
		unaryInt[int64](c, op, dst, x)
	case device.Int32:
		unaryInt[int32](c, op, dst, x)
	case device.Int8:
		unaryInt[int8](c, op, dst, x)
	default: // Uint8, Bool
		unaryInt[uint8](c, op, dst, x)
	}
}

func unaryInt[T integer](c *CPU, op device.Unary, dst, x device.Array) {
	operands := []device.Array{x}
	if op.IsPredicate() {
		fn := unaryPredicate[T](op)
		tiles(c, dst, operands, func(d []uint8, in [][]T) { fn(d, in[0]) })
		return
	}
	fn := unaryInteger[T](op)
	tiles(c, dst, operands, func(d []T, in [][]T) { fn(d, in[0]) })
}

// Binary applies a function of two operands, which may be broadcast; see
// device.Kernels.
func (c *CPU) Binary(op device.Binary, dst, a, b device.Array) {
	if trace.On() {
		defer traced("binary", 0, dst, a, b).End()
	}
	defer hold(dst, a, b)
	if a.DType == device.Float32 && b.DType == device.Float32 && c.binaryDense(op, dst, a, b) {
		return
	}
	operands := []device.Array{a, b}
	switch a.DType {
	case device.Float32, device.BFloat16, device.Float16:
		if op.IsPredicate() {
			fn := binaryPredicate[float32](op)
			tiles(c, dst, operands, func(d []uint8, in [][]float32) { fn(d, in[0], in[1]) })
			return
		}
		if fn := binaryKernel(op); fn != nil {
			tiles(c, dst, operands, func(d []float32, in [][]float32) { fn(nil, d, in[0], in[1]) })
			return
		}
		fn := binaryFloat[float32](op)
		tiles(c, dst, operands, func(d []float32, in [][]float32) { fn(d, in[0], in[1]) })
	case device.Float64:
		if op.IsPredicate() {
			fn := binaryPredicate[float64](op)
			tiles(c, dst, operands, func(d []uint8, in [][]float64) { fn(d, in[0], in[1]) })
			return
		}
		fn := binaryFloat[float64](op)
		tiles(c, dst, operands, func(d []float64, in [][]float64) { fn(d, in[0], in[1]) })
	case device.Int64:
		binaryInt[int64](c, op, dst, operands)
	case device.Int32:
		binaryInt[int32](c, op, dst, operands)
	case device.Int8:
		binaryInt[int8](c, op, dst, operands)
	case device.Bool:
		fn := binaryBool(op)
		tiles(c, dst, operands, func(d []uint8, in [][]uint8) { fn(d, in[0], in[1]) })
	default:
		binaryInt[uint8](c, op, dst, operands)
	}
}

func binaryInt[T integer](c *CPU, op device.Binary, dst device.Array, operands []device.Array) {
	if op.IsPredicate() {
		fn := binaryPredicate[T](op)
		tiles(c, dst, operands, func(d []uint8, in [][]T) { fn(d, in[0], in[1]) })
		return
	}
	fn := binaryInteger[T](op)
	tiles(c, dst, operands, func(d []T, in [][]T) { fn(d, in[0], in[1]) })
}

// binaryDense takes float32 operands of the commonest layouts straight to a
// kernel, and reports whether it did.
func (c *CPU) binaryDense(op device.Binary, dst, a, b device.Array) bool {
	fn := binaryKernel(op)
	if fn == nil {
		return false
	}
	if a.IsContiguous() && b.IsContiguous() {
		fn(c.threads, dst.Float32s(), a.Float32s(), b.Float32s())
		return true
	}
	if (op == device.Add || op == device.Mul) && b.IsContiguous() {
		a, b = b, a
	}
	if op != device.Add && op != device.Mul && op != device.Sub || !a.IsContiguous() {
		return false
	}
	rows, cols, ok := rowBroadcast(b)
	if !ok || op == device.Sub {
		return c.binaryColumn(op, dst, a, b)
	}
	row := unsafe.Slice((*float32)(b.Ptr), cols)
	if op == device.Add {
		kernel.AddRow(c.threads, dst.Float32s(), a.Float32s(), row, rows, cols)
	} else {
		kernel.MulRow(c.threads, dst.Float32s(), a.Float32s(), row, rows, cols)
	}
	return true
}

// binaryColumn is binaryDense for a b that repeats an element along the last
// dims, such as a channel's over an image.
func (c *CPU) binaryColumn(op device.Binary, dst, a, b device.Array) bool {
	w := newWalk(a, b)
	last := len(w.shape) - 1
	if last == 0 || w.strides[1][last] != 0 || w.shape[last] < 8 {
		return false
	}
	cols := w.shape[last]
	rows := dst.NumElems() / cols
	p, free := c.scratch(4 * rows)
	defer free()
	column := unsafe.Slice((*float32)(p), rows)
	gather(column, b.Ptr, w.shape[:last], w.strides[1][:last], 0)
	switch op {
	case device.Mul:
		kernel.MulColumn(c.threads, dst.Float32s(), a.Float32s(), column, rows, cols)
		return true
	case device.Sub:
		kernel.Neg(nil, column, column)
	}
	kernel.AddColumn(c.threads, dst.Float32s(), a.Float32s(), column, rows, cols)
	return true
}

// rowBroadcast reports whether a repeats one dense run of cols elements, long
// enough to be an operand of its own.
func rowBroadcast(a device.Array) (rows, cols int, ok bool) {
	rows, cols = 1, 1
	i := len(a.Shape) - 1
	for ; i >= 0 && (a.Shape[i] == 1 || a.Strides[i] == cols); i-- {
		cols *= a.Shape[i]
	}
	for ; i >= 0; i-- {
		if a.Shape[i] != 1 && a.Strides[i] != 0 {
			return 0, 0, false
		}
		rows *= a.Shape[i]
	}
	return rows, cols, cols >= 16
}

// BinaryScalar applies a function of an operand and a scalar.
func (c *CPU) BinaryScalar(op device.Binary, dst, a device.Array, scalar float64) {
	if trace.On() {
		defer traced("binary scalar", 0, dst, a).End()
	}
	defer hold(dst, a)
	if a.DType == device.Float32 && a.IsContiguous() {
		switch op {
		case device.Add:
			kernel.AddScalar(c.threads, dst.Float32s(), a.Float32s(), float32(scalar))
			return
		case device.Mul:
			kernel.MulScalar(c.threads, dst.Float32s(), a.Float32s(), float32(scalar))
			return
		}
	}
	// The scalar is an operand of one element. Beside sixteen bits it stays a
	// float32, as there it is computed.
	b := device.Array{DType: a.DType, Shape: a.Shape, Strides: make([]int, len(a.Shape))}
	if isHalf(b.DType) {
		b.DType = device.Float32
	}
	p, free := c.scratch(8)
	defer free()
	b.Ptr = p
	convert(b.DType, device.Float64, p, 1, unsafe.Pointer(&[]float64{scalar}[0]), 1, 1)
	c.Binary(op, dst, a, b)
}

// Where chooses between elements of two operands; see device.Kernels.
func (c *CPU) Where(dst, cond, a, b device.Array) {
	if trace.On() {
		defer traced("where", 0, dst, cond, a, b).End()
	}
	defer hold(dst, cond, a, b)
	switch dst.DType.Size() {
	case 8:
		where[uint64](c, dst, cond, a, b)
	case 4:
		where[uint32](c, dst, cond, a, b)
	case 2:
		where[uint16](c, dst, cond, a, b)
	default:
		where[uint8](c, dst, cond, a, b)
	}
}

func where[T any](c *CPU, dst, cond, a, b device.Array) {
	w := newWalk(dst, cond, a, b)
	out := unsafe.Slice((*T)(dst.Ptr), dst.NumElems())
	c.overSpans(len(out), func(lo, hi int) {
		s := c.newTile(2*8*tileElems + tileElems)
		defer s.free()
		bufC, bufA, bufB := take[uint8](&s, tileElems), take[T](&s, tileElems), take[T](&s, tileElems)
		for ; lo < hi; lo += tileElems {
			n := min(tileElems, hi-lo)
			flags := elements(bufC[:n], cond, w, 1, lo)
			yes, no := elements(bufA[:n], a, w, 2, lo), elements(bufB[:n], b, w, 3, lo)
			choose(out[lo:lo+n], flags, yes, no)
		}
	})
}

func choose[T any](dst []T, flags []uint8, yes, no []T) {
	flags, yes, no = flags[:len(dst)], yes[:len(dst)], no[:len(dst)]
	for i := range dst {
		v := no[i]
		if flags[i] != 0 {
			v = yes[i]
		}
		dst[i] = v
	}
}

// Axpy adds alpha·x to dst; see device.Kernels.
func (c *CPU) Axpy(dst device.Array, alpha float64, x device.Array) {
	if trace.On() {
		defer traced("axpy", 0, dst, x).End()
	}
	defer hold(dst, x)
	operands := []device.Array{dst, x}
	switch dst.DType {
	case device.Float32:
		d := dst.Float32s()
		kernel.AddScaled(c.threads, d, d, float32(alpha), x.Float32s())
	case device.BFloat16, device.Float16:
		tiles(c, dst, operands, func(d []float32, in [][]float32) { kernel.AddScaled(nil, d, in[0], float32(alpha), in[1]) })
	case device.Float64:
		tiles(c, dst, operands, func(d []float64, in [][]float64) { axpy(d, in[0], alpha, in[1]) })
	case device.Int64:
		tiles(c, dst, operands, func(d []int64, in [][]int64) { axpy(d, in[0], int64(alpha), in[1]) })
	case device.Int32:
		tiles(c, dst, operands, func(d []int32, in [][]int32) { axpy(d, in[0], int32(alpha), in[1]) })
	case device.Int8:
		tiles(c, dst, operands, func(d []int8, in [][]int8) { axpy(d, in[0], int8(alpha), in[1]) })
	default:
		tiles(c, dst, operands, func(d []uint8, in [][]uint8) { axpy(d, in[0], uint8(int(alpha)), in[1]) })
	}
}

func axpy[T number](dst, a []T, alpha T, b []T) {
	for i, v := range a {
		dst[i] = v + alpha*b[i]
	}
}

// tile is working memory for one thread's tiles.
type tile struct {
	p    unsafe.Pointer
	used int
	free func()
}

func (c *CPU) newTile(numBytes int) tile {
	p, free := c.scratch(numBytes)
	return tile{p: p, free: free}
}

func take[T any](t *tile, n int) []T {
	s := unsafe.Slice((*T)(unsafe.Add(t.p, t.used)), n)
	t.used += n * int(unsafe.Sizeof(s[0]))
	return s
}

// elements returns the elements from number lo on of operand i of a walk: its
// own memory when it is dense, else buf, which has their number.
func elements[T any](buf []T, a device.Array, w walk, i, lo int) []T {
	if w.dense(i) {
		return unsafe.Slice((*T)(unsafe.Add(a.Ptr, lo*int(unsafe.Sizeof(buf[0])))), len(buf))
	}
	gather(buf, a.Ptr, w.shape, w.strides[i], lo)
	return buf
}

// tiles runs fn over the elements of a dense dst. Operands of sixteen bits reach
// it as float32, and results leave it so when dst has sixteen.
func tiles[D, C device.Element](c *CPU, dst device.Array, operands []device.Array, fn func(dst []D, in [][]C)) {
	w := newWalk(append([]device.Array{dst}, operands...)...)
	round := isHalf(dst.DType) && unsafe.Sizeof(*new(D)) == 4
	c.overSpans(dst.NumElems(), func(lo, hi int) {
		const widest = 8 + 2 // an element and its sixteen bits
		s := c.newTile((len(operands) + 1) * widest * tileElems)
		defer s.free()
		in, bufs, raw := make([][]C, len(operands)), make([][]C, len(operands)), take[uint16](&s, tileElems)
		for i := range bufs {
			bufs[i] = take[C](&s, tileElems)
		}
		out := take[D](&s, tileElems)
		for first := true; lo < hi; lo, first = lo+tileElems, false {
			n := min(tileElems, hi-lo)
			for i, a := range operands {
				switch {
				case !first && isConstant(w.strides[i+1]):
					in[i] = bufs[i][:n] // of the tile before
				case isHalf(a.DType):
					in[i] = bufs[i][:n]
					widen(floats(in[i]), elements(raw[:n], a, w, i+1, lo), a.DType)
				default:
					in[i] = elements(bufs[i][:n], a, w, i+1, lo)
				}
			}
			if round {
				fn(out[:n], in)
				narrow(unsafe.Slice((*uint16)(unsafe.Add(dst.Ptr, 2*lo)), n), floats(out[:n]), dst.DType)
				continue
			}
			fn(unsafe.Slice((*D)(unsafe.Add(dst.Ptr, lo*int(unsafe.Sizeof(*new(D))))), n), in)
		}
	})
}

// isConstant reports whether one element is repeated everywhere.
func isConstant(strides []int) bool {
	for _, s := range strides {
		if s != 0 {
			return false
		}
	}
	return true
}

// floats is s, which has float32 elements.
func floats[T any](s []T) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

// unaryKernel returns the vectorised kernel of a function, nil if it has none.
func unaryKernel(op device.Unary) func(p *work.Pool, dst, a []float32) {
	switch op {
	case device.Neg:
		return kernel.Neg
	case device.Exp:
		return kernel.Exp
	case device.Log:
		return kernel.Log
	case device.Sqrt:
		return kernel.Sqrt
	case device.Reciprocal:
		return kernel.Reciprocal
	case device.Tanh:
		return kernel.Tanh
	case device.Erf:
		return kernel.Erf
	case device.ReLU:
		return kernel.ReLU
	case device.GELU:
		return kernel.GELU
	case device.GELUTanh:
		return kernel.GELUTanh
	case device.Sigmoid:
		return kernel.Sigmoid
	case device.SiLU:
		return kernel.SiLU
	case device.Square:
		return func(p *work.Pool, dst, a []float32) { kernel.Mul(p, dst, a, a) }
	case device.Rsqrt:
		return func(p *work.Pool, dst, a []float32) {
			kernel.Sqrt(p, dst, a)
			kernel.Reciprocal(p, dst, dst)
		}
	}
	return nil
}

// binaryKernel is unaryKernel for functions of two operands of one dense layout.
func binaryKernel(op device.Binary) func(p *work.Pool, dst, a, b []float32) {
	switch op {
	case device.Add:
		return kernel.Add
	case device.Sub:
		return kernel.Sub
	case device.Mul:
		return kernel.Mul
	case device.Div:
		return kernel.Div
	case device.Maximum:
		return kernel.Maximum
	case device.Minimum:
		return kernel.Minimum
	case device.ReLUGrad:
		return kernel.ReLUBackward
	case device.GELUGrad:
		return kernel.GELUBackward
	case device.GELUTanhGrad:
		return kernel.GELUTanhBackward
	case device.SigmoidGrad:
		return kernel.SigmoidBackward
	case device.SiLUGrad:
		return kernel.SiLUBackward
	}
	return nil
}
