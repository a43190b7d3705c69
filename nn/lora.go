// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/tensor"
)

// Projection is a module that multiplies by a matrix, which [LoRA] can adapt:
// [Linear], and what models have beside it.
type Projection interface {
	Module
	// Matrix returns the parameter, and whether it lies [in, out]; a Linear's
	// lies [out, in].
	Matrix() (weight *Parameter, inFirst bool)
}

// Matrix returns the weight, [out, in]; see [Projection].
func (l *Linear) Matrix() (weight *Parameter, inFirst bool) { return l.Weight, false }

// LoRAOptions say what a [LoRA] adds to a model.
type LoRAOptions struct {
	// Rank is that of the added matrices.
	Rank int
	// Alpha divided by Rank scales what they add; 0 is twice the rank.
	Alpha float64
	// RankStabilized divides by the root of the rank instead (Kalajdzievski 2023).
	RankStabilized bool
	// Dropout is the share of an adapter's inputs that is dropped in training.
	Dropout float64
	// Targets name the projections that are adapted: the last parts of their
	// names, q_proj or attn.c_attn, or whole names.
	Targets []string
	// Own are the sizes of projections, by their whole names, that have others
	// than Rank and Alpha.
	Own map[string]LoRASize
}

// LoRASize is the size of what is added to one projection.
type LoRASize struct {
	Rank  int
	Alpha float64 // 0 is twice the rank
}

// size returns that of the projection at a path.
func (o LoRAOptions) size(path string) LoRASize {
	if own, ok := o.Own[path]; ok {
		return own
	}
	return LoRASize{o.Rank, o.Alpha}
}

// Scale returns the factor of what is added in Rank and Alpha.
func (o LoRAOptions) Scale() float64 { return o.scale(LoRASize{o.Rank, o.Alpha}) }

// scale returns the factor of what is added in a size.
func (o LoRAOptions) scale(s LoRASize) float64 {
	alpha := s.Alpha
	if alpha == 0 {
		alpha = 2 * float64(s.Rank)
	}
	if o.RankStabilized {
		return alpha / math.Sqrt(float64(s.Rank))
	}
	return alpha / float64(s.Rank)
}

func (s LoRASize) validate() error {
	if s.Rank < 1 || s.Rank > 1<<16 {
		return fmt.Errorf("nn: the rank of a LoRA is %d, want 1 to %d", s.Rank, 1<<16)
	}
	if !(s.Alpha >= 0 && s.Alpha <= math.MaxFloat32) {
		return fmt.Errorf("nn: the alpha of a LoRA is %v, want 0 (for twice the rank) or a finite number above", s.Alpha)
	}
	return nil
}

// Validate reports options that make no adapter.
func (o LoRAOptions) Validate() error {
	if err := (LoRASize{o.Rank, o.Alpha}).validate(); err != nil {
		return err
	}
	for path, own := range o.Own {
		if err := own.validate(); err != nil {
			return fmt.Errorf("%w (of %s)", err, path)
		}
	}
	switch {
	case !(o.Dropout >= 0 && o.Dropout < 1):
		return fmt.Errorf("nn: the dropout of a LoRA is %v, want 0 up to, not including, 1", o.Dropout)
	case len(o.Targets) == 0:
		return fmt.Errorf("nn: a LoRA needs the names of the modules that it adapts")
	}
	for _, t := range o.Targets {
		if strings.Trim(t, ". ") != t || t == "" {
			return fmt.Errorf("nn: %q is no name of a module that a LoRA could adapt", t)
		}
	}
	return nil
}

// match says whether a target names the module at a path.
func (o LoRAOptions) match(path string) (target string, ok bool) {
	i := slices.IndexFunc(o.Targets, func(t string) bool { return path == t || strings.HasSuffix(path, "."+t) })
	if i < 0 {
		return "", false
	}
	return o.Targets[i], true
}

// LoRA is a model whose weights are frozen, with low-rank matrices beside some
// of them that are trained instead (Hu et al. 2021, "LoRA"): a projection W
// computes W·x + scale·B·(A·x), where A is [rank, in] and B is [out, rank]. B
// is zero at first, so that training starts from the model as it is.
//
// The model knows nothing of it: LoRA steps in where projections are called.
// It takes the model's place in a DDP or a training pass and has its inputs and
// outputs. The names of its parameters are those of PEFT's LoraModel:
// base_model.model.h.0.attn.c_attn.lora_A.weight.
type LoRA struct {
	Options LoRAOptions `name:"-"`
	// Base is the model that was given, its parameters frozen.
	Base Module `name:"base_model.model"`
	// Added are the matrices, A and B of each module in turn.
	Added NamedParameters `name:""`

	adapters map[any]*adapter `name:"-"`
	order    []*adapter       `name:"-"` // as their modules come in the model
}

// adapter is what was added to one module.
type adapter struct {
	target Projection
	a, b   *Parameter
	scale  float64
}

