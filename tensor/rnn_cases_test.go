// SPDX-License-Identifier: Apache-2.0

package tensor

import "math"

// rnnCases are recurrent layers; the operands are the inputs' products, the
// first states and the weight of the states.
func rnnCases(Device) []opCase {
	lstm := func(reverse, cell bool) func(in []*Tensor) *Tensor {
		return func(in []*Tensor) *Tensor {
			out, cn := LSTM(in[0], in[1], in[2], in[3], reverse)
			if cell {
				return Cat(0, out.Reshape(-1, 3), cn.Mul(cn))
			}
			return out
		}
	}
	gru := func(reverse bool) func(in []*Tensor) *Tensor {
		return func(in []*Tensor) *Tensor {
			var bias *Tensor
			if len(in) > 3 {
				bias = in[3]
			}
			return GRU(in[0], in[1], in[2], bias, reverse)
		}
	}
	return []opCase{
		{
			name: "lstm", shapes: [][]int{{4, 2, 12}, {2, 3}, {2, 3}, {12, 3}}, apply: lstm(false, false),
			naive: func(in []array) array { out, _ := naiveLSTM(in, false); return out },
		},
		{
			name: "lstm reverse", shapes: [][]int{{3, 2, 12}, {2, 3}, {2, 3}, {12, 3}}, apply: lstm(true, false),
			naive: func(in []array) array { out, _ := naiveLSTM(in, true); return out },
		},
		{
			name: "lstm cell state", shapes: [][]int{{2, 2, 12}, {2, 3}, {2, 3}, {12, 3}}, apply: lstm(false, true),
			naive: func(in []array) array {
				out, c := naiveLSTM(in, false)
				for _, x := range c.data {
					out.data = append(out.data, x*x)
				}
				return array{[]int{6, 3}, out.data}
			},
		},
		{
			name: "gru", shapes: [][]int{{4, 2, 9}, {2, 3}, {9, 3}, {9}}, apply: gru(false),
			naive: func(in []array) array { return naiveGRU(in, false) },
		},
		{
			name: "gru reverse", shapes: [][]int{{3, 2, 9}, {2, 3}, {9, 3}, {9}}, apply: gru(true),
			naive: func(in []array) array { return naiveGRU(in, true) },
		},
		{
			name: "gru without bias", shapes: [][]int{{2, 1, 6}, {1, 2}, {6, 2}}, apply: gru(false),
			naive: func(in []array) array { return naiveGRU(in, false) },
		},
	}
}

func naiveSigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// naiveSteps calls fn for each step with its number and the state before it.
func naiveSteps(x, h0 array, reverse bool, fn func(t, b int, h []float64) []float64) array {
	time, batch, hidden := x.shape[0], x.shape[1], h0.shape[1]
	out := newArray(time, batch, hidden)
	for b := range batch {
		h := h0.data[b*hidden : (b+1)*hidden]
		for i := range time {
			t := i
			if reverse {
				t = time - 1 - i
			}
			h = fn(t, b, h)
			copy(out.data[(t*batch+b)*hidden:], h)
		}
	}
	return out
}

func naiveLSTM(in []array, reverse bool) (out, cn array) {
	x, w := in[0], in[3]
	hidden := w.shape[1]
	cn = array{in[2].shape, append([]float64{}, in[2].data...)}
	out = naiveSteps(x, in[1], reverse, func(t, b int, h []float64) []float64 {
		next := make([]float64, hidden)
		for j := range hidden {
			var g [4]float64
			for k := range g {
				g[k] = x.at(t, b, k*hidden+j)
				for m, v := range h {
					g[k] += w.at(k*hidden+j, m) * v
				}
			}
			c := naiveSigmoid(g[1])*cn.at(b, j) + naiveSigmoid(g[0])*math.Tanh(g[2])
			cn.set(c, b, j)
			next[j] = naiveSigmoid(g[3]) * math.Tanh(c)
		}
		return next
	})
	return out, cn
}

func naiveGRU(in []array, reverse bool) array {
	x, w := in[0], in[2]
	hidden := w.shape[1]
	return naiveSteps(x, in[1], reverse, func(t, b int, h []float64) []float64 {
		next := make([]float64, hidden)
		for j := range hidden {
			var g, s [3]float64
			for k := range g {
				g[k] = x.at(t, b, k*hidden+j)
				if len(in) > 3 {
					s[k] = in[3].data[k*hidden+j]
				}
				for m, v := range h {
					s[k] += w.at(k*hidden+j, m) * v
				}
			}
			z := naiveSigmoid(g[1] + s[1])
			next[j] = (1-z)*math.Tanh(g[2]+naiveSigmoid(g[0]+s[0])*s[2]) + z*h[j]
		}
		return next
	})
}
