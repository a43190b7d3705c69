// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"cmp"
	"slices"
)

// indexCases take, put, select, sort and sum elements along a dim.
func indexCases(dev Device) []opCase {
	on := On(dev)
	ids := on.FromInt64([]int64{2, 0, 2, 1})
	along0 := on.FromInt64([]int64{2, 0, 1, 2, 0, 0, 1, 2}, 2, 4)
	along1 := on.FromInt64([]int64{3, 3, 0, 1, 2, 0, 0, 0, 0}, 3, 3)
	middle := on.FromInt64([]int64{1, 0, 2, 2, 1, 1, 0, 0}, 2, 2, 2)
	apart := on.FromInt64([]int64{3, 0, 2, 1, 0, 3}, 3, 2) // none twice in a row
	one := func(fn func(x *Tensor) *Tensor) func(in []*Tensor) *Tensor {
		return func(in []*Tensor) *Tensor { return fn(in[0]) }
	}
	put := func(dim int, index *Tensor, add bool) func(in []array) array {
		return func(in []array) array {
			out := array{in[0].shape, slices.Clone(in[0].data)}
			each(index.shape, func(i []int) {
				to := slices.Clone(i)
				to[dim] = int(at(index, i))
				v := in[1].at(i...)
				if add {
					v += out.at(to...)
				}
				out.set(v, to...)
			})
			return out
		}
	}
	mask := on.FromBool([]bool{true, false, false, true, true, false}, 2, 3)
	return []opCase{
		{
			name: "index select", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.IndexSelect(0, ids) }),
			naive: func(in []array) array {
				return fromIndex([]int{4, 4}, func(i []int) float64 { return in[0].at(int(at(ids, i[:1])), i[1]) })
			},
		},
		{
			name: "index select last", shapes: [][]int{{2, 3}}, apply: one(func(x *Tensor) *Tensor { return x.IndexSelect(-1, ids) }),
			naive: func(in []array) array {
				return fromIndex([]int{2, 4}, func(i []int) float64 { return in[0].at(i[0], int(at(ids, i[1:]))) })
			},
		},
		{
			name: "index select middle", shapes: [][]int{{2, 3, 2}}, apply: one(func(x *Tensor) *Tensor { return x.Transpose(0, 2).IndexSelect(1, ids) }),
			naive: func(in []array) array {
				return fromIndex([]int{2, 4, 2}, func(i []int) float64 { return in[0].at(i[2], int(at(ids, i[1:2])), i[0]) })
			},
		},
		{
			name: "index add", shapes: [][]int{{3, 2}, {4, 2}}, apply: func(in []*Tensor) *Tensor { return in[0].IndexAdd(0, ids, in[1]) },
			naive: func(in []array) array {
				out := array{in[0].shape, slices.Clone(in[0].data)}
				each(in[1].shape, func(i []int) {
					to := int(at(ids, i[:1]))
					out.set(out.at(to, i[1])+in[1].at(i...), to, i[1])
				})
				return out
			},
		},
		{
			name: "index add last", shapes: [][]int{{2, 3}, {2, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].IndexAdd(1, ids, in[1]) },
			naive: func(in []array) array {
				out := array{in[0].shape, slices.Clone(in[0].data)}
				each(in[1].shape, func(i []int) {
					to := int(at(ids, i[1:]))
					out.set(out.at(i[0], to)+in[1].at(i...), i[0], to)
				})
				return out
			},
		},
		{
			name: "gather first", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Gather(0, along0) }),
			naive: func(in []array) array { return naiveGather(in[0], 0, along0) },
		},
		{
			name: "gather last", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Gather(1, along1) }),
			naive: func(in []array) array { return naiveGather(in[0], 1, along1) },
		},
		{
			name: "gather corner", shapes: [][]int{{3, 3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.Gather(1, middle) }),
			naive: func(in []array) array { return naiveGather(in[0], 1, middle) },
		},
		{
			name: "take along dim", shapes: [][]int{{2, 4}}, apply: one(func(x *Tensor) *Tensor { return x.TakeAlongDim(on.FromInt64([]int64{3, 1, 3}, 1, 3), 1) }),
			naive: func(in []array) array {
				return fromIndex([]int{2, 3}, func(i []int) float64 { return in[0].at(i[0], []int{3, 1, 3}[i[1]]) })
			},
		},
		{
			name: "scatter add", shapes: [][]int{{3, 4}, {3, 3}}, apply: func(in []*Tensor) *Tensor { return in[0].ScatterAdd(1, along1, in[1]) },
			naive: put(1, along1, true),
		},
		{
			name: "scatter add corner", shapes: [][]int{{3, 3, 4}, {2, 2, 2}}, apply: func(in []*Tensor) *Tensor { return in[0].ScatterAdd(1, middle, in[1]) },
			naive: put(1, middle, true),
		},
		{
			name: "scatter", shapes: [][]int{{3, 4}, {3, 2}}, apply: func(in []*Tensor) *Tensor { return in[0].Scatter(1, apart, in[1]) },
			naive: put(1, apart, false),
		},
		{
			name: "scatter value", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.ScatterValue(1, apart, 0.5) }),
			naive: func(in []array) array {
				return put(1, apart, false)([]array{in[0], {[]int{3, 2}, slices.Repeat([]float64{0.5}, 6)}})
			},
		},
		{
			name: "masked select", shapes: [][]int{{2, 3}}, apply: one(func(x *Tensor) *Tensor { return x.MaskedSelect(mask) }),
			naive: func(in []array) array {
				d := in[0].data
				return array{[]int{3}, []float64{d[0], d[3], d[4]}}
			},
		},
		{
			name: "masked select broadcast", shapes: [][]int{{3}}, apply: one(func(x *Tensor) *Tensor { return x.MaskedSelect(mask) }),
			naive: func(in []array) array {
				d := in[0].data
				return array{[]int{3}, []float64{d[0], d[0], d[1]}}
			},
		},
		{
			name: "masked scatter", shapes: [][]int{{2, 3}, {4}}, apply: func(in []*Tensor) *Tensor { return in[0].MaskedScatter(mask, in[1]) },
			naive: func(in []array) array {
				d, s := in[0].data, in[1].data
				return array{[]int{2, 3}, []float64{s[0], d[1], d[2], s[1], s[2], d[5]}}
			},
		},
		{
			name: "top k", shapes: [][]int{{3, 7}}, apply: one(func(x *Tensor) *Tensor { v, _ := x.TopK(3, -1, true); return v }),
			naive: func(in []array) array { return naiveSort(in[0], true).corner(3, 3) },
		},
		{
			name: "top k smallest", shapes: [][]int{{5, 2}}, apply: one(func(x *Tensor) *Tensor { v, _ := x.TopK(2, 0, false); return v }),
			naive: func(in []array) array {
				return naivePermute(naiveSort(naivePermute(in[0], 1, 0), false).corner(2, 2), 1, 0)
			},
		},
		{
			name: "sort", shapes: [][]int{{2, 6}}, apply: one(func(x *Tensor) *Tensor { v, _ := x.Sort(1, false); return v }),
			naive: func(in []array) array { return naiveSort(in[0], false) },
		},
		{
			name: "sort descending", shapes: [][]int{{2, 6}}, apply: one(func(x *Tensor) *Tensor { v, _ := x.Sort(-1, true); return v }),
			naive: func(in []array) array { return naiveSort(in[0], true) },
		},
		{
			name: "cumsum", shapes: [][]int{{2, 5}}, apply: one(func(x *Tensor) *Tensor { return x.CumSum(1) }),
			naive: func(in []array) array {
				return naiveRunning(in[0], func(a, b float64) float64 { return a + b })
			},
		},
		{
			name: "cumsum first", shapes: [][]int{{4, 3}}, apply: one(func(x *Tensor) *Tensor { return x.CumSum(0) }),
			naive: func(in []array) array {
				return naivePermute(naiveRunning(naivePermute(in[0], 1, 0), func(a, b float64) float64 { return a + b }), 1, 0)
			},
		},
		{
			name: "cumprod", shapes: [][]int{{3, 4}}, apply: one(func(x *Tensor) *Tensor { return x.CumProd(1) }),
			naive: func(in []array) array {
				return naiveRunning(in[0], func(a, b float64) float64 { return a * b })
			},
		},
		{
			name: "cumprod with zeros", shapes: [][]int{{5, 3}},
			apply: one(func(x *Tensor) *Tensor {
				return x.Mul(on.FromFloat32([]float32{1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1}, 5, 3)).CumProd(0)
			}),
			naive: func(in []array) array {
				zeros := array{[]int{5, 3}, []float64{1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1}}
				x := zipArrays(func(x, y float64) float64 { return x * y })([]array{in[0], zeros})
				return naivePermute(naiveRunning(naivePermute(x, 1, 0), func(a, b float64) float64 { return a * b }), 1, 0)
			},
		},
	}
}