// NewLoRA freezes the parameters of model and adds matrices to the projections
// that o.Targets name, A drawn uniformly within 1/√in and B zero. A target that
// names nothing is an error, which says what could be named.
func NewLoRA(b *Build, model Module, o LoRAOptions) (*LoRA, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if _, twice := model.(*LoRA); twice {
		return nil, fmt.Errorf("nn: the model is a LoRA already: merge that one first")
	}
	l := &LoRA{Options: o, Base: model, adapters: make(map[any]*adapter)}
	used, adapted := make(map[string]bool), make(map[string]bool)
	var others []string // projections that no target names
	for path, m := range Modules(model) {
		p, ok := m.(Projection)
		if !ok {
			continue
		}
		target, ok := o.match(path)
		if !ok {
			others = append(others, path)
			continue
		}
		used[target] = true
		in, out := projectionSize(p)
		size := o.size(path)
		ad := &adapter{target: p, a: b.Uniform(fanInBound(in), size.Rank, in), b: b.Empty(out, size.Rank), scale: o.scale(size)}
		adapted[path] = true
		l.adapters[m] = ad
		l.order = append(l.order, ad)
		name := join("base_model.model", path)
		l.Added = append(l.Added,
			NamedParameter{name + ".lora_A.weight", ad.a}, NamedParameter{name + ".lora_B.weight", ad.b})
	}
	for _, t := range o.Targets {
		if !used[t] {
			return nil, fmt.Errorf("nn: no projection of the model is called %q: LoRA can adapt %s", t, lastParts(append(others, l.targets()...)))
		}
	}
	for path := range o.Own {
		if !adapted[path] {
			return nil, fmt.Errorf("nn: a LoRA has a size for %s, which it does not adapt", path)
		}
	}
	for _, p := range Parameters(model) {
		p.Frozen = true
	}
	return l, nil
}

// projectionSize returns how many channels a projection takes and gives.
func projectionSize(p Projection) (in, out int) {
	w, inFirst := p.Matrix()
	if inFirst {
		return w.Data().Dim(0), w.Data().Dim(1)
	}
	return w.Data().Dim(1), w.Data().Dim(0)
}

// targets returns the names in the model of the adapted projections.
func (l *LoRA) targets() []string {
	var names []string
	for i := 0; i < len(l.Added); i += 2 {
		name := strings.TrimSuffix(l.Added[i].Name, ".lora_A.weight")
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(name, "base_model.model"), "."))
	}
	return names
}

// lastParts lists the last part of each name, once.
func lastParts(names []string) string {
	var parts []string
	for _, n := range names {
		parts = append(parts, n[strings.LastIndexByte(n, '.')+1:])
	}
	slices.Sort(parts)
	if parts = slices.Compact(parts); len(parts) == 0 {
		return "nothing of this model, which has no projections"
	}
	return strings.Join(parts, ", ")
}

// Forward runs the model with what was added.
func (l *LoRA) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.With(l).Call(l.Base, x)
}

// InterceptCall adds to the output of a projection.
func (l *LoRA) InterceptCall(c *Ctx, module any, x []*tensor.Tensor, next func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	y := next(c, x)
	ad := l.adapters[module]
	if ad == nil {
		return y
	}
	in := x[0]
	if c.Training() && l.Options.Dropout > 0 {
		in = c.Call(&Dropout{P: l.Options.Dropout}, in) // a module, so that strategies step in
	}
	// The factor goes where there are fewest elements.
	low := tensor.Linear(in, c.Param(ad.a), nil).MulScalar(ad.scale)
	return []*tensor.Tensor{y[0].Add(tensor.Linear(low, c.Param(ad.b), nil))}
}

// InterceptParam changes nothing.
func (l *LoRA) InterceptParam(c *Ctx, _ *Parameter, next func(*Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// State returns the added matrices by name: what an adapter's file holds.
func (l *LoRA) State() NamedTensors {
	var state NamedTensors
	for _, p := range l.Added {
		state = append(state, NamedTensor{p.Name, p.Parameter.Data()})
	}
	return state
}

// NumAdded returns the number of elements of the added matrices.
func (l *LoRA) NumAdded() int {
	n := 0
	for _, p := range l.Added {
		n += p.Parameter.Data().NumElems()
	}
	return n
}

// Merge adds the matrices to the model's own weights, so that the model alone
// computes what both did, and sets B to zero, so that both still do. The
// weights change: those that were saved before do not fit the adapter any more.
func (l *LoRA) Merge() {
	for _, ad := range l.order {
		w, inFirst := ad.target.Matrix()
		for _, p := range []*Parameter{w, ad.b, ad.a} {
			if p.whole != nil {
				panic(tensor.NewError("merge lora", []*tensor.Tensor{p.data}, "this rank has a shard of the parameter, whose shape is %v: load the model and the adapter without sharding, and merge there", p.whole))
			}
		}
		left, right := ad.b.Data(), ad.a.Data()
		if inFirst {
			left, right = right.T(), left.T()
		}
		w.Data().Axpy(ad.scale, left.MatMul(right))
		ad.b.Data().Fill(0)
	}
}
