// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	whole2 = Type{mesh.Replicate(), mesh.Replicate()}
	shares = Type{mesh.Varying(), mesh.Replicate()}
	owing  = Type{sum, mesh.Replicate()}
)

// twoAxes are an axis of data and one of parts of a model.
var twoAxes = []Axis{{Name: "fsdp", Data: true}, {Name: "tp"}}

// layer is a linear layer whose result is the sum over tp of what the ranks have.
type layer struct {
	W      *nn.Parameter
	Reduce bool // its result is reduced
	Twice  bool // and its parameter is used apart too
}

func (l *layer) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	p := Of(c.Tape())
	w := c.Param(l.W)
	h := tensor.Linear(l.given(p, "split", x, Type{mesh.Varying(), mesh.Shard(1)}), w, nil)
	if !l.Reduce {
		return h
	}
	y := l.given(p, "all reduce", h, shares)
	if l.Twice {
		y = y.Add(w.Sum())
	}
	return y
}

// given is a collective, of which the types alone matter here.
func (l *layer) given(p *Pass, op string, x *tensor.Tensor, at Type) *tensor.Tensor {
	y := x.Clone().Keep()
	p.Give(y, Boundary{Type: at})
	return tensor.Record(op, y, []*tensor.Tensor{x}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{g}, nil
	})
}

// two runs a module behind another.
type two struct{ First, Second nn.Module }

func (m *two) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Second, c.Call(m.First, x))
}

// step runs a pass of a model that is checked.
func step(t *testing.T, m nn.Module, params ...Parameter) (*Pass, error) {
	t.Helper()
	var p *Pass
	_, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
		p = Begin(c.Tape(), twoAxes...)
		for i, param := range nn.Parameters(m) {
			params[i].Name = param.Name()
			p.Param(param.Data(), params[i])
		}
		return c.Call(m, tensor.Full(1, 2, 4)).Mean()
	})
	return p, err
}

func newLayer() *layer { return &layer{W: nn.NewParameter(tensor.Full(1, 4, 4)), Reduce: true} }

