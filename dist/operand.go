// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/tensor"
)

// operand is what a call reads or writes: the elements of one tensor or of
// several, one after the other. Where they lie so in memory they are used in
// place. Else data has no buffer until the call runs, and pieces say what is
// copied into staging memory, and out of it.
type operand struct {
	data   collective.Data
	staged bool
	pieces []piece // of an operand that is staged
}

// piece is a run of a tensor's elements, in row-major order.
type piece struct {
	loan   tensor.Loan
	dense  bool // the elements lie in that order in memory
	lo, hi int
	at     int // where the run begins in the data of the call, in elements
}

// dtypeOf are the numbers by which the types of elements travel.
var dtypeOf = [...]operation.DType{
	tensor.Float32: operation.Float32, tensor.Int64: operation.Int64, tensor.BFloat16: operation.BFloat16,
	tensor.Float16: operation.Float16, tensor.Float64: operation.Float64, tensor.Int32: operation.Int32,
	tensor.Int8: operation.Int8, tensor.Uint8: operation.Uint8, tensor.Bool: operation.Bool,
}

// lend borrows a tensor's memory.
func (r *request) lend(o *operand, what string, t *tensor.Tensor, written bool) {
	loan, ok := r.borrow(what, -1, t, written)
	if !ok {
		return
	}
	o.data = collective.Data{DType: dtypeOf[t.DType()], NumElems: t.NumElems(), Device: r.device}
	if t.IsContiguous() {
		o.data.Buffer = loan.Buffer
		return
	}
	o.stage(piece{loan: loan, hi: o.data.NumElems})
}

// lendAll borrows the memory of several tensors of one type.
func (r *request) lendAll(o *operand, what string, ts []*tensor.Tensor, written bool) {
	if len(ts) == 0 {
		r.refuse("there are no %ss", what)
		return
	}
	inPlace, n := true, 0
	for i, t := range ts {
		loan, ok := r.borrow(what, i, t, written)
		if !ok {
			return
		}
		if d := dtypeOf[t.DType()]; i == 0 {
			o.data = collective.Data{Buffer: loan.Buffer, DType: d, Device: r.device}
		} else if d != o.data.DType {
			r.refuse("%s %d has elements of type %v, %s 0 of %v", what, i, d, what, o.data.DType)
			return
		}
		p := piece{loan: loan, dense: t.IsContiguous(), hi: t.NumElems(), at: n}
		if inPlace = inPlace && p.dense; inPlace && p.hi > 0 {
			inPlace = follow(&o.data.Buffer, n*o.data.DType.Size(), loan.Buffer)
		}
		n += p.hi
		o.stage(p)
	}
	o.data.NumElems = n
	if inPlace {
		o.staged = false
		return
	}
	o.data.Buffer = mem.Buffer{}
	if written {
		r.distinct(o, what)
	}
}

// borrow checks a tensor and lends its memory; i is its index in a list, or -1.
// What will be written is marked so when the call begins, on the goroutine that
// owns the tensor.
func (r *request) borrow(what string, i int, t *tensor.Tensor, written bool) (tensor.Loan, bool) {
	problem := ""
	var loan tensor.Loan
	switch {
	case r.err != nil:
		return loan, false
	case t == nil:
		problem = "is nil"
	case !r.g.onHost(t) && !r.reaches(what, i, t.Device().Name()):
		return loan, false
	case r.device != "" && r.g.onHost(t):
		problem = "is on the CPU, and others of the call are on device " + r.device
	case written && t.IsOverlapping():
		problem = fmt.Sprintf("of shape %v is not dense: several of its elements share their memory, and cannot be written", t.Shape())
	default:
		lend := t.Lend
		if r.device != "" {
			lend = t.LendOnDevice
		}
		var err error
		if loan, err = lend(); err != nil {
			problem = err.Error()
		}
	}
	if problem != "" {
		r.refuse("%s %s", indexed(what, i), problem)
		return loan, false
	}
	r.held = append(r.held, held{t, written})
	return loan, true
}

// indexed names a tensor of a list by its index, or one that is alone, of index -1.
func indexed(what string, i int) string {
	if i < 0 {
		return what
	}
	return fmt.Sprintf("%s %d", what, i)
}

// reaches notes that a call's tensors are on a device, and refuses the call if the group has no
// communicator for it, or others of its tensors are elsewhere.
func (r *request) reaches(what string, i int, device string) bool {
	switch {
	case r.g.commFor(device) == nil:
		r.err = &DeviceError{Group: r.g.name, Rank: r.g.rank, Op: r.call.Op.String(), Tensor: indexed(what, i), Device: device, Backend: r.g.backendFor(hostKind)}
	case len(r.held) > 0 && r.device != device:
		r.refuse("%s is on device %s, and others of the call are elsewhere", indexed(what, i), device)
	}
	r.device = device
	return r.err == nil
}

// inDevice refuses a call on a device's memory that the device's communicator cannot move:
// staging memory is the host's, and a receive from any rank waits on the host.
func (r *request) inDevice() {
	switch {
	case r.device == "" || r.err != nil:
	case r.in.staged || r.out.staged:
		r.refuse("its tensors are on device %s and do not lie in one piece there: give contiguous tensors that share no memory, a list as parts of one tensor", r.device)
	case r.call.Op == operation.Recv && r.call.Root == operation.AnyRank:
		r.refuse("the tensor is on device %s, and a receive from any rank is into the memory of the host: receive from a given rank, or into a tensor on the CPU", r.device)
	}
}

// stage adds a piece to an operand.
func (o *operand) stage(p piece) {
	o.staged = true
	o.pieces = append(o.pieces, p)
}

// follow makes next a part of b if it lies right after b's first size bytes.
func follow(b *mem.Buffer, size int, next mem.Buffer) bool {
	if size == 0 {
		*b = next
		return true
	}
	first := unsafe.Pointer(unsafe.SliceData(b.Data))
	if next.Slab != b.Slab || unsafe.Pointer(unsafe.SliceData(next.Data)) != unsafe.Add(first, size) {
		return false
	}
	b.Data = unsafe.Slice((*byte)(first), size+len(next.Data))
	return true
}

// distinct refuses destinations that begin at the same element.
func (r *request) distinct(o *operand, what string) {
	seen := make(map[*byte]int, len(o.pieces))
	for i, p := range o.pieces {
		if p.hi == 0 {
			continue
		}
		first := unsafe.SliceData(p.loan.Data)
		if other, ok := seen[first]; ok {
			r.refuse("%ss %d and %d are the same memory", what, other, i)
			return
		}
		seen[first] = i
	}
}

// separate makes the call work on a copy of the source where it shares memory
// with the destination, unless it is just what the destination's elements
// from own on are to become.
func (r *request) separate(own int) {
	in, out := &r.in, &r.out
	if r.err != nil || in.staged || out.staged || in.data.NumElems == 0 || out.data.NumElems == 0 {
		return
	}
	size := uintptr(in.data.DType.Size())
	src := uintptr(unsafe.Pointer(unsafe.SliceData(in.data.Buffer.Data)))
	dst := uintptr(unsafe.Pointer(unsafe.SliceData(out.data.Buffer.Data)))
	if src+uintptr(in.data.NumElems)*size <= dst || dst+uintptr(out.data.NumElems)*size <= src ||
		own >= 0 && src == dst+uintptr(own)*size {
		return
	}
	in.stage(piece{loan: tensor.Loan{Buffer: in.data.Buffer}, dense: true, hi: in.data.NumElems})
	in.data.Buffer = mem.Buffer{}
}
