// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"reflect"

	"github.com/cohort-ml/cohort/tensor"
)

// Materialize gives a model that was built on [tensor.Meta] memory on dev, with the
// values that it would have, had it been built there: the same bits, whatever was
// drawn and written since. Parameters and buffers on other devices stay what they
// are. Gradients are dropped. If nobody remembers how a parameter got its values, or a
// module holds a tensor of Meta that is no parameter or buffer, the error names it, and
// nothing changes.
//
// A wrapper that shards parameters has a function of its own, by which each rank
// makes its part alone.
func Materialize(model any, dev tensor.Device) error {
	return materialize(model, Parameters(model), dev)
}

// MaterializeBuffers is [Materialize] of the buffers alone: for a wrapper that makes the parameters
// itself, on each rank those that it has.
func MaterializeBuffers(model any, dev tensor.Device) error { return materialize(model, nil, dev) }

func materialize(model any, ps []*Parameter, dev tensor.Device) error {
	if err := wantState(model); err != nil {
		return err
	}
	var into, from []*tensor.Tensor
	made := make(map[*tensor.Tensor]*tensor.Tensor) // so that what was one tensor is one
	add := func(t *tensor.Tensor) {
		if t.Device() != tensor.Meta || made[t] != nil {
			return
		}
		made[t] = tensor.On(dev).Empty(t.DType(), t.Shape()...)
		into, from = append(into, made[t]), append(from, t)
	}
	bs := Buffers(model)
	for _, p := range ps {
		add(p.data)
	}
	for _, b := range bs {
		add(b.Data)
	}
	if err := tensor.Materialize(into, from); err != nil {
		return fmt.Errorf("nn: materialize: %w", err)
	}
	for _, p := range ps {
		if t := made[p.data]; t != nil {
			p.SetData(t)
		}
	}
	for _, b := range bs {
		if t := made[b.Data]; t != nil {
			t.SetName(b.name)
			b.Data = t
		}
	}
	return nil
}

// wantState returns an error for a tensor of Meta that a module holds in a field of
// its own: nobody finds it to give it values.
func wantState(model any) error {
	for path, m := range Modules(model) {
		v := reflect.ValueOf(m)
		if v.Kind() != reflect.Pointer || v.Type().Elem().Kind() != reflect.Struct || v.Type() == reflect.TypeFor[*tensor.Tensor]() {
			continue
		}
		v = v.Elem()
		for i := range v.NumField() {
			if v.Field(i).Type() != reflect.TypeFor[*tensor.Tensor]() {
				continue
			}
			t := (*tensor.Tensor)(v.Field(i).UnsafePointer()) // also of a field that is not exported
			if t != nil && t.Device() == tensor.Meta {
				return fmt.Errorf("nn: materialize: field %s of %v at %q is a tensor on %s that is neither a parameter nor a buffer, so it gets no values: "+
					"make it an *nn.Buffer, or make it where it is used", v.Type().Field(i).Name, v.Type(), path, tensor.Meta.Name())
			}
		}
	}
	return nil
}
