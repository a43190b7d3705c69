// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Materialize gives a model that was on [tensor.Meta] when it was sharded its values on dev. Each
// rank makes its own shards, with the bits that a model has that was built on one rank. No value
// is whole on a rank, except for buffers and for sparse parameters, which are not sharded. The
// optimizer is made afterwards.
//
// Every rank has built the model alike, with the same seed. A rank that would make other values
// is an error on every rank, which names the parameter. So is a parameter of which nobody
// remembers the values (see tensor.Materialize).
func (f *FSDP) Materialize(ctx context.Context, dev tensor.Device) error {
	if dev == tensor.Meta {
		return fmt.Errorf("fsdp: materialize: device %s has no data: give another one, such as tensor.CPU()", dev.Name())
	}
	err := f.compareOrigins(ctx)
	if err == nil {
		err = f.materialize(dev, f.fill)
	}
	if err != nil {
		return fmt.Errorf("fsdp: materialize: %w", err)
	}
	return nil
}

// compareOrigins returns the same error on every rank if the ranks would make different values.
func (f *FSDP) compareOrigins(ctx context.Context) error {
	var text strings.Builder
	note := func(name string, t *tensor.Tensor) {
		if t.Device() == tensor.Meta {
			fmt.Fprintf(&text, "%s from %s\n", name, t.Origin())
		}
	}
	for _, p := range nn.Parameters(f.Model) {
		if s := f.paramOf[p]; s != nil && s.meta != nil {
			note(s.name, s.meta)
		} else if s == nil {
			note(p.Name(), p.Data())
		}
	}
	noteBuffers(&text, f.Model)
	return sameOrigins(ctx, f.world.group(), text.String())
}

// noteBuffers writes down how the values of buffers on tensor.Meta are made.
func noteBuffers(text *strings.Builder, model any) {
	for _, b := range nn.Buffers(model) {
		if b.Data.Device() == tensor.Meta {
			fmt.Fprintf(text, "%s from %s\n", b.Name(), b.Data.Origin())
		}
	}
}

// sameOrigins returns the same error on every rank if the texts of the ranks, of how values are
// made, differ.
func sameOrigins(ctx context.Context, group *dist.Group, text string) error {
	rank, texts, err := firstDifference(ctx, group, []byte(text))
	if err != nil {
		return fmt.Errorf("compare the models of the ranks: %w", err)
	}
	if rank < 0 {
		return nil
	}
	has := firstOther(texts)
	return fmt.Errorf("the ranks would make different values: rank 0 has %s where rank %d has %s; build the model with the same seed on every rank", has[0], rank, has[1])
}

// firstOther returns the first lines in which two texts differ.
func firstOther(texts [2][]byte) (has [2]string) {
	lines := [2][]string{strings.Split(string(texts[0]), "\n"), strings.Split(string(texts[1]), "\n")}
	i := 0
	for i < len(lines[0]) && i < len(lines[1]) && lines[0][i] == lines[1][i] {
		i++
	}
	for j := range has {
		if has[j] = "nothing more"; i < len(lines[j]) && lines[j][i] != "" {
			has[j] = lines[j][i]
		}
	}
	return has
}

// fill makes the values of parameters that were on tensor.Meta: of each this rank's shard, or all
// of what is not sharded.
func (f *FSDP) fill(params []*nn.Parameter, into []*tensor.Tensor) error {
	from := make([]*tensor.Tensor, len(params))
	for i, p := range params {
		from[i] = p.Data()
	}
	return tensor.Materialize(into, from)
}

// materialize is Materialize on this rank. fill makes the values of parameters.
func (f *FSDP) materialize(dev tensor.Device, fill func(params []*nn.Parameter, into []*tensor.Tensor) error) (err error) {
	var made []*shardParam
	var params []*nn.Parameter
	var into, from []*tensor.Tensor
	undo := func() {
		for i, s := range made {
			s.device, s.data = tensor.Meta, from[i]
		}
		f.eachUnmade((*shardUnit).allocate)
	}
	defer func() {
		if v := recover(); v != nil {
			var te *tensor.Error
			if e, ok := v.(error); !ok || !errors.As(e, &te) {
				panic(v)
			}
			undo()
			err = te // there is no memory for the shards
		}
	}()
	for _, s := range f.params {
		switch {
		case s.meta == nil:
		case s.param.Data() != s.data:
			return fmt.Errorf("SetData has given %s another tensor since FullyShard: write it after Materialize", s.name)
		default:
			made, params, from = append(made, s), append(params, s.param), append(from, s.data)
		}
	}
	for _, s := range made {
		s.device = dev
	}
	f.eachUnmade((*shardUnit).allocate)
	for _, s := range made {
		s.data = s.local(s.chunk)
		into = append(into, s.data)
	}
	for _, p := range f.sparse {
		if d := p.Data(); d.Device() == tensor.Meta {
			params, into = append(params, p), append(into, tensor.New(dev, d.DType(), d.Shape()...))
		}
	}
	if err := fill(params, into); err != nil {
		undo()
		return err
	}
	for i, p := range params {
		p.SetData(into[i])
	}
	for _, s := range made {
		s.meta = nil
	}
	if err := nn.MaterializeBuffers(f.Model, dev); err != nil {
		return err
	}
	f.device = dev
	if f.world.group().Size() > 1 {
		f.shared = newBufferSyncs(f.Model)
	}
	return nil
}

// eachUnmade calls fn for the units that have parameters on tensor.Meta.
func (f *FSDP) eachUnmade(fn func(u *shardUnit)) {
	for _, u := range f.units {
		for _, s := range u.params {
			if s.meta != nil {
				fn(u)
				break
			}
		}
	}
}
