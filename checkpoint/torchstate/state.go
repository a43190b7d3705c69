// SPDX-License-Identifier: Apache-2.0

package torchstate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/optim"
)

// State is what a PyTorch job's checkpoint has.
type State struct {
	Model     checkpoint.Source
	Optimizer checkpoint.Source // nil if there is none
	// Groups are the optimizer's groups, with the parameters' names, as PyTorch has them: an
	// option may be of another type than Cohort's are.
	Groups []optim.ParamGroup
	// OtherTensors and Others are what belongs to neither, by their names in the checkpoint: a
	// step, a schedule, a loader's state. Others has what torchsave.File.Value returns.
	OtherTensors []string
	Others       map[string]any
	// Refused are the tensors and objects that cannot be read, as a tensor of complex128 or a
	// loader's state with classes of its own, with their errors: Model and the others lack them.
	// One that the optimizer needs is an error of its own.
	Refused map[string]error
}

// FormError says that a checkpoint has not the form that this package knows.
type FormError struct {
	Checkpoint string
	Problem    string
}

func (e *FormError) Error() string { return "torchstate: " + e.Checkpoint + ": " + e.Problem }

// input is a checkpoint of either format.
type input struct {
	src     dcp.Source
	infos   []safetensors.Info
	path    func(name string) []any
	objects map[string]any
	refused map[string]error
	tied    map[string]bool // names of tensors that share their elements with an earlier one
}

func (in *input) errorf(format string, args ...any) error {
	return &FormError{in.src.Name(), fmt.Sprintf(format, args...)}
}

// FromDCP returns what a checkpoint of torch.distributed.checkpoint has. It reads all objects.
func FromDCP(c *dcp.Checkpoint) (*State, error) {
	in := &input{src: c, infos: c.Infos(), path: c.Path, objects: map[string]any{}, refused: c.Refused()}
	for _, name := range c.Objects() {
		v, err := c.Object(name)
		if err != nil {
			in.refused[name] = err
			continue
		}
		in.objects[name] = v
	}
	return in.split()
}

// FromFile returns what a file of torch.save has.
func FromFile(f *torchsave.File) (*State, error) {
	in := &input{src: f, infos: f.Infos(), objects: map[string]any{}, refused: maps.Clone(f.Refused()), tied: map[string]bool{}}
	paths, storages := map[string][]any{}, map[string]bool{}
	for _, leaf := range f.Leaves() {
		paths[leaf.Name] = leaf.Path
		if t, ok := leaf.Value.(*torchsave.Tensor); ok {
			key := fmt.Sprint(t.Storage, t.Offset, t.Shape)
			in.tied[leaf.Name] = storages[key]
			storages[key] = true
		}
	}
	in.path = func(name string) []any { return paths[name] }
	in.flatten("", f.Value())
	return in.split()
}

// flatten finds the objects as PyTorch's distributed checkpoints have them: a list or a tuple
// without dicts and tensors is one object.
func (in *input) flatten(prefix string, v any) {
	under := func(key any) string {
		if prefix == "" {
			return fmt.Sprint(key)
		}
		return prefix + "." + fmt.Sprint(key)
	}
	switch v := v.(type) {
	case *pickle.Dict:
		for _, e := range v.Entries {
			in.flatten(under(e.Key), e.Value)
		}
		return
	case *pickle.List:
		if slices.ContainsFunc(v.Items, isNested) {
			for i, item := range v.Items {
				in.flatten(under(i), item)
			}
			return
		}
	case *torchsave.Tensor, torchsave.Refused:
		return
	}
	in.objects[prefix] = v
}

func isNested(v any) bool {
	switch v := v.(type) {
	case *pickle.Dict, *torchsave.Tensor:
		return true
	case *pickle.List:
		return slices.ContainsFunc(v.Items, isNested)
	}
	return false
}

// names are the tensors and objects of an optimizer's state.
type names struct {
	prefix  string                       // of the optimizer, with a dot at its end
	tensors map[string]map[string]string // name by parameter and kind
	objects map[string]map[string]any
	order   []string // of the parameters
}

// splitState takes apart the name of a state tensor, such as optim.state.0.weight.exp_avg.
func splitState(name string) (prefix, param, kind string, ok bool) {
	at := 0
	if !strings.HasPrefix(name, stateInfix) {
		if at = strings.Index(name, "."+stateInfix); at < 0 {
			return "", "", "", false
		}
		at++
	}
	rest := name[at+len(stateInfix):]
	last := strings.LastIndexByte(rest, '.')
	if last <= 0 {
		return "", "", "", false
	}
	return name[:at], rest[:last], rest[last+1:], true
}

const (
	stateInfix  = "state."
	groupsInfix = "param_groups."
)

