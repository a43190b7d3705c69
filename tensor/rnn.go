// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-ml/cohort/internal/device"
)

// A recurrent layer is one recorded operation: the products of all steps' inputs
// are made before it, at once, and its backward walks the steps in one go.

// LSTM runs long short-term memory over a sequence, from its end on if reverse.
// gates [time, batch, 4·hidden] are the inputs times their weights, both biases
// added, for the input, forget, cell and output gate; h0 and c0 [batch, hidden]
// are the first states and weight [4·hidden, hidden] is that of the states. The
// results are the output of every step [time, batch, hidden] and the last cell
// state [batch, hidden]. It computes in float32.
func LSTM(gates, h0, c0, weight *Tensor, reverse bool) (out, cn *Tensor) {
	present("lstm", gates, h0, c0, weight)
	gates, h0, c0, weight = toFloat32(gates), toFloat32(h0), toFloat32(c0), toFloat32(weight)
	operands := []*Tensor{gates, h0, c0, weight}
	r := newRecurrence("lstm", operands, gates, weight, 4, reverse)
	if !slices.Equal(c0.shape, h0.shape) {
		fail("lstm", operands, "both states must be [batch, hidden]")
	}
	h0, c0, weight = h0.Contiguous(), c0.Contiguous(), weight.Contiguous()
	acts := gates.Detach().Clone()
	// Outputs and cell states, [2, time, batch, hidden]: one result, for both have
	// gradients.
	states := result("lstm", Float32, []int{2, r.time, r.batch, r.hidden}, operands...)
	hs, cs := states.Detach().Select(0, 0), states.Detach().Select(0, 1)
	wT := weight.Detach().T()
	r.forward(func(t, prev int) {
		h, c := h0, c0
		if prev >= 0 {
			h, c = hs.stepAt(prev), cs.stepAt(prev)
		}
		act := acts.stepAt(t)
		act.Device().MatMul(act.array(), h.array(), wT.array(), device.Array{}, 1)
		fused(device.LSTMCell{}, hs.stepAt(t), cs.stepAt(t), act, c)
	})
	inputs := []*Tensor{gates, h0, c0, weight}
	states = states.record("lstm", inputs, []*Tensor{gates, h0, c0, weight, acts, states}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return r.lstmDefinition(gates, h0, c0, weight) })
			return
		}
		g = g.Contiguous()
		gh, gc := g.Select(0, 0), g.Select(0, 1)
		dgates := result("lstm", Float32, acts.shape, g)
		dh, dc := r.zeroState(g), r.zeroState(g)
		r.backward(func(t, prev int) {
			c := c0
			if prev >= 0 {
				c = cs.stepAt(prev)
			}
			dact := dgates.stepAt(t)
			operands := []*Tensor{dact, dc, gh.stepAt(t), dh, gc.stepAt(t), acts.stepAt(t), cs.stepAt(t), c}
			fused(device.LSTMCellGrad{}, operands...)
			dh.Device().MatMul(dh.array(), dact.array(), weight.array(), device.Array{}, 0)
		})
		for i, gi := range []*Tensor{dgates, dh, dc} {
			if b.needs(i) {
				b.give(i, gi)
			}
		}
		if b.needs(3) {
			r.giveWeight(b, 3, dgates, h0, hs)
		}
	})
	return states.Select(0, 0), states.Select(0, 1).Select(0, r.last())
}

// GRU runs gated recurrent units over a sequence, from its end on if reverse.
// gates [time, batch, 3·hidden] are the inputs times their weights, their bias
// added, for the reset gate, update gate and candidate; h0 [batch, hidden] is the
// first state, weight [3·hidden, hidden] and bias [3·hidden] (nil for none) are
// those of the states. It returns the state after every step [time, batch,
// hidden] and computes in float32.
func GRU(gates, h0, weight, bias *Tensor, reverse bool) *Tensor {
	present("gru", gates, h0, weight)
	gates, h0, weight = toFloat32(gates), toFloat32(h0), toFloat32(weight)
	operands := []*Tensor{gates, h0, weight, bias}
	r := newRecurrence("gru", operands, gates, weight, 3, reverse)
	if bias != nil {
		bias = toFloat32(bias).Contiguous()
		if !slices.Equal(bias.shape, weight.shape[:1]) {
			fail("gru", operands, "the bias must have shape [%d]", weight.shape[0])
		}
	}
	h0, weight = h0.Contiguous(), weight.Contiguous()
	xs := gates.Detach().Contiguous()
	acts := result("gru", Float32, []int{r.time, r.batch, 4 * r.hidden}, operands...)
	out := result("gru", Float32, []int{r.time, r.batch, r.hidden}, operands...)
	sums := result("gru", Float32, []int{r.batch, 3 * r.hidden}, operands...)
	hs, wT := out.Detach(), weight.Detach().T()
	var biasArray device.Array
	if bias != nil {
		biasArray = bias.array()
	}
	r.forward(func(t, prev int) {
		h := h0
		if prev >= 0 {
			h = hs.stepAt(prev)
		}
		sums.Device().MatMul(sums.array(), h.array(), wT.array(), biasArray, 0)
		fused(device.GRUCell{}, hs.stepAt(t), acts.stepAt(t), xs.stepAt(t), sums, h)
	})
	inputs := []*Tensor{gates, h0, weight, bias}
	return out.record("gru", inputs, []*Tensor{gates, h0, weight, acts, out}, func(b *backprop, g *Tensor) {
		if b.create {
			b.composite(g, func() *Tensor { return r.gruDefinition(gates, h0, weight, bias) })
			return
		}
		g = g.Contiguous()
		dx, ds := result("gru", Float32, gates.shape, g), result("gru", Float32, gates.shape, g)
		dh := r.zeroState(g)
		r.backward(func(t, prev int) {
			h := h0
			if prev >= 0 {
				h = hs.stepAt(prev)
			}
			dsum := ds.stepAt(t)
			operands := []*Tensor{dx.stepAt(t), dsum, dh, g.stepAt(t), acts.stepAt(t), h}
			fused(device.GRUCellGrad{}, operands...)
			dh.Device().MatMul(dh.array(), dsum.array(), weight.array(), device.Array{}, 1)
		})
		for i, gi := range []*Tensor{dx, dh} {
			if b.needs(i) {
				b.give(i, gi)
			}
		}
		if b.needs(2) {
			r.giveWeight(b, 2, ds, h0, hs)
		}
		if bias != nil && b.needs(3) {
			b.give(3, ds.Sum(0, 1))
		}
	})
}

