// SPDX-License-Identifier: Apache-2.0

// Package device says what a kind of processor does for tensors.
//
// # Mental model
//
// A [Device] has memory and runs calls on [Array]s: an address, a dtype, a shape and
// strides. A call is one of the primitives of [Kernels], or an operation with a kernel
// of its own: [Op], of which ops.go lists all, each a struct with its parameters and a
// comment on its arguments. Package tensor checks shapes, keeps storages alive during
// a call and records the tape. A device only computes.
//
// # Rules of a call
//
//   - Operands have been checked. A result never overlaps an operand unless it is that
//     operand. A zero stride repeats an element; results have none.
//   - A device may run calls later than they are made. It keeps their order, frees
//     included, and copies what it needs of the arguments ([CopyOp]).
//   - No call gives a value to the host. Sums, norms and counts are arrays. A kernel
//     that meets a bad index notes it ([Check]) and leaves the element out. Only Read,
//     [Visible] and Fault wait.
//   - No kernel touches what lies outside of its arrays, whatever indices it is given.
//     Where a call has noted a fault, a late device leaves out the calls after it, which
//     use the same indices, or their kernels test the bounds themselves.
//   - Several goroutines may call a device at once. Each one's calls keep their order.
//
// # The devices
//
// Package cpu is the first device, [Meta] the smallest, package lazy the CPU behind a
// queue: tests use it to find what a device that runs later would break.
//
// # Adding a kernel, for example softmax on CUDA
//
//  1. The operation is there: Softmax in ops.go, with its arguments. (A new one is a
//     struct there, a case in a file such as internal/device/cpu/fused_softmax.go, and
//     a kernel in internal/kernel.)
//  2. In the device's package, internal/device/cuda, which the section below is about:
//     the kernel's source, and a case for device.Softmax in its Fused. Without a case Fused returns false, and the
//     operation fails with an error that names device and operation.
//  3. The tables of operations (tensor/*_cases_test.go) run over any device:
//     TestOperationsOnALateDevice shows how.
//
// # Adding a device
//
// A package beside internal/device/cpu that implements Device, and a function in
// tensor/device.go that returns it. A device whose memory the host sees implements
// [Visible], one that reads pinned memory [Pinner].
package device

import (
	"fmt"
	"unsafe"
)

// DType is the type of a tensor's elements.
type DType uint8

// The element types. Values are stable: they travel on wires.
const (
	Float32  DType = 1
	Int64    DType = 2
	BFloat16 DType = 3
	Float16  DType = 4
	Float64  DType = 5
	Int32    DType = 6
	Int8     DType = 7
	Uint8    DType = 8
	Bool     DType = 9 // one byte, 0 or 1
)

var dtypes = [...]struct {
	name string
	size int
}{
	Float32: {"float32", 4}, Int64: {"int64", 8}, BFloat16: {"bfloat16", 2}, Float16: {"float16", 2}, Float64: {"float64", 8},
	Int32: {"int32", 4}, Int8: {"int8", 1}, Uint8: {"uint8", 1}, Bool: {"bool", 1},
}

// Size returns the bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// IsFloat reports whether elements are floating-point numbers, which have gradients.
func (d DType) IsFloat() bool {
	return d == Float32 || d == BFloat16 || d == Float16 || d == Float64
}

// Valid reports whether d is one of the element types: a number from a file or
// a wire may not be.
func (d DType) Valid() bool { return int(d) < len(dtypes) && dtypes[d].size > 0 }

func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Array is one operand: Ptr is the address of element [0, …, 0], Strides are
// in elements.
type Array struct {
	Ptr     unsafe.Pointer
	DType   DType
	Shape   []int
	Strides []int
	// Owner keeps the memory: a device holds on to it until the call has
	// taken effect, for the collector may take what nobody refers to.
	Owner any
}

// NumElems returns the product of the shape.
func (a Array) NumElems() int {
	n := 1
	for _, s := range a.Shape {
		n *= s
	}
	return n
}

// IsContiguous reports whether the elements lie densely in row-major order.
func (a Array) IsContiguous() bool {
	want := 1
	for i := len(a.Shape) - 1; i >= 0; i-- {
		if a.Shape[i] != 1 && a.Strides[i] != want {
			return a.NumElems() == 0
		}
		want *= a.Shape[i]
	}
	return true
}

