// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// Gather copies rows of a table.
func (c *CPU) Gather(dst, table, ids device.Array) (badPos int) {
	defer hold(dst, table, ids)
	numRows, width := int64(table.Shape[0]), table.Shape[1]
	for pos, id := range ids.Int64s() {
		if id < 0 || id >= numRows {
			return pos
		}
	}
	kernel.Embedding(c.threads, dst.Float32s(), table.Float32s(), ids.Int64s(), width)
	return -1
}

// ScatterAdd adds rows into a table.
func (c *CPU) ScatterAdd(dst, g, ids device.Array) {
	defer hold(dst, g, ids)
	kernel.EmbeddingBackward(c.threads, dst.Float32s(), g.Float32s(), ids.Int64s(), dst.Shape[1])
}

// Fused runs the kernel that the operation brings.
func (c *CPU) Fused(op device.Fused, args ...device.Array) bool {
	defer hold(args...)
	op.CPU(c.threads, args)
	return true
}

var _ device.Device = (*CPU)(nil)
