// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// LayerNorm normalises rows.
func (c *CPU) LayerNorm(dst, mean, rstd, x, gamma, beta device.Array, eps float32) {
	defer hold(dst, mean, rstd, x, gamma, beta)
	rows, cols := rowsCols(x)
	kernel.LayerNorm(c.threads, f32(dst), f32(mean), f32(rstd), f32(x), f32(gamma), f32(beta), rows, cols, eps)
}

// LayerNormGrad is the backward pass of LayerNorm.
func (c *CPU) LayerNormGrad(dx, dgamma, dbeta, g, x, mean, rstd, gamma device.Array) {
	defer hold(dx, dgamma, dbeta, g, x, mean, rstd, gamma)
	rows, cols := rowsCols(x)
	kernel.LayerNormBackward(c.threads, f32(dx), f32(dgamma), f32(dbeta), f32(g), f32(x), f32(mean), f32(rstd), f32(gamma), rows, cols)
}

// Softmax works on rows.
func (c *CPU) Softmax(dst, x device.Array) {
	defer hold(dst, x)
	rows, cols := rowsCols(x)
	kernel.Softmax(c.threads, f32(dst), f32(x), rows, cols)
}

// SoftmaxGrad is the backward pass of Softmax.
func (c *CPU) SoftmaxGrad(dx, y, g device.Array) {
	defer hold(dx, y, g)
	rows, cols := rowsCols(y)
	kernel.SoftmaxBackward(c.threads, f32(dx), f32(y), f32(g), rows, cols)
}

// ignoreIndex is the target that does not count.
const ignoreIndex = -100

// CrossEntropy gives each row's loss.
func (c *CPU) CrossEntropy(loss, lse, logits, targets device.Array) (numValid, badRow int) {
	defer hold(loss, lse, logits, targets)
	rows, classes := rowsCols(logits)
	ids := i64(targets)
	for row, id := range ids {
		if id != ignoreIndex {
			if id < 0 || id >= int64(classes) {
				return 0, row
			}
			numValid++
		}
	}
	kernel.CrossEntropy(c.threads, f32(loss), f32(lse), f32(logits), ids, rows, classes)
	return numValid, -1
}

// CrossEntropyGrad is the backward pass of the mean loss.
func (c *CPU) CrossEntropyGrad(dlogits, logits, lse, targets, upstream device.Array, scale float32) {
	defer hold(dlogits, logits, lse, targets, upstream)
	rows, classes := rowsCols(logits)
	rowScale := [1]float32{f32(upstream)[0] * scale}
	kernel.CrossEntropyBackward(c.threads, f32(dlogits), f32(logits), f32(lse), i64(targets), rowScale[:], rows, classes)
}

// Gather copies rows of a table.
func (c *CPU) Gather(dst, table, ids device.Array) (badPos int) {
	defer hold(dst, table, ids)
	numRows, width := int64(table.Shape[0]), table.Shape[1]
	for pos, id := range i64(ids) {
		if id < 0 || id >= numRows {
			return pos
		}
	}
	kernel.Embedding(c.threads, f32(dst), f32(table), i64(ids), width)
	return -1
}

// ScatterAdd adds rows into a table.
func (c *CPU) ScatterAdd(dst, g, ids device.Array) {
	defer hold(dst, g, ids)
	kernel.EmbeddingBackward(c.threads, f32(dst), f32(g), i64(ids), dst.Shape[1])
}

// Pick takes one element of each row.
func (*CPU) Pick(dst, x, ids device.Array) {
	defer hold(dst, x, ids)
	out, in, cols := f32(dst), f32(x), x.Shape[1]
	for row, id := range i64(ids) {
		out[row] = 0
		if id >= 0 {
			out[row] = in[row*cols+int(id)]
		}
	}
}

// Place sets one element of each row, the others are zero.
func (c *CPU) Place(dst, g, ids device.Array) {
	defer hold(dst, g, ids)
	c.Fill(dst, 0)
	out, in, cols := f32(dst), f32(g), dst.Shape[1]
	for row, id := range i64(ids) {
		if id >= 0 {
			out[row*cols+int(id)] = in[row]
		}
	}
}

// CausalMask sets what lies after the query.
func (*CPU) CausalMask(dst, x device.Array, value float32) {
	defer hold(dst, x)
	n := len(x.Shape)
	queries, keys := x.Shape[n-2], x.Shape[n-1]
	out, in := f32(dst), f32(x)
	copy(out, in)
	for row := 0; row*keys < len(out); row++ {
		first := row%queries + keys - queries + 1
		for key := first; key < keys; key++ {
			out[row*keys+key] = value
		}
	}
}

func heads(a device.Array) kernel.Heads {
	return kernel.Heads{Data: span(a), Batch: a.Strides[0], Time: a.Strides[1], Head: a.Strides[2]}
}

func attentionShape(p device.Attention, q, k device.Array) kernel.AttentionShape {
	return kernel.AttentionShape{
		Batch: q.Shape[0], Heads: q.Shape[2], Time: q.Shape[1], KeyTime: k.Shape[1], Dim: q.Shape[3],
		Causal: p.Causal, Scale: p.Scale,
	}
}

// Attention computes softmax(scale·q·kᵀ)·v for each batch and head.
func (c *CPU) Attention(p device.Attention, out, lse, q, k, v device.Array) {
	defer hold(out, lse, q, k, v)
	kernel.Attention(c.threads, attentionShape(p, q, k), heads(out), heads(q), heads(k), heads(v), f32(lse))
}

// AttentionGrad is the backward pass of Attention.
func (c *CPU) AttentionGrad(p device.Attention, dq, dk, dv, dout, out, lse, q, k, v device.Array) {
	defer hold(dq, dk, dv, dout, out, lse, q, k, v)
	kernel.AttentionBackward(c.threads, attentionShape(p, q, k), heads(dq), heads(dk), heads(dv),
		heads(dout), heads(out), heads(q), heads(k), heads(v), f32(lse))
}

// AdamW updates a parameter in place.
func (c *CPU) AdamW(p device.AdamW, param, grad, m, v device.Array) {
	defer hold(param, grad, m, v)
	kernel.AdamW(c.threads, f32(param), f32(grad), f32(m), f32(v), kernel.AdamWStep(p))
}

// SGD updates a parameter in place.
func (c *CPU) SGD(p device.SGD, param, grad, momentum device.Array) {
	defer hold(param, grad, momentum)
	kernel.SGD(c.threads, f32(param), f32(grad), f32(momentum), kernel.SGDStep(p))
}

var _ device.Device = (*CPU)(nil)
