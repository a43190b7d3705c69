// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// mustRefuse wants a panic with a *tensor.Error that has all the parts.
func mustRefuse(t *testing.T, what string, f func(), parts ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		e, ok := recover().(*tensor.Error)
		if !ok {
			t.Errorf("%s was taken", what)
			return
		}
		for _, part := range parts {
			if !strings.Contains(e.Error(), part) {
				t.Errorf("%s: the error %q does not say %q", what, e.Error(), part)
			}
		}
	}()
	f()
}

// TestBadOptions: every option that makes no sense is named, all at once.
func TestBadOptions(t *testing.T) {
	ps := names(1)
	nan, inf := math.NaN(), math.Inf(1)
	for what, c := range map[string]struct {
		f    func()
		says []string
	}{
		"sgd lr":           {func() { NewSGD(ps, SGDOptions{LR: -1, Momentum: nan}) }, []string{"sgd", "LR is -1", "Momentum is NaN"}},
		"sgd decay":        {func() { NewSGD(ps, SGDOptions{WeightDecay: -1, Dampening: inf}) }, []string{"WeightDecay is -1", "Dampening is +Inf"}},
		"sgd nesterov":     {func() { NewSGD(ps, SGDOptions{Nesterov: true}) }, []string{"Nesterov needs a Momentum"}},
		"sgd dampened":     {func() { NewSGD(ps, SGDOptions{Nesterov: true, Momentum: 0.9, Dampening: 0.1}) }, []string{"no Dampening"}},
		"adam betas":       {func() { NewAdam(ps, AdamOptions{LR: nan, Beta1: 1, Beta2: -0.1}) }, []string{"adam(", "LR is NaN", "Beta1 is 1", "Beta2 is -0.1"}},
		"adamw eps":        {func() { NewAdamW(ps, AdamWOptions{LR: inf, Eps: -1, WeightDecay: nan}) }, []string{"adamw", "LR is +Inf", "Eps is -1", "WeightDecay is NaN"}},
		"sparse adam":      {func() { NewSparseAdam(ps, SparseAdamOptions{Beta2: 1.5}) }, []string{"sparse adam", "Beta2 is 1.5"}},
		"adagrad":          {func() { NewAdagrad(ps, AdagradOptions{LRDecay: -1, InitialAccumulatorValue: -2}) }, []string{"LRDecay is -1", "InitialAccumulatorValue is -2"}},
		"rmsprop":          {func() { NewRMSprop(ps, RMSpropOptions{Alpha: 1, Momentum: -1}) }, []string{"Alpha is 1", "Momentum is -1"}},
		"added group":      {func() { NewSGD(names(1), SGDOptions{}).AddGroup(ps, SGDOptions{LR: -1}) }, []string{"LR is -1"}},
		"set lr":           {func() { NewSGD(ps, SGDOptions{}).Groups()[0].SetLR(nan) }, []string{"LR is NaN"}},
		"set momentum":     {func() { NewSGD(ps, SGDOptions{}).Groups()[0].SetMomentum(0.9) }, []string{"made without momentum"}},
		"momentum of 1":    {func() { NewAdam(ps, AdamOptions{}).Groups()[0].SetMomentum(1) }, []string{"momentum is 1"}},
		"step lr":          {func() { StepLR(0, -1) }, []string{"stepSize is 0", "gamma is -1"}},
		"multi step lr":    {func() { MultiStepLR(nil, nan) }, []string{"gamma is NaN"}},
		"exponential lr":   {func() { ExponentialLR(inf) }, []string{"gamma is +Inf"}},
		"constant lr":      {func() { ConstantLR(2, -1) }, []string{"factor is 2", "totalIters is -1"}},
		"linear lr":        {func() { LinearLR(0, 2, 0) }, []string{"startFactor is 0", "endFactor is 2", "totalIters is 0"}},
		"polynomial lr":    {func() { PolynomialLR(0, nan) }, []string{"totalIters is 0", "power is NaN"}},
		"cosine":           {func() { CosineAnnealingLR(0, -1) }, []string{"tMax is 0", "etaMin is -1"}},
		"warm restarts":    {func() { CosineAnnealingWarmRestarts(0, 0, nan) }, []string{"t0 is 0", "tMult is 0", "etaMin is NaN"}},
		"sequential":       {func() { SequentialLR([]Schedule{ExponentialLR(1)}, []int{3}) }, []string{"one milestone fewer"}},
		"milestones":       {func() { SequentialLR(make([]Schedule, 3), []int{3, 1}) }, []string{"do not increase"}},
		"warmup cosine":    {func() { WarmupCosine(1, 2, nan) }, []string{"floor is NaN"}},
		"lambda":           {func() { LambdaLR(func(int) float64 { return nan }).Apply(NewSGD(ps, SGDOptions{}), 0) }, []string{"LR is NaN"}},
		"one cycle":        {func() { OneCycleLR(OneCycleOptions{PctStart: 2, AnnealStrategy: "sin"}) }, []string{"TotalSteps is 0", "PctStart is 2", `"sin"`}},
		"cycle's momentum": {func() { OneCycleLR(OneCycleOptions{TotalSteps: 9}).Apply(NewSGD(ps, SGDOptions{}), 0) }, []string{"group 0", "without momentum", "KeepMomentum"}},
		"plateau": {func() {
			ReduceLROnPlateau(NewSGD(ps, SGDOptions{}), PlateauOptions{Mode: "best", Factor: 1, ThresholdMode: "x", Cooldown: -1, MinLR: nan})
		}, []string{`"best"`, "Factor is 1", `"x"`, "Cooldown is -1", "MinLR is NaN"}},
		"ema":        {func() { NewEMA(ps, 1) }, []string{"decay is 1"}},
		"clip value": {func() { ClipGradValue(ps, nan) }, []string{"limit is NaN"}},
		"int64 parameter": {func() {
			NewSGD([]*nn.Parameter{nn.NewParameter(tensor.FromInt64([]int64{1}, 1))}, SGDOptions{})
		}, []string{"parameters are float32", "int64[1]"}},
	} {
		mustRefuse(t, what, c.f, c.says...)
	}
}

