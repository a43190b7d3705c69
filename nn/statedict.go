// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"iter"
	"sync"

	"github.com/cohort-ml/cohort/tensor"
)

// naming is held by who gives names: handlers of several calls may walk one model.
var naming sync.Mutex

// Parameters returns every parameter of a model once, frozen ones included, in
// the order of the fields, and gives each its name. It panics when a field that
// is not exported holds a parameter or module. Several goroutines may walk a model
// at a time. Names that are as they should be are not written: others may read them
// once it has been walked.
func Parameters(model any) []*Parameter {
	naming.Lock()
	defer naming.Unlock()
	var ps []*Parameter
	walk(model, func(path string, v any) bool {
		if p, ok := v.(*Parameter); ok {
			if p.name != path || p.data.Name() != path {
				p.name = path
				p.data.SetName(path)
			}
			ps = append(ps, p)
		}
		return true
	})
	return ps
}

// Buffers returns every buffer of a model once, in the order of the fields,
// and gives each its name. Several goroutines may walk a model at a time.
func Buffers(model any) []*Buffer {
	naming.Lock()
	defer naming.Unlock()
	var bs []*Buffer
	walk(model, func(path string, v any) bool {
		if b, ok := v.(*Buffer); ok {
			if b.name != path || b.Data.Name() != path {
				b.name = path
				b.Data.SetName(path)
			}
			bs = append(bs, b)
		}
		return true
	})
	return bs
}

// NamedTensor is an entry of a state dict.
type NamedTensor struct {
	Name   string
	Tensor *tensor.Tensor
}

// NamedTensors is a list of tensors by name, such as a model's state.
type NamedTensors []NamedTensor

// All iterates over names and tensors, as package checkpoint wants them.
func (ts NamedTensors) All() iter.Seq2[string, *tensor.Tensor] {
	return func(yield func(string, *tensor.Tensor) bool) {
		for _, t := range ts {
			if !yield(t.Name, t.Tensor) {
				return
			}
		}
	}
}

// StateDict returns the parameters and buffers of a model by name: all
// parameters in the order of the fields, then all buffers, where PyTorch has a
// module's buffers after its own parameters. Loading goes by names. The tensors are the model's own: writing them loads a
// model.
func StateDict(model any) NamedTensors {
	var state NamedTensors
	for _, p := range Parameters(model) {
		state = append(state, NamedTensor{p.name, p.data})
	}
	for _, b := range Buffers(model) {
		state = append(state, NamedTensor{b.name, b.Data})
	}
	return state
}

// NamedParameters is a field of parameters whose names are not known before the
// module is made, such as a recurrent network's: in a field tagged `name:""` each
// has the name that stands beside it.
type NamedParameters []NamedParameter

// NamedParameter is an entry of NamedParameters.
type NamedParameter struct {
	Name      string
	Parameter *Parameter
}

// NumParams returns the number of elements of all parameters.
func NumParams(model any) int {
	n := 0
	for _, p := range Parameters(model) {
		n += p.data.NumElems()
	}
	return n
}
