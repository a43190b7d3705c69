// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// Fused runs an operation with a kernel of its own. For one that is not here it returns false.
func (d *Device) Fused(op device.Op, a ...device.Array) bool {
	return d.rows(op, a) || d.attention(op, a) || d.optimizer(op, a) || d.index(op, a) || d.regions(op, a) || d.pointwise(op, a) || d.transformer(op, a)
}

// rows runs what a warp does row by row.
func (d *Device) rows(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	switch op := op.(type) {
	case device.Softmax:
		if rows, cols := a[1].RowsCols(); rows > 0 {
			d.launch(name, "softmax", overRows(rows), a[0].Ptr, a[1].Ptr, rows, cols)
		}
	case device.SoftmaxGrad:
		if rows, cols := a[1].RowsCols(); rows > 0 {
			d.launch(name, "softmax_grad", overRows(rows), a[0].Ptr, a[1].Ptr, a[2].Ptr, rows, cols)
		}
	case device.LogSumExp:
		if rows, cols := a[1].RowsCols(); rows > 0 {
			d.launch(name, "log_sum_exp", overRows(rows), a[0].Ptr, a[1].Ptr, rows, cols)
		}
	case device.MaxAndSumExp:
		if rows, cols := a[2].RowsCols(); rows > 0 {
			d.launch(name, "max_and_sum_exp", overRows(rows), a[0].Ptr, a[1].Ptr, a[2].Ptr, int32(a[2].DType), rows, cols)
		}
	case device.CausalMask:
		n := len(a[1].Shape)
		if elems := a[1].NumElems(); elems > 0 {
			d.launch(name, "causal_mask", overElements(elems), a[0].Ptr, a[1].Ptr, float32(op.Value), a[1].Shape[n-2], a[1].Shape[n-1], elems)
		}
	case device.LayerNorm:
		if rows, cols := a[3].RowsCols(); rows > 0 {
			d.launch(name, "layer_norm", overRows(rows), a[0].Ptr, a[1].Ptr, a[2].Ptr, a[3].Ptr, int32(a[3].DType), a[4].Ptr, a[5].Ptr, float32(op.Eps), rows, cols)
		}
	case device.LayerNormGrad:
		rows, cols := a[4].RowsCols()
		if cols == 0 {
			break
		}
		if rows > 0 {
			d.launch(name, "layer_norm_grad", overRows(rows), a[0].Ptr, a[3].Ptr, a[4].Ptr, int32(a[4].DType), a[5].Ptr, a[6].Ptr, a[7].Ptr, rows, cols)
		}
		d.launch(name, "layer_norm_params", overRows(cols), a[1].Ptr, a[2].Ptr, a[3].Ptr, a[4].Ptr, int32(a[4].DType), a[5].Ptr, a[6].Ptr, rows, cols)
	case device.ClassTargets:
		word, number, site := d.checked(name, op.Check)
		d.launch(name, "class_targets", oneWarp, a[0].Ptr, a[1].Ptr, a[2].Ptr, op.Classes, int(op.Ignore), int(op.IgnoreAs), word, number, site, a[1].NumElems())
	case device.CrossEntropy:
		if rows, cols := a[2].RowsCols(); rows > 0 {
			d.launch(name, "cross_entropy", overRows(rows), a[0].Ptr, a[1].Ptr, a[2].Ptr, int32(a[2].DType), a[3].Ptr, rows, cols)
		}
	case device.CrossEntropyGrad:
		if rows, cols := a[1].RowsCols(); rows > 0 {
			d.launch(name, "cross_entropy_grad", overRows(rows), a[0].Ptr, a[1].Ptr, int32(a[1].DType), a[2].Ptr, a[3].Ptr, a[4].Ptr, rows, cols)
		}
	default:
		return false
	}
	return true
}

// heads is struct heads of attention.cu.
type heads struct {
	p                        unsafe.Pointer
	dtype, batch, time, head int64
}

func newHeads(a device.Array) heads {
	return heads{a.Ptr, int64(a.DType), int64(a.Strides[0]), int64(a.Strides[1]), int64(a.Strides[2])}
}

