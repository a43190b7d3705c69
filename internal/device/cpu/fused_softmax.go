// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// softmax runs softmax, log-sum-exp and cross-entropy: what turns scores of classes
// into probabilities and losses.
func (c *CPU) softmax(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.Softmax:
		rows, cols := a[1].RowsCols()
		kernel.Softmax(c.threads, a[0].Float32s(), a[1].Float32s(), rows, cols)
	case device.SoftmaxGrad:
		rows, cols := a[1].RowsCols()
		kernel.SoftmaxBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), rows, cols)
	case device.LogSumExp:
		rows, cols := a[1].RowsCols()
		kernel.LogSumExp(c.threads, a[0].Float32s(), a[1].Float32s(), rows, cols)
	case device.ClassTargets:
		classTargets(op, a[0].Int64s(), a[1].Int64s(), device.Elems[float64](a[2]))
	case device.CrossEntropy:
		rows, classes := a[2].Shape[0], a[2].Shape[1]
		if a[2].DType == device.BFloat16 {
			kernel.CrossEntropyBF16(c.threads, a[0].Float32s(), a[1].Float32s(), device.Elems[uint16](a[2]), a[3].Int64s(), rows, classes)
			break
		}
		kernel.CrossEntropy(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Int64s(), rows, classes)
	case device.MaxAndSumExp:
		rows, classes := a[2].Shape[0], a[2].Shape[1]
		if a[2].DType == device.BFloat16 {
			kernel.MaxAndSumExpBF16(c.threads, a[0].Float32s(), a[1].Float32s(), device.Elems[uint16](a[2]), rows, classes)
			break
		}
		kernel.MaxAndSumExp(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), rows, classes)
	case device.CrossEntropyGrad:
		rows, classes := a[1].Shape[0], a[1].Shape[1]
		if a[1].DType == device.BFloat16 {
			kernel.CrossEntropyBackwardBF16(c.threads, device.Elems[uint16](a[0]), device.Elems[uint16](a[1]), a[2].Float32s(), a[3].Int64s(), a[4].Float32s(), rows, classes)
			break
		}
		kernel.CrossEntropyBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Int64s(), a[4].Float32s(), rows, classes)
	case device.Probabilities:
		for i, v := range a[0].Float32s() {
			if v < 0 || v > 1 {
				op.Check.Note(device.OpName(op), i, int64(math.Float64bits(float64(v))))
				break
			}
		}
	default:
		return false
	}
	return true
}

// classTargets leaves a target out that is no class.
func classTargets(op device.ClassTargets, ids, targets []int64, scale []float64) {
	n := len(targets)
	for row, id := range targets {
		switch {
		case id == op.Ignore:
			n--
			id = op.IgnoreAs
		case id < 0 || id >= int64(op.Classes):
			op.Check.Note(device.OpName(op), row, id)
			id = op.IgnoreAs
		}
		ids[row] = id
	}
	scale[0] = 1 / float64(n)
}
