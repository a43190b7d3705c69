// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"unsafe"

	"github.com/cohort-ml/cohort/internal/work"
)

// GroupNorm normalises each of groups runs of channels of each image to mean 0
// and variance 1, then scales and shifts each channel by gamma and beta (Wu and
// He 2018, §3.1). mean and rstd [num, groups] are kept for the backward pass. A
// nil gamma means ones, a nil beta zeros. With as many groups as channels it is
// an instance norm.
func GroupNorm(p *work.Pool, dst, mean, rstd, x, gamma, beta []float32, m Images, groups int, eps float64) {
	v, wide := channelVec(), m.Channels/groups
	m.overGroups(p, groups, func(u int) {
		first := u * wide // the number of the group's first plane
		sum, squares := 0.0, 0.0
		inRuns(first*m.Plane, (first+wide)*m.Plane, callElems, func(lo, hi int) {
			s, q := v.moments(x[lo:hi])
			sum, squares = sum+s, squares+q
		})
		finishStats(u, mean, rstd, sum, squares, float64(wide*m.Plane), RunningStats{}, eps)
		for i := first; i < first+wide; i++ {
			s := m.groupScalars(u, i, mean, rstd, gamma, beta)
			inRuns(i*m.Plane, (i+1)*m.Plane, callElems, func(lo, hi int) { v.norm(dst[lo:hi], x[lo:hi], s) })
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
// result, g. dgamma and dbeta may be nil.
func GroupNormBackward(p *work.Pool, dx, dgamma, dbeta, g, x, mean, rstd, gamma []float32, m Images, groups int) {
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
			inRuns(i*m.Plane, (i+1)*m.Plane, callElems, func(lo, hi int) {
				a, b := v.sums(g[lo:hi], x[lo:hi], s)
				sum, dot = sum+a, dot+b
			})
			sums[2*i], sums[2*i+1] = sum, dot
			total, dots = total+float64(s.scale)*sum, dots+float64(s.scale)*dot
		}
		r, count := float64(rstd[u]), float64(wide*m.Plane)
		for i := first; i < first+wide; i++ {
			s := m.groupScalars(u, i, mean, rstd, gamma, nil)
			s.slope, s.offset = float32(-r*r*dots/count), float32(-total/count)
			inRuns(i*m.Plane, (i+1)*m.Plane, callElems, func(lo, hi int) { v.grad(dx[lo:hi], g[lo:hi], x[lo:hi], s) })
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