// TestNothingForZero: Zero is an option, 0 its default.
func TestNothingForZero(t *testing.T) {
	ps := names(1)
	setGrad(t, ps[0], []float32{3})
	opt := NewAdam(ps, AdamOptions{LR: 1, Beta1: Zero, Beta2: Zero, Eps: Zero})
	opt.Step(nil)
	if got := ps[0].Data().Item(); got != -1 {
		t.Errorf("without averages a step is %v, want the sign of the gradient", got)
	}
	if m := opt.State()[0].Tensor.Item(); m != 3 {
		t.Errorf("the first moment is %v, want the gradient", m)
	}
}

// TestLoadStateListsAll: what does not fit is all told, and nothing is loaded.
func TestLoadStateListsAll(t *testing.T) {
	ps := names(3)
	opt := NewAdam(ps[:2], AdamOptions{AMSGrad: true})
	saved := NewAdam(ps[1:], AdamOptions{}).State()
	for i, s := range saved {
		s.Tensor.Fill(7)
		if s.Name == "exp_avg.1.weight" {
			saved[i].Tensor = tensor.Zeros(2)
		}
	}
	err := LoadState(opt.State(), saved)
	var e *StateError
	if !errors.As(err, &e) {
		t.Fatalf("the error is %v", err)
	}
	if len(e.Missing) != 5 || len(e.Extra) != 3 || len(e.Misshapen) != 1 {
		t.Errorf("5 missing, 3 extra and 1 misshapen, the error has\n%v", err)
	}
	for _, part := range []string{
		"missing    max_exp_avg_sq.1.weight", "missing    step.0.weight", "extra      exp_avg_sq.2.weight",
		"misshapen  exp_avg.1.weight: saved float32[2], wanted float32[1 1]",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q:\n%v", part, err)
		}
	}
	for _, s := range opt.State() {
		if s.Tensor.Item() != 0 {
			t.Errorf("%s was loaded from a state that does not fit", s.Name)
		}
	}
	if err := ReduceLROnPlateau(opt, PlateauOptions{}).SetState(PlateauState{LRs: []float64{1, 2}}); err == nil {
		t.Error("a plateau of two groups was loaded into one")
	}
	if err := ReduceLROnPlateau(opt, PlateauOptions{}).SetState(PlateauState{LRs: []float64{math.NaN()}}); err == nil {
		t.Error("a learning rate that is no number was loaded")
	}
}

