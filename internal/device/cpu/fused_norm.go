// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/kernel"
)

// norm runs the normalisations of rows and of groups of channels.
func (c *CPU) norm(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.LayerNorm:
		rows, cols := a[3].RowsCols()
		if a[3].DType == device.BFloat16 {
			kernel.LayerNormBF16(c.threads, device.Elems[uint16](a[0]), a[1].Float32s(), a[2].Float32s(), device.Elems[uint16](a[3]),
				a[4].Float32s(), a[5].Float32s(), rows, cols, float32(op.Eps))
			break
		}
		kernel.LayerNorm(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[4].Float32s(), a[5].Float32s(),
			rows, cols, float32(op.Eps))
	case device.LayerNormGrad:
		rows, cols := a[4].RowsCols()
		if a[4].DType == device.BFloat16 {
			kernel.LayerNormBackwardBF16(c.threads, device.Elems[uint16](a[0]), a[1].Float32s(), a[2].Float32s(),
				device.Elems[uint16](a[3]), device.Elems[uint16](a[4]), a[5].Float32s(), a[6].Float32s(), a[7].Float32s(), rows, cols)
			break
		}
		kernel.LayerNormBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(),
			a[3].Float32s(), a[4].Float32s(), a[5].Float32s(), a[6].Float32s(), a[7].Float32s(), rows, cols)
	case device.RMSNorm:
		rows, cols := a[2].RowsCols()
		kernel.RMSNorm(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), rows, cols, float32(op.Eps))
	case device.RMSNormGrad:
		rows, cols := a[3].RowsCols()
		kernel.RMSNormBackward(c.threads, a[0].Float32s(), a[1].Float32s(), a[2].Float32s(), a[3].Float32s(), a[4].Float32s(), a[5].Float32s(), rows, cols)
	case device.GroupNorm:
		kernel.GroupNorm(c.threads, mixedOf(a[0]), a[1].Float32s(), a[2].Float32s(), mixedOf(a[3]), a[4].Float32s(), a[5].Float32s(),
			imagesOf(a[3]), op.NumGroups, op.Eps)
	case device.GroupNormGrad:
		kernel.GroupNormBackward(c.threads, mixedOf(a[0]), a[1].Float32s(), a[2].Float32s(), mixedOf(a[3]), mixedOf(a[4]),
			a[5].Float32s(), a[6].Float32s(), a[7].Float32s(), imagesOf(a[4]), op.NumGroups)
	default:
		return false
	}
	return true
}

// batchNorm runs the normalisation of channels over a batch.
func (c *CPU) batchNorm(op device.Op, a []device.Array) bool {
	switch op := op.(type) {
	case device.BatchNorm:
		f := kernel.Fusion{Residual: mixedOf(a[6]), ReLU: op.ReLU}
		kernel.BatchNorm(c.threads, mixedOf(a[0]), a[1].Float32s(), a[2].Float32s(), mixedOf(a[3]), a[4].Float32s(), a[5].Float32s(),
			imagesOf(a[3]), f, runningStats(op.Running, a[7], a[8], a[9]), op.Eps)
	case device.BatchNormApply:
		f := kernel.Fusion{Residual: mixedOf(a[6]), ReLU: op.ReLU}
		kernel.BatchNormApply(c.threads, mixedOf(a[0]), a[1].Float32s(), a[2].Float32s(), mixedOf(a[3]), a[4].Float32s(), a[5].Float32s(),
			imagesOf(a[3]), f)
	case device.BatchNormRunning:
		kernel.InverseDeviation(a[0].Float32s(), a[1].Float32s(), op.Eps)
	case device.BatchNormMoments:
		kernel.BatchMoments(c.threads, device.Elems[float64](a[0]), mixedOf(a[1]), imagesOf(a[1]))
	case device.BatchNormStats:
		kernel.BatchStats(a[0].Float32s(), a[1].Float32s(), device.Elems[float64](a[2]), op.Count, runningStats(op.Running, a[3], a[4], a[5]), op.Eps)
	case device.BatchNormGrad:
		kernel.BatchNormBackward(c.threads, batchNormGrads(op.BatchNormGradParams, a), imagesOf(a[5]))
	case device.BatchNormGradSums:
		kernel.BatchNormGradSums(c.threads, device.Elems[float64](a[11]), batchNormGrads(op.BatchNormGradParams, a), imagesOf(a[5]))
	case device.BatchNormGradApply:
		kernel.BatchNormGradApply(c.threads, device.Elems[float64](a[11]), op.Count, batchNormGrads(op.BatchNormGradParams, a), imagesOf(a[5]))
	default:
		return false
	}
	return true
}

// runningStats returns the statistics that a pass updates, and counts it.
func runningStats(r device.RunningStats, mean, variance, numBatches device.Array) kernel.RunningStats {
	if !r.Update {
		return kernel.RunningStats{}
	}
	momentum := r.Momentum
	if n := numBatches.Int64s(); n != nil {
		n[0]++
		if r.Cumulative {
			momentum = 1 / float64(n[0])
		}
	}
	return kernel.RunningStats{Mean: mean.Float32s(), Var: variance.Float32s(), Momentum: momentum}
}

func batchNormGrads(p device.BatchNormGradParams, a []device.Array) kernel.BatchNormGrads {
	return kernel.BatchNormGrads{
		DX: mixedOf(a[0]), DResidual: mixedOf(a[1]), DGamma: a[2].Float32s(), DBeta: a[3].Float32s(),
		G: mixedOf(a[4]), X: mixedOf(a[5]), Y: mixedOf(a[6]),
		Mean: a[7].Float32s(), RStd: a[8].Float32s(), Gamma: a[9].Float32s(), Beta: a[10].Float32s(),
		ReLU: p.ReLU, Residual: p.Residual, Training: p.ByBatch,
	}
}
