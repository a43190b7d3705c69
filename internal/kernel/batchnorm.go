// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"

	"github.com/cohort-ml/cohort/internal/work"
)

// Images is how the channels of a batch lie in memory: [num, channels, plane],
// plane being the product of the dims behind the channels.
type Images struct{ Num, Channels, Plane int }

func (m Images) elems() int { return m.Num * m.Channels * m.Plane }

// count is how many elements a channel has.
func (m Images) count() float64 { return float64(m.Num) * float64(m.Plane) }

// runs calls fn for the runs of elements of channel c, each at most callElems
// long: the same ones whatever the number of threads.
func (m Images) runs(c int, fn func(lo, hi int)) {
	for i := range m.Num {
		lo := (i*m.Channels + c) * m.Plane
		inRuns(lo, lo+m.Plane, callElems, fn)
	}
}

// overChannels shares the channels among the threads, in pieces that are taken
// as threads come free. A channel is done by one thread, which finds it in its
// cache when it passes over it again: that is what makes a norm's several passes
// cost little more than one.
func (m Images) overChannels(p *work.Pool, fn func(c int)) {
	perPiece := max(1, soloElems/max(1, m.Num*m.Plane))
	n := pieces(m.Channels, perPiece)
	if threads(p) <= 1 || n <= 1 {
		for c := range m.Channels {
			fn(c)
		}
		return
	}
	p.Run(n, func(i int) {
		for c := i * perPiece; c < min((i+1)*perPiece, m.Channels); c++ {
			fn(c)
		}
	})
}

// Fusion is what follows a batch norm in the same pass: the addition of Residual
// (not set for none), of the shape of the batch, and then max(·, 0).
type Fusion struct {
	Residual Mixed
	ReLU     bool
}

// RunningStats are what evaluation normalises by, [channels] each. A training
// pass moves them towards the statistics of its batch.
type RunningStats struct {
	Mean, Var []float32
	// Momentum is the weight of the batch, from 0 to 1.
	Momentum float64
}

func (r RunningStats) update(c int, mean, variance, count float64) {
	if r.Mean == nil {
		return
	}
	move := func(old *float32, new float64) {
		*old = float32((1-r.Momentum)*float64(*old) + r.Momentum*new)
	}
	move(&r.Mean[c], mean)
	// The running variance is the unbiased one; a single element has none.
	move(&r.Var[c], variance*count/(count-1))
}

// BatchNorm normalises each channel of x by the mean and the biased variance of
// its elements (Ioffe and Szegedy 2015, Algorithm 1):
//
//	dst = (x - mean)·rstd·gamma + beta,   rstd = 1/√(var + eps)
//
// and goes on as f says. dst, x and the residual may each be bfloat16. mean and rstd [channels] are kept for the backward pass,
// running is updated. A nil gamma means ones, a nil beta zeros.
func BatchNorm(p *work.Pool, dst Mixed, mean, rstd []float32, x Mixed, gamma, beta []float32, m Images, f Fusion, running RunningStats, eps float64) {
	v := channelVec()
	m.overChannels(p, func(c int) {
		sum, squares := m.moments(v, c, x)
		finishStats(c, mean, rstd, sum, squares, m.count(), running, eps)
		m.normChannel(v, c, dst, mean, rstd, x, gamma, beta, f)
	})
}

// moments returns Σ x and Σ x² of a channel.
func (m Images) moments(v *channelKernels[float32], c int, x Mixed) (sum, squares float64) {
	if x.F32 != nil {
		return momentsOf(m, c, v, x.F32)
	}
	if low := allLow(x); low != nil {
		return momentsOf(m, c, low, x.BF16)
	}
	m.mixedRuns(c, func(b *runBuffers, lo, hi int) {
		s, q := v.moments(b.read(x, lo, hi))
		sum, squares = sum+s, squares+q
	}, x)
	return sum, squares
}

