// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// recurrent runs the cells of recurrent networks.
func (c *CPU) recurrent(op device.Op, a []device.Array) bool {
	switch op.(type) {
	case device.LSTMCell:
		batch, hidden := a[0].RowsCols()
		kernel.LSTMCell(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), batch, hidden)
	case device.LSTMCellGrad:
		batch, hidden := a[1].RowsCols()
		kernel.LSTMCellBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[4].Float32s(),
			a[1].Float32s(), a[5].Float32s(), a[6].Float32s(), a[7].Float32s(), batch, hidden)
	case device.GRUCell:
		batch, hidden := a[0].RowsCols()
		kernel.GRUCell(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[4].Float32s(), batch, hidden)
	case device.GRUCellGrad:
		batch, hidden := a[2].RowsCols()
		kernel.GRUCellBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[2].Float32s(),
			a[4].Float32s(), a[5].Float32s(), batch, hidden)
	default:
		return false
	}
	return true
}
