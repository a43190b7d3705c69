// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/trace"
)

// Fused runs the kernel of an operation. Each file fused_NOUN.go has those of its
// noun, and says by its result whether the operation is one of them.
func (c *CPU) Fused(op device.Op, args ...device.Array) bool {
	defer hold(args...)
	n := device.FLOPs(op, args)
	if n > 0 {
		c.flops.Add(n)
	}
	if trace.On() {
		defer traced(device.OpName(op), n, args...).End()
	}
	return c.attention(op, args) || c.norm(op, args) || c.batchNorm(op, args) || c.conv(op, args) || c.pool(op, args) ||
		c.softmax(op, args) || c.pointwise(op, args) || c.recurrent(op, args) || c.index(op, args) || c.move(op, args) ||
		c.embedding(op, args) || c.groups(op, args) || c.order(op, args) || c.optimizer(op, args) || c.optimizerRows(op, args)
}

// mixedOf returns an operand of float32 or bfloat16, or an absent one, for a
// kernel that takes both.
func mixedOf(a device.Array) kernel.Mixed {
	if a.DType == device.BFloat16 {
		return kernel.Mixed{BF16: device.Elems[uint16](a)}
	}
	return kernel.Mixed{F32: a.Float32s()}
}

// imagesOf returns the shape of an operand [batch, channels, plane…].
func imagesOf(a device.Array) kernel.Images {
	plane := 1
	for _, s := range a.Shape[2:] {
		plane *= s
	}
	return kernel.Images{Num: a.Shape[0], Channels: a.Shape[1], Plane: plane}
}

// around returns how many elements lie outside a dim, along it and inside it.
func around(shape []int, dim int) (outer, size, inner int) {
	outer, inner = 1, 1
	for d, s := range shape {
		switch {
		case d < dim:
			outer *= s
		case d > dim:
			inner *= s
		}
	}
	return outer, shape[dim], inner
}
