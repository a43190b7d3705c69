// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// torchOptions are the options of a case of testdata/golden.py, by PyTorch's
// names.
type torchOptions struct {
	LR, Momentum, Dampening, Eps, Alpha   float64
	Betas                                 [2]float64
	Nesterov, Maximize, AMSGrad, Centered bool
	WeightDecay                           float64 `json:"weight_decay"`
	LRDecay                               float64 `json:"lr_decay"`
	InitialAccumulator                    float64 `json:"initial_accumulator_value"`
	Factor, Gamma, Power, Threshold       float64
	TotalIters                            int `json:"total_iters"`
	StepSize                              int `json:"step_size"`
	Milestones                            []int
	Start                                 float64 `json:"start_factor"`
	End                                   float64 `json:"end_factor"`
	TMax                                  int     `json:"T_max"`
	T0                                    int     `json:"T_0"`
	TMult                                 int     `json:"T_mult"`
	EtaMin                                float64 `json:"eta_min"`
	MaxLR                                 float64 `json:"max_lr"`
	TotalSteps                            int     `json:"total_steps"`
	ThreePhase                            bool    `json:"three_phase"`
	PctStart                              float64 `json:"pct_start"`
	Anneal                                string  `json:"anneal_strategy"`
	BaseMomentum                          float64 `json:"base_momentum"`
	MaxMomentum                           float64 `json:"max_momentum"`
	Div                                   float64 `json:"div_factor"`
	FinalDiv                              float64 `json:"final_div_factor"`
	Patience, Cooldown                    int
	MinLR                                 float64 `json:"min_lr"`
	Mode                                  string
	ThresholdMode                         string `json:"threshold_mode"`
}

type stepCase struct {
	Optimizer string
	Options   json.RawMessage
	Params    [][]int32
	State     map[string][][]int32
}

type goldenFile struct {
	Torch, Capability string
	Steps             int
	Dense, Sparse     []stepCase
	Touched           [][]int64
	Schedules         []struct {
		Schedule string
		Options  torchOptions
		LRs      [][]float64
		Momenta  []float64
	}
	Plateaus []struct {
		Options torchOptions
		Losses  []float64
		LRs     [][]float64
	}
	Averages []struct {
		Decay  float64
		Values []int32
	}
}

func readGolden(t *testing.T) (g goldenFile) {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// make makes the optimizer of a case.
func (c stepCase) make(t *testing.T, ps []*nn.Parameter) Optimizer {
	var o torchOptions
	var has map[string]any
	for _, into := range []any{&o, &has} {
		if err := json.Unmarshal(c.Options, into); err != nil {
			t.Fatal(err)
		}
	}
	if has["betas"] != nil && o.Betas[0] == 0 {
		o.Betas[0] = Zero
	}
	adam := AdamOptions{LR: o.LR, Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, WeightDecay: o.WeightDecay, AMSGrad: o.AMSGrad, Maximize: o.Maximize}
	switch c.Optimizer {
	case "SGD":
		return NewSGD(ps, SGDOptions{LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov, Maximize: o.Maximize})
	case "Adam":
		return NewAdam(ps, adam)
	case "AdamW":
		return NewAdamW(ps, AdamWOptions(adam))
	case "SparseAdam":
		return NewSparseAdam(ps, SparseAdamOptions{LR: o.LR, Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, Maximize: o.Maximize})
	case "Adagrad":
		return NewAdagrad(ps, AdagradOptions{LR: o.LR, LRDecay: o.LRDecay, WeightDecay: o.WeightDecay, InitialAccumulatorValue: o.InitialAccumulator, Eps: o.Eps, Maximize: o.Maximize})
	case "RMSprop":
		return NewRMSprop(ps, RMSpropOptions{LR: o.LR, Alpha: o.Alpha, Eps: o.Eps, WeightDecay: o.WeightDecay, Momentum: o.Momentum, Centered: o.Centered, Maximize: o.Maximize})
	}
	t.Fatalf("no optimizer %s", c.Optimizer)
	return nil
}

// holdAgainst compares with PyTorch's bits: equal if exact, else to 1e-6 of
// the value, or of a tenth of the array's largest for smaller ones, which are
// differences of larger numbers. (PyTorch's square root is the last bit off
// for one number in five, ours is not: what goes through one cannot be equal.)
func holdAgainst(t *testing.T, what string, got []float32, want []int32, exact bool) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, PyTorch has %d", what, len(got), len(want))
		return
	}
	differ, worst, largest := 0, 0.0, 0.0
	for _, b := range want {
		largest = max(largest, math.Abs(float64(math.Float32frombits(uint32(b)))))
	}
	for i, b := range want {
		w := math.Float32frombits(uint32(b))
		if got[i] == w {
			continue
		}
		differ++
		e := math.Abs(float64(got[i])-float64(w)) / max(math.Abs(float64(w)), largest/10)
		if worst = max(worst, e); exact || !(e <= 1e-6) {
			t.Errorf("%s: element %d is %v, PyTorch's %v", what, i, got[i], w)
			return
		}
	}
	if differ > 0 {
		t.Logf("%s: %d of %d differ, by %.2g at most", what, differ, len(want), worst)
	}
}

