// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
)

// Unit is a module whose parameters are gathered and released together: before and after
// each call of the module. Path is the module's name in the model, "" for the model itself.
//
// Params are the parameters of the unit. If no unit of a policy lists its parameters, each
// parameter belongs to the innermost unit that contains all modules which hold it: a weight
// that two modules share belongs to a unit around both. What no unit contains belongs to the
// model itself.
type Unit struct {
	Path   string
	Params []*nn.Parameter
}

// Policy divides a model into units. All ranks must come to the same units. Larger units waste
// less on each collective; with smaller units a rank holds less at a time.
type Policy func(model any) ([]Unit, error)

// ByBlock makes a unit of each repeated block of the model: of each element of a list of
// modules of which at least two have one type and parameters, such as the layers of a
// transformer. Lists inside of a block do not count. A model without repeated blocks is one
// unit.
func ByBlock() Policy {
	return func(model any) ([]Unit, error) {
		type kind struct {
			list string
			of   reflect.Type
		}
		numAlike := map[kind]int{}
		var elems []Unit
		kinds := map[string]kind{}
		for path, m := range nn.Modules(model) {
			if list, index := parentOf(path); isNumber(index) && callable(m) && hasParams(m) {
				kinds[path] = kind{list, reflect.TypeOf(m)}
				numAlike[kinds[path]]++
				elems = append(elems, Unit{Path: path})
			}
		}
		var units []Unit
		for _, u := range elems {
			if numAlike[kinds[u.Path]] > 1 && !within(u.Path, units) {
				units = append(units, u)
			}
		}
		return units, nil
	}
}

// BySize makes units of at least numBytes of parameters, from the inside of the model to its
// outside: a module becomes a unit if what it holds outside of its inner units is that large.
func BySize(numBytes int) Policy {
	return func(model any) ([]Unit, error) {
		if numBytes < 1 {
			return nil, fmt.Errorf("units of %d bytes: want at least 1", numBytes)
		}
		type module struct {
			path  string
			value any
		}
		var modules []module
		for path, m := range nn.Modules(model) {
			modules = append(modules, module{path, m})
		}
		taken := map[*nn.Parameter]bool{}
		var units []Unit
		for _, m := range slices.Backward(modules) { // children come after their parents
			if !callable(m.value) || m.path == "" {
				continue
			}
			size := 0
			var own []*nn.Parameter
			for _, p := range nn.Uses(m.value) {
				if !taken[p] && !slices.Contains(own, p) {
					own = append(own, p)
					size += p.Data().NumElems() * p.Data().DType().Size()
				}
			}
			if size >= numBytes {
				units = append(units, Unit{Path: m.path})
				for _, p := range own {
					taken[p] = true
				}
			}
		}
		slices.Reverse(units)
		return units, nil
	}
}

// ByFunc makes a unit of each module that choose takes, which is called with the module's name
// in the model and the module itself, a pointer to a struct.
func ByFunc(choose func(path string, module any) bool) Policy {
	return func(model any) ([]Unit, error) {
		var units []Unit
		for path, m := range nn.Modules(model) {
			if choose(path, m) {
				units = append(units, Unit{Path: path})
			}
		}
		return units, nil
	}
}

// ByHand makes the units that are listed.
func ByHand(units ...Unit) Policy {
	return func(any) ([]Unit, error) { return units, nil }
}

func hasParams(m any) bool {
	for range nn.Uses(m) {
		return true
	}
	return false
}

// within reports whether a path is that of a unit, or inside of one.
func within(path string, units []Unit) bool {
	return slices.ContainsFunc(units, func(u Unit) bool {
		return path == u.Path || strings.HasPrefix(path, u.Path+".")
	})
}

