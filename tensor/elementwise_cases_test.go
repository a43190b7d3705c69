// SPDX-License-Identifier: Apache-2.0

package tensor

import "math"

// unaryCase is a row for a function of one element.
func unaryCase(name string, positive bool, apply func(x *Tensor) *Tensor, f func(x float64) float64) opCase {
	return opCase{
		name: name, shapes: [][]int{{3, 4}}, positive: positive, naive: mapArray(f),
		apply: func(in []*Tensor) *Tensor { return apply(in[0]) },
	}
}

// binaryCase is a row for a function of two elements, of a matrix and a column.
func binaryCase(name string, positive bool, apply func(x, y *Tensor) *Tensor, f func(x, y float64) float64) opCase {
	return opCase{
		name: name, shapes: [][]int{{3, 4}, {3, 1}}, positive: positive, naive: zipArrays(f),
		apply: func(in []*Tensor) *Tensor { return apply(in[0], in[1]) },
	}
}

// pick returns yes or no.
func pick(cond bool, yes, no float64) float64 {
	if cond {
		return yes
	}
	return no
}

func sigmoidOf(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// elementwiseCases are arithmetic, comparisons that choose, and activations.
func elementwiseCases(dev Device) []opCase {
	on := On(dev)
	signs := on.FromBool([]bool{true, false, false, true, true, false, true, false, false, true, false, true}, 3, 4)
	at := func(i int) bool { return signs.Int64s()[i] == 1 }
	// Away from the steps: 1.55 to 1.94 and 2.06 to 2.45.
	steady := func(x *Tensor) *Tensor { return x.MulScalar(0.3).AddScalar(2) }
	inf := math.Inf(1)
	softplus := func(x float64) float64 { return math.Log1p(math.Exp(x)) }
	rows := []opCase{
		unaryCase("abs", false, (*Tensor).Abs, math.Abs),
		unaryCase("square", false, (*Tensor).Square, func(x float64) float64 { return x * x }),
		unaryCase("rsqrt", true, (*Tensor).Rsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }),
		unaryCase("sin", false, (*Tensor).Sin, math.Sin),
		unaryCase("cos", false, (*Tensor).Cos, math.Cos),
		unaryCase("log1p", true, (*Tensor).Log1p, math.Log1p),
		unaryCase("expm1", false, (*Tensor).Expm1, math.Expm1),
		unaryCase("sign", false, (*Tensor).Sign, func(x float64) float64 { return pick(x > 0, 1, -1) }),
		unaryCase("floor", false, func(x *Tensor) *Tensor { return steady(x).Floor() }, func(x float64) float64 { return math.Floor(0.3*x + 2) }),
		unaryCase("ceil", false, func(x *Tensor) *Tensor { return steady(x).Ceil() }, func(x float64) float64 { return math.Ceil(0.3*x + 2) }),
		unaryCase("round", false, func(x *Tensor) *Tensor { return steady(x).Round() }, func(x float64) float64 { return math.RoundToEven(0.3*x + 2) }),
		unaryCase("pow scalar", false, func(x *Tensor) *Tensor { return x.PowScalar(3) }, func(x float64) float64 { return x * x * x }),
		unaryCase("pow fraction", true, func(x *Tensor) *Tensor { return x.PowScalar(-1.5) }, func(x float64) float64 { return math.Pow(x, -1.5) }),
		unaryCase("pow zero", false, func(x *Tensor) *Tensor { return x.PowScalar(0) }, func(x float64) float64 { return 1 }),
		binaryCase("pow", true, (*Tensor).Pow, math.Pow),
		unaryCase("clamp", false, func(x *Tensor) *Tensor { return x.Clamp(-0.9, 0.6) }, func(x float64) float64 { return min(max(x, -0.9), 0.6) }),
		unaryCase("clamp below", false, func(x *Tensor) *Tensor { return x.Clamp(-0.9, inf) }, func(x float64) float64 { return max(x, -0.9) }),
		binaryCase("maximum", false, (*Tensor).Maximum, func(x, y float64) float64 { return max(x, y) }),
		binaryCase("minimum", false, (*Tensor).Minimum, func(x, y float64) float64 { return min(x, y) }),
		{
			name: "maximum tied", shapes: [][]int{{5}}, naive: mapArray(func(x float64) float64 { return x }),
			apply: func(in []*Tensor) *Tensor { return in[0].Maximum(in[0].MulScalar(1)) },
		},
		unaryCase("scalars about", true, func(x *Tensor) *Tensor { return x.RSubScalar(3).DivScalar(4).SubScalar(1) }, func(x float64) float64 { return (3-x)/4 - 1 }),
		{
			name: "where", shapes: [][]int{{3, 4}, {4}}, apply: func(in []*Tensor) *Tensor { return Where(signs, in[0], in[1]) },
			naive: func(in []array) array {
				return fromIndex([]int{3, 4}, func(i []int) float64 { return pick(at(4*i[0]+i[1]), in[0].at(i...), in[1].at(i[1])) })
			},
		},
		{
			name: "where compared", shapes: [][]int{{3, 4}, {3, 1}},
			apply: func(in []*Tensor) *Tensor { return Where(in[0].Gt(in[1]), in[0].Mul(in[1]), in[1].Square()) },
			naive: zipArrays(func(x, y float64) float64 { return pick(x > y, x*y, y*y) }),
		},
		{
			name: "masked fill", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].MaskedFill(signs, -7) },
			naive: func(in []array) array {
				return fromIndex([]int{3, 4}, func(i []int) float64 { return pick(at(4*i[0]+i[1]), -7, in[0].at(i...)) })
			},
		},
		binaryCase("lerp", false, func(x, y *Tensor) *Tensor { return x.Lerp(y, 0.3) }, func(x, y float64) float64 { return x + 0.3*(y-x) }),
		binaryCase("addcmul", false, func(x, y *Tensor) *Tensor { return x.AddCMul(x, y, 0.5) }, func(x, y float64) float64 { return x + 0.5*x*y }),
		binaryCase("addcdiv", true, func(x, y *Tensor) *Tensor { return x.AddCDiv(x, y, 0.5) }, func(x, y float64) float64 { return x + 0.5*x/y }),

		unaryCase("sigmoid", false, (*Tensor).Sigmoid, sigmoidOf),
		unaryCase("silu", false, (*Tensor).SiLU, func(x float64) float64 { return x * sigmoidOf(x) }),
		unaryCase("log sigmoid", false, (*Tensor).LogSigmoid, func(x float64) float64 { return -math.Log1p(math.Exp(-x)) }),
		unaryCase("leaky relu", false, func(x *Tensor) *Tensor { return x.LeakyReLU(0.1) }, func(x float64) float64 { return pick(x > 0, x, 0.1*x) }),
		{
			name: "prelu", shapes: [][]int{{2, 3, 2}, {3}}, apply: func(in []*Tensor) *Tensor { return in[0].PReLU(in[1]) },
			naive: func(in []array) array {
				return fromIndex([]int{2, 3, 2}, func(i []int) float64 { return pick(in[0].at(i...) > 0, 1, in[1].at(i[1])) * in[0].at(i...) })
			},
		},
		unaryCase("elu", false, func(x *Tensor) *Tensor { return x.ELU(0.7) }, func(x float64) float64 { return pick(x > 0, x, 0.7*math.Expm1(x)) }),
		unaryCase("selu", false, (*Tensor).SELU, func(x float64) float64 {
			return 1.0507009873554805 * pick(x > 0, x, 1.6732632423543772*math.Expm1(x))
		}),
		unaryCase("softplus", false, func(x *Tensor) *Tensor { return x.Softplus(2, 2.8) }, func(x float64) float64 { return pick(2*x > 2.8, x, softplus(2*x)/2) }),
		unaryCase("hardtanh", false, func(x *Tensor) *Tensor { return x.Hardtanh(-0.9, 0.8) }, func(x float64) float64 { return min(max(x, -0.9), 0.8) }),
		unaryCase("relu6", false, func(x *Tensor) *Tensor { return x.MulScalar(5).ReLU6() }, func(x float64) float64 { return min(max(5*x, 0), 6) }),
		unaryCase("hardsigmoid", false, func(x *Tensor) *Tensor { return x.MulScalar(3).Hardsigmoid() }, func(x float64) float64 { return min(max(x/2+0.5, 0), 1) }),
		unaryCase("hardswish", false, func(x *Tensor) *Tensor { return x.MulScalar(3).Hardswish() }, func(x float64) float64 { return 3 * x * min(max(x/2+0.5, 0), 1) }),
		unaryCase("mish", false, (*Tensor).Mish, func(x float64) float64 { return x * math.Tanh(softplus(x)) }),
		{
			name: "dropout", shapes: [][]int{{3, 7}}, noGolden: "PyTorch draws other numbers",
			apply: func(in []*Tensor) *Tensor { return Dropout(in[0], 0.4, NewGenerator(3)) },
			naive: func(in []array) array {
				kept := Dropout(on.Full(1, 3, 7), 0.4, NewGenerator(3)).Float32s()
				return fromIndex([]int{3, 7}, func(i []int) float64 { return pick(kept[7*i[0]+i[1]] != 0, in[0].at(i...)/0.6, 0) })
			},
		},
	}
	return append(rows, softmaxCases(dev)...)
}

