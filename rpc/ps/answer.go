// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"runtime"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// pull answers a request for rows.
func (s *Server) pull(ctx context.Context, in pullArgs) (pullAnswer, error) {
	if no := s.isMet(in.Life); no != nil {
		return pullAnswer{}, no
	}
	v, err := s.await(ctx, in.Worker, in.Step)
	if err != nil {
		return pullAnswer{}, err
	}
	done, no := s.reads()
	if no != nil {
		return pullAnswer{}, no
	}
	defer done()
	if len(in.Parts) > maxParts {
		return pullAnswer{}, s.errorf(KindKeys, "a pull of %d parts: want %d at most", len(in.Parts), maxParts)
	}
	if no := s.checkSize(v, in.Parts); no != nil {
		return pullAnswer{}, no.by(in.Worker, in.Step)
	}
	out := pullAnswer{Step: v.applied, Behind: v.behind(in.Step), Rows: make([]*rpc.LazyTensor, len(in.Parts))}
	for i, p := range in.Parts {
		t, no := s.gather(v, p)
		if no != nil {
			return pullAnswer{}, no.by(in.Worker, in.Step)
		}
		out.Rows[i] = t
	}
	s.counts.pulls.Add(1)
	return out, nil
}

// maxPullBytes bounds the rows of a pull. Keys are so much smaller than rows that the limit
// of a request does not bound the memory that its answer takes.
const maxPullBytes = 2 << 30

// checkSize refuses a pull whose answer would be too large, before memory is taken for it.
func (s *Server) checkSize(v *view, parts []pullPart) *Error {
	bytes := 0
	for _, p := range parts {
		n, ok := v.number[p.Table]
		if !ok {
			continue // gather says so
		}
		schema := &v.set.Tables[n]
		switch {
		case p.Offsets != nil:
			bytes += p.Offsets.NumElems() * schema.RowBytes(tensor.Float32)
		case p.Keys != nil:
			bytes += p.Keys.NumElems() * schema.RowBytes(wireType(schema))
		}
		if bytes > maxPullBytes {
			return s.errorf(KindKeys, "the rows of the pull take more than %d bytes: pull fewer keys at once", maxPullBytes).of(p.Table)
		}
	}
	return nil
}

// gather reads the rows of a part. Rows in memory are read while the answer is written, so
// the first are at the client before the last are read. Sums of bags are small, and rows on
// disk may give an error, which could not be told then: these are read at once.
func (s *Server) gather(v *view, p pullPart) (*rpc.LazyTensor, *Error) {
	n, ok := v.number[p.Table]
	if !ok {
		return nil, s.errorf(KindTable, "there is no such table; there are %s", tableNames(v.set.Tables)).of(p.Table)
	}
	schema, table := &v.set.Tables[n], v.tables[n]
	keys, err := int64sOf(p.Keys, "keys")
	if err != nil {
		return nil, s.errorf(KindKeys, "%w", err).of(p.Table)
	}
	if no := s.checkKeys(schema, keys); no != nil {
		return nil, no
	}
	s.counts.pulledRows.Add(uint64(len(keys)))
	if p.Offsets != nil {
		return s.gatherBags(schema, table, keys, p.Offsets)
	}
	out := rowsOnWire(schema, len(keys))
	as, size := wireType(schema), out.DType.Size()*out.Shape[1]
	out.Fill = func(dst []byte, at int) error {
		done, no := s.reads()
		if no != nil {
			return no
		}
		defer done()
		err := table.Gather(dst, as, keys[at/size:][:len(dst)/size])
		runtime.KeepAlive(p.Keys)
		return err
	}
	if schema.Memory == 0 {
		return out, nil
	}
	ready := tensor.Empty(out.DType, out.Shape...)
	dst, err := bytesOf(ready)
	if err == nil {
		err = table.Gather(dst, as, keys)
	}
	if err != nil {
		return nil, s.errorf(KindKeys, "%w", err).of(p.Table)
	}
	return &rpc.LazyTensor{Ready: ready}, nil
}

// gatherBags adds up the rows of bags.
func (s *Server) gatherBags(schema *rows.Schema, table *rows.Table, keys []int64, begins *tensor.Tensor) (*rpc.LazyTensor, *Error) {
	offsets, err := int64sOf(begins, "offsets")
	if err != nil {
		return nil, s.errorf(KindKeys, "%w", err).of(schema.Name)
	}
	if no := checkOffsets(offsets, len(keys)); no != nil {
		no.Server = s.index
		return nil, no.of(schema.Name)
	}
	out := tensor.Empty(tensor.Float32, len(offsets), schema.Width)
	dst, err := float32sOf(out)
	if err == nil {
		err = table.GatherBags(dst, keys, offsets, false)
	}
	if err != nil {
		return nil, s.errorf(KindKeys, "%w", err).of(schema.Name)
	}
	return &rpc.LazyTensor{Ready: out}, nil
}

// wireType is the dtype of a table's rows on the wire.
func wireType(t *rows.Schema) tensor.DType {
	switch {
	case t.Wire != 0:
		return t.Wire
	case t.DType != 0:
		return t.DType
	}
	return tensor.Float32
}

// rowsOnWire describes rows on the wire.
func rowsOnWire(t *rows.Schema, n int) *rpc.LazyTensor {
	if d := wireType(t); d != tensor.Int8 {
		return &rpc.LazyTensor{DType: d, Shape: []int{n, t.Width}}
	}
	return &rpc.LazyTensor{DType: tensor.Uint8, Shape: []int{n, t.Width + 4}}
}
