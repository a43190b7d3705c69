// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/cohort-ml/cohort/internal/kernel"
)

func attentionCases(dev Device) []opCase {
	on := On(dev)
	// The rows below leave no query without a key, but for one that says so.
	seen := on.FromBool([]bool{
		true, false, true, true, false, true, true, true, false, true,
		false, false, true, true, true, true, true, false, false, false,
	}, 2, 1, 2, 5)
	seenNaive := func(b, _, query, key int) bool { return seen.Int64s()[(2*b+query)*5+key] != 0 }
	blind := on.FromBool([]bool{false, true, true, true, false, true, false, true, true}, 3, 3)
	return []opCase{
		{
			name: "attention", shapes: [][]int{{2, 3, 2, 4}, {2, 5, 2, 4}, {2, 5, 2, 4}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{})
			},
			naive: func(in []array) array { return naiveAttention(in[0], in[1], in[2], naiveOptions{}) },
		},
		{
			name: "attention causal", shapes: [][]int{{1, 3, 2, 4}, {1, 4, 2, 4}, {1, 4, 2, 4}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Causal: true})
			},
			naive: func(in []array) array {
				return naiveAttention(in[0], in[1], in[2], naiveOptions{seen: naiveCausal(3, 4)})
			},
		},
		{
			name: "attention grouped", shapes: [][]int{{1, 3, 4, 5}, {1, 4, 2, 5}, {1, 4, 2, 5}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Causal: true, Scale: 0.7})
			},
			naive: func(in []array) array {
				return naiveAttention(in[0], in[1], in[2], naiveOptions{scale: 0.7, seen: naiveCausal(3, 4)})
			},
		},
		{
			name: "attention soft cap", shapes: [][]int{{1, 3, 4, 5}, {1, 4, 2, 5}, {1, 4, 2, 5}, {4, 3, 4}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Causal: true, SoftCap: 0.8, Mask: in[3]})
			},
			naive: func(in []array) array {
				return naiveAttention(in[0], in[1], in[2], naiveOptions{
					cap: 0.8, seen: naiveCausal(3, 4), bias: func(_, head, query, key int) float64 { return in[3].at(head, query, key) },
				})
			},
		},
		{
			name: "attention bool mask", shapes: [][]int{{2, 2, 2, 4}, {2, 5, 1, 4}, {2, 5, 1, 4}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Mask: seen})
			},
			naive: func(in []array) array {
				return naiveAttention(in[0], in[1], in[2], naiveOptions{seen: seenNaive})
			},
		},
		{
			name: "attention blind query", shapes: [][]int{{1, 3, 2, 4}, {1, 3, 2, 4}, {1, 3, 2, 4}, {2, 3, 3}},
			apply: func(in []*Tensor) *Tensor {
				mask := Where(blind, in[3], on.Full(math.Inf(-1)))
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Mask: mask, Causal: true})
			},
			naive: func(in []array) array {
				return naiveAttention(in[0], in[1], in[2], naiveOptions{
					seen: func(_, _, query, key int) bool { return query == 1 && key == 0 || query == 2 && key > 0 },
					bias: func(_, head, query, key int) float64 { return in[3].at(head, query, key) },
				})
			},
		},
		{
			name: "attention float mask", shapes: [][]int{{2, 3, 2, 4}, {2, 4, 2, 4}, {2, 4, 2, 4}, {2, 1, 4}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Mask: in[3], Causal: true})
			},
			naive: func(in []array) array {
				return naiveAttention(in[0], in[1], in[2], naiveOptions{
					seen: naiveCausal(3, 4),
					bias: func(_, head, _, key int) float64 { return in[3].at(head, 0, key) },
				})
			},
		},
		{
			name: "attention mask by query", shapes: [][]int{{1, 3, 2, 4}, {1, 3, 1, 4}, {1, 3, 1, 4}, {3, 1}},
			apply: func(in []*Tensor) *Tensor {
				return ScaledDotProductAttention(in[0], in[1], in[2], AttentionOptions{Mask: in[3]})
			},
			naive: func(in []array) array { return naiveAttention(in[0], in[1], in[2], naiveOptions{}) },
		},
		{
			name: "attention dropout", shapes: [][]int{{2, 3, 2, 4}, {2, 5, 1, 4}, {2, 5, 1, 4}},
			apply: func(in []*Tensor) *Tensor {
				o := AttentionOptions{Dropout: 0.4, Generator: NewGenerator(5)}
				return ScaledDotProductAttention(in[0], in[1], in[2], o)
			},
			naive: func(in []array) array {
				keep := make([]float32, 2*2*3*5)
				kernel.DropoutScales(keep, NewGenerator(5).normal, 0, 0, 0.4)
				return naiveAttention(in[0], in[1], in[2], naiveOptions{
					keep: func(b, head, query, key int) float64 { return float64(keep[((2*b+head)*3+query)*5+key]) },
				})
			},
			noGolden: "PyTorch drops others",
		},
		{
			name: "self attention", shapes: [][]int{{2, 4, 18}},
			apply: func(in []*Tensor) *Tensor { return SelfAttention(in[0], 2, AttentionOptions{Causal: true}) },
			naive: func(in []array) array {
				packed := array{[]int{2, 4, 3, 2, 3}, in[0].data}
				part := func(i int) array {
					return fromIndex([]int{2, 4, 2, 3}, func(x []int) float64 { return packed.at(x[0], x[1], i, x[2], x[3]) })
				}
				return array{[]int{2, 4, 6}, naiveAttention(part(0), part(1), part(2), naiveOptions{seen: naiveCausal(4, 4)}).data}
			},
		},
		{
			name: "self attention mask", shapes: [][]int{{2, 4, 18}, {2, 1, 4}},
			apply: func(in []*Tensor) *Tensor { return SelfAttention(in[0], 2, AttentionOptions{Mask: in[1], Scale: 0.5}) },
			naive: func(in []array) array {
				packed := array{[]int{2, 4, 3, 2, 3}, in[0].data}
				part := func(i int) array {
					return fromIndex([]int{2, 4, 2, 3}, func(x []int) float64 { return packed.at(x[0], x[1], i, x[2], x[3]) })
				}
				return array{[]int{2, 4, 6}, naiveAttention(part(0), part(1), part(2), naiveOptions{
					scale: 0.5, bias: func(_, head, _, key int) float64 { return in[1].at(head, 0, key) },
				}).data}
			},
		},
	}
}

