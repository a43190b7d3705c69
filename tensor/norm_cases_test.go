// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"
)

// normCases are the norms over channels.
func normCases(dev Device) []opCase {
	on := On(dev)
	mean, variance := on.FromFloat32([]float32{0.5, -1, 0.25}), on.FromFloat32([]float32{0.5, 2, 1})
	training := BatchNormOptions{Eps: 1e-5, Training: true}
	evaluation := BatchNormOptions{Eps: 1e-5, RunningMean: mean, RunningVar: variance}
	// The operands are x, gamma, beta and the residual, the last ones left out.
	row := func(name string, o BatchNormOptions, shapes ...[]int) opCase {
		return opCase{
			name: name, shapes: shapes,
			apply: func(in []*Tensor) *Tensor {
				in, o := append(append([]*Tensor{}, in...), make([]*Tensor, 4-len(in))...), o
				o.Residual = in[3]
				return BatchNorm(in[0], in[1], in[2], o)
			},
			naive: func(in []array) array { return naiveBatchNorm(in, o) },
		}
	}
	relu, evalReLU := training, evaluation
	relu.ReLU, evalReLU.ReLU = true, true
	return []opCase{
		row("batch norm", training, []int{2, 3, 2, 3}, []int{3}, []int{3}),
		row("batch norm plain", training, []int{3, 2, 4}),
		row("batch norm of rows", training, []int{5, 3}, []int{3}, []int{3}),
		row("batch norm relu", relu, []int{2, 3, 2, 3}, []int{3}, []int{3}),
		row("batch norm add", training, []int{2, 2, 3}, []int{2}, []int{2}, []int{2, 2, 3}),
		row("batch norm add relu", relu, []int{2, 2, 3, 2}, []int{2}, []int{2}, []int{2, 2, 3, 2}),
		row("batch norm evaluation", evaluation, []int{2, 3, 4}, []int{3}, []int{3}),
		row("batch norm evaluation add relu", evalReLU, []int{2, 3, 4}, []int{3}, []int{3}, []int{2, 3, 4}),
		{
			name: "group norm", shapes: [][]int{{2, 4, 3, 2}, {4}, {4}},
			apply: func(in []*Tensor) *Tensor { return GroupNorm(in[0], 2, in[1], in[2], 1e-5) },
			naive: func(in []array) array { return naiveGroupNorm(in, 2) },
		},
		{
			name: "group norm plain", shapes: [][]int{{2, 3, 4}},
			apply: func(in []*Tensor) *Tensor { return GroupNorm(in[0], 1, nil, nil, 1e-5) },
			naive: func(in []array) array { return naiveGroupNorm(in, 1) },
		},
		{
			name: "instance norm", shapes: [][]int{{2, 3, 2, 3}, {3}, {3}},
			apply: func(in []*Tensor) *Tensor { return InstanceNorm(in[0], in[1], in[2], 1e-5) },
			naive: func(in []array) array { return naiveGroupNorm(in, 3) },
		},
		{
			name: "layer norm plain", shapes: [][]int{{2, 3, 6}},
			apply: func(in []*Tensor) *Tensor { return LayerNorm(in[0], nil, nil, 1e-5) },
			naive: func(in []array) array { return naiveLayerNorm(in[0], ones(6), make([]float64, 6)) },
		},
		{
			name: "layer norm without bias", shapes: [][]int{{2, 3, 6}, {6}},
			apply: func(in []*Tensor) *Tensor { return LayerNorm(in[0], in[1], nil, 1e-5) },
			naive: func(in []array) array { return naiveLayerNorm(in[0], in[1].data, make([]float64, 6)) },
		},
		{
			name: "layer norm without weight", shapes: [][]int{{2, 3, 6}, {6}},
			apply: func(in []*Tensor) *Tensor { return LayerNorm(in[0], nil, in[1], 1e-5) },
			naive: func(in []array) array { return naiveLayerNorm(in[0], ones(6), in[1].data) },
		},
		{
			name: "batch norm without bias", shapes: [][]int{{3, 2, 4}, {2}},
			apply: func(in []*Tensor) *Tensor { return BatchNorm(in[0], in[1], nil, training) },
			naive: func(in []array) array {
				return naiveBatchNorm([]array{in[0], in[1], {[]int{2}, make([]float64, 2)}}, training)
			},
		},
		{
			name: "batch norm without weight", shapes: [][]int{{3, 2, 4}, {2}},
			apply: func(in []*Tensor) *Tensor { return BatchNorm(in[0], nil, in[1], training) },
			naive: func(in []array) array {
				return naiveBatchNorm([]array{in[0], {[]int{2}, ones(2)}, in[1]}, training)
			},
		},
		{
			name: "group norm without bias", shapes: [][]int{{2, 4, 3}, {4}},
			apply: func(in []*Tensor) *Tensor { return GroupNorm(in[0], 2, in[1], nil, 1e-5) },
			naive: func(in []array) array {
				return naiveGroupNorm([]array{in[0], in[1], {[]int{4}, make([]float64, 4)}}, 2)
			},
		},
		{
			name: "group norm without weight", shapes: [][]int{{2, 4, 3}, {4}},
			apply: func(in []*Tensor) *Tensor { return GroupNorm(in[0], 2, nil, in[1], 1e-5) },
			naive: func(in []array) array { return naiveGroupNorm([]array{in[0], {[]int{4}, ones(4)}, in[1]}, 2) },
		},
	}
}

// ones are n times 1.
func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// naiveMoments returns mean and biased variance.
func naiveMoments(v []float64) (mean, variance float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		variance += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, variance
}

func naiveBatchNorm(in []array, o BatchNormOptions) array {
	x := in[0]
	channel := make([][]float64, x.shape[1])
	each(x.shape, func(i []int) { channel[i[1]] = append(channel[i[1]], x.at(i...)) })
	out := newArray(x.shape...)
	each(x.shape, func(i []int) {
		c := i[1]
		mean, variance := naiveMoments(channel[c])
		if o.RunningMean != nil {
			mean, variance = float64(o.RunningMean.Float32s()[c]), float64(o.RunningVar.Float32s()[c])
		}
		y := (x.at(i...) - mean) / math.Sqrt(variance+o.Eps)
		if len(in) > 2 {
			y = y*in[1].data[c] + in[2].data[c]
		}
		if len(in) > 3 {
			y += in[3].at(i...)
		}
		if o.ReLU {
			y = max(y, 0)
		}
		out.set(y, i...)
	})
	return out
}

func naiveGroupNorm(in []array, groups int) array {
	x := in[0]
	wide := x.shape[1] / groups
	runs := map[[2]int][]float64{}
	each(x.shape, func(i []int) { k := [2]int{i[0], i[1] / wide}; runs[k] = append(runs[k], x.at(i...)) })
	out := newArray(x.shape...)
	each(x.shape, func(i []int) {
		mean, variance := naiveMoments(runs[[2]int{i[0], i[1] / wide}])
		y := (x.at(i...) - mean) / math.Sqrt(variance+1e-5)
		if len(in) > 2 {
			y = y*in[1].data[i[1]] + in[2].data[i[1]]
		}
		out.set(y, i...)
	})
	return out
}
