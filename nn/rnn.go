// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// RNNOptions are those of PyTorch's LSTM and GRU that are not their sizes.
type RNNOptions struct {
	NumLayers     int     // 0 means 1
	NoBias        bool    // leaves both biases out
	BatchFirst    bool    // inputs and outputs are [batch, time, …], not [time, batch, …]
	Dropout       float64 // the share of each layer's output but the last's that is dropped in training
	Bidirectional bool    // each layer reads the sequence from both ends
}

// LSTM is layers of long short-term memory; see [tensor.LSTM] for the cell.
// Parameters have PyTorch's names: weight_ih_l0 [4·hidden, input], weight_hh_l0
// [4·hidden, hidden], bias_ih_l0 and bias_hh_l0 [4·hidden], then those of the
// reverse direction (weight_ih_l0_reverse …) and of the next layers.
type LSTM struct{ recurrent }

// GRU is layers of gated recurrent units; see [tensor.GRU] for the cell.
// Parameters are named as LSTM's, with 3·hidden rows.
type GRU struct{ recurrent }

// recurrent is what LSTM and GRU share.
type recurrent struct {
	RNNOptions
	HiddenSize int
	Weights    NamedParameters `name:""`
}

// NewLSTM returns layers with PyTorch's first values: all uniform within
// 1/√hidden, drawn in the order of the names.
func NewLSTM(b *Build, inputSize, hiddenSize int, o RNNOptions) *LSTM {
	return &LSTM{newRecurrent(b, 4, inputSize, hiddenSize, o)}
}

// NewGRU returns layers with PyTorch's first values, as NewLSTM.
func NewGRU(b *Build, inputSize, hiddenSize int, o RNNOptions) *GRU {
	return &GRU{newRecurrent(b, 3, inputSize, hiddenSize, o)}
}

func newRecurrent(b *Build, numGates, inputSize, hiddenSize int, o RNNOptions) recurrent {
	c := checks{op: "new recurrent layer"}
	c.positive("inputSize", inputSize)
	c.positive("hiddenSize", hiddenSize)
	c.want(o.NumLayers >= 0, "NumLayers is %d: it must be at least 1, or 0 for 1", o.NumLayers)
	c.share("Dropout", o.Dropout)
	c.end()
	o.NumLayers = max(1, o.NumLayers)
	r := recurrent{RNNOptions: o, HiddenSize: hiddenSize}
	rows := numGates * hiddenSize
	for layer := range o.NumLayers {
		in := inputSize
		if layer > 0 {
			in = hiddenSize * r.directions()
		}
		for direction := range r.directions() {
			suffix := fmt.Sprintf("_l%d", layer)
			if direction == 1 {
				suffix += "_reverse"
			}
			add := func(name string, shape ...int) {
				r.Weights = append(r.Weights, NamedParameter{name + suffix, b.Uniform(fanInBound(hiddenSize), shape...)})
			}
			add("weight_ih", rows, in)
			add("weight_hh", rows, hiddenSize)
			if !o.NoBias {
				add("bias_ih", rows)
				add("bias_hh", rows)
			}
		}
	}
	return r
}

func (r *recurrent) directions() int {
	if r.Bidirectional {
		return 2
	}
	return 1
}

// weights are those of one layer and direction; biases are nil without.
type weights struct{ ih, hh, biasIH, biasHH *tensor.Tensor }

func (r *recurrent) weights(c *Ctx, i int) weights {
	each := 4
	if r.NoBias {
		each = 2
	}
	of := func(k int) *tensor.Tensor { return c.Param(r.Weights[i*each+k].Parameter) }
	w := weights{ih: of(0), hh: of(1)}
	if !r.NoBias {
		w.biasIH, w.biasHH = of(2), of(3)
	}
	return w
}

// run passes x through all layers. layer runs one of them in one direction, with
// index i among the first states, and returns its output.
func (r *recurrent) run(c *Ctx, x *tensor.Tensor, layer func(i int, x *tensor.Tensor, w weights, reverse bool) *tensor.Tensor) *tensor.Tensor {
	if x.NumDims() != 3 {
		panic(tensor.NewError("recurrent layer", []*tensor.Tensor{x}, "wants an input of three dims: time, batch, features"))
	}
	if r.BatchFirst {
		x = x.Transpose(0, 1)
	}
	for l := range r.NumLayers {
		if l > 0 && c.Training() {
			x = tensor.Dropout(x, r.Dropout, c.Generator())
		}
		outs := make([]*tensor.Tensor, r.directions())
		for d := range outs {
			i := l*len(outs) + d
			outs[d] = layer(i, x, r.weights(c, i), d == 1)
		}
		x = tensor.Cat(-1, outs...)
	}
	if r.BatchFirst {
		x = x.Transpose(0, 1)
	}
	return x
}

// state returns the first state of a layer and direction: entry i of those given
// [layers·directions, batch, hidden], or zeros.
func (r *recurrent) state(c *Ctx, given []*tensor.Tensor, which, i, batch int) *tensor.Tensor {
	if which >= len(given) || given[which] == nil {
		return tensor.New(c.Device(), tensor.Float32, batch, r.HiddenSize)
	}
	s := given[which]
	if want := []int{r.NumLayers * r.directions(), batch, r.HiddenSize}; !slices.Equal(s.Shape(), want) {
		panic(tensor.NewError("recurrent layer", []*tensor.Tensor{s}, "the first state must have shape %v", want))
	}
	return s.Select(0, i)
}

// Forward takes x [time, batch, input] to the outputs of the last layer [time,
// batch, hidden], or 2·hidden if bidirectional, from states of zeros.
func (m *LSTM) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return m.ForwardN(c, x)[0] }

