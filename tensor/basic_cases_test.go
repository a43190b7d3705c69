// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"
)

// basicCases are arithmetic, sums, views, products, layer norm, losses and the
// embedding.
func basicCases(dev Device) []opCase {
	on := On(dev)
	targets := on.FromInt64([]int64{2, IgnoreIndex, 0, 4})
	ids := on.FromInt64([]int64{3, 1, 3, 0, 2, 3}, 2, 3)
	add := zipArrays(func(x, y float64) float64 { return x + y })
	normal := func(x float64) float64 { return x * (1 + math.Erf(x/math.Sqrt2)) / 2 }
	return []opCase{
		{name: "add", shapes: [][]int{{3, 4}, {3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, naive: add},
		{name: "add row", shapes: [][]int{{3, 4}, {4}}, apply: func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, naive: add},
		{name: "add column", shapes: [][]int{{3, 4}, {3, 1}}, apply: func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, naive: add},
		{name: "add outer", shapes: [][]int{{2, 1, 4}, {3, 1}}, apply: func(in []*Tensor) *Tensor { return in[0].Add(in[1]) }, naive: add},
		{
			name: "sub", shapes: [][]int{{3, 4}, {1, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Sub(in[1]) },
			naive: zipArrays(func(x, y float64) float64 { return x - y }),
		},
		{
			name: "mul", shapes: [][]int{{2, 3, 4}, {3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Mul(in[1]) },
			naive: zipArrays(func(x, y float64) float64 { return x * y }),
		},
		{
			name: "div", shapes: [][]int{{3, 4}, {3, 1}}, apply: func(in []*Tensor) *Tensor { return in[0].Div(in[1]) },
			naive: zipArrays(func(x, y float64) float64 { return x / y }), positive: true,
		},
		{
			name: "scalars", shapes: [][]int{{5}}, apply: func(in []*Tensor) *Tensor { return in[0].AddScalar(2).MulScalar(-3) },
			naive: mapArray(func(x float64) float64 { return (x + 2) * -3 }),
		},
		{name: "neg", shapes: [][]int{{5}}, apply: func(in []*Tensor) *Tensor { return in[0].Neg() }, naive: mapArray(func(x float64) float64 { return -x })},
		{name: "exp", shapes: [][]int{{7}}, apply: func(in []*Tensor) *Tensor { return in[0].Exp() }, naive: mapArray(math.Exp)},
		{name: "log", shapes: [][]int{{7}}, apply: func(in []*Tensor) *Tensor { return in[0].Log() }, naive: mapArray(math.Log), positive: true},
		{name: "sqrt", shapes: [][]int{{7}}, apply: func(in []*Tensor) *Tensor { return in[0].Sqrt() }, naive: mapArray(math.Sqrt), positive: true},
		{
			name: "reciprocal", shapes: [][]int{{7}}, apply: func(in []*Tensor) *Tensor { return in[0].Reciprocal() },
			naive: mapArray(func(x float64) float64 { return 1 / x }), positive: true,
		},
		{name: "tanh", shapes: [][]int{{7}}, apply: func(in []*Tensor) *Tensor { return in[0].Tanh() }, naive: mapArray(math.Tanh)},
		{name: "erf", shapes: [][]int{{7}}, apply: func(in []*Tensor) *Tensor { return in[0].Erf() }, naive: mapArray(math.Erf)},
		{
			name: "relu", shapes: [][]int{{4, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].ReLU() },
			naive: mapArray(func(x float64) float64 { return max(x, 0) }),
		},
		{name: "gelu", shapes: [][]int{{4, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].GELU() }, naive: mapArray(normal)},
		{
			name: "gelu tanh", shapes: [][]int{{4, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].GELUTanh() },
			naive: mapArray(func(x float64) float64 { return x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) / 2 }),
		},
		{
			name: "sum", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Mul(in[0]).Sum() },
			naive: func(in []array) array { return naiveSum(mapArray(func(x float64) float64 { return x * x })(in), 0, 1) },
		},
		{
			name: "sum first", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Sum(0) },
			naive: func(in []array) array { return naiveSum(in[0], 0) },
		},
		{
			name: "sum last", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Sum(-1) },
			naive: func(in []array) array { return naiveSum(in[0], 1) },
		},
		{
			name: "sum middle", shapes: [][]int{{2, 3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Sum(1) },
			naive: func(in []array) array { return naiveSum(in[0], 1) },
		},
		{
			name: "sum ends", shapes: [][]int{{2, 3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Sum(0, 2) },
			naive: func(in []array) array { return naiveSum(in[0], 0, 2) },
		},
		{
			name: "mean", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Mean(1) },
			naive: func(in []array) array {
				return mapArray(func(x float64) float64 { return x / 4 })([]array{naiveSum(in[0], 1)})
			},
		},
		{
			name: "reshape", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Reshape(2, -1) },
			naive: func(in []array) array { return array{[]int{2, 6}, in[0].data} },
		},
		{
			name: "permute", shapes: [][]int{{2, 3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Permute(2, 0, 1) },
			naive: func(in []array) array { return naivePermute(in[0], 2, 0, 1) },
		},
		{
			name: "narrow", shapes: [][]int{{3, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].Narrow(1, 1, 3) },
			naive: func(in []array) array {
				return fromIndex([]int{3, 3}, func(i []int) float64 { return in[0].at(i[0], i[1]+1) })
			},
		},
		{
			name: "select", shapes: [][]int{{3, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].Select(0, 2) },
			naive: func(in []array) array {
				return fromIndex([]int{5}, func(i []int) float64 { return in[0].at(2, i[0]) })
			},
		},
		{
			name: "expand", shapes: [][]int{{3, 1}}, apply: func(in []*Tensor) *Tensor { return in[0].Expand(2, 3, 4) },
			naive: func(in []array) array {
				return fromIndex([]int{2, 3, 4}, func(i []int) float64 { return in[0].at(i[1], 0) })
			},
		},
		{
			name: "clone", shapes: [][]int{{3, 2}}, apply: func(in []*Tensor) *Tensor { return in[0].T().Clone() },
			naive: func(in []array) array { return naivePermute(in[0], 1, 0) },
		},
		{
			name: "used twice", shapes: [][]int{{3, 3}}, apply: func(in []*Tensor) *Tensor { return in[0].MatMul(in[0].T()).Add(in[0]) },
			naive: func(in []array) array {
				return add([]array{naiveMatMul(in[0], naivePermute(in[0], 1, 0)), in[0]})
			},
		},
		{
			name: "matmul", shapes: [][]int{{3, 4}, {4, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) },
			naive: func(in []array) array { return naiveMatMul(in[0], in[1]) },
		},
		{
			name: "matmul transposed", shapes: [][]int{{4, 3}, {5, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].T().MatMul(in[1].T()) },
			naive: func(in []array) array { return naiveMatMul(naivePermute(in[0], 1, 0), naivePermute(in[1], 1, 0)) },
		},
		{
			name: "matmul batched", shapes: [][]int{{2, 3, 4}, {2, 4, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) },
			naive: func(in []array) array { return naiveMatMul(in[0], in[1]) },
		},
		{
			name: "matmul broadcast", shapes: [][]int{{2, 1, 3, 4}, {3, 4, 2}}, apply: func(in []*Tensor) *Tensor { return in[0].MatMul(in[1]) },
			naive: func(in []array) array {
				b := fromIndex([]int{2, 3, 4, 2}, func(i []int) float64 { return in[1].at(i[1:]...) })
				a := fromIndex([]int{2, 3, 3, 4}, func(i []int) float64 { return in[0].at(i[0], 0, i[2], i[3]) })
				return naiveMatMul(a, b)
			},
		},
		{
			name: "matmul strided", shapes: [][]int{{3, 4, 2}, {2, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].Permute(1, 0, 2).MatMul(in[1]) },
			naive: func(in []array) array { return naiveMatMul(naivePermute(in[0], 1, 0, 2), in[1]) },
		},
		{
			name: "linear", shapes: [][]int{{2, 3, 4}, {5, 4}, {5}}, apply: func(in []*Tensor) *Tensor { return Linear(in[0], in[1], in[2]) },
			naive: func(in []array) array {
				return add([]array{naiveMatMul(in[0], naivePermute(in[1], 1, 0)), in[2]})
			},
		},
		{
			name: "linear without bias", shapes: [][]int{{3, 4}, {5, 4}}, apply: func(in []*Tensor) *Tensor { return Linear(in[0], in[1], nil) },
			naive: func(in []array) array { return naiveMatMul(in[0], naivePermute(in[1], 1, 0)) },
		},
		{
			name: "affine", shapes: [][]int{{3, 4}, {4, 5}, {5}}, apply: func(in []*Tensor) *Tensor { return Affine(in[0], in[1], in[2]) },
			naive: func(in []array) array { return add([]array{naiveMatMul(in[0], in[1]), in[2]}) },
		},
		{
			name: "layer norm", shapes: [][]int{{2, 3, 6}, {6}, {6}}, apply: func(in []*Tensor) *Tensor { return LayerNorm(in[0], in[1], in[2], 1e-5) },
			naive: func(in []array) array { return naiveLayerNorm(in[0], in[1].data, in[2].data) },
		},
		{
			name: "layer norm strided", shapes: [][]int{{6, 2}, {6, 2}, {1}},
			apply: func(in []*Tensor) *Tensor {
				return LayerNorm(in[0].T(), in[1].Select(1, 1), in[2].Expand(6), 1e-5)
			},
			naive: func(in []array) array {
				gamma := fromIndex([]int{6}, func(i []int) float64 { return in[1].at(i[0], 1) })
				return naiveLayerNorm(naivePermute(in[0], 1, 0), gamma.data, slices.Repeat(in[2].data, 6))
			},
		},
		{
			name: "softmax", shapes: [][]int{{3, 5}}, apply: func(in []*Tensor) *Tensor { return in[0].Softmax(-1) },
			naive: func(in []array) array { return naiveSoftmax(in[0]) },
		},
		{
			name: "cross entropy", shapes: [][]int{{4, 5}}, apply: func(in []*Tensor) *Tensor { return CrossEntropy(in[0], targets) },
			naive: func(in []array) array {
				p := naiveSoftmax(in[0])
				return array{[]int{}, []float64{-(math.Log(p.at(0, 2)) + math.Log(p.at(2, 0)) + math.Log(p.at(3, 4))) / 3}}
			},
		},
		{
			name: "mse", shapes: [][]int{{3, 2}, {3, 2}}, apply: func(in []*Tensor) *Tensor { return MSE(in[0], in[1]) },
			naive: func(in []array) array {
				return naiveSum(zipArrays(func(x, y float64) float64 { return (x - y) * (x - y) / 6 })(in), 0, 1)
			},
		},
		{
			name: "embedding", shapes: [][]int{{4, 3}}, apply: func(in []*Tensor) *Tensor { return Embedding(in[0], ids) },
			naive: func(in []array) array {
				rows := ids.Int64s()
				return fromIndex([]int{2, 3, 3}, func(i []int) float64 { return in[0].at(int(rows[3*i[0]+i[1]]), i[2]) })
			},
		},
	}
}

// fromIndex makes an array of what fn gives for each index.
func fromIndex(shape []int, fn func(index []int) float64) array {
	out := newArray(shape...)
	each(shape, func(index []int) { out.set(fn(index), index...) })
	return out
}

// naiveSum sums over dims, which disappear.
func naiveSum(a array, dims ...int) array {
	shape := []int{}
	for d, s := range a.shape {
		if !slices.Contains(dims, d) {
			shape = append(shape, s)
		}
	}
	out := newArray(shape...)
	each(a.shape, func(index []int) {
		kept := []int{}
		for d, i := range index {
			if !slices.Contains(dims, d) {
				kept = append(kept, i)
			}
		}
		out.data[out.position(kept)] += a.at(index...)
	})
	return out
}

func naivePermute(a array, order ...int) array {
	shape := make([]int, len(order))
	for i, d := range order {
		shape[i] = a.shape[d]
	}
	return fromIndex(shape, func(index []int) float64 {
		from := make([]int, len(index))
		for i, d := range order {
			from[d] = index[i]
		}
		return a.at(from...)
	})
}

// naiveMatMul multiplies the last two dims of a by those of b, which has as many
// dims or two.
func naiveMatMul(a, b array) array {
	n := len(a.shape)
	shape := append(slices.Clone(a.shape[:n-1]), b.shape[len(b.shape)-1])
	return fromIndex(shape, func(index []int) float64 {
		left, right := slices.Clone(index), slices.Clone(index[n-len(b.shape):])
		sum := 0.0
		for k := range a.shape[n-1] {
			left[n-1], right[len(right)-2] = k, k
			sum += a.at(left...) * b.at(right...)
		}
		return sum
	})
}

func naiveLayerNorm(x array, gamma, beta []float64) array {
	out := newArray(x.shape...)
	cols := len(gamma)
	for at := 0; at < len(x.data); at += cols {
		row := x.data[at : at+cols]
		mean, variance := 0.0, 0.0
		for _, v := range row {
			mean += v / float64(cols)
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(cols)
		}
		for j, v := range row {
			out.data[at+j] = (v-mean)/math.Sqrt(variance+1e-5)*gamma[j] + beta[j]
		}
	}
	return out
}

// naiveSoftmax is over the last dim.
func naiveSoftmax(x array) array {
	out := newArray(x.shape...)
	cols := x.shape[len(x.shape)-1]
	for at := 0; at < len(x.data); at += cols {
		row, sum := x.data[at:at+cols], 0.0
		for _, v := range row {
			sum += math.Exp(v - slices.Max(row))
		}
		for j, v := range row {
			out.data[at+j] = math.Exp(v-slices.Max(row)) / sum
		}
	}
	return out
}