// naiveOptions are functions of batch, head, query and key; nil ones do nothing.
type naiveOptions struct {
	scale      float64 // 0 is 1/√dim
	cap        float64 // 0 is none
	seen       func(batch, head, query, key int) bool
	bias, keep func(batch, head, query, key int) float64
}

// naiveCausal lets a query see the keys up to its own place, counted from the
// end.
func naiveCausal(time, keyTime int) func(batch, head, query, key int) bool {
	return func(_, _, query, key int) bool { return key <= query+keyTime-time }
}

// naiveAttention is softmax(q·kᵀ·scale)·v of [batch, time, heads, dim].
func naiveAttention(q, k, v array, o naiveOptions) array {
	keyTime, dim, group := k.shape[1], q.shape[3], q.shape[2]/k.shape[2]
	if o.scale == 0 {
		o.scale = 1 / math.Sqrt(float64(dim))
	}
	return fromIndex(q.shape, func(i []int) float64 {
		b, t, h := i[0], i[1], i[2]
		scores := newArray(keyTime)
		for key := range scores.data {
			for d := range dim {
				scores.data[key] += q.at(b, t, h, d) * k.at(b, key, h/group, d) * o.scale
			}
			if o.cap != 0 {
				scores.data[key] = o.cap * math.Tanh(scores.data[key]/o.cap)
			}
			if o.bias != nil {
				scores.data[key] += o.bias(b, h, t, key)
			}
			if o.seen != nil && !o.seen(b, h, t, key) {
				scores.data[key] = math.Inf(-1)
			}
		}
		out := 0.0
		if math.IsInf(slices.Max(scores.data), -1) {
			return 0
		}
		for key, p := range naiveSoftmax(scores).data {
			if o.keep != nil {
				p *= o.keep(b, h, t, key)
			}
			out += p * v.at(b, key, h/group, i[3])
		}
		return out
	})
}
