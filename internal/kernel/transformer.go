// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/work"
)

// transformerKernels is one variant of what transformers need beside
// vectorKernels.
type transformerKernels struct {
	// rmsNorm does len(rstd) rows of len(weight) columns.
	rmsNorm func(dst, rstd, x, weight []float32, eps float32)
	// rmsNormBackward adds to dweight.
	rmsNormBackward func(dx, dweight, g, x, rstd, weight []float32)
	swiGLU          func(dst, gate, up []float32)
	swiGLUBackward  func(dgate, dup, gate, up, g []float32)
	// rotate turns the pairs (i, i + len(cos)) of heads rows, steps apart.
	rotate func(dst, x, cos, sin []float32, heads, dstStep, xStep int, sign float32)
	// prefetch asks for rows of n elements, step apart, to come into the
	// second-level cache.
	prefetch func(x *float32, step, rows, n int)
}

func transformer() *transformerKernels { return transformerTables[useISA] }

// RMSNorm divides each row of x [rows, cols] by its root mean square and scales
// it by weight [cols] (Zhang and Sennrich 2019):
//
//	dst = x·rstd·weight,   rstd = 1/√(mean(x²) + eps)
//
// rstd [rows] is kept for the backward pass. A nil weight means ones.
func RMSNorm(p *work.Pool, dst, rstd, x, weight []float32, rows, cols int, eps float32) {
	n := rows * cols
	dst, rstd, x = dst[:n], rstd[:rows], x[:n]
	if cols == 0 {
		return
	}
	weight, ones := orConstant(weight, cols, 1)
	defer giveBack(ones)
	f := transformer().rmsNorm
	if cols > maxRowElems {
		f = portableTransformer.rmsNorm
	}
	overRows(p, rows, cols, func(lo, hi int) {
		f(dst[lo*cols:hi*cols], rstd[lo:hi], x[lo*cols:hi*cols], weight, eps)
	})
}

// RMSNormBackward computes the gradients of [RMSNorm] from that of its result,
// g [rows, cols]. dx and dweight are overwritten; dweight may be nil to skip it,
// dx may be g. A nil weight means ones.
func RMSNormBackward(p *work.Pool, dx, dweight, g, x, rstd, weight []float32, rows, cols int) {
	n := rows * cols
	dx, g, x, rstd = dx[:n], g[:n], x[:n], rstd[:rows]
	if cols == 0 {
		return
	}
	f := transformer().rmsNormBackward
	if cols > maxRowElems {
		f = portableTransformer.rmsNormBackward
	}
	weight, ones := orConstant(weight, cols, 1)
	defer giveBack(ones)
	perBlock, blocks := blocking(rows, cols)
	s := scratchList.get(blocks * cols)
	defer scratchList.put(s)
	sums := s.floats[:blocks*cols]
	clear(sums)
	most := max(1, callElems/cols)
	overItems(p, blocks, n, func(first, end int) {
		for b := first; b < end; b++ {
			bottom := min((b+1)*perBlock, rows)
			for lo := b * perBlock; lo < bottom; lo += most {
				hi := min(lo+most, bottom)
				f(dx[lo*cols:hi*cols], sums[b*cols:(b+1)*cols], g[lo*cols:hi*cols], x[lo*cols:hi*cols], rstd[lo:hi], weight)
			}
		}
	})
	if dweight == nil {
		return
	}
	dweight = dweight[:cols]
	clear(dweight)
	for b := range blocks {
		binary(p, vec().add, dweight, dweight, sums[b*cols:(b+1)*cols])
	}
}

// SwiGLU computes dst = silu(gate)·up, silu(x) being x/(1 + e^-x) (Shazeer
// 2020).
func SwiGLU(p *work.Pool, dst, gate, up []float32) { binary(p, transformer().swiGLU, dst, gate, up) }

// SwiGLUBackward computes the gradients of [SwiGLU] from that of its result.
func SwiGLUBackward(p *work.Pool, dgate, dup, gate, up, g []float32) {
	n := len(dgate)
	dup, gate, up, g = dup[:n], gate[:n], up[:n], g[:n]
	if span := share(p, n); span < n {
		p.Run(pieces(n, span), func(i int) {
			lo, hi := i*span, min((i+1)*span, n)
			SwiGLUBackward(nil, dgate[lo:hi], dup[lo:hi], gate[lo:hi], up[lo:hi], g[lo:hi])
		})
		return
	}
	for lo := 0; lo < n; lo += callElems {
		hi := min(lo+callElems, n)
		transformer().swiGLUBackward(dgate[lo:hi], dup[lo:hi], gate[lo:hi], up[lo:hi], g[lo:hi])
	}
}

// Rotation is what [Rotate] does: the size of its operands, and the angles of
// (batch b, time t), whose cosines are at Cos[b*Batch + t*Time:] and whose sines
// at the same place of Sin, Dim/2 each.
type Rotation struct {
	NumBatch, NumTime, NumHeads, Dim int
	Cos, Sin                         []float32
	Batch, Time                      int
	Back                             bool // turn by minus the angles
}

// Rotate turns the channels i and i + Dim/2 of each head as a pair: the rotary
// embedding (Su et al. 2021) in the order of Llama's checkpoints,
//
//	dst[i] = x[i]·cos[i] - x[i+Dim/2]·sin[i]
//	dst[i+Dim/2] = x[i+Dim/2]·cos[i] + x[i]·sin[i]
//
// dst must not overlap x.
func Rotate(p *work.Pool, r Rotation, dst, x Heads) {
	half := r.Dim / 2
	if r.NumBatch < 1 || r.NumTime < 1 || r.NumHeads < 1 || half < 1 {
		return
	}
	last := func(a Heads, rows int) int {
		return (r.NumBatch-1)*a.Batch + (r.NumTime-1)*a.Time + (rows-1)*a.Head
	}
	angles := last(Heads{Batch: r.Batch, Time: r.Time}, 1) + half
	if r.Dim%2 != 0 || len(dst.Data) < last(dst, r.NumHeads)+r.Dim || len(x.Data) < last(x, r.NumHeads)+r.Dim ||
		len(r.Cos) < angles || len(r.Sin) < angles {
		panic(fmt.Sprintf("kernel: rotation of [%d, %d, %d, %d]: the operands have %d and %d elements, the angles %d and %d",
			r.NumBatch, r.NumTime, r.NumHeads, r.Dim, len(dst.Data), len(x.Data), len(r.Cos), len(r.Sin)))
	}
	sign := float32(1)
	if r.Back {
		sign = -1
	}
	overItems(p, r.NumBatch*r.NumTime, r.NumBatch*r.NumTime*r.NumHeads*r.Dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			b, t := i/r.NumTime, i%r.NumTime
			at := b*r.Batch + t*r.Time
			transformer().rotate(dst.Data[b*dst.Batch+t*dst.Time:], x.Data[b*x.Batch+t*x.Time:], r.Cos[at:at+half], r.Sin[at:at+half],
				r.NumHeads, dst.Head, x.Head, sign)
		}
	})
}