func finishStats(c int, mean, rstd []float32, sum, squares, count float64, running RunningStats, eps float64) {
	mu := sum / count
	variance := squares/count - mu*mu
	if variance < 0 { // by rounding; a NaN stays
		variance = 0
	}
	mean[c], rstd[c] = float32(mu), float32(1/math.Sqrt(variance+eps))
	running.update(c, mu, variance, count)
}

// BatchMoments writes Σ x and Σ x² of each channel to sums [2, channels], for
// statistics that are then added up over ranks.
func BatchMoments(p *work.Pool, sums []float64, x Mixed, m Images) {
	v := channelVec()
	m.overChannels(p, func(c int) { sums[c], sums[m.Channels+c] = m.moments(v, c, x) })
}

// BatchStats turns the sums of [BatchMoments], of count elements a channel, into
// mean and rstd [channels] and updates the running statistics.
func BatchStats(mean, rstd []float32, sums []float64, count float64, running RunningStats, eps float64) {
	for c := range mean {
		finishStats(c, mean, rstd, sums[c], sums[len(mean)+c], count, running, eps)
	}
}

// BatchNormApply is the second half of [BatchNorm]: mean and rstd are given.
func BatchNormApply(p *work.Pool, dst Mixed, mean, rstd []float32, x Mixed, gamma, beta []float32, m Images, f Fusion) {
	v := channelVec()
	m.overChannels(p, func(c int) { m.normChannel(v, c, dst, mean, rstd, x, gamma, beta, f) })
}

// scalarsOf returns the numbers of a channel, for either direction.
func scalarsOf(c int, mean, rstd, gamma, beta []float32) channelScalars {
	s := channelScalars{mean: mean[c], scale: rstd[c]}
	if gamma != nil {
		s.scale *= gamma[c]
	}
	if beta != nil {
		s.shift = beta[c]
	}
	return s
}

func (m Images) normChannel(v *channelKernels[float32], c int, dst Mixed, mean, rstd []float32, x Mixed, gamma, beta []float32, f Fusion) {
	s := scalarsOf(c, mean, rstd, gamma, beta)
	if noneLow(dst, x, f.Residual) {
		normRuns(m, c, v, dst.F32, x.F32, f.Residual.F32, f.ReLU, s)
		return
	}
	if low := allLow(dst, x, f.Residual); low != nil {
		normRuns(m, c, low, dst.BF16, x.BF16, f.Residual.BF16, f.ReLU, s)
		return
	}
	m.mixedRuns(c, func(b *runBuffers, lo, hi int) {
		to := b.write(dst, lo, hi)
		v.normRun(to, b.read(x, lo, hi), b.read(f.Residual, lo, hi), f.ReLU, s)
		b.done(dst, lo, hi, to)
	}, dst, x, f.Residual)
}

// BatchNormGrads is what the backward pass of a batch norm reads and writes.
type BatchNormGrads struct {
	DX, DResidual  Mixed     // of the batch's shape; not set to skip
	DGamma, DBeta  []float32 // [channels]; nil to skip
	G, X           Mixed
	Y              Mixed // the result: read when a residual was added before ReLU
	Mean, RStd     []float32
	Gamma, Beta    []float32 // nil as in BatchNorm
	ReLU, Residual bool      // what the forward pass was fused with
	Training       bool      // whether mean and rstd are the batch's own
}

// BatchNormBackward computes the gradients of [BatchNorm] from that of its
// result, G. Where mean and rstd did not come from the batch (Training false),
// they are constants.
func BatchNormBackward(p *work.Pool, b BatchNormGrads, m Images) {
	v := channelVec()
	m.overChannels(p, func(c int) {
		sum, dot := b.sumChannel(v, m, c)
		b.gradChannel(v, m, c, sum, dot, m.count())
	})
}

