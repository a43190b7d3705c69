// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"

	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// LazyTensor is a tensor of an answer that is computed while the answer is written: the first
// values are at the caller before the last ones are there, and in shared memory they are
// computed where the caller reads them. The caller gets a *tensor.Tensor. A handler returns
// LazyTensors in place of tensors where it would copy many values only to send them.
//
//	type reply struct{ Rows *rpc.LazyTensor } // the caller's method has Rows *tensor.Tensor
type LazyTensor struct {
	DType tensor.DType
	Shape []int
	// Fill computes bytes of the tensor, row-major, from at on. It is called for whole rows:
	// what lies behind an index of the first dim. It is called after the handler has
	// returned, until the answer has been written, and by one goroutine at a time. An error
	// ends the connection if a part of the answer has been written.
	Fill func(dst []byte, at int) error
	// Ready is the tensor if it has been computed. The other fields then have no meaning.
	Ready *tensor.Tensor
}

// wireText implements wired.
func (*LazyTensor) wireText() (string, error) { return "tensor", nil }

// maxLazyRow bounds a row of a tensor that is computed while it is written.
const maxLazyRow = 64 << 10

// encodeWire implements wired.
func (t *LazyTensor) encodeWire(m *wire.Outgoing) error {
	made := &wire.Made{DType: t.DType, Shape: t.Shape, Fill: t.fill}
	ready := t.Ready
	if ready == nil {
		if len(t.Shape) == 0 || !t.DType.Valid() || t.Fill == nil {
			return fmt.Errorf("a LazyTensor of %v %v: want a dtype, a dim or more, and Fill", t.DType, t.Shape)
		}
		size := made.Size()
		if t.Shape[0] > 0 {
			made.Unit = size / t.Shape[0]
		}
		// Hooks look at tensors; and what is small is written together with others.
		if p, _ := m.To.(*Peer); size < wire.MakeFrom || made.Unit > maxLazyRow || p == nil || p.agent.hook != nil {
			ready = tensor.Empty(t.DType, t.Shape...)
			if size > 0 {
				if err := t.fill(ready.Buffer().Data, 0); err != nil {
					return err
				}
			}
		}
	}
	n := 0
	if ready != nil {
		n = m.Tensor(ready)
	} else {
		n = m.Make(made)
	}
	m.Enc.Tag(tagTensor)
	m.Enc.Uint(uint64(n))
	return nil
}

// fill is Fill whose panic is an error: nobody else recovers it.
func (t *LazyTensor) fill(dst []byte, at int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicError(v)
		}
	}()
	return t.Fill(dst, at)
}

// decodeWire implements wired.
func (*LazyTensor) decodeWire(r *wire.Received) error {
	r.Dec.Skip()
	return fmt.Errorf("a LazyTensor is only sent: the receiver's type has *tensor.Tensor")
}
