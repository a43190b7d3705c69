// SPDX-License-Identifier: Apache-2.0

package tensor

import "math"

func attentionCases() []opCase {
	return []opCase{
		{
			name: "attention", shapes: [][]int{{2, 3, 2, 4}, {2, 5, 2, 4}, {2, 5, 2, 4}},
			apply: func(in []*Tensor) *Tensor { return Attention(in[0], in[1], in[2], false) },
			naive: func(in []array) array { return naiveAttention(in[0], in[1], in[2], false) },
		},
		{
			name: "attention causal", shapes: [][]int{{1, 3, 2, 4}, {1, 4, 2, 4}, {1, 4, 2, 4}},
			apply: func(in []*Tensor) *Tensor { return Attention(in[0], in[1], in[2], true) },
			naive: func(in []array) array { return naiveAttention(in[0], in[1], in[2], true) },
		},
		{
			name: "self attention", shapes: [][]int{{2, 4, 18}},
			apply: func(in []*Tensor) *Tensor { return SelfAttention(in[0], 2, true) },
			naive: func(in []array) array {
				packed := array{[]int{2, 4, 3, 2, 3}, in[0].data}
				part := func(i int) array {
					return fromIndex([]int{2, 4, 2, 3}, func(x []int) float64 { return packed.at(x[0], x[1], i, x[2], x[3]) })
				}
				return array{[]int{2, 4, 6}, naiveAttention(part(0), part(1), part(2), true).data}
			},
		},
	}
}

// naiveAttention is softmax(q·kᵀ/√dim)·v of [batch, time, heads, dim]. A causal
// query sees the keys up to its own place, counted from the end.
func naiveAttention(q, k, v array, causal bool) array {
	time, keyTime, dim := q.shape[1], k.shape[1], q.shape[3]
	return fromIndex(q.shape, func(i []int) float64 {
		scores := newArray(keyTime)
		for key := range scores.data {
			for d := range dim {
				scores.data[key] += q.at(i[0], i[1], i[2], d) * k.at(i[0], key, i[2], d) / math.Sqrt(float64(dim))
			}
			if causal && key > i[1]+keyTime-time {
				scores.data[key] = math.Inf(-1)
			}
		}
		out := 0.0
		for key, p := range naiveSoftmax(scores).data {
			out += p * v.at(i[0], key, i[2], i[3])
		}
		return out
	})
}
