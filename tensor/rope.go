// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// RoPE turns the channels i and i + dim/2 of each head as a pair by an angle
// that depends on the position: the rotary embedding (Su et al. 2021, §3.4.2),
// with the pairs of Hugging Face's Llama ("rotate half"). x is [batch, time,
// heads, dim]; cos and sin, of the angles, are [time, dim/2], or [batch, time,
// dim/2] where positions differ; [RoPETable] makes them. They get no gradient.
// The result has x's dtype; it is computed in float32.
func RoPE(x, cos, sin *Tensor) *Tensor {
	present("rope", x, cos, sin)
	if isHalf(x.dtype) {
		return inFloat32(func(in []*Tensor) *Tensor { return RoPE(in[0], cos, sin) }, x)
	}
	operands := []*Tensor{x, cos, sin}
	wantFloat32s("rope", operands)
	if len(x.shape) != 4 || x.shape[3]%2 != 0 {
		fail("rope", operands, "wants [batch, time, heads, dim] with an even dim")
	}
	want := []int{x.shape[1], x.shape[3] / 2}
	if len(cos.shape) == 3 {
		want = slices.Insert(want, 0, x.shape[0])
	}
	if !slices.Equal(cos.shape, want) || !slices.Equal(sin.shape, want) {
		fail("rope", operands, "wants cos and sin of [time, dim/2] or [batch, time, dim/2]")
	}
	return x.rotate(cos.Detach().Contiguous(), sin.Detach().Contiguous(), false)
}

// rotate is RoPE, or its inverse, which is its gradient.
func (t *Tensor) rotate(cos, sin *Tensor, back bool) *Tensor {
	t = t.denseHeads()
	out := result("rope", Float32, t.shape, t, cos, sin)
	fused(device.RoPE{Back: back}, out, t, cos, sin)
	return out.record("rope", []*Tensor{t}, []*Tensor{cos, sin}, func(b *backprop, g *Tensor) {
		b.give(0, g.rotate(cos, sin, !back))
	})
}

// RoPEFrequencies returns base^(-2i/dim) for each of the dim/2 pairs of
// channels: by how much a position turns them. Llama's base is 10,000, its later
// ones 500,000. They are rounded to float32, as in Hugging Face's code; a model
// with scaled positions changes them.
func RoPEFrequencies(dim int, base float64) []float64 {
	if dim < 0 {
		fail("rope frequencies", nil, "the dim, %d, is negative", dim)
	}
	f := make([]float64, dim/2)
	for i := range f {
		f[i] = float64(float32(1 / float64(float32(math.Pow(base, float64(float32(2*i)/float32(dim)))))))
	}
	return f
}

// RoPETable returns the cosines and sines of the angles of positions offset …
// offset+time-1, [time, len(frequencies)] each. The angles are rounded to
// float32.
func RoPETable(dev Device, frequencies []float64, offset, time int) (cos, sin *Tensor) {
	return ropeTable(dev, frequencies, []int{time}, func(t int) int64 { return int64(offset + t) })
}

// RoPETableAt is [RoPETable] at any positions, int64 [time] or [batch, time], on the host: [time,
// len(frequencies)] or [batch, time, len(frequencies)]. Of positions on [Meta] it has the shape
// alone.
func RoPETableAt(dev Device, frequencies []float64, positions *Tensor) (cos, sin *Tensor) {
	present("rope table", positions)
	if positions.dtype != Int64 {
		fail("rope table", []*Tensor{positions}, "wants int64 positions")
	}
	if positions.Device() == Meta {
		shape := append(positions.Shape(), len(frequencies))
		return New(Meta, Float32, shape...), New(Meta, Float32, shape...)
	}
	at := positions.Int64s()
	return ropeTable(dev, frequencies, positions.Shape(), func(t int) int64 { return at[t] })
}

// ropeTable makes the tables of positions that come in some shape.
func ropeTable(dev Device, frequencies []float64, shape []int, position func(t int) int64) (cos, sin *Tensor) {
	n := len(frequencies)
	angle := func(t, f int) float64 { return float64(float32(float64(position(t)) * frequencies[f])) }
	shape = append(slices.Clone(shape), n)
	if dev == Meta {
		of := func(fn func(float64) float64) *Tensor {
			return computed(Float32, shape, func(i int) float64 { return fn(angle(i/n, i%n)) })
		}
		return of(math.Cos), of(math.Sin)
	}
	numElems := 1
	for _, d := range shape {
		numElems *= d
	}
	c, s := make([]float32, 0, numElems), make([]float32, 0, numElems)
	for i := range numElems {
		a := angle(i/n, i%n)
		c, s = append(c, float32(math.Cos(a))), append(s, float32(math.Sin(a)))
	}
	return On(dev).FromFloat32(c, shape...), On(dev).FromFloat32(s, shape...)
}
