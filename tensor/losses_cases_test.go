// SPDX-License-Identifier: Apache-2.0

package tensor

import "math"

// lossCases are the losses with their options.
func lossCases(dev Device) []opCase {
	on := On(dev)
	targets := on.FromInt64([]int64{2, IgnoreIndex, 0, 4})
	classes := []int{2, -1, 0, 4}
	weight := on.FromFloat32([]float32{0.5, 1, 2, 1, 3})
	w := widen(weight.Float32s())
	chances := on.FromFloat32([]float32{0.1, 0.2, 0.7, 0, 0, 0.3, 0.3, 0.1, 0.1, 0.2}, 2, 5)
	labels := on.FromFloat32([]float32{0, 1, 0.3, 1, 0, 0.9}, 3, 2)
	sides := on.FromFloat32([]float32{1, -1, 1})
	inf := math.Inf(1)

	mean := func(a array) array {
		sum := 0.0
		for _, x := range a.data {
			sum += x
		}
		return array{[]int{}, []float64{sum / float64(len(a.data))}}
	}
	pair := func(name string, apply func(x, y *Tensor) *Tensor, f func(x, y float64) float64) opCase {
		return opCase{
			name: name, shapes: [][]int{{3, 2}, {3, 2}}, apply: func(in []*Tensor) *Tensor { return apply(in[0], in[1]) },
			naive: func(in []array) array { return mean(zipArrays(f)(in)) },
		}
	}
	// rowLoss is the weighted, smoothed cross-entropy of one row.
	rowLoss := func(p array, row, target int, weigh func(c int) float64, eps float64) float64 {
		sum := -(1 - eps) * weigh(target) * math.Log(p.at(row, target))
		for c := range p.shape[1] {
			sum -= eps / float64(p.shape[1]) * weigh(c) * math.Log(p.at(row, c))
		}
		return sum
	}
	flat := func(int) float64 { return 1 }
	heavy := func(c int) float64 { return w[c] }
	// combine sums over the rows that count and divides.
	combine := func(weigh func(c int) float64, eps float64, by func(weight, rows float64) float64) func(in []array) array {
		return func(in []array) array {
			p, sum, total, rows := naiveSoftmax(in[0]), 0.0, 0.0, 0.0
			for row, c := range classes {
				if c >= 0 {
					sum += rowLoss(p, row, c, weigh, eps)
					total += weigh(c)
					rows++
				}
			}
			return array{[]int{}, []float64{sum / by(total, rows)}}
		}
	}
	byWeight := func(weight, _ float64) float64 { return weight }
	logits := func(name string, o CrossEntropyOptions, naive func(in []array) array) opCase {
		return opCase{name: name, shapes: [][]int{{4, 5}}, apply: func(in []*Tensor) *Tensor { return CrossEntropy(in[0], targets, o) }, naive: naive}
	}
	ofProbabilities := func(in []array) array {
		p, t, sum := naiveSoftmax(in[0]), widen(chances.Float32s()), 0.0
		for i, q := range p.data {
			sum -= t[i] * math.Log(q)
		}
		return array{[]int{}, []float64{sum / 2}}
	}
	binary := func(x, t, positive float64) float64 {
		return -(positive*t*math.Log(sigmoidOf(x)) + (1-t)*math.Log(1-sigmoidOf(x)))
	}
	label := func(i int) float64 { return widen(labels.Float32s())[i] }
	binaryOf := func(positive [2]float64) func(in []array) array {
		return func(in []array) array {
			return mean(fromIndex([]int{3, 2}, func(i []int) float64 { return binary(in[0].at(i...), label(2*i[0]+i[1]), positive[i[1]]) }))
		}
	}
	quadratic := func(x, y, border float64) float64 {
		d := math.Abs(x - y)
		return pick(d < border, d*d/2, border*(d-border/2))
	}
	cosine := func(x, y array, row int) float64 {
		xy, xx, yy := 0.0, 0.0, 0.0
		for c := range x.shape[1] {
			xy += x.at(row, c) * y.at(row, c)
			xx += x.at(row, c) * x.at(row, c)
			yy += y.at(row, c) * y.at(row, c)
		}
		return xy / math.Sqrt(xx*yy)
	}
	distance := func(x, y array, row int) float64 {
		sum := 0.0
		for c := range x.shape[1] {
			d := x.at(row, c) - y.at(row, c) + 1e-6
			sum += d * d
		}
		return math.Sqrt(sum)
	}
	return []opCase{
		logits("cross entropy sum", CrossEntropyOptions{Reduction: ReduceSum}, combine(flat, 0, func(_, _ float64) float64 { return 1 })),
		{
			name: "cross entropy none", shapes: [][]int{{4, 5}},
			apply: func(in []*Tensor) *Tensor {
				return CrossEntropy(in[0], targets, CrossEntropyOptions{Reduction: ReduceNone})
			},
			naive: func(in []array) array {
				p := naiveSoftmax(in[0])
				return fromIndex([]int{4}, func(i []int) float64 {
					if classes[i[0]] < 0 {
						return 0
					}
					return rowLoss(p, i[0], classes[i[0]], flat, 0)
				})
			},
		},
		logits("cross entropy weight", CrossEntropyOptions{Weight: weight}, combine(heavy, 0, byWeight)),
		logits("cross entropy smooth", CrossEntropyOptions{LabelSmoothing: 0.2}, combine(flat, 0.2, func(_, rows float64) float64 { return rows })),
		logits("cross entropy weight smooth", CrossEntropyOptions{Weight: weight, LabelSmoothing: 0.2}, combine(heavy, 0.2, byWeight)),
		{
			name: "cross entropy ignore", shapes: [][]int{{2, 2, 5}},
			apply: func(in []*Tensor) *Tensor {
				return CrossEntropy(in[0], on.FromInt64([]int64{2, 3, 0, 4}, 2, 2), CrossEntropyOptions{IgnoreIndex: new(int64(3))})
			},
			naive: func(in []array) array {
				return combine(flat, 0, func(_, rows float64) float64 { return rows })([]array{{[]int{4, 5}, in[0].data}})
			},
		},
		{
			name: "cross entropy probabilities", shapes: [][]int{{2, 5}}, naive: ofProbabilities,
			apply: func(in []*Tensor) *Tensor { return CrossEntropy(in[0], chances) },
		},
		{
			name: "nll", shapes: [][]int{{4, 5}}, apply: func(in []*Tensor) *Tensor {
				return NLL(in[0].LogSoftmax(-1), targets, CrossEntropyOptions{Weight: weight})
			},
			naive: combine(heavy, 0, byWeight),
		},
		{
			name: "bce", shapes: [][]int{{3, 2}}, apply: func(in []*Tensor) *Tensor { return BCE(in[0].Sigmoid(), labels) },
			naive: binaryOf([2]float64{1, 1}),
		},
		{
			name: "bce with logits", shapes: [][]int{{3, 2}}, apply: func(in []*Tensor) *Tensor { return BCEWithLogits(in[0], labels) },
			naive: binaryOf([2]float64{1, 1}),
		},
		{
			name: "bce pos weight", shapes: [][]int{{3, 2}},
			apply: func(in []*Tensor) *Tensor {
				return BCEWithLogits(in[0], labels, BCEWithLogitsOptions{PosWeight: on.FromFloat32([]float32{2, 3})})
			},
			naive: binaryOf([2]float64{2, 3}),
		},
		pair("l1", func(x, y *Tensor) *Tensor { return L1(x, y) }, func(x, y float64) float64 { return math.Abs(x - y) }),
		{
			name: "l1 weight sum", shapes: [][]int{{3, 2}, {3, 2}},
			apply: func(in []*Tensor) *Tensor {
				return L1(in[0], in[1], LossOptions{Weight: on.FromFloat32([]float32{1, 3}), Reduction: ReduceSum})
			},
			naive: func(in []array) array {
				return naiveSum(fromIndex([]int{3, 2}, func(i []int) float64 { return float64(1+2*i[1]) * math.Abs(in[0].at(i...)-in[1].at(i...)) }), 0, 1)
			},
		},
		pair("smooth l1", func(x, y *Tensor) *Tensor { return SmoothL1(x, y, 0.5) }, func(x, y float64) float64 { return quadratic(x, y, 0.5) / 0.5 }),
		pair("huber", func(x, y *Tensor) *Tensor { return Huber(x, y, 0.65) }, func(x, y float64) float64 { return quadratic(x, y, 0.65) }),
		{
			name: "kl div", shapes: [][]int{{2, 5}},
			apply: func(in []*Tensor) *Tensor {
				return KLDiv(in[0].LogSoftmax(-1), chances, KLDivOptions{Reduction: ReduceBatchMean})
			},
			naive: func(in []array) array {
				out := ofProbabilities(in)
				for _, q := range widen(chances.Float32s()) {
					if q > 0 {
						out.data[0] += q * math.Log(q) / 2
					}
				}
				return out
			},
		},
		pair("kl div of logarithms", func(x, y *Tensor) *Tensor { return KLDiv(x, y, KLDivOptions{LogTarget: true}) },
			func(x, y float64) float64 { return math.Exp(y) * (y - x) }),
		{
			name: "cosine similarity", shapes: [][]int{{3, 4}, {3, 4}}, apply: func(in []*Tensor) *Tensor { return CosineSimilarity(in[0], in[1], 1, 1e-8) },
			naive: func(in []array) array {
				return fromIndex([]int{3}, func(i []int) float64 { return cosine(in[0], in[1], i[0]) })
			},
		},
		{
			name: "cosine embedding", shapes: [][]int{{3, 4}, {3, 4}}, apply: func(in []*Tensor) *Tensor { return CosineEmbedding(in[0], in[1], sides, 0.1) },
			naive: func(in []array) array {
				return mean(fromIndex([]int{3}, func(i []int) float64 {
					c := cosine(in[0], in[1], i[0])
					return pick(i[0] == 1, max(0, c-0.1), 1-c)
				}))
			},
		},
		{
			name: "margin ranking", shapes: [][]int{{3}, {3}}, apply: func(in []*Tensor) *Tensor { return MarginRanking(in[0], in[1], sides, 0.5) },
			naive: func(in []array) array {
				return mean(fromIndex([]int{3}, func(i []int) float64 {
					return min(max(0, 0.5-pick(i[0] == 1, -1, 1)*(in[0].at(i...)-in[1].at(i...))), inf)
				}))
			},
		},
		{
			name: "triplet margin", shapes: [][]int{{3, 4}, {3, 4}, {3, 4}},
			apply: func(in []*Tensor) *Tensor { return TripletMargin(in[0], in[1], in[2], 1) },
			naive: func(in []array) array {
				return mean(fromIndex([]int{3}, func(i []int) float64 {
					return max(0, distance(in[0], in[1], i[0])-distance(in[0], in[2], i[0])+1)
				}))
			},
		},
	}
}
