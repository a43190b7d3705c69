// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// PeerModelError says that a rank does not train the parameters that this one
// does.
type PeerModelError struct {
	Rank  int    // the other rank
	Param string // the parameter of this rank, empty when it is their number that differs
	// What the other rank has sent, and what this one has: the number of
	// parameters, or the sizes and strides of one.
	Sent, Have []int64
}

func (e *PeerModelError) Error() string {
	if e.Param == "" {
		return fmt.Sprintf("ddp: rank %d trains %d parameters and this rank %d: build the same model on every rank, with the same ones frozen", e.Rank, e.Sent[0], e.Have[0])
	}
	half := len(e.Have) / 2
	if len(e.Sent) == len(e.Have) && slices.Equal(e.Sent[:half], e.Have[:half]) {
		return fmt.Sprintf("ddp: rank %d has %s %v with the strides %v, this rank with %v: make it contiguous there", e.Rank, e.Param, e.Have[:half], e.Sent[half:], e.Have[half:])
	}
	return fmt.Sprintf("ddp: rank %d sent the sizes and strides %v where this rank has %s with %v: build the same model on every rank, with its parameters in the same order", e.Rank, e.Sent, e.Param, e.Have)
}

// verify compares what is trained with the other ranks: the number of
// parameters with all, their sizes and strides with rank 0's.
func (p *pytorchReducer) verify(ctx context.Context) error {
	counts := tensor.New(tensor.CPU(), tensor.Int64, p.group.Size())
	if err := p.group.AllGather(ctx, counts, tensor.FromInt64([]int64{int64(len(p.params))})); err != nil {
		return fmt.Errorf("ddp: compare the numbers of parameters of the ranks: %w", err)
	}
	for rank, n := range counts.Int64s() {
		if n != int64(len(p.params)) {
			return &PeerModelError{Rank: rank, Sent: []int64{n}, Have: []int64{int64(len(p.params))}}
		}
	}
	var mine []int64
	ends := make([]int, len(p.params))
	for i, param := range p.params {
		shape := param.Data().Shape()
		for _, n := range shape {
			mine = append(mine, int64(n))
		}
		mine = append(mine, stridesOf(shape)...)
		ends[i] = len(mine)
	}
	sent := tensor.FromInt64(slices.Clone(mine))
	if err := p.group.Broadcast(ctx, sent, 0); err != nil {
		return fmt.Errorf("ddp: compare the sizes of the parameters with rank 0's: %w", err)
	}
	theirs, start := sent.Int64s(), 0
	for i, end := range ends {
		if !slices.Equal(theirs[start:end], mine[start:end]) {
			return &PeerModelError{Rank: 0, Param: p.params[i].Name(), Sent: slices.Clone(theirs[start:end]), Have: mine[start:end]}
		}
		start = end
	}
	return nil
}

// stridesOf returns PyTorch's strides of a contiguous tensor. A dim of nothing
// counts as one of one element.
func stridesOf(shape []int) []int64 {
	strides := make([]int64, len(shape))
	stride := int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d], stride = stride, stride*int64(max(shape[d], 1))
	}
	return strides
}
