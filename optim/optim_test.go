// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/cohort-ml/cohort/internal/device/lazy"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// values are those of testdata/groups.py.
func values(n, salt int) []float32 {
	x := make([]float32, n)
	for i := range x {
		bits := uint32(uint64(i+1+1000*salt) * 2654435761)
		x[i] = float32(bits>>8)/(1<<24) - 0.5
	}
	return x
}

func setGrad(t *testing.T, p *nn.Parameter, g []float32) {
	t.Helper()
	buf, _ := p.GradBuffer()
	buf.CopyFrom(tensor.FromFloat32(g, p.Data().Shape()...))
	if err := p.GradReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

type groupOptions struct {
	LR, Momentum, Dampening, Eps float64
	WeightDecay                  float64 `json:"weight_decay"`
	Nesterov                     bool
	Betas                        []float64
}

func (g groupOptions) sgd() SGDOptions {
	return SGDOptions{LR: g.LR, Momentum: g.Momentum, Dampening: g.Dampening, WeightDecay: g.WeightDecay, Nesterov: g.Nesterov}
}

func (g groupOptions) adamw() AdamWOptions {
	o := AdamWOptions{LR: g.LR, Eps: g.Eps, WeightDecay: g.WeightDecay}
	if len(g.Betas) > 0 {
		o.Beta1, o.Beta2 = g.Betas[0], g.Betas[1]
	}
	return o
}

// TestStepsAsInPyTorch: groups, schedules, a parameter that begins late, and
// clipping. SGD gives PyTorch's bits, unless gradients are clipped: PyTorch
// rounds the clipped gradient, here the factor is part of the step.
func TestStepsAsInPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/groups.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Steps, Late int
		Cases       []struct {
			Optimizer string
			Scheduled bool
			Clip      float64
			Norms     []float64
			Groups    []groupOptions
			Bits      [][]int32
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	for i, c := range golden.Cases {
		var ps []*nn.Parameter
		for j, bits := range c.Bits {
			ps = append(ps, nn.NewParameter(tensor.FromFloat32(values(len(bits), j))))
		}
		var opt Optimizer
		if c.Optimizer == "sgd" {
			o := NewSGD(ps[:1], c.Groups[0].sgd())
			o.AddGroup(ps[1:], c.Groups[1].sgd())
			opt = o
		} else {
			o := NewAdamW(ps[:1], c.Groups[0].adamw())
			o.AddGroup(ps[1:], c.Groups[1].adamw())
			opt = o
		}
		for step := range golden.Steps {
			opt.ZeroGrad()
			for j, p := range ps {
				if j == 0 || step >= golden.Late {
					setGrad(t, p, values(p.Data().NumElems(), 10+2*step+j))
				}
			}
			var scale *tensor.Tensor
			if c.Clip > 0 {
				var norms *tensor.Tensor
				norms, scale = ClipGradNorm(ps, c.Clip)
				norm := norms.Item()
				if want := c.Norms[step]; !(math.Abs(norm-want) <= 1e-6*want) {
					t.Errorf("case %d, step %d: norm %v, PyTorch's %v", i, step, norm, want)
				}
			}
			if c.Scheduled {
				WarmupCosine(4, golden.Steps, 0.1).Apply(opt, step)
			}
			opt.Step(scale)
		}
		if opt.NumSteps() != golden.Steps {
			t.Errorf("case %d: %d steps counted, want %d", i, opt.NumSteps(), golden.Steps)
		}
		exact := c.Optimizer == "sgd" && c.Clip == 0 && (cpu.X86.HasFMA || cpu.ARM64.HasFP)
		for j, p := range ps {
			for k, got := range p.Data().Float32s() {
				want := math.Float32frombits(uint32(c.Bits[j][k]))
				if exact && got != want || !(math.Abs(float64(got-want)) <= 1e-6) {
					t.Errorf("case %d (%s, scheduled %t, clip %v): element %d of parameter %d is %v, PyTorch's %v",
						i, c.Optimizer, c.Scheduled, c.Clip, k, j, got, want)
					break
				}
			}
		}
	}
}

func named(values ...float64) (*nn.Sequential, []*nn.Parameter) {
	m := nn.NewSequential()
	for _, v := range values {
		m.Layers = append(m.Layers, &nn.Linear{Weight: nn.NewParameter(tensor.Full(v, 1, 1))})
	}
	return m, nn.Parameters(m)
}

// TestStateGoesOn: state and count carried to another optimizer give the same
// next step.
func TestStateGoesOn(t *testing.T) {
	for name, make := range map[string]func(ps []*nn.Parameter) Optimizer{
		"sgd": func(ps []*nn.Parameter) Optimizer {
			o := NewSGD(ps[:1], SGDOptions{LR: 0.1})
			o.AddGroup(ps[1:], SGDOptions{LR: 0.1, Momentum: 0.9, Dampening: 0.5})
			return o
		},
		"adamw": func(ps []*nn.Parameter) Optimizer { return NewAdamW(ps, AdamWOptions{WeightDecay: 0.1}) },
	} {
		_, ps := named(1, 2, 3)
		opt := make(ps)
		run := func(opt Optimizer, ps []*nn.Parameter, from, to int) {
			for step := from; step < to; step++ {
				for j, p := range ps {
					setGrad(t, p, values(1, 10*step+j))
				}
				opt.Step(nil)
			}
		}
		run(opt, ps, 0, 3)
		_, others := named(0, 0, 0)
		other := make(others)
		for i, p := range others {
			p.Data().CopyFrom(ps[i].Data())
		}
		var names []string
		mine := opt.State()
		for i, s := range other.State() {
			names = append(names, s.Name)
			s.Tensor.CopyFrom(mine[i].Tensor)
		}
		other.SetNumSteps(opt.NumSteps())
		run(opt, ps, 3, 5)
		run(other, others, 3, 5)
		for i := range ps {
			if a, b := ps[i].Data().Item(), others[i].Data().Item(); a != b {
				t.Errorf("%s: parameter %d is %v, in the one that went on from the state %v", name, i, a, b)
			}
		}
		want := []string{"momentum_buffer.1.weight", "momentum_buffer.2.weight", "step.1.weight", "step.2.weight"}
		if name == "adamw" {
			want = []string{"exp_avg.0.weight", "exp_avg.1.weight", "exp_avg.2.weight", "exp_avg_sq.0.weight", "exp_avg_sq.1.weight", "exp_avg_sq.2.weight", "step.0.weight", "step.1.weight", "step.2.weight"}
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: state %q, want %q", name, names, want)
		}
	}
}

func TestParameterWithoutGradientIsLeft(t *testing.T) {
	_, ps := named(1, 2)
	for _, opt := range []Optimizer{
		NewAdamW(ps, AdamWOptions{WeightDecay: 0.5}),
		NewSGD(ps, SGDOptions{WeightDecay: 0.5, Momentum: 0.9}),
	} {
		opt.ZeroGrad()
		setGrad(t, ps[0], []float32{1})
		before := ps[0].Data().Item()
		opt.Step(nil)
		if ps[1].Data().Item() != 2 || ps[0].Data().Item() == before {
			t.Errorf("%T: the parameters are %v and %v", opt, ps[0].Data().Item(), ps[1].Data().Item())
		}
	}
}

func TestClipGradNorm(t *testing.T) {
	_, ps := named(1, 2, 3)
	clip := func(limit float64) (norm, scale float64) {
		n, s := ClipGradNorm(ps, limit)
		return n.Item(), s.Item()
	}
	if norm, scale := clip(1); norm != 0 || scale != 1 {
		t.Errorf("without gradients the norm is %v and the factor %v", norm, scale)
	}
	setGrad(t, ps[0], []float32{3})
	setGrad(t, ps[2], []float32{-4})
	for _, c := range []struct{ limit, norm, scale float64 }{{10, 5, 1}, {5.1, 5, 1}, {1, 5, 0.2}} {
		norm, scale := clip(c.limit)
		if norm != c.norm || math.Abs(scale-c.scale) > 1e-6 || scale*norm > c.limit {
			t.Errorf("limit %v: norm %v and factor %v, want %v and %v", c.limit, norm, scale, c.norm, c.scale)
		}
	}
	if g := ps[0].Grad().Item(); g != 3 {
		t.Errorf("the gradient was written: %v", g)
	}
	setGrad(t, ps[1], []float32{float32(math.NaN())})
	if norm, scale := clip(1); !math.IsNaN(norm) || !math.IsNaN(scale) {
		t.Errorf("a gradient that is no number gives the norm %v and the factor %v", norm, scale)
	}
	setGrad(t, ps[1], []float32{float32(math.Inf(1))})
	if norm, scale := clip(1); !math.IsInf(norm, 1) || !math.IsNaN(scale) {
		t.Errorf("an infinite gradient gives the norm %v and the factor %v", norm, scale)
	}
}

// TestClipOnSeveralDevices: the norm of gradients on several devices, and a step with
// its scale, are those of one device.
func TestClipOnSeveralDevices(t *testing.T) {
	late := lazy.New(1)
	defer late.Close()
	run := func(devices ...tensor.Device) (out []float32) {
		var params []*nn.Parameter
		for i, dev := range devices {
			p := nn.NewParameter(tensor.FromFloat32(values(5, i)).ToDevice(dev))
			p.SetGrad(tensor.FromFloat32(values(5, 10+i)).ToDevice(dev))
			params = append(params, p)
		}
		norm, scale := ClipGradNorm(params, 0.5)
		if norm.Device() != devices[0] || scale.Device() != devices[0] || norm.NumDims() != 0 {
			t.Errorf("the norm is %v on %s, the first parameter is on %s", norm.Shape(), norm.Device().Name(), devices[0].Name())
		}
		NewAdamW(params, AdamWOptions{LR: 0.1}).Step(scale)
		out = norm.Float32s()
		for _, p := range params {
			out = append(out, p.Data().Float32s()...)
		}
		return out
	}
	cpu := tensor.CPU()
	want := run(cpu, cpu, cpu)
	late.Allow(func() {
		for _, devices := range [][]tensor.Device{{late, late, late}, {cpu, late, late}, {late, cpu, cpu}} {
			if got := run(devices...); !slices.Equal(got, want) {
				t.Errorf("on %v: %v, on the CPU alone %v", devices, got, want)
			}
		}
	})
}

// TestClipBits: the norm and the factor are those of the formula in float64, the
// squares added up in the order of the parameters.
func TestClipBits(t *testing.T) {
	var ps []*nn.Parameter
	for i, n := range []int{1, 7, 1000, 40000, 3} {
		p := nn.NewParameter(tensor.Zeros(n))
		setGrad(t, p, values(n, i))
		ps = append(ps, p)
	}
	sum := 0.0
	for _, p := range ps {
		sum += p.Grad().SumSquares()
	}
	want := math.Sqrt(sum)
	for _, limit := range []float64{1e-3, 0.7, 1e9, math.Inf(1)} {
		norm, scale := ClipGradNorm(ps, limit)
		if n, s := norm.Item(), scale.Item(); n != want || s != min(1, limit/(want+1e-6)) {
			t.Errorf("limit %v: norm %v and factor %v, want %v and %v", limit, n, s, want, min(1, limit/(want+1e-6)))
		}
	}
}

// TestClipScale: the factor of every kind of norm, of which one that is not finite
// gives NaN.
func TestClipScale(t *testing.T) {
	for _, c := range []struct{ norm, limit, want float64 }{
		{0, 1, 1}, {0, 0, 0}, {4, 1, 1 / (4 + 1e-6)}, {4, math.Inf(1), 1}, {1e300, 1, 1 / (1e300 + 1e-6)},
		{math.Inf(1), 1, math.NaN()}, {math.Inf(1), math.Inf(1), math.NaN()}, {math.NaN(), 1, math.NaN()},
	} {
		got := ClipScale(tensor.FromFloat64([]float64{c.norm}), c.limit)
		if v := got.Item(); v != c.want && !(math.IsNaN(v) && math.IsNaN(c.want)) || got.NumDims() != 0 || got.DType() != tensor.Float64 {
			t.Errorf("norm %v, limit %v: the factor is %v %v, want %v", c.norm, c.limit, got, v, c.want)
		}
	}
	mustRefuse(t, "a norm of two elements", func() { ClipScale(tensor.Zeros(2), 1) }, "clip scale(float32[2]): wants a norm of one element")
}

// TestSkippedStep: a step whose scale is not finite writes nothing, and once it
// is taken back the next one is the first.
func TestSkippedStep(t *testing.T) {
	for name, make := range map[string]func(ps []*nn.Parameter) Optimizer{
		"sgd": func(ps []*nn.Parameter) Optimizer {
			return NewSGD(ps, SGDOptions{LR: 0.1, Momentum: 0.9, Maximize: true})
		},
		"adam":    func(ps []*nn.Parameter) Optimizer { return NewAdam(ps, AdamOptions{AMSGrad: true}) },
		"adamw":   func(ps []*nn.Parameter) Optimizer { return NewAdamW(ps, AdamWOptions{WeightDecay: 0.1}) },
		"adagrad": func(ps []*nn.Parameter) Optimizer { return NewAdagrad(ps, AdagradOptions{LRDecay: 0.1}) },
		"rmsprop": func(ps []*nn.Parameter) Optimizer {
			return NewRMSprop(ps, RMSpropOptions{Centered: true, Momentum: 0.5})
		},
		"rows":        func(ps []*nn.Parameter) Optimizer { return NewSGD(ps, SGDOptions{LR: 0.1, Momentum: 0.9}) },
		"adam rows":   func(ps []*nn.Parameter) Optimizer { return NewSparseAdam(ps, SparseAdamOptions{}) },
		"adagrad row": func(ps []*nn.Parameter) Optimizer { return NewAdagrad(ps, AdagradOptions{}) },
	} {
		run := func(bad ...float64) (opt Optimizer, ps []*nn.Parameter) {
			b := &nn.Build{}
			ps = nn.Parameters(nn.NewSequential(&nn.Linear{Weight: b.Full(1, 4, 2)}))
			opt = make(ps)
			step := func(scale *tensor.Tensor) {
				if strings.Contains(name, "row") {
					ps[0].SetRowGrad(rowsOf([]int64{0, 2}, 2, 2))
				} else {
					setGrad(t, ps[0], values(8, 1))
				}
				opt.Step(scale)
			}
			for _, v := range bad {
				step(tensor.Full(v))
				opt.Skipped()
				opt.Skipped() // a second time does nothing
				if w := ps[0].Data().Float32s(); opt.NumSteps() != 0 || slices.Min(w) != 1 || slices.Max(w) != 1 {
					t.Errorf("%s: a step of scale %v has written %v, %d steps are counted", name, v, w, opt.NumSteps())
				}
			}
			step(tensor.Full(0.5))
			step(nil)
			return opt, ps
		}
		a, ps := run()
		b, qs := run(math.NaN(), math.Inf(1), math.Inf(-1))
		if x, y := ps[0].Data().Float32s(), qs[0].Data().Float32s(); !slices.Equal(x, y) {
			t.Errorf("%s: after steps left out the values are %v, want %v", name, y, x)
		}
		for i, s := range a.State() {
			if x, y := s.Tensor.Float32s(), b.State()[i].Tensor.Float32s(); !slices.Equal(x, y) {
				t.Errorf("%s: after steps left out %s is %v, want %v", name, s.Name, y, x)
			}
		}
	}
}

func TestWarmupCosine(t *testing.T) {
	for _, c := range []struct {
		step, warmup, steps int
		floor, want         float64
	}{
		{0, 4, 20, 0, 0.25}, {3, 4, 20, 0, 1}, {4, 4, 20, 0, 1}, {12, 4, 20, 0, 0.5}, {20, 4, 20, 0, 0}, {99, 4, 20, 0.1, 0.1},
		{12, 4, 20, 0.1, 0.55}, {0, 0, 10, 0, 1}, {5, 0, 10, 0.2, 0.6}, {0, 10, 5, 0, 0.1}, {7, 10, 5, 0.5, 0.8}, {0, 0, 1, 0.1, 1}, {1, 0, 1, 0.1, 0.1},
		{0, 1, 1, 0, 1},
	} {
		if got := WarmupCosine(c.warmup, c.steps, c.floor)(c.step, 1); !(math.Abs(got-c.want) <= 1e-12) {
			t.Errorf("WarmupCosine(%d, %d, %v) is %v at step %d, want %v", c.warmup, c.steps, c.floor, got, c.step, c.want)
		}
	}
}

// TestOlderThanItsParameters: an optimizer whose parameters were replaced by shards, say, has
// state that does not fit them.
func TestOlderThanItsParameters(t *testing.T) {
	_, ps := named(1)
	opt := NewAdamW(ps, AdamWOptions{})
	ps[0].SetData(tensor.FromFloat32([]float32{1, 2, 3}, 3))
	setGrad(t, ps[0], []float32{1, 1, 1})
	defer func() {
		e, ok := recover().(*tensor.Error)
		if want := "when the parameter had 1 elements on cpu, and it has 3 on cpu: make the optimizer after"; !ok || !strings.Contains(e.Error(), want) {
			t.Errorf("%v, want %q", e, want)
		}
	}()
	opt.Step(nil)
}

// TestParameterInTwoGroups: tied weights are one parameter, which nn.Parameters
// lists once; a list made by hand may have it twice.
func TestParameterInTwoGroups(t *testing.T) {
	b := &nn.Build{}
	p, q := b.Full(1, 3), b.Full(1, 3)
	for what, add := range map[string]func(){
		"in one group":  func() { NewAdamW([]*nn.Parameter{p, q, p}, AdamWOptions{}) },
		"in two groups": func() { NewSGD([]*nn.Parameter{p, q}, SGDOptions{}).AddGroup([]*nn.Parameter{p}, SGDOptions{}) },
	} {
		func() {
			defer func() {
				if _, ok := recover().(*tensor.Error); !ok {
					t.Errorf("a parameter twice %s was taken", what)
				}
			}()
			add()
		}()
	}
}
