// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cohort-ml/cohort/internal/trace"
	"github.com/cohort-ml/cohort/tensor"
)

// pathOf returns the name of the innermost of calls inside the outermost that
// knows it: a wrapper such as DDP, whose fields nobody sees, adds nothing. A module that
// another one makes for a call has no name, and counts as that one.
func pathOf(calls []any) string {
	for _, module := range slices.Backward(calls) {
		for _, outer := range calls {
			at, found := "", false
			walk(outer, func(path string, v any) bool {
				if v == module {
					at, found = path, true
				}
				return !found
			})
			if found && (outer != module || module == calls[0]) {
				return at
			}
		}
	}
	return ""
}

// traceEnter tells the recorder of this goroutine, if there is one, which module is called. The tape says
// so of the operations that follow, for their backward pass.
func (p *pass) traceEnter(m any) {
	r := trace.Of()
	if r == nil {
		return
	}
	if len(p.calls) == 1 && !p.recomputing {
		r.Forward() // after a backward pass that ended early, or one of a stage
	}
	if !reflect.TypeOf(m).Comparable() { // a module that is a value has no name
		m = nil
	}
	p.current().SetModule(r.Enter(m, func() (string, bool) {
		for _, outer := range p.calls { // all names at once, for a model has many modules
			named := 0
			for path, v := range Modules(outer) {
				r.Learn(v, path)
				named++
			}
			if named > 1 { // else it is a wrapper, whose fields nobody sees
				break
			}
		}
		path := pathOf(p.calls)
		return path, path != ""
	}))
}

// traceLeave says that the module has returned.
func (p *pass) traceLeave() {
	if r := trace.Of(); r != nil {
		p.current().SetModule(r.Leave())
	}
}

// Modules iterates over the model and everything in it that [Parameters] would
// look into, each once, with its name in the model: pointers to structs, in the
// order of the fields.
func Modules(model any) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		walk(model, func(path string, v any) bool {
			switch v.(type) {
			case *Parameter, *Buffer:
				return true
			}
			return yield(path, v)
		})
	}
}

// walk visits the model and everything in its exported fields, each pointer
// once, with its path; visit returns false to end the walk.
func walk(model any, visit func(path string, v any) bool) {
	w := walker{visit: visit, seen: make(map[any]bool)}
	w.value("", reflect.ValueOf(model))
}

// Uses iterates over the places at which a model holds its parameters: the modules from
// the model down to the one that has the parameter in a field, and the parameter. One
// that several modules share comes once for each place, unlike in [Parameters]. The
// slice of modules is valid until the next iteration. No names are given.
func Uses(model any) iter.Seq2[[]any, *Parameter] {
	return func(yield func([]any, *Parameter) bool) {
		w := walker{seen: make(map[any]bool), every: true}
		w.visit = func(_ string, v any) bool {
			p, ok := v.(*Parameter)
			return !ok || yield(w.above, p)
		}
		w.value("", reflect.ValueOf(model))
	}
}

type walker struct {
	visit func(path string, v any) bool
	seen  map[any]bool
	ended bool
	every bool  // visit a pointer at each place where it is, not once
	above []any // the pointers around the present one, where every is set
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
		if w.every {
			defer delete(w.seen, v.Interface())
		}
		switch v.Interface().(type) {
		case *Parameter, *Buffer, *tensor.Tensor, *tensor.Generator:
			return
		}
		if w.every {
			w.above = append(w.above, v.Interface())
			defer func() { w.above = w.above[:len(w.above)-1] }()
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