// ForwardN takes x and, if given, the first output and cell states [layers·directions,
// batch, hidden]. It returns the outputs and the last output and cell states.
func (m *LSTM) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("LSTM", x, "x, or x and both first states, h and c", 1, 3)
	wantBothStates("LSTM", x)
	var hs, cs []*tensor.Tensor
	out := m.run(c, x[0], func(i int, in *tensor.Tensor, w weights, reverse bool) *tensor.Tensor {
		batch := in.Dim(1)
		h, cn := lstm(in, m.state(c, x[1:], 0, i, batch), m.state(c, x[1:], 1, i, batch), w, reverse)
		hs, cs = append(hs, lastStep(h, reverse)), append(cs, cn)
		return h
	})
	return []*tensor.Tensor{out, tensor.Stack(0, hs...), tensor.Stack(0, cs...)}
}

// wantBothStates fails for one state of an LSTM without the other.
func wantBothStates(kind string, x []*tensor.Tensor) {
	if len(x) == 3 && (x[1] == nil) != (x[2] == nil) {
		panic(tensor.NewError(kind, x, "takes both states, h and c, or none; one of them is nil"))
	}
}

func lstm(x, h, c *tensor.Tensor, w weights, reverse bool) (out, cn *tensor.Tensor) {
	bias := w.biasIH
	if bias != nil {
		bias = bias.Add(w.biasHH)
	}
	return tensor.LSTM(tensor.Linear(x, w.ih, bias), h, c, w.hh, reverse)
}

// Forward takes x [time, batch, input] to the outputs of the last layer [time,
// batch, hidden], or 2·hidden if bidirectional, from states of zeros.
func (m *GRU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return m.ForwardN(c, x)[0] }

// ForwardN takes x and, if given, the first states [layers·directions, batch,
// hidden]. It returns the outputs and the last states.
func (m *GRU) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("GRU", x, "x, or x and the first state", 1, 2)
	var hs []*tensor.Tensor
	out := m.run(c, x[0], func(i int, in *tensor.Tensor, w weights, reverse bool) *tensor.Tensor {
		h := gru(in, m.state(c, x[1:], 0, i, in.Dim(1)), w, reverse)
		hs = append(hs, lastStep(h, reverse))
		return h
	})
	return []*tensor.Tensor{out, tensor.Stack(0, hs...)}
}

func gru(x, h *tensor.Tensor, w weights, reverse bool) *tensor.Tensor {
	return tensor.GRU(tensor.Linear(x, w.ih, w.biasIH), h, w.hh, w.biasHH, reverse)
}

// lastStep returns the output of the step that was computed last.
func lastStep(out *tensor.Tensor, reverse bool) *tensor.Tensor {
	if reverse {
		return out.Select(0, 0)
	}
	return out.Select(0, out.Dim(0)-1)
}

// LSTMCell is one step of [LSTM].
type LSTMCell struct{ cell }

// GRUCell is one step of [GRU].
type GRUCell struct{ cell }

// cell is what LSTMCell and GRUCell share.
type cell struct {
	WeightIH *Parameter // [gates·hidden, input]
	WeightHH *Parameter // [gates·hidden, hidden]
	BiasIH   *Parameter // [gates·hidden], nil for none
	BiasHH   *Parameter
}

// NewLSTMCell returns a cell with first values as NewLSTM's.
func NewLSTMCell(b *Build, inputSize, hiddenSize int) *LSTMCell {
	return &LSTMCell{newCell(b, 4, inputSize, hiddenSize)}
}

// NewGRUCell returns a cell with first values as NewGRU's.
func NewGRUCell(b *Build, inputSize, hiddenSize int) *GRUCell {
	return &GRUCell{newCell(b, 3, inputSize, hiddenSize)}
}

func newCell(b *Build, numGates, inputSize, hiddenSize int) cell {
	c := checks{op: "new recurrent cell"}
	c.positive("inputSize", inputSize)
	c.positive("hiddenSize", hiddenSize)
	c.end()
	bound, rows := fanInBound(hiddenSize), numGates*hiddenSize
	return cell{b.Uniform(bound, rows, inputSize), b.Uniform(bound, rows, hiddenSize), b.Uniform(bound, rows), b.Uniform(bound, rows)}
}

// weights returns the weights, and state number i: the given one or zeros.
func (m *cell) weights(c *Ctx) weights {
	w := weights{ih: c.Param(m.WeightIH), hh: c.Param(m.WeightHH)}
	if m.BiasIH != nil {
		w.biasIH, w.biasHH = c.Param(m.BiasIH), c.Param(m.BiasHH)
	}
	return w
}

func (m *cell) state(c *Ctx, x []*tensor.Tensor, i int) *tensor.Tensor {
	if i < len(x) && x[i] != nil {
		return x[i]
	}
	return tensor.New(c.Device(), tensor.Float32, x[0].Dim(0), m.WeightHH.Data().Dim(1))
}

// ForwardN takes x [batch, input] and, if given, the output and cell state before
// [batch, hidden] to those after.
func (m *LSTMCell) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("LSTMCell", x, "x, or x and both states before, h and c", 1, 3)
	wantBothStates("LSTMCell", x)
	h, cn := lstm(x[0].Unsqueeze(0), m.state(c, x, 1), m.state(c, x, 2), m.weights(c), false)
	return []*tensor.Tensor{h.Select(0, 0), cn}
}

// ForwardN takes x [batch, input] and, if given, the state before [batch, hidden] to
// the one after.
func (m *GRUCell) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("GRUCell", x, "x, or x and the state before", 1, 2)
	return []*tensor.Tensor{gru(x[0].Unsqueeze(0), m.state(c, x, 1), m.weights(c), false).Select(0, 0)}
}