// attentionShape is struct shape of attention.cu.
type attentionShape struct {
	batch, heads, time, keyTime, keyHeads, dim int64
	mask                                       unsafe.Pointer
	maskBatch, maskHead, maskTime              int64
	scale, softCap                             float32
	causal                                     int64
}

// maxHeadDim is how many channels of a head the kernels take.
const maxHeadDim = 256

func newAttentionShape(p device.AttentionParams, q, k, mask device.Array) (attentionShape, bool) {
	s := attentionShape{
		batch: int64(q.Shape[0]), time: int64(q.Shape[1]), heads: int64(q.Shape[2]), dim: int64(q.Shape[3]),
		keyTime: int64(k.Shape[1]), keyHeads: int64(k.Shape[2]), scale: p.Scale, softCap: p.SoftCap,
	}
	if p.Causal {
		s.causal = 1
	}
	if mask.Ptr != nil {
		s.mask, s.maskBatch, s.maskHead, s.maskTime = mask.Ptr, int64(mask.Strides[0]), int64(mask.Strides[1]), int64(mask.Strides[2])
	}
	return s, p.Dropout == 0 && s.dim <= maxHeadDim && s.keyHeads > 0
}

func (d *Device) attention(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	switch op := op.(type) {
	case device.Attention:
		s, ok := newAttentionShape(op.AttentionParams, a[2], a[3], a[5])
		if rows := int(s.batch * s.heads * s.time); ok && rows > 0 {
			d.launch(name, "attention", overRows(rows), newHeads(a[0]), a[1].Ptr, newHeads(a[2]), newHeads(a[3]), newHeads(a[4]), s)
		}
		return ok
	case device.AttentionGrad:
		s, ok := newAttentionShape(op.AttentionParams, a[6], a[7], a[9])
		if !ok {
			return false
		}
		g, out, q, k, v := newHeads(a[3]), newHeads(a[4]), newHeads(a[6]), newHeads(a[7]), newHeads(a[8])
		if rows := int(s.batch * s.heads * s.time); rows > 0 {
			d.launch(name, "attention_query_grad", overRows(rows), newHeads(a[0]), g, out, a[5].Ptr, q, k, v, s)
		}
		if rows := int(s.batch * s.keyHeads * s.keyTime); rows > 0 {
			d.launch(name, "attention_key_grad", overRows(rows), newHeads(a[1]), newHeads(a[2]), g, out, a[5].Ptr, q, k, v, s)
		}
		return true
	}
	return false
}

func (d *Device) optimizer(op device.Op, a []device.Array) bool {
	name := device.OpName(op)
	switch op := op.(type) {
	case device.Adam:
		scale := a[len(a)-1].Ptr
		for i, u := range op.Updates {
			x := a[5*i : 5*i+5]
			n := x[0].NumElems()
			if n == 0 {
				continue
			}
			decay, decoupled := float32(u.WeightDecay), int32(0)
			if u.Decoupled {
				decay, decoupled = float32(1-u.LR*u.WeightDecay), 1
			}
			d.launch(name, "adam", overElements(n), x[0].Ptr, x[1].Ptr, x[2].Ptr, x[3].Ptr, x[4].Ptr, scale, direction(u.Maximize),
				decay, float32(1-u.Beta1), float32(u.Beta2), float32(1-u.Beta2), float32(math.Sqrt(u.Bias2)), float32(u.Eps), float32(-u.LR/u.Bias1), decoupled, n)
		}
	case device.SGD:
		scale := a[len(a)-1].Ptr
		for i, u := range op.Updates {
			x := a[3*i : 3*i+3]
			if n := x[0].NumElems(); n > 0 {
				d.launch(name, "sgd", overElements(n), x[0].Ptr, x[1].Ptr, x[2].Ptr, scale, direction(u.Maximize),
					float32(u.LR), float32(u.Momentum), float32(1-u.Dampening), float32(u.WeightDecay), number(u.Nesterov), number(u.First), n)
			}
		}
	case device.ClipScale:
		d.launch(name, "clip_scale", grid{x: 1, threads: 1}, a[0].Ptr, a[1].Ptr, op.MaxNorm)
	default:
		return false
	}
	return true
}

func direction(maximize bool) float32 {
	if maximize {
		return -1
	}
	return 1
}

func number(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