// parentOf splits off the last part of a path.
func parentOf(path string) (parent, last string) {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// assignment is a unit with all that it gathers.
type assignment struct {
	path   string
	module any
	params []*nn.Parameter // in the order of the model
}

// assign gives each parameter of a model to a unit of the policy. The model itself is the first
// unit. Parameters for which leave is true belong to none.
func assign(model any, policy Policy, leave func(p *nn.Parameter) bool) ([]*assignment, error) {
	listed, err := policy(model)
	if err != nil {
		return nil, err
	}
	params := nn.Parameters(model)
	modules := map[string]any{}
	var paths []string
	for path, m := range nn.Modules(model) {
		modules[path] = m
		paths = append(paths, path)
	}
	root := &assignment{module: model}
	units, byModule := []*assignment{root}, map[any]*assignment{model: root}
	byHand := slices.ContainsFunc(listed, func(u Unit) bool { return u.Params != nil })
	for _, u := range listed {
		m := modules[u.Path]
		switch {
		case m == nil:
			return nil, fmt.Errorf("the policy has a unit %q, and the model has no such module%s", u.Path, suggest(u.Path, paths))
		case u.Path == "":
			continue
		case byModule[m] != nil:
			return nil, fmt.Errorf("the policy has the unit %q twice: leave one out", u.Path)
		case !callable(m):
			return nil, fmt.Errorf("the policy has a unit %q, a %T, which is no module that is called: choose one with a method Forward or ForwardN", u.Path, m)
		}
		a := &assignment{path: u.Path, module: m}
		units = append(units, a)
		byModule[m] = a
	}
	owner, err := owners(model, byModule)
	if err != nil {
		return nil, err
	}
	if byHand {
		if owner, err = listedOwners(listed, params, modules, byModule, owner, leave); err != nil {
			return nil, err
		}
	}
	for _, p := range params {
		if !leave(p) {
			a := owner[p]
			a.params = append(a.params, p)
		}
	}
	return slices.DeleteFunc(units, func(a *assignment) bool { return a != root && len(a.params) == 0 }), nil
}

// owners returns the innermost unit that contains all modules which hold a parameter.
func owners(model any, units map[any]*assignment) (map[*nn.Parameter]*assignment, error) {
	// Of each parameter the units that are around all its places so far, outermost first.
	around := map[*nn.Parameter][]*assignment{}
	for modules, p := range nn.Uses(model) {
		var here []*assignment
		for _, m := range modules {
			if a := units[m]; a != nil {
				here = append(here, a)
			}
		}
		if before, ok := around[p]; ok {
			here = slices.DeleteFunc(before, func(a *assignment) bool { return !slices.Contains(here, a) })
		}
		around[p] = here
	}
	owner := map[*nn.Parameter]*assignment{}
	for p, here := range around {
		if len(here) == 0 {
			return nil, fmt.Errorf("%s is in no unit of the policy: the model itself must be one", p.Name())
		}
		owner[p] = here[len(here)-1]
	}
	return owner, nil
}

// listedOwners checks a policy that lists the parameters of its units.
func listedOwners(listed []Unit, params []*nn.Parameter, modules map[string]any, units map[any]*assignment,
	innermost map[*nn.Parameter]*assignment, leave func(p *nn.Parameter) bool,
) (map[*nn.Parameter]*assignment, error) {
	owner := map[*nn.Parameter]*assignment{}
	for _, u := range listed {
		a := units[modules[u.Path]]
		for _, p := range u.Params {
			if !slices.Contains(params, p) {
				return nil, fmt.Errorf("unit %q of the policy lists a parameter %q that the model does not have", u.Path, p.Name())
			}
			if before := owner[p]; before != nil {
				return nil, fmt.Errorf("%s is in two units of the policy, %q and %q: leave it out of one", p.Name(), before.path, a.path)
			}
			if in := innermost[p]; in != a && a.path != "" && in.path != a.path && !strings.HasPrefix(in.path, a.path+".") {
				return nil, fmt.Errorf("%s is in unit %q of the policy, and modules outside of it hold the parameter too, so that it would be read while it is away: put it into unit %q", p.Name(), a.path, in.path)
			}
			owner[p] = a
		}
	}
	for _, p := range params {
		if owner[p] == nil && !leave(p) {
			return nil, fmt.Errorf("%s is in no unit of the policy: add it to the Params of a unit, such as that of the model itself, whose path is \"\"", p.Name())
		}
	}
	return owner, nil
}

// suggest names the path that is most like one that is not there.
func suggest(path string, paths []string) string {
	best, most := "", 0
	for _, p := range paths {
		n := 0
		for n < len(p) && n < len(path) && p[n] == path[n] {
			n++
		}
		if n > most {
			best, most = p, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
