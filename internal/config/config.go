// SPDX-License-Identifier: Apache-2.0

// Package config makes settings of a struct: flags of a command, keys of a
// file, and a record of where each value came from.
//
// # Add a setting
//
// A setting is declared in one place, as a field of the struct. A setting that
// all recipes of `cohort train` shall have is a field of SharedConfig in
// train/shared_config.go; one of a single recipe is a field of that recipe's
// struct, such as LMConfig in train/lm_config.go. The flag, the key of the
// configuration file, the help, the shell completion, `--print-config` and the
// copy in checkpoints follow from the tags of the field:
//
//		type Settings struct {
//			Out   string  `flag:"out" run:"here" group:"Run" usage:"write checkpoints to {DIR}"`
//			Steps int     `json:"steps" usage:"train for {N} steps"`
//			DType string  `json:"dtype" group:"Steps" values:"float32|bfloat16" usage:"number type of a pass"`
//			Seed  int64   `json:"seed" run:"fixed" usage:"seed of the order of the data"`
//		}
//
//	  - flag, or else json with - for _, is the name of the setting on the command
//	    line and in a file.
//	  - usage is the text of the help. Words in braces name the value: {DIR} makes
//	    `--out DIR`. Without braces the type names it: N, NUMBER, TEXT, LIST. A
//	    field without usage is not a setting of the user.
//	  - values lists the values that exist, with | between them. The help shows
//	    them in place of a name, and shells complete them. Who uses the value
//	    checks it.
//	  - group is the heading of the help that the setting is under. A field
//	    without this tag belongs to the group of the field before it in the same
//	    struct. Groups appear in the order of their first fields.
//	  - run says what a resumed run does with the setting. fixed: the value must
//	    be that of the checkpoint. here: the value belongs to this call and is not
//	    taken from the checkpoint. Without the tag: the value is taken from the
//	    checkpoint unless the user gave one.
//
// Fields are bool, int, int64, float64, string and []string. The fields of an
// embedded struct count as fields of the struct that embeds it.
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

// Values of the tag run.
const (
	fixed = "fixed"
	here  = "here"
)

// Sources of values. A value from a file has the source FILE:LINE.
const (
	Default = "default"
	Flag    = "flag"
)

// Settings are the settings that a struct declares. One goroutine may use them
// at a time.
type Settings struct{ fields []*Field }

// Field is one setting.
type Field struct {
	Name      string
	Group     string   // heading of the help
	Usage     string   // text of the help
	ValueName string   // what the help calls the value, such as DIR; "" of a bool
	Values    []string // the values that exist; nil where any value of the kind is possible
	From      string   // source of the value: Default, Flag, FILE:LINE, or the name of a checkpoint

	run     string
	adopted bool // From is the checkpoint
	value   reflect.Value
}

// New returns the settings of the struct that p points to. The struct's values
// are the defaults. New panics if a field or a tag is not as the package's
// documentation says.
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
	group := ""
	for i := range v.NumField() {
		t, v := v.Type().Field(i), v.Field(i)
		if t.Anonymous && t.Type.Kind() == reflect.Struct {
			s.walk(v)
			continue
		}
		if name, ok := t.Tag.Lookup("group"); ok {
			group = name
		}
		if t.Tag.Get("usage") != "" {
			s.add(t, v, group)
		}
	}
}

// add declares the setting that a field of the struct is.
func (s *Settings) add(t reflect.StructField, v reflect.Value, group string) {
	f := &Field{Name: t.Tag.Get("flag"), Group: group, From: Default, run: t.Tag.Get("run"), value: v}
	if f.Name == "" {
		name, _, _ := strings.Cut(t.Tag.Get("json"), ",")
		f.Name = strings.ReplaceAll(name, "_", "-")
	}
	kind, known := kinds[t.Type]
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
	f.ValueName = valueNames[kind]
	if text, ok := t.Tag.Lookup("values"); ok {
		f.Values, f.ValueName = strings.Split(text, "|"), text
	}
	f.Usage = t.Tag.Get("usage")
	if before, name, ok := strings.Cut(f.Usage, "{"); ok {
		name, after, _ := strings.Cut(name, "}")
		f.Usage, f.ValueName = before+name+after, name
	}
	s.fields = append(s.fields, f)
}

// Fields returns all settings in the order of the struct. The caller must not
// change the list.
func (s *Settings) Fields() []*Field { return s.fields }

// Field returns the setting of a name, or nil if there is none.
func (s *Settings) Field(name string) *Field {
	for _, f := range s.fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Names returns the names of all settings.
func (s *Settings) Names() []string {
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = f.Name
	}
	return names
}

// Given returns the settings that the user gave: the source of each value, by
// the setting's name.
func (s *Settings) Given() map[string]string {
	given := make(map[string]string)
	for _, f := range s.fields {
		if f.From != Default && !f.adopted {
			given[f.Name] = f.From
		}
	}
	return given
}

// Summary returns one line with the settings that the user gave and where. It
// leaves out the settings that belong to this call alone.
func (s *Settings) Summary() string {
	var parts []string
	for _, f := range s.fields {
		if f.From != Default && !f.adopted && f.run != here {
			parts = append(parts, fmt.Sprintf("%s = %s (%s)", f.Name, f.toml(), oneLine(f.From)))
		}
	}
	return strings.Join(parts, ", ")
}

// SetGiven marks settings as given by the user. given is what [Settings.Given]
// returned for another value of the same struct.
func (s *Settings) SetGiven(given map[string]string) {
	for _, f := range s.fields {
		if from := given[f.Name]; from != "" {
			f.From = from
		}
	}
}

// kinds are the types that a field may have, and the names of these types.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[bool]():     "bool",
	reflect.TypeFor[int]():      "int",
	reflect.TypeFor[int64]():    "int64",
	reflect.TypeFor[float64]():  "float64",
	reflect.TypeFor[string]():   "string",
	reflect.TypeFor[[]string](): "strings",
}

// valueNames are the names of values in the help, by kind.
var valueNames = map[string]string{"int": "N", "int64": "N", "float64": "NUMBER", "string": "TEXT", "strings": "LIST"}

// Kind returns the type of the value: bool, int, int64, float64, string or
// strings.
func (f *Field) Kind() string { return kinds[f.value.Type()] }

// Value returns the value.
func (f *Field) Value() any { return f.value.Interface() }

// Text returns the value in the form that a flag takes.
func (f *Field) Text() string {
	if list, ok := f.Value().([]string); ok {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(f.Value())
}

// SetInt sets the value of an int setting, and its source.
func (f *Field) SetInt(n int, from string) {
	f.value.SetInt(int64(n))
	f.From = from
}

// SetText parses the text of a flag and sets the value. from is the source.
func (f *Field) SetText(text, from string) (err error) {
	var v any
	switch f.Value().(type) {
	case bool:
		v, err = strconv.ParseBool(text)
	case int:
		if v, err = strconv.Atoi(text); err != nil {
			// 1e6 is a whole number too.
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

// isWhole reports whether a number is whole and an int can hold it exactly.
func isWhole(v float64) bool { return v == math.Trunc(v) && math.Abs(v) <= 1<<53 }

// Set sets the value that a file has: a bool, int64, float64, string or []any of
// strings or whole numbers. from is the source. A value of the wrong kind is an
// error.
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

// wanted says for each kind what a file should have.
var wanted = map[string]string{
	"bool": "true or false", "int": "a whole number", "int64": "a whole number", "float64": "a number",
	"string": "a string in quotes", "strings": "a list of strings",
}

// describe says what the value in a file is.
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
