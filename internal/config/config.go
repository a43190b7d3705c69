// SPDX-License-Identifier: Apache-2.0

// Package config turns a struct of settings into flags and keys of a file, and
// remembers where each value came from.
//
// A field is declared in one place, the struct:
//
//	type Settings struct {
//		Out   string  `flag:"out" run:"here" usage:"{directory} of the run"`
//		Steps int     `json:"steps" usage:"training steps"`
//		Seed  int64   `json:"seed" run:"fixed" usage:"decides the order of the data"`
//		LR    float64 `json:"lr" usage:"highest learning {rate}"`
//	}
//
// Its name, on the command line and in a file, is the tag flag, or else that of
// json with - for _. In its usage, what stands in braces is what help calls the
// value. A field without usage is none of the user's. The tag run
// says what a run that resumes does: a fixed value must be that of the
// checkpoint; one that is here belongs to this call and is not taken from
// there; any other is taken unless the user gave one.
//
// Fields are bool, int, int64, float64, string and []string; those of embedded
// structs count as the struct's own.
package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// What the tag run may say.
const (
	fixed = "fixed"
	here  = "here"
)

// Default and Flag are where values come from that no file has; a value of a
// file comes from FILE:LINE.
const (
	Default = "default"
	Flag    = "flag"
)

// Settings are the fields of a struct. They belong to one goroutine.
type Settings struct{ fields []*Field }

// Field is one of them.
type Field struct {
	Name  string
	Usage string // with backquotes about what the value is called
	From  string // Default, Flag, FILE:LINE, or the checkpoint

	run     string
	adopted bool // From is the checkpoint
	value   reflect.Value
}

// New returns the settings of the struct that p points to. Its values are the
// defaults. A struct that cannot be one panics.
func New(p any) *Settings {
	v := reflect.ValueOf(p)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: settings of a %T, want a pointer to a struct", p))
	}
	s := new(Settings)
	s.walk(v.Elem())
	return s
}

func (s *Settings) walk(v reflect.Value) {
	for i := range v.NumField() {
		t, v := v.Type().Field(i), v.Field(i)
		if t.Anonymous && t.Type.Kind() == reflect.Struct {
			s.walk(v)
			continue
		}
		f := &Field{Name: t.Tag.Get("flag"), Usage: t.Tag.Get("usage"), From: Default, run: t.Tag.Get("run"), value: v}
		if f.Usage == "" {
			continue
		}
		f.Usage = strings.NewReplacer("{", "`", "}", "`").Replace(f.Usage)
		if f.Name == "" {
			name, _, _ := strings.Cut(t.Tag.Get("json"), ",")
			f.Name = strings.ReplaceAll(name, "_", "-")
		}
		_, known := kinds[t.Type]
		switch {
		case !known:
			panic(fmt.Sprintf("config: field %s is a %v", t.Name, t.Type))
		case f.Name == "" || f.Name == "-":
			panic(fmt.Sprintf("config: field %s has no name", t.Name))
		case s.Field(f.Name) != nil:
			panic(fmt.Sprintf("config: field %s is called %s like another one", t.Name, f.Name))
		case !slices.Contains([]string{"", fixed, here}, f.run):
			panic(fmt.Sprintf("config: field %s has the tag run %q", t.Name, f.run))
		}
		s.fields = append(s.fields, f)
	}
}

// Fields returns all of them, in the order of the struct. The caller must not
// change the list.
func (s *Settings) Fields() []*Field { return s.fields }

// Field returns the one of a name, nil if there is none.
func (s *Settings) Field(name string) *Field {
	for _, f := range s.fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Names returns the names of all fields.
func (s *Settings) Names() []string {
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = f.Name
	}
	return names
}

// Given says where the values came from that the user gave, by name.
func (s *Settings) Given() map[string]string {
	given := make(map[string]string)
	for _, f := range s.fields {
		if f.From != Default && !f.adopted {
			given[f.Name] = f.From
		}
	}
	return given
}

// Summary says in a line which settings the user gave, and where; those that
// belong to this call alone are left out.
func (s *Settings) Summary() string {
	var parts []string
	for _, f := range s.fields {
		if f.From != Default && !f.adopted && f.run != here {
			parts = append(parts, fmt.Sprintf("%s = %s (%s)", f.Name, f.toml(), oneLine(f.From)))
		}
	}
	return strings.Join(parts, ", ")
}