func names(n int) []*nn.Parameter {
	m := nn.NewSequential()
	for range n {
		m.Layers = append(m.Layers, &nn.Linear{Weight: nn.NewParameter(tensor.Zeros(1, 1))})
	}
	return nn.Parameters(m)
}

// TestOptimizersAsInPyTorch: every option, 10 steps, values and state. SGD
// gives PyTorch's bits where the processor fuses as its does.
func TestOptimizersAsInPyTorch(t *testing.T) {
	golden := readGolden(t)
	for _, c := range golden.Dense {
		ps := names(len(c.Params))
		for i, bits := range c.Params {
			ps[i].SetData(tensor.FromFloat32(values(len(bits), i)))
		}
		opt := c.make(t, ps)
		for step := range golden.Steps {
			for i, p := range ps {
				g := values(p.Data().NumElems(), 10+2*step+i)
				if step%2 == 1 {
					for j := range g {
						g[j] = float32(math.Ldexp(float64(g[j]), -step))
					}
				}
				setGrad(t, p, g)
			}
			opt.Step(nil)
			opt.ZeroGrad()
		}
		what := fmt.Sprintf("%s%s", c.Optimizer, c.Options)
		exact := c.Optimizer == "SGD" && (cpu.X86.HasFMA || cpu.ARM64.HasFP)
		for i, p := range ps {
			holdAgainst(t, fmt.Sprintf("%s parameter %d", what, i), p.Data().Float32s(), c.Params[i], exact)
		}
		state := opt.State()
		for _, s := range state {
			kind, name, _ := strings.Cut(s.Name, ".")
			if c.Optimizer == "SGD" && kind == "step" {
				continue // PyTorch counts SGD's steps nowhere
			}
			for i, p := range ps {
				if p.Name() == name {
					want := c.State[kind]
					if want == nil {
						t.Errorf("%s: state %s, which PyTorch does not have", what, s.Name)
						continue
					}
					holdAgainst(t, what+" state "+s.Name, s.Tensor.Float32s(), want[i], exact)
				}
			}
		}
		if c.Optimizer != "SGD" && len(state) != len(c.State)*len(ps) {
			t.Errorf("%s: %d state tensors, PyTorch has %d for each of %d parameters", what, len(state), len(c.State), len(ps))
		}
	}
}

// TestSparseAsInPyTorch: gradients by rows, a step without any among them.
func TestSparseAsInPyTorch(t *testing.T) {
	golden := readGolden(t)
	for _, c := range golden.Sparse {
		p := nn.NewParameter(tensor.FromFloat32(values(35, 0), 7, 5))
		opt := c.make(t, []*nn.Parameter{p})
		for step, ids := range golden.Touched {
			if c.Optimizer == "SparseAdam" && len(ids) == 0 {
				// PyTorch counts the step and does nothing else, as here.
				p.SetRowGrad(&tensor.RowGrad{IDs: tensor.FromInt64(nil, 0), Rows: tensor.Zeros(0, 5), NumRows: 7})
			} else {
				p.SetRowGrad(&tensor.RowGrad{IDs: tensor.FromInt64(ids, len(ids)), Rows: tensor.FromFloat32(values(5*len(ids), 10+step), len(ids), 5), NumRows: 7})
			}
			opt.Step(nil)
		}
		holdAgainst(t, fmt.Sprintf("%s%s", c.Optimizer, c.Options), p.Data().Float32s(), c.Params[0], false)
	}
}

func schedule(t *testing.T, name string, o torchOptions) Schedule {
	t.Helper()
	switch name {
	case "ConstantLR":
		return ConstantLR(o.Factor, o.TotalIters)
	case "StepLR":
		return StepLR(o.StepSize, o.Gamma)
	case "MultiStepLR":
		return MultiStepLR(o.Milestones, o.Gamma)
	case "ExponentialLR":
		return ExponentialLR(o.Gamma)
	case "LinearLR":
		return LinearLR(o.Start, o.End, o.TotalIters)
	case "PolynomialLR":
		return PolynomialLR(o.TotalIters, o.Power)
	case "CosineAnnealingLR":
		return CosineAnnealingLR(o.TMax, o.EtaMin)
	case "CosineAnnealingWarmRestarts":
		return CosineAnnealingWarmRestarts(o.T0, o.TMult, o.EtaMin)
	case "LambdaLR":
		return LambdaLR(func(step int) float64 { return 1 / (1 + float64(step)) })
	case "SequentialLR":
		return SequentialLR([]Schedule{LinearLR(0.1, 1, 10), CosineAnnealingLR(25, 0.001), ExponentialLR(0.8)}, []int{10, 35})
	case "ChainedScheduler":
		return ChainedLR(LinearLR(0.1, 1, 10), ExponentialLR(0.9), StepLR(20, 0.5))
	case "OneCycleLR":
		return oneCycle(o).LR
	}
	t.Fatalf("no schedule %s", name)
	return nil
}

