// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
)

// rules are what the Gloo of the job's PyTorch does not have, for a group of this rank. They
// implement [backend.Rules].
type rules struct {
	j    *job
	spec *backend.Spec
	comm *gloo.Communicator // nil for a group of one rank
}

// Admits implements [backend.Rules].
func (r *rules) Admits(c *operation.Call) error {
	if reason := r.j.release.refuses(c); reason != "" {
		return r.refuse(c.Op.String(), reason)
	}
	return nil
}

// AdmitsObjects implements [backend.Rules].
func (r *rules) AdmitsObjects(op operation.Op) error {
	return r.refuse(op.String(), "moves objects as Python's pickles, which are programs and not data: send tensors, or make a group of Go ranks by WithBackend(\"native\")")
}

// AdmitsSplit implements [backend.Rules].
func (r *rules) AdmitsSplit() error {
	return r.refuse("split", "makes its groups by NewGroup, which all ranks call alike")
}

// refuse returns the error of what PyTorch does not have.
func (r *rules) refuse(op, reason string) *fault.PyTorchError {
	version := r.j.release.String()
	if r.j.guess != "" {
		version += " (its store is that of " + r.j.guess + ": dist.WithPyTorch says which it is)"
	}
	return &fault.PyTorchError{Group: r.spec.Name, Rank: r.spec.Rank, Op: op, PyTorch: version, Reason: reason}
}

// ReduceScatterList implements [backend.Rules]: it is done as PyTorch's Gloo does it,
// by one all-reduce for each tensor of the list, of which each rank keeps its own. That
// of one tensor is a single all-reduce, and the two must not be taken for each other.
// Earlier releases do not do it at all.
func (r *rules) ReduceScatterList(ctx context.Context) (backend.Do, error) {
	switch {
	case r.comm == nil:
		return nil, nil
	case r.j.release < scattersLists:
		return nil, r.refuse(operation.ReduceScatter.String(), "has no reduce-scatter of a list")
	}
	return func(c operation.Call, in, out collective.Data) error {
		return reduceEach(ctx, r.comm, c, in, out, r.spec.Rank, len(r.spec.World))
	}, nil
}

func reduceEach(ctx context.Context, b backend.Communicator, c operation.Call, in, out collective.Data, rank, size int) error {
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

// MonitoredBarrier implements [backend.Rules]. It is PyTorch's monitored_barrier: rank 0
// waits to hear from every other rank and answers all when it has. Who is missing only rank
// 0 knows, and the others that their answer does not come; the group is of no more use then.
func (r *rules) MonitoredBarrier(ctx context.Context) backend.Do {
	if r.comm == nil {
		return nil
	}
	return func(c operation.Call, _, _ collective.Data) error { return r.comm.MonitoredBarrier(ctx, c, true) }
}

// Foreign implements [backend.Rules]: they are the ranks that run PyTorch.
func (r *rules) Foreign(ctx context.Context) ([]int, error) {
	var ranks []int
	for i, world := range r.spec.World {
		if i == r.spec.Rank {
			continue
		}
		isGo, err := meeting.IsSet(ctx, r.j.keys, goKey(world))
		if err != nil {
			return nil, fmt.Errorf("dist: which ranks of group %q are PyTorch's: %w", r.spec.Name, err)
		}
		if !isGo {
			ranks = append(ranks, i)
		}
	}
	return ranks, nil
}

// ForeignVersion implements [backend.Rules].
func (r *rules) ForeignVersion() string {
	return strings.TrimPrefix(r.j.release.String(), "PyTorch ")
}