// SetGiven marks fields as given, as another value of the struct said.
func (s *Settings) SetGiven(given map[string]string) {
	for _, f := range s.fields {
		if from := given[f.Name]; from != "" {
			f.From = from
		}
	}
}

// kinds are the types of fields, and what they are called.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[bool]():     "bool",
	reflect.TypeFor[int]():      "int",
	reflect.TypeFor[int64]():    "int64",
	reflect.TypeFor[float64]():  "float64",
	reflect.TypeFor[string]():   "string",
	reflect.TypeFor[[]string](): "strings",
}

// Kind is the type of the field: bool, int, int64, float64, string or strings.
func (f *Field) Kind() string { return kinds[f.value.Type()] }

// Value returns the value.
func (f *Field) Value() any { return f.value.Interface() }

// Text returns the value as a flag takes it.
func (f *Field) Text() string {
	if list, ok := f.Value().([]string); ok {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(f.Value())
}

// SetInt sets the value of an int, and where it is from.
func (f *Field) SetInt(n int, from string) {
	f.value.SetInt(int64(n))
	f.From = from
}

// SetText sets the value by a text, as of a flag. from says where it is from.
func (f *Field) SetText(text, from string) (err error) {
	var v any
	switch f.Value().(type) {
	case bool:
		v, err = strconv.ParseBool(text)
	case int:
		if v, err = strconv.Atoi(text); err != nil {
			// 1e6 is a whole number, too.
			if wide, no := strconv.ParseFloat(text, 64); no == nil && isWhole(wide) {
				v, err = int(wide), nil
			}
		}
	case int64:
		v, err = strconv.ParseInt(text, 0, 64)
	case float64:
		v, err = strconv.ParseFloat(text, 64)
	case string:
		v = text
	case []string:
		list := []string{}
		if text != "" {
			list = strings.Split(text, ",")
		}
		v = list
	}
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			return strconv.ErrRange
		}
		return fmt.Errorf("want %s", wanted[f.Kind()])
	}
	f.value.Set(reflect.ValueOf(v))
	f.From = from
	return nil
}

// isWhole says whether a number is a whole one that loses nothing as an int.
func isWhole(v float64) bool { return v == math.Trunc(v) && math.Abs(v) <= 1<<53 }

// Set sets the value by what a file has: a bool, int64, float64, string or
// []any of strings or whole numbers. Another kind of value is an error.
func (f *Field) Set(v any, from string) error {
	set := func(v any) error {
		f.value.Set(reflect.ValueOf(v))
		f.From = from
		return nil
	}
	switch f.Value().(type) {
	case bool:
		if b, ok := v.(bool); ok {
			return set(b)
		}
	case int:
		if n, ok := v.(int64); ok {
			if n < math.MinInt || n > math.MaxInt {
				return fmt.Errorf("%s is %d, out of range", f.Name, n)
			}
			return set(int(n))
		}
		if n, ok := v.(float64); ok && isWhole(n) {
			return set(int(n)) // 1e3
		}
	case int64:
		if n, ok := v.(int64); ok {
			return set(n)
		}
	case float64:
		switch n := v.(type) {
		case float64:
			return set(n)
		case int64:
			return set(float64(n))
		}
	case string:
		if text, ok := v.(string); ok {
			return set(text)
		}
	case []string:
		if list, ok := v.([]any); ok {
			texts := make([]string, len(list))
			for i, e := range list {
				text, ok := e.(string)
				if n, isInt := e.(int64); isInt {
					text, ok = strconv.FormatInt(n, 10), true
				}
				if !ok {
					return fmt.Errorf("%s has %s as its element %d, want a string", f.Name, describe(e), i)
				}
				texts[i] = text
			}
			return set(texts)
		}
	}
	return fmt.Errorf("%s is %s, want %s", f.Name, describe(v), wanted[f.Kind()])
}

// wanted says what a file should have for a kind.
var wanted = map[string]string{
	"bool": "true or false", "int": "a whole number", "int64": "a whole number", "float64": "a number",
	"string": "a string in quotes", "strings": "a list of strings",
}

// describe says what a file's value is.
func describe(v any) string {
	switch v := v.(type) {
	case bool, int64, float64:
		return fmt.Sprint(v)
	case string:
		return fmt.Sprintf("the string %.40q", v)
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	default:
		return fmt.Sprintf("%v", v)
	}
}
