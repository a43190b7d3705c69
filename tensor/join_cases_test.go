// SPDX-License-Identifier: Apache-2.0

package tensor

// joinCases join, cut, turn and repeat.
func joinCases(dev Device) []opCase {
	on := On(dev)
	one := func(fn func(x *Tensor) *Tensor) func(in []*Tensor) *Tensor {
		return func(in []*Tensor) *Tensor { return fn(in[0]) }
	}
	// from is a result whose element i is element fn(i) of the operand.
	from := func(fn func(i []int) []int, shape ...int) func(in []array) array {
		return func(in []array) array {
			return fromIndex(shape, func(i []int) float64 { return in[0].at(fn(i)...) })
		}
	}
	return []opCase{
		{
			name: "cat", shapes: [][]int{{2, 3}, {1, 3}, {2, 3}}, apply: func(in []*Tensor) *Tensor { return Cat(0, in...) },
			naive: func(in []array) array {
				return fromIndex([]int{5, 3}, func(i []int) float64 {
					r := i[0]
					for _, a := range in {
						if r < a.shape[0] {
							return a.at(r, i[1])
						}
						r -= a.shape[0]
					}
					return 0
				})
			},
		},
		{
			name: "cat middle", shapes: [][]int{{2, 1, 2}, {2, 2, 3}}, apply: func(in []*Tensor) *Tensor { return Cat(1, in[0], in[1].Narrow(2, 0, 2)) },
			naive: func(in []array) array {
				return fromIndex([]int{2, 3, 2}, func(i []int) float64 {
					if i[1] == 0 {
						return in[0].at(i...)
					}
					return in[1].at(i[0], i[1]-1, i[2])
				})
			},
		},
		{
			name: "stack", shapes: [][]int{{2, 3}, {2, 3}}, apply: func(in []*Tensor) *Tensor { return Stack(-1, in...) },
			naive: func(in []array) array {
				return fromIndex([]int{2, 3, 2}, func(i []int) float64 { return in[i[2]].at(i[0], i[1]) })
			},
		},
		{
			name: "split", shapes: [][]int{{2, 6}}, apply: one(func(x *Tensor) *Tensor {
				parts := x.Split(1, 2, 3, 1)
				return Cat(1, parts[2], parts[0].Mul(parts[0]), parts[1])
			}),
			naive: func(in []array) array {
				return fromIndex([]int{2, 6}, func(i []int) float64 {
					v := in[0].at(i[0], []int{5, 0, 1, 2, 3, 4}[i[1]])
					if i[1] == 1 || i[1] == 2 {
						v *= v
					}
					return v
				})
			},
		},
		{
			name: "chunk", shapes: [][]int{{5, 2}}, apply: one(func(x *Tensor) *Tensor { c := x.Chunk(3, 0); return c[0].Mul(c[1]).Sub(c[2]) }),
			naive: func(in []array) array {
				return fromIndex([]int{2, 2}, func(i []int) float64 { return in[0].at(i...)*in[0].at(i[0]+2, i[1]) - in[0].at(4, i[1]) })
			},
		},
		{
			name: "unbind", shapes: [][]int{{2, 3}}, apply: one(func(x *Tensor) *Tensor { c := x.Unbind(1); return c[0].Mul(c[1]).Add(c[2]) }),
			naive: func(in []array) array {
				return fromIndex([]int{2}, func(i []int) float64 { return in[0].at(i[0], 0)*in[0].at(i[0], 1) + in[0].at(i[0], 2) })
			},
		},
		{
			name: "squeeze", shapes: [][]int{{1, 3, 1, 2}}, apply: one(func(x *Tensor) *Tensor { return x.Squeeze() }),
			naive: from(func(i []int) []int { return []int{0, i[0], 0, i[1]} }, 3, 2),
		},
		{
			name: "unsqueeze", shapes: [][]int{{3, 2}}, apply: one(func(x *Tensor) *Tensor { return x.Unsqueeze(1).Unsqueeze(-1) }),
			naive: from(func(i []int) []int { return []int{i[0], i[2]} }, 3, 1, 2, 1),
		},
		{
			name: "movedim", shapes: [][]int{{2, 3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.MoveDim(0, -1) }),
			naive: from(func(i []int) []int { return []int{i[2], i[0], i[1]} }, 3, 4, 2),
		},
		{
			name: "unflatten", shapes: [][]int{{2, 6}}, apply: one(func(x *Tensor) *Tensor { return x.Unflatten(1, 3, -1) }),
			naive: from(func(i []int) []int { return []int{i[0], 2*i[1] + i[2]} }, 2, 3, 2),
		},
		{
			name: "diagonal", shapes: [][]int{{3, 2, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Diagonal(1, 0, 2) }),
			naive: from(func(i []int) []int { return []int{i[1], i[0], i[1] + 1} }, 2, 3),
		},
		{
			name: "diagonal below", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Diagonal(-1, 0, 1) }),
			naive: from(func(i []int) []int { return []int{i[0] + 1, i[0]} }, 2),
		},
		{
			name: "tril", shapes: [][]int{{2, 3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Tril(1) }),
			naive: func(in []array) array {
				return fromIndex([]int{2, 3, 4}, func(i []int) float64 {
					if i[2] > i[1]+1 {
						return 0
					}
					return in[0].at(i...)
				})
			},
		},
		{
			name: "triu", shapes: [][]int{{4, 3}}, apply: one(func(x *Tensor) *Tensor { return x.Triu(-1) }),
			naive: func(in []array) array {
				return fromIndex([]int{4, 3}, func(i []int) float64 {
					if i[1] < i[0]-1 {
						return 0
					}
					return in[0].at(i...)
				})
			},
		},
		{
			name: "roll", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Roll([]int{1, -5}, []int{0, 1}) }),
			naive: from(func(i []int) []int { return []int{(i[0] + 2) % 3, (i[1] + 1) % 4} }, 3, 4),
		},
		{
			name: "flip", shapes: [][]int{{2, 3}}, apply: one(func(x *Tensor) *Tensor { return x.Flip(0, 1) }),
			naive: from(func(i []int) []int { return []int{1 - i[0], 2 - i[1]} }, 2, 3),
		},
		{
			name: "repeat", shapes: [][]int{{2, 3}}, apply: one(func(x *Tensor) *Tensor { return x.Repeat(2, 1, 3) }),
			naive: from(func(i []int) []int { return []int{i[1], i[2] % 3} }, 2, 2, 9),
		},
		{
			name: "repeat interleave", shapes: [][]int{{2, 3}}, apply: one(func(x *Tensor) *Tensor { return x.RepeatInterleave(2, 1) }),
			naive: from(func(i []int) []int { return []int{i[0], i[1] / 2} }, 2, 6),
		},
		{
			name: "repeat interleave by", shapes: [][]int{{3, 2}},
			apply: one(func(x *Tensor) *Tensor { return x.RepeatInterleaveBy(on.FromInt64([]int64{2, 0, 3}), 0) }),
			naive: from(func(i []int) []int { return []int{[]int{0, 0, 2, 2, 2}[i[0]], i[1]} }, 5, 2),
		},
		{
			name: "unfold", shapes: [][]int{{2, 6, 2}}, apply: one(func(x *Tensor) *Tensor { return x.Unfold(1, 3, 2) }),
			naive: from(func(i []int) []int { return []int{i[0], 2*i[1] + i[3], i[2]} }, 2, 2, 2, 3),
		},
	}
}
