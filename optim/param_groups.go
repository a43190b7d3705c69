// SPDX-License-Identifier: Apache-2.0

package optim

// ParamGroup is a group of parameters as the state of PyTorch's optimizers has it
// (param_groups): the parameters' names, and their options with PyTorch's names.
type ParamGroup struct {
	Params []string `json:"params"`
	// Options has a float64, a bool, a []float64 or nil for each option. PyTorch's initial_lr
	// is BaseLR.
	Options map[string]any `json:"options"`
}

// ParamGroups returns the groups of an optimizer of this package; nil for another one. With
// them, and with State, a PyTorch job can go on where this one ends.
func ParamGroups(o Optimizer) []ParamGroup {
	of, ok := Unwrap(o).(interface{ torchOptions(i int) map[string]any })
	if !ok {
		return nil
	}
	var out []ParamGroup
	for i, g := range o.Groups() {
		pg := ParamGroup{Params: make([]string, len(g.params)), Options: of.torchOptions(i)}
		for k, p := range g.params {
			pg.Params[k] = nameOf(p, k)
		}
		pg.Options["lr"], pg.Options["initial_lr"] = g.lr, g.baseLR
		out = append(out, pg)
	}
	return out
}

// ofTorch returns options with those of PyTorch's that say how it computes, not what.
func ofTorch(options map[string]any, computing ...string) map[string]any {
	for _, name := range append(computing, "foreach") {
		switch name {
		case "foreach", "fused":
			options[name] = nil
		default:
			options[name] = false
		}
	}
	return options
}

// real returns the number that an option stands for: Zero is none.
func real(v float64) float64 {
	if v == Zero {
		return 0
	}
	return v
}

func (a *adam) torchOptions(i int) map[string]any {
	g := a.groups[i]
	o := g.options
	return ofTorch(map[string]any{
		"betas": []float64{real(g.momentum), real(o.Beta2)}, "eps": real(o.Eps), "weight_decay": real(o.WeightDecay), "amsgrad": o.AMSGrad, "maximize": o.Maximize,
		"decoupled_weight_decay": a.decoupled,
	}, "capturable", "differentiable", "fused")
}

func (a *SparseAdam) torchOptions(i int) map[string]any {
	g := a.groups[i]
	return map[string]any{"betas": []float64{real(g.momentum), real(g.options.Beta2)}, "eps": real(g.options.Eps), "maximize": g.options.Maximize}
}

func (s *SGD) torchOptions(i int) map[string]any {
	g := s.groups[i]
	o := g.options
	return ofTorch(map[string]any{
		"momentum": real(g.momentum), "dampening": real(o.Dampening), "weight_decay": real(o.WeightDecay), "nesterov": o.Nesterov, "maximize": o.Maximize,
	}, "differentiable", "fused")
}

func (a *Adagrad) torchOptions(i int) map[string]any {
	o := a.groups[i].options
	return ofTorch(map[string]any{
		"lr_decay": real(o.LRDecay), "eps": real(o.Eps), "weight_decay": real(o.WeightDecay), "initial_accumulator_value": real(o.InitialAccumulatorValue), "maximize": o.Maximize,
	}, "differentiable", "fused")
}

func (r *RMSprop) torchOptions(i int) map[string]any {
	g := r.groups[i]
	o := g.options
	return ofTorch(map[string]any{
		"momentum": real(g.momentum), "alpha": real(o.Alpha), "eps": real(o.Eps), "centered": o.Centered, "weight_decay": real(o.WeightDecay), "maximize": o.Maximize,
	}, "capturable", "differentiable")
}
