// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// Operations that are not rows of the table.
const (
	barrierOp   = "barrier"
	lateOp      = "late"
	rawSocketOp = "raw_socket"
)

// operation is a row of the table of operations that Collectives measures.
type operation struct {
	name  string
	setUp func(b *bed) prepared
}

// prepared is an operation with its tensors.
type prepared struct {
	call  func() error
	input *tensor.Tensor // what this rank puts in, nil where that is nothing
	// result is what a call with ones leaves in every element, nil where this
	// rank gets nothing.
	result *tensor.Tensor
	want   float64
}

// elems returns the number of elements of a tensor of the case's size.
func (b *bed) elems() int { return b.bytes / b.dtype.Size() }

// part returns the number of elements of a rank's part of such a tensor: at
// least one.
func (b *bed) part() int { return max(1, b.elems()/b.group.Size()) }

// skewed cuts n elements into a part for each rank, as tokens go to experts of whom those of rank
// 0 are popular: it gets three of four. Each has one at least.
func skewed(n, ranks int) []int {
	parts := make([]int, ranks)
	parts[0] = n
	for r := 1; r < ranks; r++ {
		parts[r] = max(1, n/4/(ranks-1))
		parts[0] -= parts[r]
	}
	parts[0] = max(1, parts[0])
	return parts
}

// sum is what ones become when they are summed over all ranks.
func (b *bed) sum() float64 { return float64(b.group.Size()) }

// zeros returns a tensor of n zeros in the case's kind of memory.
func (b *bed) zeros(n int) *tensor.Tensor {
	t := b.ones(n)
	t.Fill(0)
	return t
}

// atRoot returns the tensor on the rank that is the root, and nil elsewhere.
func (b *bed) atRoot(t *tensor.Tensor) *tensor.Tensor {
	if b.group.Rank() != 0 {
		return nil
	}
	return t
}

// parts cuts a tensor into one part for each rank. For nil it returns nil.
func (b *bed) parts(t *tensor.Tensor) []*tensor.Tensor {
	if t == nil {
		return nil
	}
	parts := make([]*tensor.Tensor, b.group.Size())
	n := t.NumElems() / len(parts)
	for r := range parts {
		parts[r] = t.Narrow(0, r*n, n)
	}
	return parts
}

var operations = []operation{
	{"all_reduce", func(b *bed) prepared {
		x := b.ones(b.elems())
		return prepared{func() error { return b.group.AllReduce(b.ctx, x, dist.Sum) }, x, x, b.sum()}
	}},
	{"broadcast", func(b *bed) prepared {
		x := b.ones(b.elems())
		return prepared{func() error { return b.group.Broadcast(b.ctx, x, 0) }, x, x, 1}
	}},
	{"reduce", func(b *bed) prepared {
		x := b.ones(b.elems())
		return prepared{func() error { return b.group.Reduce(b.ctx, x, 0, dist.Sum) }, x, b.atRoot(x), b.sum()}
	}},
	{"all_gather", func(b *bed) prepared {
		x, all := b.ones(b.elems()), b.zeros(b.elems()*b.group.Size())
		return prepared{func() error { return b.group.AllGather(b.ctx, all, x) }, x, all, 1}
	}},
	{"reduce_scatter", func(b *bed) prepared {
		x, mine := b.ones(b.part()*b.group.Size()), b.zeros(b.part())
		return prepared{func() error { return b.group.ReduceScatter(b.ctx, mine, x, dist.Sum) }, x, mine, b.sum()}
	}},
	{"all_to_all", func(b *bed) prepared {
		x, y := b.ones(b.part()*b.group.Size()), b.zeros(b.part()*b.group.Size())
		return prepared{func() error { return b.group.AllToAllSingle(b.ctx, y, x, nil, nil) }, x, y, 1}
	}},
	{"all_to_all_skewed", func(b *bed) prepared {
		sends := skewed(b.elems(), b.group.Size())
		recvs := slices.Repeat([]int{sends[b.group.Rank()]}, b.group.Size())
		all := 0
		for _, n := range sends {
			all += n
		}
		x, y := b.ones(all), b.zeros(recvs[0]*len(recvs))
		return prepared{func() error { return b.group.AllToAllSingle(b.ctx, y, x, recvs, sends) }, x, y, 1}
	}},
	{"gather", func(b *bed) prepared {
		x, all := b.ones(b.elems()), b.atRoot(b.zeros(b.elems()*b.group.Size()))
		parts := b.parts(all)
		return prepared{func() error { return b.group.Gather(b.ctx, parts, x, 0) }, x, all, 1}
	}},
	{"scatter", func(b *bed) prepared {
		x, mine := b.atRoot(b.ones(b.part()*b.group.Size())), b.zeros(b.part())
		parts := b.parts(x)
		return prepared{func() error { return b.group.Scatter(b.ctx, mine, parts, 0) }, x, mine, 1}
	}},
	{"sendrecv", func(b *bed) prepared {
		x := b.ones(b.elems())
		call := func() error { return nil }
		roundTrip := func(first, second func() error) func() error {
			return func() error {
				if err := first(); err != nil {
					return err
				}
				return second()
			}
		}
		send := func(to int) func() error { return func() error { return b.group.Send(b.ctx, x, to) } }
		recv := func(from int) func() error { return func() error { return b.group.Recv(b.ctx, x, from) } }
		switch b.group.Rank() {
		case 0:
			call = roundTrip(send(1), recv(1))
		case 1:
			call = roundTrip(recv(0), send(0))
		}
		return prepared{call, x, x, 1}
	}},
}

// CollectiveOps are the operations that Collectives knows. What their size is:
//
//   - all_reduce, broadcast, reduce, sendrecv (a round trip between ranks 0 and
//     1): the tensor
//   - all_gather, gather: what each rank puts in
//   - reduce_scatter, scatter, all_to_all, all_to_all_skewed: the whole source, of which every rank
//     gets a part, of one element at least
//   - barrier: nothing
//   - late: nothing to choose; rank 0 comes 100 ms late to an all-reduce of 1 MiB
//     and to a barrier
//   - raw_socket: what each of two ranks sends to the other at the same time,
//     over one TCP connection without any protocol, which bounds what
//     collectives over TCP can reach
func CollectiveOps() []string {
	var names []string
	for _, o := range operations {
		names = append(names, o.name)
	}
	return append(names, barrierOp, lateOp, rawSocketOp)
}

// ExpandOps replaces "all" by the operations that it stands for.
func ExpandOps(ops []string) []string {
	var out []string
	for _, op := range ops {
		if op != "all" {
			out = append(out, op)
			continue
		}
		for _, o := range operations {
			out = append(out, o.name)
		}
		out = append(out, barrierOp)
	}
	return out
}