// BatchNormGradSums writes Σ g and Σ g·(x - mean) of each channel to sums [2,
// channels], and from them DGamma and DBeta: the first half of
// [BatchNormBackward], for sums that are then added up over ranks.
func BatchNormGradSums(p *work.Pool, sums []float64, b BatchNormGrads, m Images) {
	v := channelVec()
	m.overChannels(p, func(c int) { sums[c], sums[m.Channels+c] = b.sumChannel(v, m, c) })
}

// BatchNormGradApply is the second half of [BatchNormBackward], with the sums over
// all of count elements a channel.
func BatchNormGradApply(p *work.Pool, sums []float64, count float64, b BatchNormGrads, m Images) {
	v := channelVec()
	m.overChannels(p, func(c int) { b.gradChannel(v, m, c, sums[c], sums[m.Channels+c], count) })
}

// mask returns the result where it is what tells which gradients pass a ReLU.
func (b *BatchNormGrads) mask() Mixed {
	if b.ReLU && b.Residual {
		return b.Y
	}
	return Mixed{}
}

func (b *BatchNormGrads) sumChannel(v *channelKernels[float32], m Images, c int) (sum, dot float64) {
	s := scalarsOf(c, b.Mean, b.RStd, b.Gamma, b.Beta)
	y := b.mask()
	if noneLow(b.G, b.X, y) {
		sum, dot = sumsRuns(m, c, v, b.G.F32, b.X.F32, y.F32, b.ReLU, s)
	} else if low := allLow(b.G, b.X, y); low != nil {
		sum, dot = sumsRuns(m, c, low, b.G.BF16, b.X.BF16, y.BF16, b.ReLU, s)
	} else {
		m.mixedRuns(c, func(r *runBuffers, lo, hi int) {
			s0, d0 := v.sumsRun(r.read(b.G, lo, hi), r.read(b.X, lo, hi), r.read(y, lo, hi), b.ReLU, s)
			sum, dot = sum+s0, dot+d0
		}, b.G, b.X, y)
	}
	if b.DGamma != nil {
		b.DGamma[c] = float32(dot * float64(b.RStd[c]))
	}
	if b.DBeta != nil {
		b.DBeta[c] = float32(sum)
	}
	return sum, dot
}

func (b *BatchNormGrads) gradChannel(v *channelKernels[float32], m Images, c int, sum, dot, count float64) {
	if !b.DX.isSet() {
		return
	}
	s := scalarsOf(c, b.Mean, b.RStd, b.Gamma, b.Beta)
	if b.Training {
		rstd := float64(b.RStd[c])
		s.slope = float32(-float64(s.scale) * rstd * rstd * dot / count)
		s.offset = float32(-float64(s.scale) * sum / count)
	}
	y, residual := b.mask(), b.DResidual
	if !y.isSet() {
		residual = Mixed{} // its gradient is G
	}
	if noneLow(b.DX, residual, b.G, b.X, y) {
		gradRuns(m, c, v, b.DX.F32, residual.F32, b.G.F32, b.X.F32, y.F32, b.ReLU, s)
		return
	}
	if low := allLow(b.DX, residual, b.G, b.X, y); low != nil {
		gradRuns(m, c, low, b.DX.BF16, residual.BF16, b.G.BF16, b.X.BF16, y.BF16, b.ReLU, s)
		return
	}
	m.mixedRuns(c, func(r *runBuffers, lo, hi int) {
		dx, dr := r.write(b.DX, lo, hi), r.write(residual, lo, hi)
		v.gradRun(dx, dr, r.read(b.G, lo, hi), r.read(b.X, lo, hi), r.read(y, lo, hi), b.ReLU, s)
		r.done(b.DX, lo, hi, dx)
		r.done(residual, lo, hi, dr)
	}, b.DX, residual, b.G, b.X, y)
}

// InverseDeviation computes dst = 1/√(variance + eps), in float64.
func InverseDeviation(dst, variance []float32, eps float64) {
	for c, v := range variance[:len(dst)] {
		dst[c] = float32(1 / math.Sqrt(float64(v)+eps))
	}
}
