// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/half"
	"github.com/cohort-ml/cohort/internal/work"
)

// pointwise is an elementwise function and its slope, given in Go: what no
// training step feels the speed of. It takes floating dtypes. definition is as
// in activation.
func (t *Tensor) pointwise(op string, params []float64, f, slope func(x float64) float64, definition func() *Tensor) *Tensor {
	if !t.dtype.IsFloat() {
		return t.To(Float32).pointwise(op, params, f, slope, definition)
	}
	out := result(op, t.dtype, t.shape, t)
	src := t.Detach().Contiguous()
	fused(op, params, []*Tensor{out, src}, func(p *work.Pool, a []device.Array) {
		switch out.dtype {
		case Float32:
			mapElems(p, a, func(x float32) float32 { return float32(f(float64(x))) })
		case Float64:
			mapElems(p, a, f)
		case BFloat16:
			mapElems(p, a, func(x uint16) uint16 { return half.BFloat16(float32(f(float64(half.FromBFloat16(x))))) })
		default:
			mapElems(p, a, func(x uint16) uint16 { return half.Float16(float32(f(float64(half.FromFloat16(x))))) })
		}
	})
	t.discard(src)
	return out.record(op, []*Tensor{t}, []*Tensor{t}, func(b *backprop, g *Tensor) {
		if b.create && definition != nil {
			b.composite(g, definition)
			return
		}
		// The slope is a constant to the tape: its own is 0 where there is no definition.
		b.give(0, g.Mul(t.Detach().pointwise(op+" slope", params, slope, nil, nil)))
	})
}

// mapElems sets the elements of a[0] from those of a[1].
func mapElems[T device.Element](p *work.Pool, a []device.Array, f func(x T) T) {
	dst, src := device.Elems[T](a[0]), device.Elems[T](a[1])
	const piece = 4 << 10 // some ten microseconds of the slower functions
	p.Run((len(dst)+piece-1)/piece, func(i int) {
		hi := min((i+1)*piece, len(dst))
		d := dst[i*piece : hi]
		for j, x := range src[i*piece : hi] {
			d[j] = f(x)
		}
	})
}
