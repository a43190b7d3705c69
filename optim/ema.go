// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// EMA is an exponential moving average of parameters, which often generalises
// better than their last values (Polyak and Juditsky 1992). It is PyTorch's
// AveragedModel with get_ema_avg_fn: the first update takes the values
// themselves. Buffers of the model, such as running means, are not averaged.
//
//	ema := optim.NewEMA(params, 0.999)
//	for … {
//		opt.Step(nil)
//		ema.Update()
//	}
//	ema.Swap() // the model has the averages
//	… evaluate …
//	ema.Swap() // and its own values again
type EMA struct {
	params     []*nn.Parameter
	averages   []*tensor.Tensor
	numUpdates *tensor.Tensor
	decay      float64
	swapped    bool
}

// NewEMA returns the average of params, which weighs the past by decay, in
// [0, 1).
func NewEMA(params []*nn.Parameter, decay float64) *EMA {
	c := checks{op: "ema"}
	c.decay("decay", decay)
	c.end()
	e := &EMA{params: params, decay: decay, numUpdates: tensor.Zeros()}
	for _, p := range params {
		e.averages = append(e.averages, p.Data().Clone())
	}
	return e
}

func (e *EMA) values() []*tensor.Tensor {
	ts := make([]*tensor.Tensor, len(e.params))
	for i, p := range e.params {
		ts[i] = p.Data()
	}
	return ts
}

// Update moves the averages towards the present values:
// average ← decay·average + (1-decay)·value. It panics while the averages are
// swapped in.
func (e *EMA) Update() {
	c := checks{op: "update ema"}
	c.want(!e.swapped, "the model holds the averages: call Swap first")
	c.end()
	weight := 1 - e.decay
	e.numUpdates.WithFloat32s(func(n []float32) {
		if n[0] == 0 {
			weight = 1
		}
		n[0]++
	})
	tensor.LerpAll(e.averages, e.values(), weight)
}

// Swap exchanges the parameters' values with the averages; called again, it
// puts them back. Optimizer steps in between would train the averages.
func (e *EMA) Swap() {
	tensor.SwapAll(e.values(), e.averages)
	e.swapped = !e.swapped
}

// Swapped reports whether the parameters hold the averages now.
func (e *EMA) Swapped() bool { return e.swapped }

// State returns the averages, named ema.PARAMETER, and the number of updates,
// n_averaged; writing them loads a state. It panics while the averages are
// swapped in, and for parameters without names of their own.
func (e *EMA) State() nn.NamedTensors {
	c := checks{op: "ema state"}
	c.want(!e.swapped, "the model holds the averages: call Swap first")
	c.end()
	wantNames("ema state", e.params)
	var out nn.NamedTensors
	for i, p := range e.params {
		out = append(out, nn.NamedTensor{Name: "ema." + p.Name(), Tensor: e.averages[i]})
	}
	return append(out, nn.NamedTensor{Name: "n_averaged", Tensor: e.numUpdates})
}
