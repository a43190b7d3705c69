// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/mem"
)

const (
	// minStage is the smallest slab of staging memory, in bytes.
	minStage = 64 << 10
	// stageRest is how many other calls may be staged before a slab that none of
	// them needed is given back to the system.
	stageRest = 64
)

// staging is the memory into which a group's calls copy what does not lie in
// one piece. It consists of slabs, which local peers reach, each of one call at
// a time; a call takes one when it runs, so that a steady loop needs no more.
type staging struct {
	mu    sync.Mutex
	free  []*stage
	calls uint64 // that have been staged
}

// stage is a slab of a power of two bytes.
type stage struct {
	slab *mem.Slab
	used uint64 // the number of the call that it last served
}

func (s *staging) get(size int) (*stage, error) {
	size = max(minStage, 1<<bits.Len(uint(size-1)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for i, st := range s.free {
		if len(st.slab.Bytes()) == size {
			last := len(s.free) - 1
			s.free[i], s.free[last] = s.free[last], nil
			s.free = s.free[:last]
			st.used = s.calls
			return st, nil
		}
	}
	slab, err := mem.NewSlab(size)
	if err != nil {
		return nil, fmt.Errorf("staging memory: %w", err)
	}
	return &stage{slab, s.calls}, nil
}

func (s *staging) put(st *stage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.free[:0]
	for _, f := range s.free {
		if s.calls-f.used > stageRest {
			_ = f.slab.Close() // fails only for a descriptor that somebody else has closed
			continue
		}
		kept = append(kept, f)
	}
	clear(s.free[len(kept):])
	s.free = append(kept, st)
}

func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, st := range s.free {
		errs = append(errs, st.slab.Close())
	}
	s.free = nil
	return errors.Join(errs...)
}

// stageAlign is to what a staged destination behind a staged source is aligned.
const stageAlign = 64

// stage gives the operands that need it their place in staging memory, and
// copies there what the call reads. It returns nil where nothing is staged.
func (r *request) stage() (*stage, error) {
	in, out := &r.in, &r.out
	inSize, outSize := 0, 0
	if in.staged {
		inSize = (in.data.NumElems*in.data.DType.Size() + stageAlign - 1) &^ (stageAlign - 1)
	}
	if out.staged {
		outSize = out.data.NumElems * out.data.DType.Size()
	}
	if inSize+outSize == 0 {
		return nil, nil
	}
	st, err := r.g.staging.get(inSize + outSize)
	if err != nil {
		return nil, err
	}
	place := func(o *operand, at int) {
		n := o.data.NumElems * o.data.DType.Size()
		o.data.Buffer = mem.Buffer{Data: st.slab.Bytes()[at:][:n:n], Slab: st.slab, Offset: at}
	}
	if out.staged {
		place(out, inSize)
	}
	if in.staged {
		place(in, 0)
		if !r.inPlace || r.loads {
			in.copy(true)
		}
	}
	return st, nil
}

// unstage copies the results of a call that has succeeded to where they belong
// and gives the staging memory back.
func (r *request) unstage(st *stage, succeeded bool) {
	if st == nil {
		return
	}
	if succeeded {
		if r.out.staged {
			r.out.copy(false)
		}
		if r.in.staged && r.inPlace && r.stores {
			r.in.copy(false)
		}
	}
	r.in.data.Buffer, r.out.data.Buffer = mem.Buffer{}, mem.Buffer{}
	r.g.staging.put(st)
}

// copy copies all pieces into staging memory, or out of it.
func (o *operand) copy(in bool) {
	size := o.data.DType.Size()
	for i := range o.pieces {
		p := &o.pieces[i]
		staged := o.data.Buffer.Data[p.at*size:][:(p.hi-p.lo)*size]
		switch {
		case len(staged) == 0:
		case !p.dense:
			p.copyStrided(staged, size, in)
		case in:
			copy(staged, p.loan.Data[p.lo*size:])
		default:
			copy(p.loan.Data[p.lo*size:], staged)
		}
	}
}

// copyStrided copies the piece's elements, in row-major order, to dense or from it.
func (p *piece) copyStrided(dense []byte, size int, toDense bool) {
	// Dims that lie densely in each other are one; those of size 1 are none.
	shape, strides := make([]int, 0, 8), make([]int, 0, 8)
	for i, n := range p.loan.Shape {
		stride := p.loan.Strides[i]
		switch last := len(shape) - 1; {
		case n == 1:
		case last >= 0 && strides[last] == n*stride:
			shape[last], strides[last] = shape[last]*n, stride
		default:
			shape, strides = append(shape, n), append(strides, stride)
		}
	}
	if len(shape) == 0 {
		shape, strides = append(shape, 1), append(strides, 1)
	}
	// Where the first element is: its index in each dim but the last, and there.
	outer := len(shape) - 1
	index := append(make([]int, 0, 8), shape[:outer]...)
	at := p.lo % shape[outer]
	offset := 0
	for i, rest := outer-1, p.lo/shape[outer]; i >= 0; i-- {
		index[i] = rest % shape[i]
		rest /= shape[i]
		offset += index[i] * strides[i]
	}
	base := unsafe.Pointer(unsafe.SliceData(p.loan.Data))
	for left := p.hi - p.lo; left > 0; at = 0 {
		n := min(left, shape[outer]-at)
		run := unsafe.Add(base, (offset+at*strides[outer])*size)
		copyRun(dense[:n*size], run, strides[outer], n, size, toDense)
		dense = dense[n*size:]
		left -= n
		for i := outer - 1; i >= 0; i-- {
			offset += strides[i]
			if index[i]++; index[i] < shape[i] {
				break
			}
			offset -= index[i] * strides[i]
			index[i] = 0
		}
	}
}

// copyRun copies n elements that lie stride elements apart, to dense or from it.
func copyRun(dense []byte, run unsafe.Pointer, stride, n, size int, toDense bool) {
	if stride == 1 {
		bytes := unsafe.Slice((*byte)(run), n*size)
		if toDense {
			copy(dense, bytes)
		} else {
			copy(bytes, dense)
		}
		return
	}
	switch size {
	case 1:
		copyElems[uint8](dense, run, stride, n, toDense)
	case 2:
		copyElems[uint16](dense, run, stride, n, toDense)
	case 4:
		copyElems[uint32](dense, run, stride, n, toDense)
	case 8:
		copyElems[uint64](dense, run, stride, n, toDense)
	}
}

func copyElems[E uint8 | uint16 | uint32 | uint64](dense []byte, run unsafe.Pointer, stride, n int, toDense bool) {
	step := stride * int(unsafe.Sizeof(E(0)))
	elems := unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(dense))), n)
	if toDense {
		for i := range elems {
			elems[i] = *(*E)(unsafe.Add(run, i*step))
		}
		return
	}
	for i := range elems {
		*(*E)(unsafe.Add(run, i*step)) = elems[i]
	}
}
