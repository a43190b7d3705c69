// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
)

// reduceScatterList has a reduce-scatter of a list done as PyTorch's Gloo does it:
// one all-reduce for each tensor of the list, of which each rank keeps its own. That
// of one tensor is a single all-reduce, and the two must not be taken for each other.
// Earlier ones do not do it at all.
func (j *glooJob) reduceScatterList(r *request) {
	if j == nil || r.err != nil || r.g.backend == nil {
		return
	}
	if j.pytorch < scattersLists {
		r.err = j.unsupported(r.g, r.call.Op.String(), "has no reduce-scatter of a list")
		return
	}
	g, ctx := r.g, r.ctx
	r.instead = func(c operation.Call, in, out collective.Data) error {
		return reduceEach(ctx, g.backend, c, in, out, g.rank, g.size)
	}
}

func reduceEach(ctx context.Context, b collective.Backend, c operation.Call, in, out collective.Data, rank, size int) error {
	rest := in.Bytes()
	scratch := mem.Buffer{}
	for i := range size {
		n := c.Count
		if c.Parts != nil {
			n = c.Parts[i]
		}
		part := operation.Call{Op: operation.AllReduce, Reduce: c.Reduce, DType: c.DType, Count: n, Seq: c.Seq, Background: c.Background, Begun: c.Start()}
		numBytes := n * c.DType.Size()
		data := collective.Data{Buffer: out.Buffer, DType: c.DType, NumElems: n}
		if i != rank {
			if cap(scratch.Data) < numBytes {
				scratch.Data = make([]byte, numBytes)
			}
			data.Buffer = mem.Buffer{Data: scratch.Data[:numBytes]}
		}
		copy(data.Bytes(), rest[:numBytes])
		rest = rest[numBytes:]
		if err := b.Collective(ctx, part, data, data); err != nil {
			return err
		}
	}
	return nil
}
