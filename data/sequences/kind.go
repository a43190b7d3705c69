// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data/records"
)

// Kind is what records are.
type Kind string

const (
	Text        Kind = "texts"                    // a field text
	Completion  Kind = "prompts with completions" // prompt and completion: texts, or lists of messages
	Instruction Kind = "instructions"             // instruction, input (may be absent) and output
	Messages    Kind = "chats (messages)"         // messages, a list of role and content
	ShareGPT    Kind = "chats (conversations)"    // conversations, a list of from and value
)

// fieldsOf are the fields by which a kind is known, and one that records may have besides.
var fieldsOf = []struct {
	kind   Kind
	fields []string
	maybe  string
}{
	{Messages, []string{"messages"}, "tools"},
	{ShareGPT, []string{"conversations"}, "tools"},
	{Completion, []string{"prompt", "completion"}, ""},
	{Instruction, []string{"instruction", "output"}, "input"},
	{Text, []string{"text"}, ""},
}

// Columns says under which names records have the fields that kinds want: "text" may be "content". A
// field that is not there has its own name.
type Columns map[string]string

// ParseColumns reads a list such as text=content,prompt=question.
func ParseColumns(list []string) (Columns, error) {
	known := map[string]bool{}
	for _, k := range fieldsOf {
		for _, f := range append(slices.Clone(k.fields), k.maybe) {
			if f != "" {
				known[f] = true
			}
		}
	}
	c := Columns{}
	for _, item := range list {
		field, name, ok := strings.Cut(item, "=")
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("%q: want FIELD=NAME, such as text=content", item)
		case !known[field]:
			return nil, fmt.Errorf("%q: there is no field %q to be found elsewhere: there is %s", item, field, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case c[field] != "":
			return nil, fmt.Errorf("%q: the field %s is given twice", item, field)
		}
		c[field] = name
	}
	return c, nil
}

// of returns the name of a field.
func (c Columns) of(field string) string {
	if name := c[field]; name != "" {
		return name
	}
	return field
}

// kindOf tells the kind of a record by its fields. Fields that columns name decide, if there are such.
func (c Columns) kindOf(r records.Record) (Kind, error) {
	for _, named := range []bool{true, false} {
		for _, k := range fieldsOf {
			has, mine := true, false
			for _, f := range k.fields {
				_, there := r[c.of(f)]
				has, mine = has && there, mine || c[f] != ""
			}
			if has && (mine || !named) {
				return k.kind, nil
			}
		}
	}
	want := make([]string, len(fieldsOf))
	for i, k := range fieldsOf {
		want[i] = strings.Join(k.fields, " and ")
	}
	for field, name := range c {
		if _, ok := r[name]; !ok {
			return "", fmt.Errorf("no field is called %s, which --columns names for %s; the record has %s", name, field, strings.Join(r.Fields(), ", "))
		}
	}
	return "", fmt.Errorf("a record has the fields %s; want text, prompt and completion, instruction and output, messages, or conversations: name them by --columns, such as text=%s",
		strings.Join(r.Fields(), ", "), first(r.Fields()))
}

func first(names []string) string {
	if len(names) == 0 {
		return "NAME"
	}
	return names[0]
}

// wants says which fields of records of a kind are read, and how.
func (c Columns) wants(kind Kind) func(field string) records.Want {
	how := map[string]records.Want{}
	for _, k := range fieldsOf {
		if k.kind != kind {
			continue
		}
		for _, f := range append(slices.Clone(k.fields), k.maybe) {
			switch {
			case f == "":
			case kind == Text || kind == Instruction:
				how[c.of(f)] = records.Take
			default: // lists of messages, or a text
				how[c.of(f)] = records.Raw
			}
		}
	}
	return func(field string) records.Want { return how[field] }
}
