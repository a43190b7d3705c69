// SPDX-License-Identifier: Apache-2.0

package torchstate

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/optim"
)

// numbered returns the names of the parameters that the optimizer knows by numbers; nil if it
// knows their names.
func (in *input) numbered(opt *names, model *view) (map[string]string, error) {
	rename := map[string]string{}
	for i := 0; ; i++ {
		group := fmt.Sprintf("%s%s%d.", opt.prefix, groupsInfix, i)
		params, ok := in.objects[group+"params"].(*pickle.List)
		if !ok {
			break
		}
		given, ok := in.objects[group+"param_names"].(*pickle.List)
		for k, p := range params.Items {
			number, isNumber := p.(int64)
			if !isNumber {
				return nil, nil
			}
			rename[fmt.Sprint(number)] = ""
			if ok && k < len(given.Items) {
				rename[fmt.Sprint(number)], _ = given.Items[k].(string)
			}
		}
	}
	if len(rename) == 0 && !opt.isNumbered() {
		return nil, nil
	}
	for _, param := range opt.order {
		rename[param] += ""
	}
	if !slices.Contains(slices.Collect(maps.Values(rename)), "") {
		return rename, nil
	}
	return rename, in.count(opt, model, rename)
}

// count gives the numbers the names of the model's parameters, in their order. Tensors that are
// no parameters are told by their names, which are those of PyTorch's batch norms.
func (in *input) count(opt *names, model *view, rename map[string]string) error {
	var params []safetensors.Info
	for _, info := range model.infos {
		last := info.Name[strings.LastIndexByte(info.Name, '.')+1:]
		if last == "running_mean" || last == "running_var" || last == "num_batches_tracked" || in.tied[model.from[info.Name]] {
			continue
		}
		params = append(params, info)
	}
	if len(params) != len(rename) {
		return in.errorf("has an optimizer of %d numbered parameters and a model of %d tensors: which is which is not known. Make the optimizer with names (named_parameters), or save it with torch.distributed.checkpoint.state_dict", len(rename), len(params))
	}
	shapes := map[string][]int{}
	for _, info := range in.infos {
		shapes[info.Name] = info.Shape
	}
	for i, info := range params {
		number := strconv.Itoa(i)
		if _, ok := rename[number]; !ok {
			return in.errorf("has an optimizer whose parameters have no number %d", i)
		}
		rename[number] = info.Name
		for kind, name := range opt.tensors[number] {
			if kind != "step" && len(shapes[name]) > 0 && !slices.Equal(shapes[name], info.Shape) {
				return in.errorf("has the state %q of the shape %v where the model's parameter number %d, %q, has %v: the optimizer's order is another one than the model's. Make the optimizer with names (named_parameters)",
					name, shapes[name], i, info.Name, info.Shape)
			}
		}
	}
	return nil
}

func renamed(rename map[string]string, param string) string {
	if name := rename[param]; name != "" {
		return name
	}
	return param
}