// kinds are the names of state tensors of PyTorch's optimizers.
var kinds = []string{"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "mu_product", "ax", "eta", "mu"}

// split finds the parts of a checkpoint.
func (in *input) split() (*State, error) {
	opt, err := in.findOptimizer()
	if err != nil {
		return nil, err
	}
	prefix, err := in.findModel(opt)
	if err != nil {
		return nil, err
	}
	s := &State{Others: map[string]any{}, Refused: in.refused}
	model := newView(in.src)
	for _, info := range in.infos {
		name := info.Name
		switch rest, ok := strings.CutPrefix(name, prefix); {
		case opt != nil && opt.has(name):
		case ok: // rest may be "", which is a key as any other
			model.add(rest, info)
		default:
			s.OtherTensors = append(s.OtherTensors, name)
		}
	}
	s.Model = model
	if opt == nil {
		maps.Copy(s.Others, in.objects)
		return s, nil
	}
	for name, v := range in.objects {
		if !opt.has(name) {
			s.Others[name] = v
		}
	}
	for name, err := range in.refused {
		if opt.has(name) {
			return nil, err
		}
	}
	rename, err := in.numbered(opt, model)
	if err != nil {
		return nil, err
	}
	if s.Groups, err = in.groups(opt, rename); err != nil {
		return nil, err
	}
	s.Optimizer, err = in.optimizer(opt, rename)
	return s, err
}

// has reports whether a tensor or an object is of the optimizer's state, or of its groups.
func (n *names) has(name string) bool {
	rest, ok := strings.CutPrefix(name, n.prefix)
	return ok && (strings.HasPrefix(rest, stateInfix) || strings.HasPrefix(rest, groupsInfix))
}

// findOptimizer returns the optimizer's names; nil if there is no optimizer.
func (in *input) findOptimizer() (*names, error) {
	var n *names
	add := func(name string) (param, kind string, ok bool, err error) {
		prefix, param, kind, ok := splitState(name)
		if !ok {
			return "", "", false, nil
		}
		if n == nil {
			if !slices.Contains(kinds, kind) {
				return "", "", false, nil
			}
			n = &names{prefix: prefix, tensors: map[string]map[string]string{}, objects: map[string]map[string]any{}}
		}
		if prefix != n.prefix {
			if slices.Contains(kinds, kind) {
				return "", "", false, in.errorf("has two optimizers, in %q and in %q: which one is meant is not known", strings.TrimSuffix(n.prefix, "."), strings.TrimSuffix(prefix, "."))
			}
			return "", "", false, nil
		}
		if n.tensors[param] == nil {
			n.tensors[param], n.objects[param] = map[string]string{}, map[string]any{}
			n.order = append(n.order, param)
		}
		return param, kind, true, nil
	}
	for _, info := range in.infos {
		param, kind, ok, err := add(info.Name)
		if err != nil {
			return nil, err
		}
		if ok {
			n.tensors[param][kind] = info.Name
		}
	}
	if n != nil {
		for _, name := range slices.Sorted(maps.Keys(in.objects)) {
			if prefix, param, kind, ok := splitState(name); ok && prefix == n.prefix && n.objects[param] != nil {
				n.objects[param][kind] = in.objects[name]
			}
		}
		return n, nil
	}
	// Plain SGD has groups, and no state.
	for name := range in.objects {
		if at := strings.Index(name, groupsInfix); at == 0 || at > 0 && name[at-1] == '.' {
			return &names{prefix: name[:at]}, nil
		}
	}
	return nil, nil
}

// modelDicts are the names of dicts that have a model, where no optimizer says which it is.
var modelDicts = []string{"model", "state_dict", "model_state_dict", "module", "app", "net"}

// findModel returns the prefix of the model's tensors.
func (in *input) findModel(opt *names) (string, error) {
	tensors := map[string]bool{}
	for _, info := range in.infos {
		if opt == nil || !opt.has(info.Name) {
			tensors[info.Name] = true
		}
	}
	if opt != nil && len(opt.order) > 0 && !opt.isNumbered() {
		first := opt.order[0]
		var fits []string
		for name := range tensors {
			prefix, ok := strings.CutSuffix(name, first)
			if !ok || prefix != "" && !strings.HasSuffix(prefix, ".") {
				continue
			}
			if !slices.ContainsFunc(opt.order, func(param string) bool { return !tensors[prefix+param] }) {
				fits = append(fits, prefix)
			}
		}
		slices.SortFunc(fits, func(a, b string) int { return len(a) - len(b) })
		switch len(fits) {
		case 0:
			return "", in.errorf("has an optimizer in %q of parameters such as %q, and no model with all of them", strings.TrimSuffix(opt.prefix, "."), first)
		case 1:
			return fits[0], nil
		}
		// Several copies, such as an average beside the model: the one whose dict has the name of a model.
		for _, p := range fits {
			if slices.Contains(modelDicts, strings.Trim(p[strings.LastIndexByte(strings.TrimSuffix(p, "."), '.')+1:], ".")) {
				return p, nil
			}
		}
		return "", in.errorf("has the optimizer's parameters in the dicts %q: which of them is the model is not known", fits)
	}
	// A dict that all tensors are in, or the only one with the name of a model.
	prefix, at := "", 0
	for {
		var keys []string
		for name := range tensors {
			keys = append(keys, in.key(name, at))
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		i := slices.IndexFunc(keys, func(k string) bool { return slices.Contains(modelDicts, k) })
		if i < 0 || len(keys) > 1 && opt == nil && at > 0 {
			return prefix, nil
		}
		prefix, at = prefix+keys[i]+".", at+1
		maps.DeleteFunc(tensors, func(name string, _ bool) bool { return !strings.HasPrefix(name, prefix) })
	}
}

// key returns the key of a dict in which a tensor is, the at-th one; "" if that is no dict or
// not known.
func (in *input) key(name string, at int) string {
	keys := in.path(name)
	if at+1 >= len(keys) {
		return ""
	}
	return fmt.Sprint(keys[at])
}

// isNumbered reports whether the optimizer knows its parameters by numbers alone.
func (n *names) isNumbered() bool {
	for _, param := range n.order {
		if _, err := strconv.Atoi(param); err != nil {
			return false
		}
	}
	return len(n.order) > 0
}
