// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// inner and the types below have every kind of field that names come from.
type inner struct {
	InProj *Parameter
	LN1    *LayerNorm
	hidden *Parameter `name:"-"`
}

type base struct{ Scale *Parameter }

type zoo struct {
	base
	Base2   inner    `name:"value"` // a struct, not a pointer
	Tagged  *inner   `name:"wte"`
	Hidden  *Linear  `name:"-"`
	Flat    []Module `name:""`
	Layers  []*Linear
	Named   Module // an interface
	Nothing *Linear
	HTTPKey *Buffer
	QKVProj *Linear
	Tied    *Linear // the same as Layers[0]
	Count   int
	Grid    [2][]*Buffer
	Experts map[string]*Linear
}

type public struct{ Public *Parameter }

type embeds struct {
	*PublicBase
	Own *Parameter
}

// PublicBase is embedded by embeds.
type PublicBase struct{ Shared *Parameter }

func newZoo() *zoo {
	b := &Build{}
	in := func() *inner { return &inner{InProj: b.Empty(2), LN1: NewLayerNorm(b, 2), hidden: b.Empty(1)} }
	z := &zoo{
		base: base{b.Empty(1)}, Base2: *in(), Tagged: in(), Hidden: NewLinear(b, 1, 1),
		Flat:    []Module{NewLinear(b, 1, 1), &ReLU{}, &Linear{Weight: b.Empty(1, 1)}},
		Layers:  []*Linear{NewLinear(b, 1, 1), NewLinear(b, 1, 1)},
		Named:   NewSequential(&GELU{}, NewSequential(NewLinear(b, 1, 1))),
		HTTPKey: &Buffer{Data: tensor.Zeros(1)}, QKVProj: NewLinear(b, 1, 1),
		Experts: map[string]*Linear{"b": NewLinear(b, 1, 1), "a": {Weight: b.Empty(1, 1)}},
		Grid:    [2][]*Buffer{{{Data: tensor.Zeros(1)}}, {nil, {Data: tensor.Zeros(1)}}},
	}
	z.Tied = z.Layers[0]
	return z
}

func TestNames(t *testing.T) {
	z := newZoo()
	var got []string
	for _, s := range StateDict(z) {
		got = append(got, s.Name)
	}
	want := strings.Fields(`
		scale
		value.in_proj value.ln1.weight value.ln1.bias
		wte.in_proj wte.ln1.weight wte.ln1.bias
		0.weight 0.bias 2.weight
		layers.0.weight layers.0.bias layers.1.weight layers.1.bias
		named.1.0.weight named.1.0.bias
		qkv_proj.weight qkv_proj.bias
		experts.a.weight experts.b.weight experts.b.bias
		http_key grid.0.0 grid.1.1`)
	if !slices.Equal(got, want) {
		t.Errorf("names\n%q, want\n%q", got, want)
	}
	if n := z.Layers[1].Bias.Name(); n != "layers.1.bias" {
		t.Errorf("the parameter calls itself %q", n)
	}
	e := &embeds{&PublicBase{(&Build{}).Empty(1)}, (&Build{}).Empty(2)}
	if ps := Parameters(e); len(ps) != 2 || ps[0].Name() != "shared" || ps[1].Name() != "own" {
		t.Errorf("an embedded pointer gives %d parameters, the first %q", len(ps), ps[0].Name())
	}
	type deep struct {
		*base // a pointer to a type that is not exported
		Module
		Own *Parameter
	}
	d := &deep{&base{(&Build{}).Empty(1)}, NewLinear(&Build{}, 1, 1), (&Build{}).Empty(1)}
	if ps := Parameters(d); len(ps) != 4 || ps[0].Name() != "scale" || ps[1].Name() != "weight" || NumParams(&deep{}) != 0 {
		t.Errorf("embedded fields give %d parameters", len(ps))
	}
	if n := NumParams(public{(&Build{}).Empty(3, 4)}); n != 12 {
		t.Errorf("NumParams is %d, want 12", n)
	}
}

// TestNamesAtOnce: handlers of several calls may be the first to walk a model. The race
// detector looks on.
func TestNamesAtOnce(t *testing.T) {
	for range 20 {
		z := newZoo()
		var walks sync.WaitGroup
		for range 4 {
			walks.Go(func() {
				ps, bs := Parameters(z), Buffers(z)
				if got := ps[0].Name() + " " + bs[0].Name(); got != "scale http_key" {
					t.Errorf("the first names are %q", got)
				}
			})
		}
		walks.Wait()
	}
}

