// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// structure is the plan of a struct.
type structure struct {
	plan     *Plan
	fields   []field
	byName   map[string]int
	required uint64 // a bit for each field that is not optional
}

// field is one of a struct.
type field struct {
	name     string
	head     []byte // its encoded name
	offset   uintptr
	optional bool
	plan     *Plan
}

// maxFields bounds the fields of a struct.
const maxFields = 64

// tagKey is the key of struct tags: `rpc:"name"`, `rpc:"name,optional"`, `rpc:"-"`.
const tagKey = "rpc"

func (b *builder) structure(p *Plan, t reflect.Type) error {
	s := &structure{plan: p, byName: map[string]int{}}
	for i := range t.NumField() {
		if err := b.field(s, t, t.Field(i)); err != nil {
			return err
		}
	}
	if len(s.fields) == 0 && t.NumField() > 0 {
		return fmt.Errorf("type %v has no exported field: nothing of it would travel", t)
	}
	if len(s.fields) > maxFields {
		return fmt.Errorf("type %v has %d fields, more than %d", t, len(s.fields), maxFields)
	}
	for i, f := range s.fields {
		if !f.optional {
			s.required |= 1 << i
		}
	}
	p.Empty = len(s.fields) == 0
	p.text, p.enc, p.dec = s.text, s.encode, s.decode
	return nil
}

// field adds a field of type t to its plan, if it travels.
func (b *builder) field(s *structure, t reflect.Type, f reflect.StructField) error {
	name, rest, _ := strings.Cut(f.Tag.Get(tagKey), ",")
	if name == "-" {
		return nil
	}
	if !f.IsExported() {
		if f.Anonymous && showsFields(f.Type) {
			return fmt.Errorf("type %v embeds %v, which is not exported, so its fields would not travel: export it, or give it the tag `rpc:\"-\"`", t, f.Type)
		}
		return nil
	}
	if name == "" {
		name = f.Name
	}
	if rest != "" && rest != "optional" {
		return fmt.Errorf("type %v, field %s: the tag's %q: there is \"optional\"", t, f.Name, rest)
	}
	if _, twice := s.byName[name]; twice {
		return fmt.Errorf("type %v: two fields are called %q", t, name)
	}
	plan, err := b.plan(f.Type)
	if err != nil {
		return fmt.Errorf("type %v, field %s: %w", t, f.Name, err)
	}
	var e Encoder
	e.Text(name)
	s.byName[name] = len(s.fields)
	s.fields = append(s.fields, field{name, e.Buf, f.Offset, rest != "", plan})
	return nil
}

func (s *structure) text(w *writer) string {
	text := make([]string, len(s.fields))
	for i, f := range s.fields {
		text[i] = f.name + " " + w.of(f.plan)
		if f.optional {
			text[i] = f.name + "? " + w.of(f.plan)
		}
	}
	return "{" + strings.Join(text, ", ") + "}"
}

func (s *structure) encode(e *Encoder, p unsafe.Pointer) {
	e.Map(len(s.fields))
	if e.enter() {
		for i := range s.fields {
			f := &s.fields[i]
			e.Buf = append(e.Buf, f.head...)
			f.plan.enc(e, unsafe.Add(p, f.offset))
		}
	}
	e.depth--
}

func (s *structure) decode(d *Decoder, p unsafe.Pointer) {
	n := d.Map()
	if d.err != nil {
		return
	}
	if d.enter() {
		seen := uint64(0)
		for i := range n {
			at := s.key(d, i)
			if d.err == nil && seen&(1<<at) != 0 {
				d.failf("the field %q is there twice", s.fields[at].name)
			}
			if d.err != nil {
				break
			}
			seen |= 1 << at
			f := &s.fields[at]
			if f.plan.dec(d, unsafe.Add(p, f.offset)); d.err != nil {
				d.at(f.name)
				break
			}
		}
		if missing := s.required &^ seen; missing != 0 && d.err == nil {
			f := s.fields[bits.TrailingZeros64(missing)]
			d.failf("the field %q is missing of %s", f.name, s.plan.Text)
		}
	}
	d.depth--
}

// key reads the name of a map's entry number i and returns the number of the field. The
// fields come in the order in which Go wrote them, or in any other.
func (s *structure) key(d *Decoder, i int) int {
	if i < len(s.fields) && hasPrefix(d.buf[d.pos:], s.fields[i].head) {
		d.pos += len(s.fields[i].head)
		return i
	}
	name := d.Text()
	if d.err != nil {
		return -1
	}
	at, ok := s.byName[string(name)]
	if !ok {
		d.failf("there is no field %q in %s", name, s.plan.Text)
	}
	return at
}

// showsFields says whether a type has exported fields, which a struct that embeds it
// has as well.
func showsFields(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.IsExported() })
}

func hasPrefix(b, prefix []byte) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == string(prefix)
}

// Hidden returns a field that values of a type have and that does not travel because
// it is not exported, as "Config.mu"; "" if there is none. Fields tagged "-" are left
// out on purpose and do not count.
func (c *Codec) Hidden(t reflect.Type) string {
	return c.hidden(t, map[reflect.Type]bool{})
}

func (c *Codec) hidden(t reflect.Type, seen map[reflect.Type]bool) string {
	if seen[t] || t == timeType || t == anyType {
		return ""
	}
	seen[t] = true
	if c.special != nil {
		if s, err := c.special(t); err == nil && s.Text != "" {
			return ""
		}
	}
	switch t.Kind() {
	case reflect.Map:
		if f := c.hidden(t.Key(), seen); f != "" {
			return f
		}
		return c.hidden(t.Elem(), seen)
	case reflect.Slice, reflect.Array, reflect.Pointer:
		return c.hidden(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get(tagKey), ",")
			switch {
			case name == "-" || f.Name == "_":
			case !f.IsExported():
				return t.Name() + "." + f.Name
			default:
				if inner := c.hidden(f.Type, seen); inner != "" {
					return inner
				}
			}
		}
	}
	return ""
}
