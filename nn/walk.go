// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/cohort-ml/cohort/tensor"
)

// naming is held by who gives names: handlers of several calls may walk one model.
var naming sync.Mutex

// Parameters returns every parameter of a model once, frozen ones included, in
// the order of the fields, and gives each its name. It panics when a field that
// is not exported holds a parameter or module. Several goroutines may walk a model
// at a time. Names that are as they should be are not written: others may read them
// once it has been walked.
func Parameters(model any) []*Parameter {
	naming.Lock()
	defer naming.Unlock()
	var ps []*Parameter
	walk(model, func(path string, v any) bool {
		if p, ok := v.(*Parameter); ok {
			if p.name != path || p.data.Name() != path {
				p.name = path
				p.data.SetName(path)
			}
			ps = append(ps, p)
		}
		return true
	})
	return ps
}

// Buffers returns every buffer of a model once, in the order of the fields,
// and gives each its name. Several goroutines may walk a model at a time.
func Buffers(model any) []*Buffer {
	naming.Lock()
	defer naming.Unlock()
	var bs []*Buffer
	walk(model, func(path string, v any) bool {
		if b, ok := v.(*Buffer); ok {
			if b.name != path || b.Data.Name() != path {
				b.name = path
				b.Data.SetName(path)
			}
			bs = append(bs, b)
		}
		return true
	})
	return bs
}

// NamedTensor is an entry of a state dict.
type NamedTensor struct {
	Name   string
	Tensor *tensor.Tensor
}

// NamedTensors is a list of tensors by name, such as a model's state.
type NamedTensors []NamedTensor

// All iterates over names and tensors, as package checkpoint wants them.
func (ts NamedTensors) All() iter.Seq2[string, *tensor.Tensor] {
	return func(yield func(string, *tensor.Tensor) bool) {
		for _, t := range ts {
			if !yield(t.Name, t.Tensor) {
				return
			}
		}
	}
}

// StateDict returns the parameters and buffers of a model by name: all
// parameters in the order of the fields, then all buffers, where PyTorch has a
// module's buffers after its own parameters. Loading goes by names. The tensors are the model's own: writing them loads a
// model.
func StateDict(model any) NamedTensors {
	var state NamedTensors
	for _, p := range Parameters(model) {
		state = append(state, NamedTensor{p.name, p.data})
	}
	for _, b := range Buffers(model) {
		state = append(state, NamedTensor{b.name, b.Data})
	}
	return state
}

// NamedParameters is a field of parameters whose names are not known before the
// module is made, such as a recurrent network's: in a field tagged `name:""` each
// has the name that stands beside it.
type NamedParameters []NamedParameter

// NamedParameter is an entry of NamedParameters.
type NamedParameter struct {
	Name      string
	Parameter *Parameter
}

// NumParams returns the number of elements of all parameters.
func NumParams(model any) int {
	n := 0
	for _, p := range Parameters(model) {
		n += p.data.NumElems()
	}
	return n
}

// pathOf returns the name of the innermost of calls inside the outermost that
// knows it: a wrapper such as DDP, whose fields nobody sees, adds nothing.
func pathOf(calls []any) string {
	module := calls[len(calls)-1]
	for _, outer := range calls {
		at, found := "", false
		walk(outer, func(path string, v any) bool {
			if v == module {
				at, found = path, true
			}
			return !found
		})
		if found {
			return at
		}
	}
	return ""
}

// walk visits the model and everything in its exported fields, each pointer
// once, with its path; visit returns false to end the walk.
func walk(model any, visit func(path string, v any) bool) {
	w := walker{visit: visit, seen: make(map[any]bool)}
	w.value("", reflect.ValueOf(model))
}

type walker struct {
	visit func(path string, v any) bool
	seen  map[any]bool
	ended bool
}

func (w *walker) value(path string, v reflect.Value) {
	if w.ended || !v.IsValid() {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		w.value(path, v.Elem())
	case reflect.Pointer:
		if v.IsNil() || v.Type().Elem().Kind() != reflect.Struct || w.seen[v.Interface()] {
			return
		}
		w.seen[v.Interface()] = true
		if !w.visit(path, v.Interface()) {
			w.ended = true
			return
		}
		switch v.Interface().(type) {
		case *Parameter, *Buffer, *tensor.Tensor, *tensor.Generator:
			return
		}
		w.fields(path, v.Elem())
	case reflect.Struct:
		w.fields(path, v)
	case reflect.Slice, reflect.Array:
		if list, ok := v.Interface().(NamedParameters); ok {
			for _, p := range list {
				w.value(join(path, p.Name), reflect.ValueOf(p.Parameter))
			}
			return
		}
		switch v.Type().Elem().Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice:
			for i := range v.Len() {
				w.value(join(path, strconv.Itoa(i)), v.Index(i))
			}
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return
		}
		// In an order that all ranks have.
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			w.value(join(path, key.String()), v.MapIndex(key))
		}
	}
}

func (w *walker) fields(path string, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, tagged := f.Tag.Lookup("name")
		if !f.IsExported() && !f.Anonymous {
			if !tagged && !v.Field(i).IsZero() && holdsState(f.Type) {
				panic(fmt.Errorf("nn: field %s of %v at %q holds a parameter or module but is not exported, so it would be neither trained nor saved: "+
					"begin its name with a capital, or tag it `name:\"-\"` if that is meant", f.Name, v.Type(), path))
			}
			continue
		}
		switch {
		case name == "-":
			continue
		case f.Anonymous && !tagged:
			name = ""
		case !tagged:
			name = snake(f.Name)
		}
		field := v.Field(i)
		if f.IsExported() {
			w.value(join(path, name), field)
			continue
		}
		// An embedded struct of a type that is not exported: its own fields are
		// within reach, itself is not.
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		}
		if field.Kind() == reflect.Struct {
			w.fields(join(path, name), field)
		}
	}
}

// holdsState says whether a value of a type may lead walk to a parameter,
// buffer or module. seen are the types being looked into.
func holdsState(t reflect.Type, seen ...reflect.Type) bool {
	switch t {
	case reflect.TypeFor[*Parameter](), reflect.TypeFor[*Buffer]():
		return true
	}
	if t.Implements(reflect.TypeFor[Module]()) || t.Implements(reflect.TypeFor[ModuleN]()) {
		return true
	}
	if slices.Contains(seen, t) {
		return false
	}
	seen = append(seen, t)
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holdsState(t.Elem(), seen...)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if (f.IsExported() || f.Anonymous) && f.Tag.Get("name") != "-" && holdsState(f.Type, seen...) {
				return true
			}
		}
	}
	return false
}

func join(path, name string) string {
	if path == "" || name == "" {
		return path + name
	}
	return path + "." + name
}

// snake turns InProj into in_proj and LN1 into ln1.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) {
			newWord := i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsUpper(runes[i-1]) && unicode.IsLower(runes[i+1]))
			if newWord {
				b.WriteByte('_')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