// TestGradientsOwe: what a gradient owes follows from what the parameter has met.
func TestGradientsOwe(t *testing.T) {
	m := &two{&nn.ReLU{}, newLayer()}
	p, err := step(t, m, Parameter{Value: Type{mesh.Replicate(), mesh.Shard(1)}, Gradient: Type{sum, mesh.Shard(1)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Owes("second.w"); len(got) != 2 || got[0] != sum || got[1] != mesh.Shard(1) {
		t.Errorf("the gradient is %v, want Partial(sum) and Shard(1)", got)
	}
	if !p.Checked() {
		t.Error("a pass with a backward pass counts as unchecked")
	}
}

// TestErrors: each names the module or the parameter, the axis, and what is wrong.
func TestErrors(t *testing.T) {
	reduced := Parameter{Value: Type{mesh.Replicate(), mesh.Shard(1)}, Gradient: Type{sum, mesh.Shard(1)}}
	linear := nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(1)}, 4, 4)
	for name, c := range map[string]struct {
		m      nn.Module
		params []Parameter
		want   []string
	}{
		"a reduction is missing": {&two{&layer{W: newLayer().W}, &nn.GELU{}}, []Parameter{reduced},
			[]string{"second (*nn.GELU)", "gelu", `the only operand is Partial(sum) over axis "tp"`, "not linear: reduce it first"}},
		"a bias is added once a rank": {&two{&layer{W: newLayer().W}, linear}, []Parameter{reduced, {Value: whole2, Gradient: owing}, {Value: whole2, Gradient: owing}},
			[]string{"second (*nn.Linear)", `the first operand is Partial(sum) over axis "tp", the third`, "Replicate: reduce the product first"}},
		"a loss that owes": {&layer{W: newLayer().W}, []Parameter{reduced},
			[]string{`the loss is Partial(sum) over axis "tp"`}},
		"a shard is used as if whole": {newLayer(), []Parameter{{Value: Type{mesh.Shard(0), mesh.Shard(1)}, Gradient: Type{mesh.Shard(0), mesh.Shard(1)}}},
			[]string{"linear", `the second operand`, `is Shard(0) over axis "fsdp", the first Varying: gather it first`}},
		"a gradient that nobody sums": {newLayer(), []Parameter{{Value: reduced.Value, Gradient: Type{mesh.Replicate(), mesh.Shard(1)}}},
			[]string{"gradient of w", `it is Partial(sum) over axis "fsdp"`, "the strategy takes Replicate"}},
		"a gradient that is summed once too often": {linear, []Parameter{{Value: whole2, Gradient: Type{sum, sum}}, {Value: whole2, Gradient: Type{sum, sum}}},
			[]string{"gradient of", `it is Replicate over axis "tp"`, "takes Partial(sum)", "count it once for each rank"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := step(t, c.m, c.params...)
			var typed *Error
			if !errors.As(err, &typed) {
				t.Fatalf("got %v, want an *Error", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "AXIS") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is not one clean line", err)
			}
		})
	}
}

// TestTwoWays: a parameter whose gradient is partial on one way and whole on another.
func TestTwoWays(t *testing.T) {
	m := newLayer()
	m.Twice = true
	tape := tensor.NewTape(true)
	defer tape.Close()
	p := Begin(tape, twoAxes...)
	w := tensor.Full(1, 4)
	p.Param(w, Parameter{Name: "norm.weight", Value: whole2, Gradient: owing})
	leaf := tape.Watch(w, m.W)
	part := tape.Const(tensor.Full(1, 4))
	p.Give(part, Boundary{Type: Type{mesh.Varying(), mesh.Shard(0)}})
	y := leaf.Square().Mul(tape.Const(tensor.Full(2, 1)))
	reduced := y.Detach()
	p.Give(reduced, Boundary{Type: Type{mesh.Varying(), mesh.Shard(0)}}) // this rank's rows of it
	reduced = tensor.Record("split", reduced, []*tensor.Tensor{y}, nil, nil)
	gathered := reduced.Detach()
	p.Give(gathered, Boundary{Type: shares})
	gathered = tensor.Record("gather", gathered, []*tensor.Tensor{reduced}, nil, nil)
	_, err := try(func() *tensor.Tensor { p.Backward([]*tensor.Tensor{gathered.Add(leaf).Sum()}); return nil })
	if err == nil || !strings.Contains(err.Error(), `gradient of norm.weight`) || !strings.Contains(err.Error(), `over axis "tp"`) ||
		!strings.Contains(err.Error(), "reduce the partial one where it is made") {
		t.Errorf("got %v, want that the gradient of norm.weight has no type over tp", err)
	}
}

// TestRecomputedGradients: a part of the model that is recomputed gives the same types.
func TestRecomputedGradients(t *testing.T) {
	m := &two{newLayer(), &nn.ReLU{}}
	p, err := step(t, recomputed{m}, Parameter{Value: Type{mesh.Replicate(), mesh.Shard(1)}, Gradient: Type{sum, mesh.Shard(1)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Owes("first.w"); len(got) != 2 || got[0] != sum {
		t.Errorf("the gradients that owe are %v, want that of the recomputed parameter", p.owed)
	}
}

// recomputed runs the layers of a model again in the backward pass.
type recomputed struct {
	Model nn.Module `name:""`
}

func (r recomputed) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.With(nn.Recompute(func(m any) bool { _, ok := m.(*layer); return ok })).Call(r.Model, x)
}

// TestBegin: one Pass a tape, none beside another observer, and a nil one checks nothing.
func TestBegin(t *testing.T) {
	tape := tensor.NewTape(true)
	defer tape.Close()
	p := Begin(tape, twoAxes...)
	if Begin(tape, twoAxes...) != p || Of(tape) != p {
		t.Error("a second strategy with the same axes got another Pass")
	}
	other := Begin(tape, Axis{Name: "replicate", Data: true})
	if other != nil {
		t.Error("a tape has two Passes")
	}
	other.Param(tensor.Full(1, 1), Parameter{})
	other.Give(tensor.Full(1, 1), Boundary{})
	other.Take("a wrapper", tensor.Full(1, 1), nil)
	if other.Owes("x") != nil || other.Checked() || other.TypeOf(tensor.Full(1, 1)) != nil || other.Axes() != nil {
		t.Error("a nil Pass knows something")
	}
	if _, err := try(func() *tensor.Tensor { p.Take("a wrapper", tensor.Full(1, 1), whole2); return nil }); err == nil ||
		!strings.Contains(err.Error(), `a wrapper`) || !strings.Contains(err.Error(), `it takes Replicate over axis "fsdp", and got Varying`) {
		t.Errorf("Take returned %v", err)
	}
}

// tensorParallel is a norm and two linear layers, the first of which has some outputs
// on each rank of tp and the second some inputs (Shoeybi et al. 2019, Megatron-LM). Its
// first wrapper sums the gradient of the input over the ranks, unless it is forgotten.
type tensorParallel struct {
	Norm     *nn.LayerNorm
	Up, Down *nn.Parameter
	forgets  bool
}

func (m *tensorParallel) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	p := Of(c.Tape())
	same := func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) { return []*tensor.Tensor{g}, nil }
	h := c.Call(m.Norm, x)
	copied := h.Clone().Keep()
	b := Boundary{Type: shares}
	if !m.forgets {
		b.GradTakes, b.GradGives = Type{mesh.Varying(), sum}, shares
	}
	p.Give(copied, b)
	copied = tensor.Record("copy to tp", copied, []*tensor.Tensor{h}, nil, same)
	part := tensor.Linear(tensor.Linear(copied, c.Param(m.Up), nil).GELU(), c.Param(m.Down), nil)
	p.Take("sum over tp", part, Type{mesh.Varying(), sum})
	y := part.Clone().Keep()
	p.Give(y, Boundary{Type: shares})
	return tensor.Record("sum over tp", y, []*tensor.Tensor{part}, nil, same).Add(x)
}

// TestTensorParallel: wrappers state their types at their borders, and the gradient of
// what comes before them is whole only if the first one reduces it.
func TestTensorParallel(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		b := &nn.Build{Generator: tensor.NewGenerator(1)}
		m := &tensorParallel{Norm: nn.NewLayerNorm(b, 4), Up: b.Full(1, 3, 4), Down: b.Full(1, 4, 3), forgets: forgets}
		replicated := Parameter{Value: whole2, Gradient: owing}
		shard := func(dim int) Parameter {
			return Parameter{Value: Type{mesh.Replicate(), mesh.Shard(dim)}, Gradient: Type{sum, mesh.Shard(dim)}}
		}
		p, err := step(t, m, replicated, replicated, shard(0), shard(1))
		switch {
		case !forgets && err != nil:
			t.Fatal(err)
		case !forgets && len(p.owed) != 4:
			t.Errorf("%d of 4 gradients have types", len(p.owed))
		case forgets && (err == nil || !strings.Contains(err.Error(), `gradient of norm.`) ||
			!strings.Contains(err.Error(), `it is Partial(sum) over axis "tp"`)):
			t.Errorf("a copy whose gradient is not summed gives %v", err)
		}
	}
}

// TestStages: a value that has come from another rank has its type, and its gradient goes back with
// the type that the other rank takes.
func TestStages(t *testing.T) {
	x, w := tensor.Full(1, 2, 4), nn.NewParameter(tensor.Full(1, 3, 4))
	w.Data().SetName("w")
	run := func(weight Type) (err error) {
		c := nn.Training(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		p := Begin(c.Tape(), twoAxes...)
		p.Param(w.Data(), Parameter{Name: "w", Value: weight, Gradient: Type{sum, weight[1]}})
		in := c.Leaf(x)
		p.Came(in, shares)
		if got := p.TypeOf(in); !slices.Equal(got, shares) {
			t.Errorf("the value is %v, want %v", got, shares)
		}
		y := tensor.Linear(in, c.Param(w), nil)
		p.Went(y)
		return c.Tape().BackwardFrom(c, []*tensor.Tensor{y}, []*tensor.Tensor{tensor.Full(1, 2, 3)})
	}
	if err := run(whole2); err != nil {
		t.Error(err)
	}
	// A weight that is cut along its outputs gives each rank a part of the gradient of its input.
	err := run(Type{mesh.Replicate(), mesh.Shard(0)})
	if want := "gradient of a stage's input"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want an error that says %q", err, want)
	}
}
