// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// Tensor is an n-dimensional array, or a view of one. Its shape never
// changes. The zero value is not usable; see [New], [Zeros], [FromFloat32].
type Tensor struct {
	storage *storage
	offset  int // of the first element, in elements
	shape   []int
	strides []int // in elements
	dtype   DType
	name    string // for messages; set on parameters

	tape *Tape // what it was made under, nil for none
	node int   // where it is recorded there, 0 if it needs no gradient
	note *Note // what an observer knows of it, nil for nothing
}

// Shape returns the size of each dim. The caller owns the slice.
func (t *Tensor) Shape() []int { return slices.Clone(t.shape) }

// Dim returns the size of one dim; negative ones count from the end.
func (t *Tensor) Dim(dim int) int { return t.shape[dimIndex("dim", t, dim)] }

// NumDims returns the number of dims.
func (t *Tensor) NumDims() int { return len(t.shape) }

// NumElems returns the number of elements.
func (t *Tensor) NumElems() int { return numElems(t.shape) }

// DType returns the type of the elements.
func (t *Tensor) DType() DType { return t.dtype }

// Device returns where the data is.
func (t *Tensor) Device() Device { return t.storage.dev }

// Tape returns the tape that the value was made under, nil if none.
func (t *Tensor) Tape() *Tape { return t.tape }

// NeedsGrad reports whether the value was recorded: a gradient flows through it.
func (t *Tensor) NeedsGrad() bool { return t.node != 0 }

// Name returns the name given by [Tensor.SetName].
func (t *Tensor) Name() string { return t.name }

// SetName names the tensor in messages.
func (t *Tensor) SetName(name string) { t.name = name }

// IsContiguous reports whether the elements lie densely in row-major order.
func (t *Tensor) IsContiguous() bool {
	return device.Array{Shape: t.shape, Strides: t.strides}.IsContiguous()
}

// array returns the operand that kernels work on.
func (t *Tensor) array() device.Array {
	t.check("read")
	a := device.Array{DType: t.dtype, Shape: t.shape, Strides: t.strides, Owner: t.storage}
	if p := t.storage.mem.Ptr; p != nil {
		a.Ptr = unsafe.Add(p, t.offset*t.dtype.Size())
	}
	return a
}

// check fails for a value that has no memory now.
func (t *Tensor) check(op string) {
	if t.storage.state != live {
		fail(op, []*Tensor{t}, "%s", t.storage.state.why())
	}
}

// wantNotFreed fails for a value that never has memory again.
func (t *Tensor) wantNotFreed(op string) {
	if t.storage.state == freed {
		fail(op, []*Tensor{t}, "%s", freed.why())
	}
}

// why says why a value cannot be read, and what to do.
func (s storageState) why() string {
	if s == released {
		return "the value's memory has been released: a wrapper that shards parameters gives it up between a module's " +
			"forward and backward pass; read the value within the module's Forward, or through the wrapper"
	}
	return "the value has been freed: Backward consumed it, its tape was closed, or Free was called; " +
		"read it earlier, or call Keep on it before Backward"
}

// host returns the bytes of a contiguous tensor in place.
func (t *Tensor) host(op string) []byte {
	t.wantBytes(op)
	size := t.dtype.Size()
	b, ok := t.storage.host(t.offset*size, t.NumElems()*size)
	if !ok && t.NumElems() > 0 {
		fail(op, []*Tensor{t}, "the memory of device %s is not the host's: copy the tensor to the CPU by ToDevice", t.Device().Name())
	}
	return b
}

// wantBytes fails for a tensor that is not a run of bytes of a device with data.
func (t *Tensor) wantBytes(op string) {
	t.check(op)
	if !t.IsContiguous() {
		fail(op, []*Tensor{t}, "wants a contiguous tensor, strides are %v; call Contiguous first", t.strides)
	}
	t.wantData(op)
}

// edit lends the bytes of a contiguous tensor to fn, which may write them: those
// themselves where the host sees them, else a copy, which is written back.
func (t *Tensor) edit(op string, fn func(data []byte)) {
	t.wantBytes(op)
	t.storage.version++
	at, n := t.offset*t.dtype.Size(), t.NumElems()*t.dtype.Size()
	if data, ok := t.storage.host(at, n); ok {
		fn(data)
	} else {
		data = make([]byte, n)
		t.storage.read(at, data)
		fn(data)
		t.storage.write(at, data)
	}
	runtime.KeepAlive(t)
}

// noData is what is wrong with reading a tensor of [Meta].
const noData = "has no data on device %s, which knows shapes alone: make it on another, such as tensor.CPU(), with a model by nn.Build.Device"

// wantData fails for a tensor whose elements no device has.
func (t *Tensor) wantData(op string) {
	t.check(op)
	if t.Device() == Meta && t.NumElems() > 0 {
		fail(op, []*Tensor{t}, noData, Meta.Name())
	}
}

// Float32s returns a copy of the elements of a floating dtype in row-major order.
func (t *Tensor) Float32s() []float32 {
	if !t.dtype.IsFloat() {
		fail("float32s", []*Tensor{t}, "wants a floating dtype; convert by To, or read Int64s")
	}
	out := make([]float32, t.NumElems())
	t.detach().To(Float32).readInto(bytesOf(out))
	return out
}

