// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// bufferSync gives all ranks rank 0's buffers, such as running statistics: one
// broadcast for each dtype, however many buffers there are.
type bufferSync struct {
	buffers []*nn.Buffer // of one dtype
	flat    *tensor.Tensor
	views   []*tensor.Tensor // of flat, one a buffer
}

// newBufferSyncs groups the buffers of a model by dtype, in an order that all
// ranks have.
func newBufferSyncs(model any) []*bufferSync {
	return syncsOf(nn.Buffers(model))
}

func syncsOf(buffers []*nn.Buffer) []*bufferSync {
	byDType := map[tensor.DType]*bufferSync{}
	var syncs []*bufferSync
	for _, b := range buffers {
		s := byDType[b.Data.DType()]
		if s == nil {
			s = &bufferSync{}
			byDType[b.Data.DType()] = s
			syncs = append(syncs, s)
		}
		s.buffers = append(s.buffers, b)
	}
	slices.SortFunc(syncs, func(a, b *bufferSync) int { return int(a.buffers[0].Data.DType()) - int(b.buffers[0].Data.DType()) })
	for _, s := range syncs {
		size, offset := 0, 0
		for _, b := range s.buffers {
			size += b.Data.NumElems()
		}
		first := s.buffers[0].Data
		s.flat = tensor.New(first.Device(), first.DType(), size)
		for _, b := range s.buffers {
			n := b.Data.NumElems()
			s.views = append(s.views, s.flat.Narrow(0, offset, n).Reshape(b.Data.Shape()...))
			offset += n
		}
	}
	return syncs
}

// broadcast replaces every rank's buffers by rank 0's.
func (s *bufferSync) broadcast(ctx context.Context, r ranks) error { return s.broadcastFrom(ctx, r, 0) }

// broadcastFrom replaces every rank's buffers by those of a rank.
func (s *bufferSync) broadcastFrom(ctx context.Context, r ranks, root int) error {
	if r.group().Rank() == root {
		for i, b := range s.buffers {
			s.views[i].CopyFrom(b.Data)
		}
	}
	if err := r.broadcastFrom(ctx, s.flat, root); err != nil {
		return fmt.Errorf("ddp: broadcast %d buffers (%s … %s) from rank %d: %w",
			len(s.buffers), s.buffers[0].Name(), s.buffers[len(s.buffers)-1].Name(), root, err)
	}
	if r.group().Rank() != root {
		for i, b := range s.buffers {
			b.Data.CopyFrom(s.views[i])
		}
	}
	return nil
}