// TestLateParameterGoesOn: a parameter that was updated less often than the
// optimizer has stepped keeps its own bias correction when a state is loaded.
func TestLateParameterGoesOn(t *testing.T) {
	step := func(opt Optimizer, ps []*nn.Parameter, n int) {
		opt.ZeroGrad()
		setGrad(t, ps[0], values(1, n))
		if n >= 3 {
			setGrad(t, ps[1], values(1, 50+n))
		}
		opt.Step(nil)
	}
	ps := names(2)
	opt := NewAdam(ps, AdamOptions{LR: 0.1})
	for n := range 5 {
		step(opt, ps, n)
	}
	others := names(2)
	for i := range ps {
		others[i].Data().CopyFrom(ps[i].Data())
	}
	other := NewAdam(others, AdamOptions{LR: 0.1})
	if err := LoadState(other.State(), opt.State()); err != nil {
		t.Fatal(err)
	}
	other.SetNumSteps(opt.NumSteps())
	step(opt, ps, 5)
	step(other, others, 5)
	for i := range ps {
		if a, b := ps[i].Data().Item(), others[i].Data().Item(); a != b {
			t.Errorf("parameter %d is %v, resumed %v", i, a, b)
		}
	}
}

func rowsOf(ids []int64, width int, value float32) *tensor.RowGrad {
	rows := make([]float32, len(ids)*width)
	for i := range rows {
		rows[i] = value
	}
	return &tensor.RowGrad{IDs: tensor.FromInt64(ids, len(ids)), Rows: tensor.FromFloat32(rows, len(ids), width), NumRows: 4}
}

// TestBadGradients: gradients that an optimizer cannot take name themselves.
func TestBadGradients(t *testing.T) {
	table := func() []*nn.Parameter {
		b := &nn.Build{}
		ps := nn.Parameters(&nn.Linear{Weight: b.Full(1, 4, 2)})
		ps[0].SetRowGrad(rowsOf([]int64{1, 3}, 2, 1))
		return ps
	}
	for what, opt := range map[string]func(ps []*nn.Parameter) Optimizer{
		"adam":    func(ps []*nn.Parameter) Optimizer { return NewAdam(ps, AdamOptions{}) },
		"adamw":   func(ps []*nn.Parameter) Optimizer { return NewAdamW(ps, AdamWOptions{}) },
		"rmsprop": func(ps []*nn.Parameter) Optimizer { return NewRMSprop(ps, RMSpropOptions{}) },
		"sgd":     func(ps []*nn.Parameter) Optimizer { return NewSGD(ps, SGDOptions{WeightDecay: 0.1}) },
		"adagrad": func(ps []*nn.Parameter) Optimizer { return NewAdagrad(ps, AdagradOptions{WeightDecay: 0.1}) },
	} {
		mustRefuse(t, what, func() { opt(table()).Step(nil) }, "weight float32[4 2]", "by rows")
	}
	mustRefuse(t, "a dense gradient", func() {
		ps := names(1)
		setGrad(t, ps[0], []float32{1})
		NewSparseAdam(ps, SparseAdamOptions{}).Step(nil)
	}, "0.weight", "dense")
	for what, rows := range map[string]*tensor.RowGrad{
		"a row too far":    rowsOf([]int64{1, 4}, 2, 1),
		"a row before":     rowsOf([]int64{-1, 2}, 2, 1),
		"a row twice":      rowsOf([]int64{2, 2}, 2, 1),
		"the wrong width":  rowsOf([]int64{1, 2}, 3, 1),
		"the wrong number": {IDs: tensor.FromInt64([]int64{1}, 1), Rows: tensor.Zeros(2, 2), NumRows: 4},
	} {
		ps := table()
		ps[0].SetRowGrad(rows)
		mustRefuse(t, what, func() { NewSparseAdam(ps, SparseAdamOptions{}).Step(nil) }, "adam rows")
	}
}

// TestClipRowsAndValues: gradients by rows count, and are bounded, too.
func TestClipRowsAndValues(t *testing.T) {
	b := &nn.Build{}
	m := nn.NewSequential(&nn.Linear{Weight: b.Full(1, 4, 2)}, &nn.Linear{Weight: b.Full(1, 1, 1)})
	ps := nn.Parameters(m)
	ps[0].SetRowGrad(rowsOf([]int64{0, 2}, 2, 2))
	setGrad(t, ps[1], []float32{-3})
	norms, _ := ClipGradNorm(ps, 1)
	norm := norms.Item()
	if norm != 5 {
		t.Errorf("the norm is %v, want 5", norm)
	}
	if err := CheckGradNorm(ps, norm); err != nil {
		t.Error(err)
	}
	ClipGradValue(ps, 1.5)
	if a, b := ps[0].RowGrad().Rows.Float32s()[3], ps[1].Grad().Item(); a != 1.5 || b != -1.5 {
		t.Errorf("clipped gradients are %v and %v", a, b)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
		setGrad(t, ps[1], []float32{float32(bad)})
		norm, _ := ClipGradNorm(ps, 1)
		err := CheckGradNorm(ps, norm.Item())
		var e *NonFiniteError
		if !errors.As(err, &e) || len(e.Params) != 1 || e.Params[0] != "1.weight" || !strings.Contains(err.Error(), "1.weight") {
			t.Errorf("for a gradient of %v: %v", bad, err)
		}
	}
	ClipGradValue(ps, 1)
	if g := ps[1].Grad().Item(); g != -1 {
		t.Errorf("-Inf was bounded to %v", g)
	}
}