// Int64s returns a copy of the elements of an integer dtype or bool in
// row-major order.
func (t *Tensor) Int64s() []int64 {
	if t.dtype.IsFloat() {
		fail("int64s", []*Tensor{t}, "wants an integer dtype or bool; convert by To, or read Float32s")
	}
	out := make([]int64, t.NumElems())
	t.detach().To(Int64).readInto(bytesOf(out))
	return out
}

func (t *Tensor) readInto(dst []byte) {
	c := t.detach().Contiguous()
	c.wantData("read")
	if len(dst) > 0 {
		c.storage.read(c.offset*c.dtype.Size(), dst)
	}
	runtime.KeepAlive(c)
}

// Item returns the value of a tensor of one element.
func (t *Tensor) Item() float64 {
	if t.NumElems() != 1 {
		fail("item", []*Tensor{t}, "wants a tensor of one element")
	}
	t.wantData("item")
	var v [1]float64
	t.detach().To(Float64).readInto(bytesOf(v[:]))
	return v[0]
}

// WithFloat32s lends the elements of a contiguous float32 tensor to fn, which
// may write them and must not keep the slice.
func (t *Tensor) WithFloat32s(fn func(data []float32)) {
	t.wantDType("with float32s", Float32)
	t.edit("with float32s", func(b []byte) { fn(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)) })
}

// WithFloat64s is [Tensor.WithFloat32s] for a float64 tensor.
func (t *Tensor) WithFloat64s(fn func(data []float64)) {
	t.wantDType("with float64s", Float64)
	t.edit("with float64s", func(b []byte) { fn(unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)) })
}

// Keep takes the value out of its tape's ownership: it lives as long as it is
// reachable, through Backward and Close. It returns t. To compute with it in
// another step, take it there by [Tape.Const].
func (t *Tensor) Keep() *Tensor {
	t.check("keep")
	if s := t.storage; s.scope != nil {
		s.scope.count(-s.mem.Size)
		s.scope = nil
		s.leaveToCollector()
	}
	return t
}

// detach returns the same values outside any tape, sharing the storage.
func (t *Tensor) detach() *Tensor {
	d := *t
	d.tape, d.node = nil, 0
	return &d
}

// Detach returns the same values without their history: no gradient flows
// back through the result, which stays under the tape and shares the storage.
func (t *Tensor) Detach() *Tensor {
	d := *t
	d.node = 0
	return &d
}

func (t *Tensor) wantDType(op string, want DType) {
	if t.dtype != want {
		fail(op, []*Tensor{t}, "wants %v, got %v; convert by To", want, t.dtype)
	}
}

// wantDTypeOf is wantDType of one of several operands, which what names.
func wantDTypeOf(op, what string, operands []*Tensor, t *Tensor, want DType) {
	if t.dtype != want {
		fail(op, operands, "wants %v for the %s, got %v; convert by To", want, what, t.dtype)
	}
}

// ordinal names an operand in a message.
func ordinal(i int) string {
	if names := []string{"first", "second", "third", "fourth"}; i < len(names) {
		return "the " + names[i] + " operand"
	}
	return fmt.Sprintf("operand %d", i+1)
}

// present fails unless all operands are there. Those that may be nil are left out.
func present(op string, operands ...*Tensor) {
	for i, t := range operands {
		if t == nil {
			fail(op, slices.Clone(operands), "%s is nil", ordinal(i)) // the clone keeps the list of each call off the heap
		}
	}
}

// wantFloat32s fails unless all operands are float32: a kernel would take the
// bytes of any other type for one. A nil operand is an absent one.
func wantFloat32s(op string, operands []*Tensor) {
	for i, t := range operands {
		if t != nil && t.dtype != Float32 {
			fail(op, operands, "wants float32, %s is %v; convert by To", ordinal(i), t.dtype)
		}
	}
}

// String shows dtype, shape and, for small tensors, the values with brackets
// around each row; of one that was freed, that it was.
func (t *Tensor) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v%v", t.dtype, t.shape)
	if t.name != "" {
		fmt.Fprintf(&b, " %s", t.name)
	}
	switch {
	case t.storage.state == freed:
		b.WriteString(" (freed)")
	case t.storage.state == released:
		b.WriteString(" (released)")
	case t.storage.mem.Ptr == nil || t.NumElems() > 64:
	case t.dtype.IsFloat():
		b.WriteString(" ")
		writeRows(&b, t.shape, t.Float32s())
	default:
		b.WriteString(" ")
		writeRows(&b, t.shape, t.Int64s())
	}
	return b.String()
}

// writeRows writes elements in row-major order, with brackets around each row.
func writeRows[E any](b *strings.Builder, shape []int, elems []E) {
	if len(shape) <= 1 {
		if len(shape) == 1 {
			fmt.Fprint(b, elems)
		} else {
			fmt.Fprint(b, elems[0])
		}
		return
	}
	b.WriteString("[")
	size := numElems(shape[1:])
	for i := range shape[0] {
		if i > 0 {
			b.WriteString(" ")
		}
		writeRows(b, shape[1:], elems[i*size:(i+1)*size])
	}
	b.WriteString("]")
}