// Elems returns the elements of a contiguous array in host memory, nil for an
// absent operand; of any other it would be the wrong ones, so it panics. T must be the Go type of the array's dtype; those of sixteen
// bits are uint16, and a bool is a uint8.
func Elems[T Element](a Array) []T {
	if a.Ptr == nil {
		return nil
	}
	if !a.IsContiguous() {
		panic(fmt.Sprintf("device: an array of shape %v with strides %v has no run of elements", a.Shape, a.Strides))
	}
	return unsafe.Slice((*T)(a.Ptr), a.NumElems())
}

// Element are the Go types that elements are held in.
type Element interface {
	float32 | float64 | int64 | int32 | int8 | uint8 | uint16
}

// Float32s is [Elems] of float32.
func (a Array) Float32s() []float32 { return Elems[float32](a) }

// Int64s is [Elems] of int64.
func (a Array) Int64s() []int64 { return Elems[int64](a) }

// Span returns the run of host memory that a strided array touches, from its
// first element on; T is as for [Elems].
func Span[T Element](a Array) []T {
	n := 1
	for i, s := range a.Shape {
		if s == 0 {
			return nil
		}
		n += (s - 1) * a.Strides[i]
	}
	return unsafe.Slice((*T)(a.Ptr), n)
}

// Span is the function Span of float32.
func (a Array) Span() []float32 { return Span[float32](a) }

// RowsCols sees a contiguous array as rows of its last dim.
func (a Array) RowsCols() (rows, cols int) {
	cols = 1
	if n := len(a.Shape); n > 0 {
		cols = a.Shape[n-1]
	}
	if cols == 0 {
		return 0, 0
	}
	return a.NumElems() / cols, cols
}

// Memory is a run of Size bytes on a device, from the address Ptr on, which is nil
// on [Meta]. Handle is the device's own: what it needs to free the memory.
type Memory struct {
	Ptr    unsafe.Pointer
	Size   int
	Handle any
}

// Unary names an elementwise function of one operand.
type Unary uint8

// The unary functions.
const (
	Neg Unary = iota
	Exp
	Log
	Sqrt
	Reciprocal
	Tanh
	Erf
	ReLU
	GELU     // x·Φ(x), exact
	GELUTanh // its tanh approximation, as in GPT-2
	Abs
	Square
	Rsqrt
	Sin
	Cos
	Log1p
	Expm1
	Sign // of -1, 0, 1; 0 for NaN, as PyTorch has it
	Floor
	Ceil
	Round   // to the nearest, ties to even
	Sigmoid // 1/(1+e⁻ˣ)
	SiLU    // x·Sigmoid(x)
	// The results of those below are Bool.
	LogicalNot
	IsNaN
	IsInf
	IsFinite
)

// IsPredicate reports whether the results are Bool, whatever the operand is.
func (u Unary) IsPredicate() bool { return u >= LogicalNot }

// Binary names an elementwise function of two operands.
type Binary uint8

// The binary functions. The …Grad ones take (x, g) and give g·f'(x), but for
// SigmoidGrad, which takes (f(x), g).
const (
	Add Binary = iota
	Sub
	Mul
	Div
	ReLUGrad
	GELUGrad
	GELUTanhGrad
	SigmoidGrad
	SiLUGrad
	Pow
	Maximum // NaN if either operand is
	Minimum
	// The results of those below are Bool.
	Eq
	Ne
	Lt
	Le
	Gt
	Ge
	LogicalAnd
	LogicalOr
	LogicalXor
)

// IsPredicate reports whether the results are Bool, whatever the operands are.
func (b Binary) IsPredicate() bool { return b >= Eq }

// Reduction names how elements are combined.
type Reduction uint8

// The reductions.
const (
	Sum Reduction = iota
	Max           // NaN if an element is
	Min
	Prod
)