func oneCycle(o torchOptions) *OneCycle {
	return OneCycleLR(OneCycleOptions{
		MaxLR: o.MaxLR, TotalSteps: o.TotalSteps, PctStart: o.PctStart, AnnealStrategy: o.Anneal, BaseMomentum: o.BaseMomentum,
		MaxMomentum: o.MaxMomentum, DivFactor: o.Div, FinalDivFactor: o.FinalDiv, ThreePhase: o.ThreePhase,
	})
}

// twoGroups are the groups of testdata/golden.py.
func twoGroups(momentum float64) *SGD {
	ps := names(2)
	opt := NewSGD(ps[:1], SGDOptions{LR: 0.1, Momentum: momentum})
	opt.AddGroup(ps[1:], SGDOptions{LR: 0.03, Momentum: momentum})
	return opt
}

// TestSchedulesAsInPyTorch: the rates of two groups over 50 steps. PyTorch
// multiplies the last rate, so that its errors grow: they are compared to
// 1e-12 of the base.
func TestSchedulesAsInPyTorch(t *testing.T) {
	for _, c := range readGolden(t).Schedules {
		opt := twoGroups(0.9)
		for step, want := range c.LRs {
			if c.Schedule == "OneCycleLR" {
				oneCycle(c.Options).Apply(opt, step)
			} else {
				schedule(t, c.Schedule, c.Options).Apply(opt, step)
			}
			for i, g := range opt.Groups() {
				if d := math.Abs(g.LR() - want[i]); !(d <= 1e-12*max(want[i], g.BaseLR()/10)) {
					t.Errorf("%s %+v: rate of group %d at step %d is %v, PyTorch's %v", c.Schedule, c.Options, i, step, g.LR(), want[i])
				}
				if len(c.Momenta) > 0 && !(math.Abs(g.Momentum()-c.Momenta[step]) <= 1e-12) {
					t.Errorf("%s %+v: momentum at step %d is %v, PyTorch's %v", c.Schedule, c.Options, step, g.Momentum(), c.Momenta[step])
				}
			}
		}
	}
}

// TestPlateauAsInPyTorch: one plateau goes through, another goes on from the
// saved state of one before it at every call.
func TestPlateauAsInPyTorch(t *testing.T) {
	for i, c := range readGolden(t).Plateaus {
		o := c.Options
		options := PlateauOptions{
			Mode: o.Mode, Factor: o.Factor, Patience: o.Patience, Threshold: o.Threshold, ThresholdMode: o.ThresholdMode, Cooldown: o.Cooldown,
			MinLR: o.MinLR, Eps: o.Eps,
		}
		opt := twoGroups(0)
		p := ReduceLROnPlateau(opt, options)
		state := p.State()
		for epoch, loss := range c.Losses {
			before := opt.Groups()[0].LR()
			if reduced := p.Step(loss); reduced != (opt.Groups()[0].LR() < before) && reduced != (opt.Groups()[1].LR() < 0.03) {
				t.Errorf("case %d, epoch %d: reduced is %t", i, epoch, reduced)
			}
			text, err := json.Marshal(state)
			if err != nil {
				t.Fatal(err)
			}
			var saved PlateauState
			if err := json.Unmarshal(text, &saved); err != nil {
				t.Fatal(err)
			}
			other := twoGroups(0)
			q := ReduceLROnPlateau(other, options)
			if err := q.SetState(saved); err != nil {
				t.Fatal(err)
			}
			q.Step(loss)
			state = q.State()
			for j := range opt.Groups() {
				a, b, want := opt.Groups()[j].LR(), other.Groups()[j].LR(), c.LRs[epoch][j]
				if !(math.Abs(a-want) <= 1e-12*want) || a != b {
					t.Errorf("case %d, epoch %d: rate of group %d is %v, resumed %v, PyTorch's %v", i, epoch, j, a, b, want)
				}
			}
		}
	}
}

func TestEMAAsInPyTorch(t *testing.T) {
	for _, c := range readGolden(t).Averages {
		ps := names(1)
		ps[0].SetData(tensor.FromFloat32(values(6, 0), 2, 3))
		ema := NewEMA(ps, c.Decay)
		for step := range 6 {
			ps[0].Data().CopyFrom(tensor.FromFloat32(values(6, 1+step), 2, 3))
			ema.Update()
			// Another one goes on from the saved state.
			other := NewEMA(ps, c.Decay)
			if err := LoadState(other.State(), ema.State()); err != nil {
				t.Fatal(err)
			}
			ema = other
		}
		ema.Swap()
		holdAgainst(t, fmt.Sprintf("decay %v", c.Decay), ps[0].Data().Float32s(), c.Values, false)
		ema.Swap()
		for i, v := range ps[0].Data().Float32s() {
			if v != values(6, 6)[i] {
				t.Errorf("decay %v: the value swapped back is %v, was %v", c.Decay, v, values(6, 6)[i])
			}
		}
	}
}
