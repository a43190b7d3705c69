// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// IgnoreTarget marks a row that has no target: no loss and no gradient.
const IgnoreTarget = -100

var negInf = float32(math.Inf(-1))

// Softmax computes dst = exp(x - max) / Σ exp(x - max) for each row of x
// [rows, cols]. A row of -Inf alone gives NaN.
func Softmax(p *work.Pool, dst, x []float32, rows, cols int) {
	n := rows * cols
	dst, x = dst[:n], x[:n]
	f := vec().softmax
	if cols > maxRowElems {
		f = vectorTables[portable].softmax
	}
	overRows(p, rows, cols, func(lo, hi int) {
		f(dst[lo*cols:hi*cols], x[lo*cols:hi*cols], hi-lo, cols)
	})
}

// SoftmaxBackward computes dx = y·(g - Σ y·g) for each row, y being the result
// of [Softmax] and g its gradient, all [rows, cols].
func SoftmaxBackward(p *work.Pool, dx, y, g []float32, rows, cols int) {
	n := rows * cols
	dx, y, g = dx[:n], y[:n], g[:n]
	f := vec().softmaxBackward
	if cols > maxRowElems {
		f = vectorTables[portable].softmaxBackward
	}
	overRows(p, rows, cols, func(lo, hi int) {
		f(dx[lo*cols:hi*cols], y[lo*cols:hi*cols], g[lo*cols:hi*cols], hi-lo, cols)
	})
}

// LogSumExp computes log Σ exp(x) of each row of x [rows, cols] into dst [rows].
// A row of -Inf alone, or of no columns, gives -Inf.
func LogSumExp(p *work.Pool, dst, x []float32, rows, cols int) {
	dst, x = dst[:rows], x[:rows*cols]
	f := vec().maxAndSumExp
	if cols > maxRowElems {
		f = vectorTables[portable].maxAndSumExp
	}
	s := scratchList.get(rows)
	defer scratchList.put(s)
	sums := s.floats[:rows]
	overRows(p, rows, cols, func(lo, hi int) {
		top, sum := dst[lo:hi], sums[lo:hi]
		f(top, sum, x[lo*cols:hi*cols], cols)
		for i, m := range top {
			if math.IsInf(float64(m), 0) {
				// It is its own log-sum-exp, unless there is a NaN, which f may pass over then.
				top[i] = vec().maximum(x[(lo+i)*cols : (lo+i+1)*cols])
				continue
			}
			top[i] = float32(float64(m) + math.Log(float64(sum[i])))
		}
	})
}

// CrossEntropy computes, for each row of logits [rows, classes], the
// log-sum-exp (kept for the backward pass) and the loss lse - logits[target].
// The loss of a row whose target is negative is 0. Others must be in range: the
// caller has checked them.
func CrossEntropy(p *work.Pool, loss, lse, logits []float32, targets []int64, rows, classes int) {
	loss, lse, targets = loss[:rows], lse[:rows], targets[:rows]
	logits = logits[:rows*classes]
	f := vec().maxAndSumExp
	if classes > maxRowElems {
		f = vectorTables[portable].maxAndSumExp
	}
	overRows(p, rows, classes, func(lo, hi int) {
		// The two results of the kernel are turned into lse and loss in place.
		f(lse[lo:hi], loss[lo:hi], logits[lo*classes:hi*classes], classes)
		for r := lo; r < hi; r++ {
			top, logSum := float64(lse[r]), math.Log(float64(loss[r]))
			if math.IsInf(top, 0) {
				logSum = 0 // an infinite maximum is its own log-sum-exp
			}
			lse[r] = float32(top + logSum)
			loss[r] = 0
			if t := targets[r]; t >= 0 {
				// The loss keeps the digits that lse loses to a large maximum.
				loss[r] = float32(logSum + (top - float64(logits[r*classes : (r+1)*classes][t])))
			}
		}
	})
}

// MaxAndSumExp computes, for each row of logits [rows, classes], the maximum, and the sum of
// exp(x - maximum). Of a row of minus infinity the sum is 0.
func MaxAndSumExp(p *work.Pool, top, sum, logits []float32, rows, classes int) {
	top, sum, logits = top[:rows], sum[:rows], logits[:rows*classes]
	f := vec().maxAndSumExp
	if classes > maxRowElems {
		f = vectorTables[portable].maxAndSumExp
	}
	overRows(p, rows, classes, func(lo, hi int) {
		f(top[lo:hi], sum[lo:hi], logits[lo*classes:hi*classes], classes)
		for r := lo; r < hi; r++ {
			if math.IsInf(float64(top[r]), -1) {
				sum[r] = 0
			}
		}
	})
}

// CrossEntropyBackward computes dlogits = s·(softmax(logits) - onehot(target))
// for each row [rows, classes], from the lse that [CrossEntropy] kept. The
// scale s is rowScale[row], or rowScale[0] when it has one element. Rows whose
// target is [IgnoreTarget] get zeros, and other negative ones stand for a class that
// is not among these: nothing is subtracted. dlogits may be logits.
func CrossEntropyBackward(p *work.Pool, dlogits, logits, lse []float32, targets []int64, rowScale []float32, rows, classes int) {
	n := rows * classes
	dlogits, logits, lse, targets = dlogits[:n], logits[:n], lse[:rows], targets[:rows]
	if len(rowScale) != 1 {
		rowScale = rowScale[:rows]
	}
	overRows(p, rows, classes, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			d, x := dlogits[r*classes:(r+1)*classes], logits[r*classes:(r+1)*classes]
			if targets[r] == IgnoreTarget {
				clear(d)
				continue
			}
			s := rowScale[0]
			if len(rowScale) > 1 {
				s = rowScale[r]
			}
			for at := 0; at < classes; at += callElems {
				end := min(at+callElems, classes)
				vec().expShifted(d[at:end], x[at:end], lse[r], s)
			}
			if t := targets[r]; t >= 0 {
				d[t] -= s
			}
		}
	})
}
