// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"testing"
)

func transformerCases(dev Device) []opCase {
	return []opCase{
		{
			name: "rms norm", shapes: [][]int{{2, 3, 6}, {6}}, apply: func(in []*Tensor) *Tensor { return RMSNorm(in[0], in[1], 1e-6) },
			naive: func(in []array) array { return naiveRMSNorm(in[0], in[1].data) },
		},
		{
			name: "rms norm without weight", shapes: [][]int{{3, 5}}, apply: func(in []*Tensor) *Tensor { return RMSNorm(in[0], nil, 1e-6) },
			naive: func(in []array) array { return naiveRMSNorm(in[0], []float64{1, 1, 1, 1, 1}) },
		},
		{
			name: "swiglu", shapes: [][]int{{2, 3, 4}, {2, 3, 4}}, apply: func(in []*Tensor) *Tensor { return SwiGLU(in[0], in[1]) },
			naive: zipArrays(func(x, y float64) float64 { return x / (1 + math.Exp(-x)) * y }),
		},
		{
			name: "rope", shapes: [][]int{{2, 3, 2, 6}},
			apply: func(in []*Tensor) *Tensor {
				cos, sin := RoPETable(dev, RoPEFrequencies(6, 100), 4, 3)
				return RoPE(in[0], cos, sin)
			},
			naive: func(in []array) array { return naiveRoPE(in[0], func(_, t int) int { return 4 + t }) },
		},
		{
			name: "rope by batch", shapes: [][]int{{2, 3, 2, 6}},
			apply: func(in []*Tensor) *Tensor {
				cos, sin := RoPETable(dev, RoPEFrequencies(6, 100), 0, 6)
				return RoPE(in[0], cos.Reshape(2, 3, 3), sin.Reshape(2, 3, 3))
			},
			naive: func(in []array) array { return naiveRoPE(in[0], func(b, t int) int { return 3*b + t }) },
		},
		{
			name: "rope strided", shapes: [][]int{{2, 6, 2, 3}},
			apply: func(in []*Tensor) *Tensor {
				cos, sin := RoPETable(dev, RoPEFrequencies(6, 100), 4, 3)
				return RoPE(in[0].Permute(0, 3, 2, 1), cos, sin)
			},
			naive: func(in []array) array {
				return naiveRoPE(naivePermute(in[0], 0, 3, 2, 1), func(_, t int) int { return 4 + t })
			},
		},
	}
}

func naiveRMSNorm(x array, weight []float64) array {
	out := newArray(x.shape...)
	cols := len(weight)
	for at := 0; at < len(x.data); at += cols {
		squares := 0.0
		for _, v := range x.data[at : at+cols] {
			squares += v * v / float64(cols)
		}
		for j, v := range x.data[at : at+cols] {
			out.data[at+j] = v / math.Sqrt(squares+1e-6) * weight[j]
		}
	}
	return out
}

// naiveRoPE turns with a base of 100.
func naiveRoPE(x array, position func(batch, time int) int) array {
	dim := x.shape[3]
	return fromIndex(x.shape, func(i []int) float64 {
		c := i[3] % (dim / 2)
		angle := float64(position(i[0], i[1])) * math.Pow(100, -2*float64(c)/float64(dim))
		a, b := x.at(i[0], i[1], i[2], c), x.at(i[0], i[1], i[2], c+dim/2)
		if i[3] < dim/2 {
			return a*math.Cos(angle) - b*math.Sin(angle)
		}
		return b*math.Cos(angle) + a*math.Sin(angle)
	})
}

func TestTransformerMisuse(t *testing.T) {
	x, angles := Zeros(2, 3, 1, 4), Zeros(3, 2)
	mustFail(t, "even dim", func() { RoPE(Zeros(2, 3, 1, 5), angles, angles) })
	mustFail(t, "wants cos and sin of [time, dim/2]", func() { RoPE(x, Zeros(3, 4), angles) })
	mustFail(t, "wants cos and sin of [time, dim/2]", func() { RoPE(x, Zeros(3, 3, 2), angles) })
	mustFail(t, "the weight must have shape [4]", func() { RMSNorm(x, Zeros(3), 1e-6) })
	mustFail(t, "of one shape", func() { SwiGLU(x, Zeros(4)) })
}