// Device is a kind of processor with its memory. There is one value for each
// processor, a pointer: two devices are the same if they compare equal.
type Device interface {
	Name() string

	// Alloc returns memory that is not cleared; shared memory can be mapped
	// by processes on the same machine, and is cleared. It panics when the
	// memory is exhausted.
	Alloc(size int, shared bool) Memory
	Free(Memory)
	// Write copies data to memory, from a byte on, in its turn among the calls. data is
	// the caller's again when Write returns: a device that copies later has a copy of
	// its own by then, or, of data in pinned memory ([Pinner]), has read them. Read
	// copies from memory, after all earlier calls have taken effect: a device that is
	// late makes its caller wait.
	Write(m Memory, offset int, data []byte)
	Read(m Memory, offset int, dst []byte)

	// Late reports whether calls may take effect after they have returned.
	Late() bool
	// Fault returns the first fault that calls have noted since it was last asked,
	// of a device that is late; others tell the [Check] of a call. With wait it is
	// asked after all earlier calls have taken effect. The fault is the device's,
	// whichever goroutine's call noted it. A device may leave out what is called after
	// the call with the fault and before Fault has told of it, frees and writes
	// excepted.
	Fault(wait bool) Fault

	Kernels
}

// Visible is a device whose memory the host reads and writes in place.
type Visible interface {
	// Host returns size bytes of the memory after all earlier calls have taken
	// effect.
	Host(m Memory, offset, size int) []byte
}

// Pinner is a device that reads and writes the CPU's memory by itself, without a copy
// of its own between, once that memory has been pinned. Devices that do not implement
// it need no pinned memory.
type Pinner interface {
	// Pin keeps m, memory of the CPU, where it is until unpin is called, which
	// comes before the memory is freed.
	Pin(m Memory) (unpin func(), err error)
}

// Kernels are the primitives. Arrays are float32 unless said otherwise.
type Kernels interface {
	Fill(dst Array, value float64)
	Copy(dst, src Array) // any strides; another dtype is converted to dst's
	// Axpy adds alpha·x to dst; both are contiguous and of one dtype. An alpha of 0
	// multiplies too: what is NaN or infinite in x makes NaN. (Some libraries return
	// at once then.)
	Axpy(dst Array, alpha float64, x Array)

	// The elementwise functions take every dtype and any strides of the operands;
	// dst is contiguous. What has sixteen bits is computed in float32 and rounded
	// once. Bool has Add (or), Mul (and), Maximum, Minimum and predicates.

	// Unary applies op to x, of dst's dtype unless op is a predicate.
	Unary(op Unary, dst, x Array)
	// Binary broadcasts by zero strides. a and b have one dtype, dst's unless op
	// is a predicate; but Float32, BFloat16 and Float16 mix freely.
	Binary(op Binary, dst, a, b Array)
	BinaryScalar(op Binary, dst, a Array, scalar float64)
	// Where takes elements of a where cond (Bool) is true, and of b elsewhere;
	// dst, a and b have one dtype.
	Where(dst, cond, a, b Array)
	// Reduce combines the dims of x in which dst has size 1. Both are contiguous
	// and of one dtype, which is not one of sixteen bits.
	Reduce(op Reduction, dst, x Array)
	// ArgReduce writes to dst, Int64, the first index along dim of the greatest
	// element (op Max) or the smallest (Min), the first NaN if there is one. x is
	// contiguous and of any dtype; dst has size 1 in dim.
	ArgReduce(op Reduction, dst, x Array, dim int)
	// SumSquares writes to element i of dst, a contiguous Float64 array, the sum of
	// the squares of xs[i], which is contiguous, summed in float64 and in an order
	// that depends on its size alone.
	SumSquares(dst Array, xs ...Array)
	// MatMul computes dst = a·b + beta·dst + bias on [batch…, m, k]·[batch…, k, n],
	// and does not read dst where beta is 0;
	// the last two dims of a and b may be transposed, bias [n] (float32) may be
	// empty. Each of dst, a and b is Float32 or BFloat16; when any is BFloat16,
	// a and b are rounded to it, and sums are kept in float32.
	MatMul(dst, a, b, bias Array, beta float32)
	// Gather copies rows of table by int64 ids, and notes an id that is none.
	Gather(dst, table, ids Array, check *Check)
	// ScatterAdd adds rows of g into dst by ids, in the order of ids.
	ScatterAdd(dst, g, ids Array)
	// Fused runs an operation with a kernel of its own on args, results among
	// them; false means that the device has no such kernel. args and the lists of
	// op are the caller's again afterwards: a device that runs calls later copies
	// them, op by [CopyOp].
	Fused(op Op, args ...Array) bool
}
