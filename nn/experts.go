// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"github.com/cohort-ml/cohort/tensor"
)

// Experts are feed-forward networks of one shape, with their weights stacked: SwiGLU (Shazeer
// 2020), or another activation between two layers. Each computes the tokens that chose it.
//
// All parallelism of a [MoE] happens at the call of its Experts: expert parallelism sends each
// row to the rank that has its expert and calls this module there with weights nil.
type Experts struct {
	Gate *Parameter `name:"gate_proj"` // [experts, hidden, width], nil for a network without gate
	Up   *Parameter `name:"up_proj"`   // [experts, hidden, width]
	Down *Parameter `name:"down_proj"` // [experts, width, hidden]
	// Biases [experts, hidden] and [experts, width], nil for none.
	GateBias *Parameter
	UpBias   *Parameter
	DownBias *Parameter
	// Activation of the gate, or of Up if there is none; nil is SiLU.
	Activation func(*tensor.Tensor) *tensor.Tensor `name:"-"`
}

// NewExperts returns experts with a gate and without biases, with PyTorch's first values of
// linear layers.
func NewExperts(b *Build, width, hidden, numExperts int) *Experts {
	c := checks{op: "new experts"}
	c.positive("width", width)
	c.positive("hidden", hidden)
	c.positive("the number of experts", numExperts)
	c.end()
	return &Experts{
		Gate: b.Uniform(fanInBound(width), numExperts, hidden, width),
		Up:   b.Uniform(fanInBound(width), numExperts, hidden, width),
		Down: b.Uniform(fanInBound(hidden), numExperts, width, hidden),
	}
}

// ForwardN takes x [tokens, width], float32 weights [tokens, k] and int64 chosen [tokens, k],
// and returns one tensor like x: the weighted sum of what the chosen experts make of each
// token. The choice -1 is no expert. weights may be nil for ones.
//
// The number of experts follows from the parameters that it reads. They may be a part of all
// experts: chosen then counts from the first of these.
func (e *Experts) ForwardN(c *Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("Experts", in, "x, the weights and the choices", 3)
	x, weights, chosen := in[0], in[1], in[2]
	up := c.Param(e.Up)
	places, counts := tensor.GroupRows(chosen, up.Dim(0))
	rows := tensor.SpreadRows(x, places, chosen.NumElems())
	h := tensor.GroupedLinear(rows, up, paramOrNil(c, e.UpBias), counts)
	switch {
	case e.Gate != nil:
		gate := tensor.GroupedLinear(rows, c.Param(e.Gate), paramOrNil(c, e.GateBias), counts)
		if e.Activation == nil {
			h = tensor.SwiGLU(gate, h)
		} else {
			h = e.Activation(gate).Mul(h)
		}
	case e.Activation == nil:
		h = h.SiLU()
	default:
		h = e.Activation(h)
	}
	y := tensor.GroupedLinear(h, c.Param(e.Down), paramOrNil(c, e.DownBias), counts)
	return []*tensor.Tensor{tensor.CombineRows(y, places, weights)}
}

// ExpertLoad is where a [MoE] asks how many tokens chose each expert. It maps the counts of
// this rank, float32 [experts], to those of all ranks that share the pass's tokens: on one
// rank, to themselves. Context parallelism adds the counts of its ranks up at this call.
type ExpertLoad struct{}

// Forward returns counts.
func (*ExpertLoad) Forward(_ *Ctx, counts *tensor.Tensor) *tensor.Tensor { return counts }

// BalanceExperts ends a step of the layers of model that balance without a loss
// ([MoEOptions].BiasStep): it moves their ChoiceBias by how often each expert was chosen in the
// training passes since the last call. sum, if it is not nil, adds up a float32 tensor over the
// ranks that share the step; that it counts the same tokens several times for every expert does
// no harm. parallel.Strategy.Step calls it.
func BalanceExperts(model any, sum func(counts *tensor.Tensor) error) error {
	var layers []*MoE
	var loads []*tensor.Tensor
	for _, m := range Modules(model) {
		m, ok := m.(*MoE)
		if !ok || m.ChoiceBias == nil {
			continue
		}
		layers = append(layers, m)
		load := m.counted
		if m.counted = nil; load == nil { // no pass, or another stage's layer
			load = tensor.New(m.ChoiceBias.Data.Device(), tensor.Float32, m.ChoiceBias.Data.Shape()...)
		}
		loads = append(loads, load)
	}
	if len(layers) == 0 {
		return nil
	}
	all := tensor.Cat(0, loads...)
	if sum != nil {
		if err := sum(all); err != nil {
			return err
		}
	}
	first := 0
	for _, m := range layers {
		bias := m.ChoiceBias.Data
		load := all.Narrow(0, first, bias.Dim(0))
		first += bias.Dim(0)
		bias.Axpy(1, load.Mean().Sub(load).Sign().MulScalar(m.Options.BiasStep))
	}
	return nil
}