// recurrence is the order in which a layer sees its steps.
type recurrence struct {
	time, batch, hidden int
	reverse             bool
}

func newRecurrence(op string, operands []*Tensor, gates, weight *Tensor, numGates int, reverse bool) recurrence {
	h0 := operands[1]
	if len(gates.shape) != 3 || len(weight.shape) != 2 || weight.shape[0] != numGates*weight.shape[1] || gates.shape[0] < 1 ||
		gates.shape[2] != weight.shape[0] || !slices.Equal(h0.shape, []int{gates.shape[1], weight.shape[1]}) {
		fail(op, operands, "wants gates [time, batch, %d·hidden] of at least one step, states [batch, hidden] and a weight [%d·hidden, hidden]", numGates, numGates)
	}
	return recurrence{gates.shape[0], gates.shape[1], weight.shape[1], reverse}
}

// forward calls fn for each step with the one before it, -1 for the first state.
func (r recurrence) forward(fn func(t, prev int)) {
	prev := -1
	for i := range r.time {
		t := i
		if r.reverse {
			t = r.time - 1 - i
		}
		fn(t, prev)
		prev = t
	}
}

// backward calls fn in the reverse order of forward.
func (r recurrence) backward(fn func(t, prev int)) {
	type pair struct{ t, prev int }
	var steps []pair
	r.forward(func(t, prev int) { steps = append(steps, pair{t, prev}) })
	for _, s := range slices.Backward(steps) {
		fn(s.t, s.prev)
	}
}

// last is the step that is seen last.
func (r recurrence) last() int {
	if r.reverse {
		return 0
	}
	return r.time - 1
}

func (r recurrence) zeroState(g *Tensor) *Tensor {
	z := result("recurrent state", Float32, []int{r.batch, r.hidden}, g)
	z.Device().Fill(z.array(), 0)
	return z
}

// giveWeight gives the weight of the states its gradient: each step's dsums
// times the state before it. All steps but the first are one product.
func (r recurrence) giveWeight(b *backprop, input int, dsums, h0, hs *Tensor) {
	first, rest, before := 0, 1, 0 // of dsums and of the states before them
	if r.reverse {
		first, rest, before = r.time-1, 0, 1
	}
	cols := dsums.shape[2]
	dst, beta, direct := b.direct(input)
	if !direct {
		dst = result("recurrent weight", Float32, []int{cols, r.hidden}, dsums)
	}
	product := func(sums, states *Tensor, beta float32) {
		dst.Device().MatMul(dst.array(), sums.T().array(), states.array(), device.Array{}, beta)
	}
	product(dsums.Detach().stepAt(first), h0.Detach(), beta)
	if n := r.time - 1; n > 0 {
		product(dsums.Detach().Narrow(0, rest, n).Reshape(n*r.batch, cols), hs.Detach().Narrow(0, before, n).Reshape(n*r.batch, r.hidden), 1)
	}
	if !direct {
		b.give(input, dst)
	}
}

// stepAt is the matrix of one step, not recorded.
func (t *Tensor) stepAt(i int) *Tensor { return t.Detach().Select(0, i) }

func toFloat32(t *Tensor) *Tensor {
	if !t.dtype.IsFloat() {
		return t // fails later, by name
	}
	return t.To(Float32)
}

// lstmDefinition is LSTM in recorded operations.
func (r recurrence) lstmDefinition(gates, h0, c0, weight *Tensor) *Tensor {
	h, c := h0, c0
	hs, cs := make([]*Tensor, r.time), make([]*Tensor, r.time)
	r.forward(func(t, _ int) {
		parts := gates.Select(0, t).Add(h.MatMul(weight.T())).Chunk(4, 1)
		c = parts[1].Sigmoid().Mul(c).Add(parts[0].Sigmoid().Mul(parts[2].Tanh()))
		h = parts[3].Sigmoid().Mul(c.Tanh())
		hs[t], cs[t] = h, c
	})
	return Stack(0, Stack(0, hs...), Stack(0, cs...))
}

// gruDefinition is GRU in recorded operations.
func (r recurrence) gruDefinition(gates, h0, weight, bias *Tensor) *Tensor {
	h := h0
	hs := make([]*Tensor, r.time)
	r.forward(func(t, _ int) {
		sums := h.MatMul(weight.T())
		if bias != nil {
			sums = sums.Add(bias)
		}
		x, s := gates.Select(0, t).Chunk(3, 1), sums.Chunk(3, 1)
		update := x[1].Add(s[1]).Sigmoid()
		cand := x[2].Add(x[0].Add(s[0]).Sigmoid().Mul(s[2])).Tanh()
		h = cand.Add(update.Mul(h.Sub(cand)))
		hs[t] = h
	})
	return Stack(0, hs...)
}