// A parameter in a field that is not exported would silently not be trained.
func TestFieldNotExported(t *testing.T) {
	b := &Build{}
	for want, model := range map[string]any{
		"field w of nn.secret":      &struct{ A *secret }{&secret{w: b.Empty(1)}},
		"field layers of nn.secret": &secret{layers: []Module{&ReLU{}}},
		"field m of struct":         &struct{ m Module }{&ReLU{}},
		"field head of struct":      &struct{ head *inner }{newZoo().Tagged},
		"field byName of struct":    &struct{ byName map[string]*Linear }{map[string]*Linear{"a": NewLinear(b, 1, 1)}},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want one about %q", got, want)
				}
			}()
			StateDict(model)
		}()
	}
	StateDict(&secret{hidden: b.Empty(1), count: 3}) // empty, or meant
}

type secret struct {
	w      *Parameter
	layers []Module
	hidden *Parameter `name:"-"`
	count  int
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{
		"Weight": "weight", "InProj": "in_proj", "LN1": "ln1", "QKV": "qkv", "HTTPServer": "http_server", "MLP": "mlp",
		"Conv2d": "conv2d", "A": "a", "AB": "ab", "Fc1": "fc1", "Attn2Out": "attn2out", "ÄrgerÜber": "ärger_über",
	} {
		if got := snake(in); got != want {
			t.Errorf("snake(%q) = %q, want %q", in, got, want)
		}
	}
}

// ring is a module that contains itself.
type ring struct {
	Next *ring
	W    *Parameter
}

func TestCycleOfModules(t *testing.T) {
	r := &ring{W: (&Build{}).Empty(1)}
	r.Next = &ring{Next: r, W: (&Build{}).Empty(2)}
	if ps := Parameters(r); len(ps) != 2 || ps[0].Name() != "next.w" || ps[1].Name() != "w" {
		t.Errorf("a ring gives %d parameters", len(ps))
	}
}

// TestLinearStartsAsPyTorch: bit for bit, for the same seed.
func TestLinearStartsAsPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/linear.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Seed   int64
			Layers []struct {
				In, Out      int
				Weight, Bias []int32
			}
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	same := func(got *tensor.Tensor, want []int32) error {
		for i, v := range got.Float32s() {
			if int32(math.Float32bits(v)) != want[i] {
				return fmt.Errorf("element %d is %v, PyTorch's %v", i, v, math.Float32frombits(uint32(want[i])))
			}
		}
		return nil
	}
	for _, c := range golden.Cases {
		b := &Build{Generator: tensor.NewGenerator(c.Seed)}
		for i, want := range c.Layers {
			l := NewLinear(b, want.In, want.Out)
			if err := errors.Join(same(l.Weight.Data(), want.Weight), same(l.Bias.Data(), want.Bias)); err != nil {
				t.Errorf("seed %d, layer %d, %d to %d: %v", c.Seed, i, want.In, want.Out, err)
			}
		}
	}
}

// recorder notes what passes the carrier's two places.
type recorder struct {
	name string
	log  *[]string
	read func(p *Parameter, t *tensor.Tensor) *tensor.Tensor
}

func (r *recorder) InterceptCall(c *Ctx, module any, x []*tensor.Tensor, next func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	*r.log = append(*r.log, fmt.Sprintf("%s>%T", r.name, module))
	y := next(c, x)
	*r.log = append(*r.log, fmt.Sprintf("%s<%T", r.name, module))
	return y
}

func (r *recorder) InterceptParam(c *Ctx, p *Parameter, next func(*Ctx) *tensor.Tensor) *tensor.Tensor {
	*r.log = append(*r.log, r.name+":"+p.Name())
	t := next(c)
	if r.read != nil {
		t = r.read(p, t)
	}
	return t
}