func TestEMAIsNotMistaken(t *testing.T) {
	ps := names(1)
	ema := NewEMA(ps, 0.5)
	ps[0].Data().Fill(4)
	ema.Update()
	ps[0].Data().Fill(2)
	ema.Update()
	ema.Swap()
	if v := ps[0].Data().Item(); v != 3 || !ema.Swapped() {
		t.Errorf("the average is %v, want 3", v)
	}
	mustRefuse(t, "an update of averages by themselves", ema.Update, "call Swap first")
	mustRefuse(t, "the state of what is lent", func() { ema.State() }, "call Swap first")
	ema.Swap()
	if v := ps[0].Data().Item(); v != 2 || ema.Swapped() {
		t.Errorf("the value is %v, want 2", v)
	}
	var got []string
	for _, s := range ema.State() {
		got = append(got, s.Name)
	}
	if strings.Join(got, " ") != "ema.0.weight n_averaged" {
		t.Errorf("the state is %q", got)
	}
}

// TestCycleStaysAtItsEnd: a run that goes on after the last step of a cycle
// does so with its last rate.
func TestCycleStaysAtItsEnd(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 10} {
		for _, three := range []bool{false, true} {
			s := OneCycleLR(OneCycleOptions{TotalSteps: n, ThreePhase: three})
			for step := -1; step < n+3; step++ {
				if lr, m := s.LR(step, 2), s.Momentum(step); !(lr >= 0 && lr <= 2) || !(m >= 0.85 && m <= 0.95) {
					t.Errorf("of %d steps, three %t, step %d has rate %v and momentum %v", n, three, step, lr, m)
				}
			}
			if last := s.LR(n+100, 2); last != s.LR(n-1, 2) {
				t.Errorf("of %d steps, the rate goes on from %v to %v", n, s.LR(n-1, 2), last)
			}
		}
	}
}

// TestSparseIsDense: an embedding whose gradient comes by rows trains as one
// whose gradient is dense, where the arithmetic is that of touched rows.
func TestSparseIsDense(t *testing.T) {
	run := func(sparse bool, make func(ps []*nn.Parameter) Optimizer) []float32 {
		b := &nn.Build{Generator: tensor.NewGenerator(3)}
		m := nn.NewEmbedding(b, 9, 4)
		m.Weight.Sparse = sparse
		ps := nn.Parameters(m)
		opt := make(ps)
		for step := range 5 {
			c := nn.Training(t.Context())
			opt.ZeroGrad()
			ids := tensor.FromInt64([]int64{int64(step), 8, int64(step), 2}, 4)
			if err := tensor.MSE(c.Call(m, ids), tensor.Zeros(4, 4)).Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			if (ps[0].RowGrad() != nil) != sparse {
				t.Fatalf("sparse is %t, rows are there %t", sparse, ps[0].RowGrad() != nil)
			}
			_, scale := ClipGradNorm(ps, 0.5)
			opt.Step(scale)
			c.Close()
		}
		return ps[0].Data().Float32s()
	}
	for name, make := range map[string]func(ps []*nn.Parameter) Optimizer{
		"sgd":      func(ps []*nn.Parameter) Optimizer { return NewSGD(ps, SGDOptions{LR: 0.5}) },
		"momentum": func(ps []*nn.Parameter) Optimizer { return NewSGD(ps, SGDOptions{LR: 0.5, Momentum: 0.9}) },
		"adagrad":  func(ps []*nn.Parameter) Optimizer { return NewAdagrad(ps, AdagradOptions{LR: 0.5}) },
	} {
		dense, sparse := run(false, make), run(true, make)
		for i := range dense {
			if d := math.Abs(float64(dense[i] - sparse[i])); !(d <= 1e-6) {
				t.Errorf("%s: element %d is %v, by rows %v", name, i, dense[i], sparse[i])
			}
		}
	}
}
