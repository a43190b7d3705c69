// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/work"
)

// GroupNorm normalises each of groups runs of channels of each image to mean 0
// and variance 1, then scales and shifts each channel by gamma and beta (Wu and
// He 2018, §3.1). mean and rstd [num, groups] are kept for the backward pass. A
// nil gamma means ones, a nil beta zeros; dst and x may each be bfloat16. With as many groups as channels it is
// an instance norm.
func GroupNorm(p *work.Pool, dst Mixed, mean, rstd []float32, x Mixed, gamma, beta []float32, m Images, groups int, eps float64) {
	v, wide := channelVec(), m.Channels/groups
	m.overGroups(p, groups, func(u int) {
		first := u * wide // the number of the group's first plane
		sum, squares := 0.0, 0.0
		mixedRuns(first*m.Plane, (first+wide)*m.Plane, func(b *runBuffers, lo, hi int) {
			s, q := v.moments(b.read(x, lo, hi))
			sum, squares = sum+s, squares+q
		}, x)
		finishStats(u, mean, rstd, sum, squares, float64(wide*m.Plane), RunningStats{}, eps)
		for i := first; i < first+wide; i++ {
			s := m.groupScalars(u, i, mean, rstd, gamma, beta)
			mixedRuns(i*m.Plane, (i+1)*m.Plane, func(b *runBuffers, lo, hi int) {
				to := b.write(dst, lo, hi)
				v.norm(to, b.read(x, lo, hi), s)
				b.done(dst, lo, hi, to)
			}, dst, x)
		}
	})
}

// overGroups shares the groups of all images among the threads.
func (m Images) overGroups(p *work.Pool, groups int, fn func(u int)) {
	Images{Num: 1, Channels: m.Num * groups, Plane: m.Channels / groups * m.Plane}.overChannels(p, fn)
}

// groupScalars returns the numbers of plane i, in group u.
func (m Images) groupScalars(u, i int, mean, rstd, gamma, beta []float32) channelScalars {
	s := channelScalars{mean: mean[u], scale: rstd[u]}
	if c := i % m.Channels; gamma != nil {
		s.scale *= gamma[c]
	}
	if c := i % m.Channels; beta != nil {
		s.shift = beta[c]
	}
	return s
}

// GroupNormBackward computes the gradients of [GroupNorm] from that of its
// result, g. dx, g and x may each be bfloat16; dgamma and dbeta may be nil.
func GroupNormBackward(p *work.Pool, dx Mixed, dgamma, dbeta []float32, g, x Mixed, mean, rstd, gamma []float32, m Images, groups int) {
	v, wide := channelVec(), m.Channels/groups
	planes := m.Num * m.Channels
	scratch := scratchList.get(4 * planes)
	defer scratchList.put(scratch)
	// Σ g and Σ g·(x - mean) of each plane.
	sums := unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(scratch.floats))), 2*planes)
	m.overGroups(p, groups, func(u int) {
		first := u * wide
		total, dots := 0.0, 0.0
		for i := first; i < first+wide; i++ {
			s := m.groupScalars(u, i, mean, rstd, gamma, nil)
			sum, dot := 0.0, 0.0
			mixedRuns(i*m.Plane, (i+1)*m.Plane, func(r *runBuffers, lo, hi int) {
				a, b := v.sums(r.read(g, lo, hi), r.read(x, lo, hi), s)
				sum, dot = sum+a, dot+b
			}, g, x)
			sums[2*i], sums[2*i+1] = sum, dot
			total, dots = total+float64(s.scale)*sum, dots+float64(s.scale)*dot
		}
		r, count := float64(rstd[u]), float64(wide*m.Plane)
		for i := first; i < first+wide; i++ {
			s := m.groupScalars(u, i, mean, rstd, gamma, nil)
			s.slope, s.offset = float32(-r*r*dots/count), float32(-total/count)
			mixedRuns(i*m.Plane, (i+1)*m.Plane, func(r *runBuffers, lo, hi int) {
				to := r.write(dx, lo, hi)
				v.grad(to, r.read(g, lo, hi), r.read(x, lo, hi), s)
				r.done(dx, lo, hi, to)
			}, dx, g, x)
		}
	})
	for c := range m.Channels {
		sum, dot := 0.0, 0.0
		for i := c; i < planes; i += m.Channels {
			sum += sums[2*i]
			dot += sums[2*i+1] * float64(rstd[i/wide])
		}
		if dgamma != nil {
			dgamma[c] = float32(dot)
		}
		if dbeta != nil {
			dbeta[c] = float32(sum)
		}
	}
}
