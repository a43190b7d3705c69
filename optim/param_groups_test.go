// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The options are those of PyTorch 2.15: the keys of param_groups[0] of each of its
// optimizers, without params, and initial_lr.
func TestParamGroups(t *testing.T) {
	model := &struct{ A, B *nn.Parameter }{nn.NewParameter(tensor.Zeros(2)), nn.NewParameter(tensor.Zeros(3))}
	params := nn.Parameters(model)
	adam := []string{"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
	for _, c := range []struct {
		opt  Optimizer
		keys []string
		some map[string]any
	}{
		{NewAdam(params, AdamOptions{Beta1: Zero}), adam, map[string]any{"lr": 1e-3, "betas": []float64{0, 0.999}, "decoupled_weight_decay": false, "fused": nil}},
		{NewAdamW(params, AdamWOptions{LR: 0.5, AMSGrad: true, WeightDecay: 0.1}), adam, map[string]any{"lr": 0.5, "eps": 1e-8, "amsgrad": true, "weight_decay": 0.1, "decoupled_weight_decay": true}},
		{NewSparseAdam(params, SparseAdamOptions{}), []string{"lr", "betas", "eps", "maximize"}, map[string]any{"betas": []float64{0.9, 0.999}}},
		{NewSGD(params, SGDOptions{Momentum: 0.9, Nesterov: true}), []string{"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "differentiable", "fused"},
			map[string]any{"momentum": 0.9, "nesterov": true, "maximize": false}},
		{NewAdagrad(params, AdagradOptions{}), []string{"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "foreach", "maximize", "differentiable", "fused"}, map[string]any{"eps": 1e-10}},
		{NewRMSprop(params, RMSpropOptions{Centered: true}), []string{"lr", "momentum", "alpha", "eps", "centered", "weight_decay", "capturable", "foreach", "maximize", "differentiable"},
			map[string]any{"alpha": 0.99, "centered": true}},
	} {
		c.opt.Groups()[0].SetLR(c.opt.Groups()[0].LR() / 2)
		groups := ParamGroups(c.opt)
		if len(groups) != 1 || !slices.Equal(groups[0].Params, []string{"a", "b"}) {
			t.Errorf("%T: the groups are %+v", c.opt, groups)
			continue
		}
		got := groups[0].Options
		if keys, want := slices.Sorted(maps.Keys(got)), slices.Sorted(slices.Values(append(c.keys, "initial_lr"))); !slices.Equal(keys, want) {
			t.Errorf("%T has the options %v, PyTorch %v", c.opt, keys, want)
		}
		if got["initial_lr"].(float64) != 2*got["lr"].(float64) {
			t.Errorf("%T: the learning rate is %v, at first %v", c.opt, got["lr"], got["initial_lr"])
		}
		got["lr"] = got["initial_lr"]
		for name, want := range c.some {
			if !reflect.DeepEqual(got[name], want) {
				t.Errorf("%T: %s is %v, want %v", c.opt, name, got[name], want)
			}
		}
	}
	other := struct{ Optimizer }{}
	if ParamGroups(other) != nil {
		t.Error("an optimizer of elsewhere has groups")
	}
}