func TestInterceptors(t *testing.T) {
	m := NewSequential(NewLinear(&Build{}, 2, 2), &ReLU{})
	Parameters(m)
	var log []string
	c := Training(t.Context())
	defer c.Close()
	double := func(_ *Parameter, x *tensor.Tensor) *tensor.Tensor { return x.MulScalar(2) }
	in := c.With(&recorder{"outer", &log, nil}).With(&recorder{"inner", &log, double})
	x := tensor.FromFloat32([]float32{1, -2}, 1, 2)
	y := in.Call(m, x).Float32s()
	want := strings.Fields(`
		outer>*nn.Sequential inner>*nn.Sequential
		outer>*nn.Linear inner>*nn.Linear
		outer:0.weight inner:0.weight outer:0.bias inner:0.bias
		inner<*nn.Linear outer<*nn.Linear
		outer>*nn.ReLU inner>*nn.ReLU inner<*nn.ReLU outer<*nn.ReLU
		inner<*nn.Sequential outer<*nn.Sequential`)
	// Forward reads the bias before the weight, which is no promise.
	slices.Sort(log[4:8])
	slices.Sort(want[4:8])
	if !slices.Equal(log, want) {
		t.Errorf("log\n%q, want\n%q", log, want)
	}
	log = nil
	plain := c.Call(m, x).Float32s()
	if len(log) != 0 {
		t.Errorf("the carrier it was derived from has the interceptors too: %q", log)
	}
	for i := range y {
		if y[i] != 2*plain[i] { // ReLU(2Wx + 2b) = 2 ReLU(Wx + b)
			t.Errorf("with doubled parameters the output is %v, without %v", y, plain)
		}
	}
}

// under runs the calls of one module under a carrier of its own.
type under struct {
	module any
	derive func(c *Ctx) *Ctx
}