// at returns an element of an index tensor.
func at(t *Tensor, index []int) int64 {
	pos := 0
	for d, i := range index {
		pos = pos*t.shape[d] + i
	}
	return t.Int64s()[pos]
}

func naiveGather(x array, dim int, index *Tensor) array {
	return fromIndex(index.Shape(), func(i []int) float64 {
		from := slices.Clone(i)
		from[dim] = int(at(index, i))
		return x.at(from...)
	})
}

// naiveSort sorts the rows of a matrix.
func naiveSort(x array, descending bool) array {
	out := array{x.shape, slices.Clone(x.data)}
	cols := x.shape[1]
	for r := range x.shape[0] {
		slices.SortStableFunc(out.data[r*cols:(r+1)*cols], func(a, b float64) int {
			if descending {
				return cmp.Compare(b, a)
			}
			return cmp.Compare(a, b)
		})
	}
	return out
}

// corner returns the first rows and columns of a matrix.
func (a array) corner(rows, cols int) array {
	return fromIndex([]int{rows, cols}, func(i []int) float64 { return a.at(i...) })
}

// naiveRunning combines the elements of each row of a matrix up to each.
func naiveRunning(x array, op func(a, b float64) float64) array {
	out := array{x.shape, slices.Clone(x.data)}
	for i := range out.data {
		if i%x.shape[1] > 0 {
			out.data[i] = op(out.data[i-1], out.data[i])
		}
	}
	return out
}
