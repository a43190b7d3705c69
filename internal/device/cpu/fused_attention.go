// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/random"
)

// attention runs what belongs to attention and positions.
func (c *CPU) attention(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.Attention:
		s := attentionShape(op.AttentionParams, a[2], a[3], a[5])
		if a[2].DType == device.BFloat16 {
			kernel.AttentionBF16(c.threads, s, headsBF16(a[0]), headsBF16(a[2]), headsBF16(a[3]), headsBF16(a[4]), a[1].Float32s())
			break
		}
		kernel.Attention(c.threads, s, heads(a[0]), heads(a[2]), heads(a[3]), heads(a[4]), a[1].Float32s())
	case device.AttentionGrad:
		s := attentionShape(op.AttentionParams, a[6], a[7], a[9])
		if a[6].DType == device.BFloat16 {
			kernel.AttentionBackwardBF16(c.threads, s, headsBF16(a[0]), headsBF16(a[1]), headsBF16(a[2]),
				headsBF16(a[3]), headsBF16(a[4]), headsBF16(a[6]), headsBF16(a[7]), headsBF16(a[8]), a[5].Float32s())
			break
		}
		kernel.AttentionBackward(c.threads, s, heads(a[0]), heads(a[1]), heads(a[2]),
			heads(a[3]), heads(a[4]), heads(a[6]), heads(a[7]), heads(a[8]), a[5].Float32s())
	case device.AttentionDropout:
		kernel.AttentionDropout(kernel.AttentionShape{
			Batch: a[0].Shape[0], Heads: a[0].Shape[1], Time: a[0].Shape[2], KeyTime: a[0].Shape[3],
			Dropout: op.Dropout, Random: random.Philox{Key: op.Key}, Stream: op.Stream, Part: kernel.AttentionPart(op.Part),
		}, a[0].Float32s())
	case device.AttentionMerge:
		s := kernel.MergeShape{Batch: a[0].Shape[0], Time: a[0].Shape[1], Heads: a[0].Shape[2], Dim: a[0].Shape[3]}
		lse, partLSE := sums(a[1]), sums(a[3])
		if a[2].DType == device.BFloat16 {
			kernel.MergeAttentionBF16(c.threads, s, heads(a[0]), lse, headsBF16(a[2]), partLSE)
			break
		}
		kernel.MergeAttention(c.threads, s, heads(a[0]), lse, heads(a[2]), partLSE)
	case device.CausalMask:
		causalMask(a[0], a[1], float32(op.Value))
	case device.RoPE:
		x := a[1]
		r := kernel.Rotation{
			NumBatch: x.Shape[0], NumTime: x.Shape[1], NumHeads: x.Shape[2], Dim: x.Shape[3],
			Cos: a[2].Float32s(), Sin: a[3].Float32s(), Time: x.Shape[3] / 2, Back: op.Back,
		}
		if len(a[2].Shape) == 3 {
			r.Batch = r.NumTime * r.Time
		}
		kernel.Rotate(c.threads, r, heads(a[0]), heads(x))
	default:
		return false
	}
	return true
}

func attentionShape(p device.AttentionParams, q, k, mask device.Array) kernel.AttentionShape {
	s := kernel.AttentionShape{
		Batch: q.Shape[0], Heads: q.Shape[2], Time: q.Shape[1], KeyTime: k.Shape[1], Dim: q.Shape[3],
		KeyHeads: k.Shape[2], Causal: p.Causal, Scale: p.Scale, SoftCap: p.SoftCap,
		Dropout: p.Dropout, Random: random.Philox{Key: p.Key}, Stream: p.Stream, Part: kernel.AttentionPart(p.Part),
	}
	if mask.Ptr != nil {
		s.Mask = kernel.AttentionMask{Data: mask.Span(), Batch: mask.Strides[0], Head: mask.Strides[1], Time: mask.Strides[2]}
	}
	return s
}

func heads(a device.Array) kernel.Heads {
	return kernel.Heads{Data: a.Span(), Batch: a.Strides[0], Time: a.Strides[1], Head: a.Strides[2]}
}

// sums are log-sum-exps [batch, heads, time].
func sums(a device.Array) kernel.Sums {
	return kernel.Sums{Data: a.Span(), Batch: a.Strides[0], Head: a.Strides[1]}
}

func headsBF16(a device.Array) kernel.HeadsBF16 {
	return kernel.HeadsBF16{Data: device.Span[uint16](a), Batch: a.Strides[0], Time: a.Strides[1], Head: a.Strides[2]}
}

func causalMask(out, x device.Array, value float32) {
	n := len(x.Shape)
	queries, keys := x.Shape[n-2], x.Shape[n-1]
	dst := out.Float32s()
	copy(dst, x.Float32s())
	for row := 0; row*keys < len(dst); row++ {
		for key := max(0, row%queries+keys-queries+1); key < keys; key++ {
			dst[row*keys+key] = value
		}
	}
}