func (u under) InterceptCall(c *Ctx, module any, x []*tensor.Tensor, next func(*Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if module == u.module {
		c = u.derive(c)
	}
	return next(c, x)
}

func (under) InterceptParam(c *Ctx, _ *Parameter, next func(*Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// TestAnInterceptorGivesACallItsCarrier: what an interceptor hands to next is what
// the module and the interceptors inside run under, and the module's neighbours
// do not.
func TestAnInterceptorGivesACallItsCarrier(t *testing.T) {
	m := NewSequential(NewLinear(&Build{}, 2, 2), NewLinear(&Build{}, 2, 2))
	Parameters(m)
	var log []string
	c := Training(t.Context())
	defer c.Close()
	inside := func(c *Ctx) *Ctx { return c.With(&recorder{"inside", &log, nil}) }
	in := c.With(under{m.Layers[0], inside}).With(&recorder{"inner", &log, nil})
	in.Call(m, tensor.FromFloat32([]float32{1, -2}, 1, 2))
	want := strings.Fields(`
		inner>*nn.Sequential
		inner>*nn.Linear inner:0.bias inside:0.bias inner:0.weight inside:0.weight inner<*nn.Linear
		inner>*nn.Linear inner:1.bias inner:1.weight inner<*nn.Linear
		inner<*nn.Sequential`)
	// The order in which Forward reads parameters is no promise.
	slices.Sort(log)
	slices.Sort(want)
	if !slices.Equal(log, want) {
		t.Errorf("log\n%q, want\n%q", log, want)
	}
}

// TestInterceptedParameterGetsItsGradient: what an interceptor computes from a
// parameter is part of the graph.
func TestInterceptedParameterGetsItsGradient(t *testing.T) {
	l := NewLinear(&Build{}, 2, 1)
	var log []string
	c := Training(t.Context())
	defer c.Close()
	in := c.With(&recorder{"r", &log, func(_ *Parameter, x *tensor.Tensor) *tensor.Tensor { return x.MulScalar(3) }})
	if err := in.Call(l, tensor.FromFloat32([]float32{5, 7}, 1, 2)).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := l.Weight.Grad().Float32s(); g[0] != 15 || g[1] != 21 {
		t.Errorf("gradient of the weight is %v, want [15 21]", g)
	}
}

// two is a module with two inputs.
type two struct{ A, B *Linear }

func (m *two) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	return []*tensor.Tensor{c.Call(m.A, x[0]).Add(c.Call(m.B, x[1])), x[1]}
}

func TestCallN(t *testing.T) {
	b := &Build{}
	m := &two{NewLinear(b, 2, 3), NewLinear(b, 4, 3)}
	c := Evaluation(t.Context())
	defer c.Close()
	y := c.CallN(m, tensor.Zeros(1, 2), tensor.Zeros(1, 4))
	if len(y) != 2 || !slices.Equal(y[0].Shape(), []int{1, 3}) {
		t.Errorf("%d outputs", len(y))
	}
	var err error
	func() {
		defer c.Recover(&err)
		c.CallN(m, tensor.Zeros(1, 2), tensor.Zeros(1, 3))
	}()
	var fe *ForwardError
	if !errors.As(err, &fe) || fe.Module != "b" {
		t.Errorf("a wrong second input gives %v, want an error in module b", err)
	}
}

// step runs a model as a training step does.
func step(ctx context.Context, m Module, x *tensor.Tensor) (err error) {
	c := Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	c.Call(m, x)
	return nil
}

type failing struct{ err error }

func (f *failing) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor { c.Fail(f.err); return x }

func TestForwardError(t *testing.T) {
	b := &Build{}
	wrong := NewLinear(b, 5, 2)
	m := NewSequential(NewLinear(b, 2, 3), NewSequential(&ReLU{}, wrong))
	Parameters(m)
	err := step(t.Context(), m, tensor.Zeros(4, 2))
	var fe *ForwardError
	var te *tensor.Error
	if !errors.As(err, &fe) || !errors.As(err, &te) || fe.Module != "1.1" || fe.Type != "*nn.Linear" {
		t.Fatalf("the error is %#v, want a *ForwardError of module 1.1 with a *tensor.Error", err)
	}
	for _, part := range []string{"forward of 1.1 (*nn.Linear)", "[4 3]", "1.1.weight", "[2 5]"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the message %q lacks %q", err, part)
		}
	}

	// The model itself has no name.
	if err := step(t.Context(), wrong, tensor.Zeros(4, 2)); !strings.HasPrefix(err.Error(), "forward of *nn.Linear: ") {
		t.Errorf("the message is %q", err)
	}

	// What Fail was given comes out as it went in.
	lost := errors.New("a collective has failed")
	err = step(t.Context(), NewSequential(&failing{lost}), tensor.Zeros(1))
	if !errors.Is(err, lost) || !errors.As(err, &fe) || fe.Module != "0" {
		t.Errorf("Fail gives %v", err)
	}

	// After the forward pass there is no module to name.
	func() {
		err = nil
		c := Training(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		c.Call(NewLinear(b, 2, 3), tensor.Zeros(1, 2)).Add(tensor.Zeros(7))
	}()
	if !errors.As(err, &te) || errors.As(err, &fe) && fe == nil || strings.Contains(err.Error(), "forward of") {
		t.Errorf("a misuse outside modules gives %v", err)
	}

	// Faults that are not about tensors are not caught.
	defer func() {
		if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "index out of range") {
			t.Errorf("recovered %v, want the runtime's own panic", v)
		}
	}()
	_ = step(t.Context(), NewSequential(&crashing{}), tensor.Zeros(1))
}

type crashing struct{}

func (*crashing) Forward(_ *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return []*tensor.Tensor{}[x.NumDims()]
}

// TestMetaDevice builds a model of a trillion parameters and runs it: shapes
// alone.
func TestMetaDevice(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := &Build{Device: tensor.Meta}
	const width = 1 << 18
	m := NewSequential(NewEmbedding(b, width, width), NewLayerNorm(b, width))
	for range 14 {
		m.Layers = append(m.Layers, NewLinear(b, width, width), &GELU{})
	}
	if n := NumParams(m); n != 15*width*width+16*width {
		t.Errorf("%d parameters, want %d", n, 15*width*width+16*width)
	}
	c := Training(t.Context(), WithDevice(tensor.Meta))
	defer c.Close()
	ids := tensor.New(tensor.Meta, tensor.Int64, 8, 1000)
	y := c.Call(m, ids)
	if !slices.Equal(y.Shape(), []int{8, 1000, width}) || y.Device() != tensor.Meta {
		t.Errorf("the output is %v on %s", y.Shape(), y.Device().Name())
	}
	if err := y.Sum().Backward(t.Context()); err != nil {
		t.Error(err)
	}
	if g := m.Layers[2].(*Linear).Weight.Grad(); g == nil || !slices.Equal(g.Shape(), []int{width, width}) {
		t.Errorf("the gradient of a weight is %v", g)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("it took %d bytes", grown)
	}
}

func TestGradientsOfParameters(t *testing.T) {
	b := &Build{}
	l := NewLinear(b, 2, 1)
	frozen := NewLinear(b, 1, 1)
	frozen.Weight.Frozen, frozen.Bias.Frozen = true, true
	m := NewSequential(l, frozen)
	Parameters(m)
	var order []string
	note := func(_ context.Context, p *Parameter) error { order = append(order, p.Name()); return nil }
	remove := l.Weight.OnGradReady(note)
	l.Bias.OnGradReady(note)
	pass := func() error {
		c := Training(t.Context())
		defer c.Close()
		return c.Call(m, tensor.FromFloat32([]float32{1, 2}, 1, 2)).Sum().Backward(t.Context())
	}
	if err := pass(); err != nil {
		t.Fatal(err)
	}
	once := l.Weight.Grad().Float32s()
	if err := pass(); err != nil {
		t.Fatal(err)
	}
	if twice := l.Weight.Grad().Float32s(); twice[1] != 2*once[1] || once[1] == 0 {
		t.Errorf("the gradient is %v after one pass, %v after two: want a sum", once, twice)
	}
	if frozen.Weight.Grad() != nil || len(order) != 4 {
		t.Errorf("the frozen parameter's gradient is %v, hooks ran for %v", frozen.Weight.Grad(), order)
	}
	remove()
	l.Weight.ZeroGrad()
	if l.Weight.Grad() != nil {
		t.Error("ZeroGrad left a gradient")
	}
	bad := errors.New("no")
	l.Bias.OnGradReady(func(context.Context, *Parameter) error { return bad })
	if err := pass(); !errors.Is(err, bad) || !strings.Contains(err.Error(), "gradient of 0.bias") {
		t.Errorf("a hook's error comes out as %v", err)
	}
	for what, buf := range map[string]*tensor.Tensor{
		"of another shape": tensor.Zeros(3), "that is not dense": tensor.Zeros(2, 2).Narrow(1, 0, 1).T(),
		"on another device": tensor.New(tensor.Meta, tensor.Float32, 1, 2),
	} {
		func() {
			defer func() {
				if _, ok := recover().(*tensor.Error); !ok {
					t.Errorf("a gradient buffer %s was taken", what)
				}
			}()
			l.Weight.SetGradBuffer(buf)
		}()
	}
}

// TestSharedParameter: a weight used twice has one gradient, the sum.
func TestSharedParameter(t *testing.T) {
	l := NewLinear(&Build{}, 1, 1)
	m := NewSequential(l, l)
	if n := len(Parameters(m)); n != 2 {
		t.Fatalf("%d parameters, want 2", n)
	}
	c := Training(t.Context())
	defer c.Close()
	if err := c.Call(m, tensor.Full(3, 1, 1)).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	w, bias := l.Weight.Data().Item(), l.Bias.Data().Item()
	// y = w(3w + b) + b, dy/dw = 6w + b
	if g := l.Weight.Grad().Item(); !(math.Abs(g-(6*w+bias)) <= 1e-5) {
		t.Errorf("gradient %v, want %v", g, 6*w+bias)
	}
}

// TestLayersWithoutOptionalParameters: a norm without weight or bias is PyTorch's with
// elementwise_affine or bias turned off; what a layer needs is named.
func TestLayersWithoutOptionalParameters(t *testing.T) {
	b := &Build{Generator: tensor.NewGenerator(1)}
	x := tensor.FromFloat32([]float32{1, 2, 3}, 1, 3)
	run := func(m Module) (out []float32, err error) {
		c := Training(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		y := c.Call(m, x).Keep()
		if y.NeedsGrad() {
			err = y.Sum().Backward(t.Context())
		}
		return y.Float32s(), err
	}
	ln, ln0, rms := NewLayerNorm(b, 3), NewLayerNorm(b, 3), NewRMSNorm(b, 3)
	ln.Bias, ln0.Weight, ln0.Bias, rms.Weight = nil, nil, nil, nil
	for name, m := range map[string]Module{"layer norm without bias": ln, "plain layer norm": ln0, "rms norm": rms} {
		want := []float32{-1.2247356, 0, 1.2247356}
		if name == "rms norm" {
			want = []float32{0.46291006, 0.9258201, 1.3887302}
		}
		got, err := run(m)
		if err != nil {
			t.Fatal(name, err)
		}
		for i := range want {
			if math.Abs(float64(got[i]-want[i])) > 1e-6 {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	}
	if ps := Parameters(ln); len(ps) != 1 || ps[0].Grad() == nil {
		t.Errorf("the norm without bias has parameters %v", ps)
	}
	l := NewLinear(b, 3, 2)
	l.Weight = nil
	if _, err := run(l); err == nil || !strings.Contains(err.Error(), "no such parameter") {
		t.Errorf("a linear layer without weight: %v", err)
	}
	h := NewMultiheadAttention(b, 4, 2)
	c := Evaluation(t.Context())
	defer c.Close()
	var err error
	func() {
		defer c.Recover(&err)
		q := tensor.Zeros(1, 2, 4)
		c.CallN(h, q, nil, q)
	}()
	if err == nil || !strings.Contains(err.Error(), "the key or the value is nil") {
		t.Errorf("attention without a key: %v", err)
	}
}