// softmaxCases are softmax and its relatives, along each dim.
func softmaxCases(Device) []opCase {
	logOf := func(a array) array { return mapArray(math.Log)([]array{a}) }
	return []opCase{
		{
			name: "softmax first", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Softmax(0) },
			naive: func(in []array) array { return naivePermute(naiveSoftmax(naivePermute(in[0], 1, 0)), 1, 0) },
		},
		{
			name: "softmax middle", shapes: [][]int{{2, 3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].Softmax(1) },
			naive: func(in []array) array { return naivePermute(naiveSoftmax(naivePermute(in[0], 0, 2, 1)), 0, 2, 1) },
		},
		{
			name: "log softmax", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].LogSoftmax(-1) },
			naive: func(in []array) array { return logOf(naiveSoftmax(in[0])) },
		},
		{
			name: "log softmax first", shapes: [][]int{{3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].LogSoftmax(0) },
			naive: func(in []array) array {
				return naivePermute(logOf(naiveSoftmax(naivePermute(in[0], 1, 0))), 1, 0)
			},
		},
		{
			name: "logsumexp", shapes: [][]int{{2, 3, 4}}, apply: func(in []*Tensor) *Tensor { return in[0].LogSumExp(0, 2) },
			naive: func(in []array) array { return logOf(naiveSum(mapArray(math.Exp)(in), 0, 2)) },
		},
	}
}
