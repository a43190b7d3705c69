// SPDX-License-Identifier: Apache-2.0

package torchstate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/optim"
)

// The dicts that PyTorch's own examples save.
const (
	modelKey     = "model"
	optimizerKey = "optim"
	// fileOptimizerKey is the dict in files of torch.save.
	fileOptimizerKey = "optimizer"
)

// Items returns what dcp.Write takes, for a job that loads {"model": …, "optim": …} as
// torch.distributed.checkpoint.state_dict makes them. optimizer has Cohort's names; it is nil
// to leave the optimizer out, and then groups are not used.
func Items(model, optimizer checkpoint.Source, groups []optim.ParamGroup) ([]dcp.Item, error) {
	items := dcp.Items(model, func(name string) []any { return []any{modelKey, name} })
	if optimizer == nil {
		return items, nil
	}
	paths, err := statePaths(optimizer)
	if err != nil {
		return nil, err
	}
	items = append(items, dcp.Items(optimizer, func(name string) []any {
		p, ok := paths[name]
		if !ok {
			return nil
		}
		return []any{optimizerKey, "state", p.param, p.kind}
	})...)
	for i, g := range groups {
		params := &pickle.List{}
		for _, p := range g.Params {
			params.Items = append(params.Items, p)
		}
		at := func(key string) []any { return []any{optimizerKey, "param_groups", i, key} }
		for _, key := range slices.Sorted(maps.Keys(g.Options)) {
			items = append(items, dcp.Item{Path: at(key), Value: option(g.Options[key])})
		}
		items = append(items, dcp.Item{Path: at("params"), Value: params})
	}
	return items, nil
}

// statePath is the place of a state tensor.
type statePath struct{ param, kind string }

// statePaths returns the places of an optimizer's tensors. A count of steps that PyTorch's
// optimizer does not have is left out: SGD has momentum_buffer alone.
func statePaths(optimizer checkpoint.Source) (map[string]statePath, error) {
	paths, counts := map[string]statePath{}, map[string]bool{}
	for _, info := range optimizer.Infos() {
		kind, param, ok := strings.Cut(info.Name, ".")
		if !ok || param == "" {
			return nil, &FormError{optimizer.Name(), fmt.Sprintf("has the tensor %q, which is no KIND.PARAMETER of an optimizer", info.Name)}
		}
		paths[info.Name] = statePath{param, kind}
		counts[param] = counts[param] || kind != "step" && kind != "momentum_buffer"
	}
	maps.DeleteFunc(paths, func(_ string, p statePath) bool { return p.kind == "step" && !counts[p.param] })
	return paths, nil
}

// option returns an option of a group as PyTorch has it: several numbers are a tuple.
func option(v any) any {
	switch v := v.(type) {
	case []float64:
		t := make(pickle.Tuple, len(v))
		for i, n := range v {
			t[i] = n
		}
		return t
	case []any: // as it comes from JSON
		return pickle.Tuple(v)
	}
	return v
}

// Value returns what torchsave.Write takes, for a job that loads {"model": …, "optimizer": …}
// by load_state_dict. The arguments are those of [Items]. The optimizer's parameters have
// numbers in the order of their groups; without groups, in the order of the model.
func Value(model, optimizer checkpoint.Source, groups []optim.ParamGroup) (any, error) {
	tensors := torchsave.FromSource(model)
	if optimizer == nil {
		return &pickle.Dict{Entries: []pickle.Entry{{Key: modelKey, Value: tensors}}}, nil
	}
	paths, err := statePaths(optimizer)
	if err != nil {
		return nil, err
	}
	if groups == nil {
		has := map[string]bool{}
		for _, p := range paths {
			has[p.param] = true
		}
		g := optim.ParamGroup{}
		for _, info := range model.Infos() {
			if has[info.Name] {
				g.Params = append(g.Params, info.Name)
			}
		}
		groups = []optim.ParamGroup{g}
	}
	state := map[string]*pickle.Dict{}
	for _, info := range optimizer.Infos() {
		p, ok := paths[info.Name]
		if !ok {
			continue
		}
		if state[p.param] == nil {
			state[p.param] = &pickle.Dict{}
		}
		state[p.param].Entries = append(state[p.param].Entries, pickle.Entry{Key: p.kind, Value: tensorOf(optimizer, info)})
	}
	states, list, number := &pickle.Dict{}, &pickle.List{}, 0
	for _, g := range groups {
		group, params, given := &pickle.Dict{}, &pickle.List{}, &pickle.List{}
		for _, key := range slices.Sorted(maps.Keys(g.Options)) {
			group.Entries = append(group.Entries, pickle.Entry{Key: key, Value: option(g.Options[key])})
		}
		for _, name := range g.Params {
			params.Items, given.Items = append(params.Items, number), append(given.Items, name)
			if s := state[name]; s != nil {
				states.Entries = append(states.Entries, pickle.Entry{Key: number, Value: s})
				delete(state, name)
			}
			number++
		}
		group.Entries = append(group.Entries, pickle.Entry{Key: "params", Value: params}, pickle.Entry{Key: "param_names", Value: given})
		list.Items = append(list.Items, group)
	}
	for name := range state {
		return nil, &FormError{optimizer.Name(), fmt.Sprintf("has state of the parameter %q, which is in no group", name)}
	}
	return &pickle.Dict{Entries: []pickle.Entry{
		{Key: modelKey, Value: tensors},
		{Key: fileOptimizerKey, Value: &pickle.Dict{Entries: []pickle.Entry{{Key: "state", Value: states}, {Key: "param_groups", Value: list}}}},
	}}, nil
}

func tensorOf(src checkpoint.Source, info safetensors.Info) *torchsave.Tensor {
	return torchsave.NewTensor(info, func(dst []byte, offset int64) error { return src.ReadRange(info.Name, dst, offset) })
}
