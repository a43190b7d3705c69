// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// BF16Hook returns a hook that sends gradients as bfloat16: half the bytes of float32. It is
// PyTorch's bf16_compress_hook: gradients are rounded, divided by the number of ranks, and
// summed in bfloat16.
func BF16Hook() Hook { return &compressHook{name: "bf16", dtype: tensor.BFloat16} }

// FP16Hook returns a hook that sends gradients as float16, as [BF16Hook] does. float16 has
// three more bits than bfloat16, and no number beyond 65504: larger gradients become
// infinite. It is PyTorch's fp16_compress_hook.
func FP16Hook() Hook { return &compressHook{name: "fp16", dtype: tensor.Float16} }

// compressHook sends gradients in a smaller dtype.
type compressHook struct {
	hookOwner
	name  string
	dtype tensor.DType
	sent  map[int]*tensor.Tensor // by the index of the bucket: what travels
}

func (h *compressHook) String() string { return h.name }

func (h *compressHook) Average(ctx context.Context, group *dist.Group, b *GradBucket) (*tensor.Tensor, error) {
	n := b.Buffer.NumElems()
	low := h.sent[b.Index]
	if low == nil || low.NumElems() != n {
		if h.sent == nil {
			h.sent = map[int]*tensor.Tensor{}
		}
		low = memoryFor(group)(b.Buffer.Device(), h.dtype, n)
		h.sent[b.Index] = low
	}
	h.compress(low, b.Buffer, group.Size())
	if err := group.AllReduce(ctx, low, dist.Sum); err != nil {
		return nil, err
	}
	h.restore(b.Buffer, low)
	return b.Buffer, nil
}

// compress rounds the gradients, and divides them as PyTorch does: after they were rounded.
func (h *compressHook) compress(low, grads *tensor.Tensor, ranks int) {
	low.CopyFrom(grads.To(h.dtype))
	low.Scale(1 / float64(ranks))
}

// restore brings the mean back to the dtype of the gradients.
func (h *compressHook) restore(grads, low *tensor.Tensor) { grads.CopyFrom(low.To(grads.DType())) }