// groups reads the groups of the optimizer's parameters.
func (in *input) groups(opt *names, rename map[string]string) ([]optim.ParamGroup, error) {
	byKey := map[string]map[string]any{} // options by number, or by parameter
	prefix := opt.prefix + groupsInfix
	add := func(name string, value any) {
		rest, ok := strings.CutPrefix(name, prefix)
		if last := strings.LastIndexByte(rest, '.'); ok && last > 0 {
			key := rest[:last]
			if byKey[key] == nil {
				byKey[key] = map[string]any{}
			}
			byKey[key][rest[last+1:]] = value
		}
	}
	for name, v := range in.objects {
		add(name, v)
	}
	for _, info := range in.infos { // a learning rate may be a tensor
		if !strings.HasPrefix(info.Name, prefix) || len(info.Shape) > 0 {
			continue
		}
		value, err := in.scalar(info)
		if err != nil {
			return nil, err
		}
		add(info.Name, value)
	}
	var groups []optim.ParamGroup
	for i := 0; byKey[strconv.Itoa(i)] != nil; i++ {
		key := strconv.Itoa(i)
		g := optim.ParamGroup{Options: plain(byKey[key])}
		params, _ := byKey[key]["params"].(*pickle.List)
		if params == nil {
			return nil, in.errorf("has the group %d of an optimizer without its parameters", i)
		}
		for _, p := range params.Items {
			g.Params = append(g.Params, renamed(rename, fmt.Sprint(p)))
		}
		groups = append(groups, g)
		delete(byKey, key)
	}
	// A flat state (flatten_optimizer_state_dict) has the options of each parameter: those with
	// equal options are a group.
	for _, param := range slices.Sorted(maps.Keys(byKey)) {
		options := plain(byKey[param])
		i := slices.IndexFunc(groups, func(g optim.ParamGroup) bool { return reflect.DeepEqual(g.Options, options) })
		if i < 0 {
			groups = append(groups, optim.ParamGroup{Options: options})
			i = len(groups) - 1
		}
		groups[i].Params = append(groups[i].Params, renamed(rename, param))
	}
	return groups, nil
}

// plain returns options with Go's types: tuples and lists of numbers are []float64.
func plain(options map[string]any) map[string]any {
	out := map[string]any{}
	for name, v := range options {
		var items []any
		switch v := v.(type) {
		case pickle.Tuple:
			items = v
		case *pickle.List:
			items = v.Items
		}
		if items != nil {
			numbers := make([]float64, 0, len(items))
			for _, item := range items {
				switch n := item.(type) {
				case float64:
					numbers = append(numbers, n)
				case int64:
					numbers = append(numbers, float64(n))
				}
			}
			if len(numbers) == len(items) {
				v = numbers
			}
		}
		if name != "params" && name != "param_names" {
			out[name] = v
		}
	}
	return out
}

// scalar reads a number that is a tensor without dims.
func (in *input) scalar(info safetensors.Info) (float64, error) {
	var b [8]byte
	if info.NumBytes() > int64(len(b)) {
		return 0, in.errorf("has the number %q as %v", info.Name, info.DType)
	}
	if err := in.src.ReadTensor(info.Name, b[:info.NumBytes()]); err != nil {
		return 0, err
	}
	switch info.DType {
	case safetensors.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[:]))), nil
	case safetensors.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[:])), nil
	case safetensors.I64:
		return float64(int64(binary.LittleEndian.Uint64(b[:]))), nil
	case safetensors.I32:
		return float64(int32(binary.LittleEndian.Uint32(b[:]))), nil
	}
	return 0, in.errorf("has the number %q as %v", info.Name, info.DType)
}

// optimizer returns the optimizer's state with Cohort's names.
func (in *input) optimizer(opt *names, rename map[string]string) (checkpoint.Source, error) {
	v, infos := newView(in.src), map[string]safetensors.Info{}
	for _, info := range in.infos {
		infos[info.Name] = info
	}
	for _, param := range opt.order {
		name := renamed(rename, param)
		for _, kind := range slices.Sorted(maps.Keys(opt.tensors[param])) {
			info := infos[opt.tensors[param][kind]]
			if kind != "step" {
				v.add(kind+"."+name, info)
			} else if info.DType == safetensors.F32 && len(info.Shape) == 0 {
				v.add("step."+name, info)
			}
		}
		if v.from["step."+name] != "" {
			continue
		}
		// Older versions have the count as a number, and SGD has none.
		count := 1.0
		if at, ok := opt.tensors[param]["step"]; ok {
			info := infos[at]
			var err error
			if info.Shape = nil; info.NumBytes() > 0 {
				if count, err = in.scalar(info); err != nil {
					return nil, err
				}
			}
		}
		switch n := opt.objects[param]["step"].(type) {
		case int64:
			count = float64(n)
		case float64:
			count = n
		}
		v.addScalar("step."+name, count)
	}
	return v, nil
}
