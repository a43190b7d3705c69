// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

func (b *builder) pointer(p *Plan, t reflect.Type) error {
	elem, err := b.plan(t.Elem())
	if err != nil {
		return err
	}
	if elem.pointer {
		return fmt.Errorf("type %v: a pointer to a pointer cannot travel: nil and a pointer to nil look alike", t)
	}
	p.pointer = true
	p.text = func(w *writer) string { return "?" + w.of(elem) }
	to := t.Elem()
	p.enc = func(e *Encoder, p unsafe.Pointer) {
		v := *(*unsafe.Pointer)(p)
		if v == nil {
			e.Null()
			return
		}
		if e.enter() {
			elem.enc(e, v)
		}
		e.depth--
	}
	p.dec = func(d *Decoder, p unsafe.Pointer) {
		if d.Null() || !d.Spend(1, int(to.Size())) {
			return
		}
		if d.enter() {
			v := reflect.New(to).UnsafePointer()
			elem.dec(d, v)
			*(*unsafe.Pointer)(p) = v
		}
		d.depth--
	}
	return nil
}

// sliceHeader is a slice in memory.
type sliceHeader struct {
	ptr      unsafe.Pointer
	len, cap int
}

func (b *builder) slice(p *Plan, t reflect.Type) error {
	if t.Elem().Kind() == reflect.Uint8 {
		p.Text, p.enc, p.dec = "bytes", encodeBytes, decodeBytes
		return nil
	}
	elem, err := b.plan(t.Elem())
	if err != nil {
		return err
	}
	p.text = func(w *writer) string { return "[" + w.of(elem) + "]" }
	size := int(t.Elem().Size())
	n, typed := numbers[t.Elem().Kind()]
	p.enc = func(e *Encoder, p unsafe.Pointer) {
		s := (*sliceHeader)(p)
		if s.ptr == nil {
			e.Null()
			return
		}
		if typed {
			e.Tag(n.tag)
			e.Bytes(unsafe.Slice((*byte)(s.ptr), s.len*size))
			return
		}
		e.Array(s.len)
		if e.enter() {
			for i := 0; i < s.len && e.Err == nil; i++ {
				elem.enc(e, unsafe.Add(s.ptr, i*size))
			}
		}
		e.depth--
	}
	p.dec = func(d *Decoder, p unsafe.Pointer) {
		if d.Null() {
			return
		}
		s := (*sliceHeader)(p)
		if typed && d.peek()&0xe0 == majorTag {
			raw := d.typedArray(n)
			if d.err != nil || !d.Spend(len(raw), 1) {
				return
			}
			v := reflect.MakeSlice(t, len(raw)/size, len(raw)/size)
			*s = sliceHeader{v.UnsafePointer(), v.Len(), v.Len()}
			copy(unsafe.Slice((*byte)(s.ptr), len(raw)), raw)
			return
		}
		count := d.Array()
		if d.err != nil || !d.Spend(count, size) {
			return
		}
		v := reflect.MakeSlice(t, count, count)
		*s = sliceHeader{v.UnsafePointer(), count, count}
		d.elements(elem, s.ptr, count, size)
	}
	return nil
}

// elements reads those of an array.
func (d *Decoder) elements(elem *Plan, p unsafe.Pointer, count, size int) {
	if d.enter() {
		for i := range count {
			if elem.dec(d, unsafe.Add(p, i*size)); d.err != nil {
				d.at(index(i))
				break
			}
		}
	}
	d.depth--
}

// typedArray reads a typed array of one kind of numbers, which is part of the input.
func (d *Decoder) typedArray(n number) []byte {
	from := d.pos
	if tag, _ := d.Tag(); tag != n.tag {
		d.pos = from
		d.Mismatch(fmt.Sprintf("numbers of type %s (tag %d)", n.text, n.tag))
		return nil
	}
	raw := d.Bytes()
	if len(raw)%n.size != 0 {
		d.failf("%d bytes are no whole number of elements of type %s", len(raw), n.text)
		return nil
	}
	return raw
}

func encodeBytes(e *Encoder, p unsafe.Pointer) {
	b := *(*[]byte)(p)
	if b == nil {
		e.Null()
		return
	}
	e.Bytes(b)
}

func decodeBytes(d *Decoder, p unsafe.Pointer) {
	if d.Null() {
		return
	}
	if b := d.Bytes(); d.err == nil {
		*(*[]byte)(p) = append(make([]byte, 0, len(b)), b...)
	}
}

func (b *builder) array(p *Plan, t reflect.Type) error {
	elem, err := b.plan(t.Elem())
	if err != nil {
		return err
	}
	p.text = func(w *writer) string { return fmt.Sprintf("[%s;%d]", w.of(elem), t.Len()) }
	count, size := t.Len(), int(t.Elem().Size())
	p.enc = func(e *Encoder, p unsafe.Pointer) {
		e.Array(count)
		if e.enter() {
			for i := 0; i < count && e.Err == nil; i++ {
				elem.enc(e, unsafe.Add(p, i*size))
			}
		}
		e.depth--
	}
	p.dec = func(d *Decoder, p unsafe.Pointer) {
		if n := d.Array(); d.err == nil && n != count {
			d.failf("want an array of %d, got one of %d", count, n)
		}
		if d.err == nil {
			d.elements(elem, p, count, size)
		}
	}
	return nil
}

func (b *builder) mapping(p *Plan, t reflect.Type) error {
	switch t.Key().Kind() {
	case reflect.String, reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
	default:
		return fmt.Errorf("type %v: a map's keys are strings, integers or bools", t)
	}
	key, err := b.plan(t.Key())
	if err != nil {
		return err
	}
	elem, err := b.plan(t.Elem())
	if err != nil {
		return err
	}
	p.text = func(w *writer) string { return "map[" + w.of(key) + "]" + w.of(elem) }
	cost := int(t.Key().Size() + t.Elem().Size())
	p.enc = func(e *Encoder, p unsafe.Pointer) {
		m := reflect.NewAt(t, p).Elem()
		if m.IsNil() {
			e.Null()
			return
		}
		e.Map(m.Len())
		if e.enter() && m.Len() > 0 {
			k, v := reflect.New(t.Key()), reflect.New(t.Elem())
			for it := m.MapRange(); it.Next() && e.Err == nil; {
				k.Elem().SetIterKey(it)
				v.Elem().SetIterValue(it)
				key.enc(e, k.UnsafePointer())
				elem.enc(e, v.UnsafePointer())
			}
		}
		e.depth--
	}
	p.dec = func(d *Decoder, p unsafe.Pointer) {
		if d.Null() {
			return
		}
		n := d.Map()
		if d.err != nil || !d.Spend(n, cost) {
			return
		}
		m := reflect.MakeMapWithSize(t, n)
		if d.enter() {
			k, v := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
			for range n {
				k.SetZero()
				v.SetZero()
				key.dec(d, k.Addr().UnsafePointer())
				if d.err == nil && m.MapIndex(k).IsValid() {
					d.failf("the key %v is there twice", k)
				}
				if d.err == nil {
					elem.dec(d, v.Addr().UnsafePointer())
				}
				if d.err != nil {
					d.at(fmt.Sprintf("[%.40v]", k))
					break
				}
				m.SetMapIndex(k, v)
			}
		}
		d.depth--
		reflect.NewAt(t, p).Elem().Set(m)
	}
	return nil
}

// field is one of a struct.
type field struct {
	name     string
	head     []byte // its encoded name
	offset   uintptr
	optional bool
	plan     *Plan
}

// tagKey is the key of struct tags: `rpc:"name"`, `rpc:"name,optional"`, `rpc:"-"`.
const tagKey = "rpc"

func (b *builder) structure(p *Plan, t reflect.Type) error {
	var fields []field
	byName := map[string]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get(tagKey), ",")
		if name == "-" {
			continue
		}
		if !f.IsExported() {
			if f.Anonymous && showsFields(f.Type) {
				return fmt.Errorf("type %v embeds %v, whose fields would not travel, for its name is not exported: export it, or say `rpc:\"-\"` at it", t, f.Type)
			}
			continue
		}
		if name == "" {
			name = f.Name
		}
		if rest != "" && rest != "optional" {
			return fmt.Errorf("type %v, field %s: the tag's %q: there is \"optional\"", t, f.Name, rest)
		}
		if _, twice := byName[name]; twice {
			return fmt.Errorf("type %v: two fields are called %q", t, name)
		}
		plan, err := b.plan(f.Type)
		if err != nil {
			return fmt.Errorf("type %v, field %s: %w", t, f.Name, err)
		}
		var e Encoder
		e.Text(name)
		byName[name] = len(fields)
		fields = append(fields, field{name, e.Buf, f.Offset, rest != "", plan})
	}
	if len(fields) == 0 && t.NumField() > 0 {
		return fmt.Errorf("type %v has no exported field: nothing of it would travel", t)
	}
	if len(fields) > 64 {
		return fmt.Errorf("type %v has %d fields, more than 64", t, len(fields))
	}
	p.Empty = len(fields) == 0
	p.text = func(w *writer) string {
		text := make([]string, len(fields))
		for i, f := range fields {
			text[i] = f.name + " " + w.of(f.plan)
			if f.optional {
				text[i] = f.name + "? " + w.of(f.plan)
			}
		}
		return "{" + strings.Join(text, ", ") + "}"
	}
	self := p
	p.enc = func(e *Encoder, p unsafe.Pointer) {
		e.Map(len(fields))
		if e.enter() {
			for i := range fields {
				f := &fields[i]
				e.Buf = append(e.Buf, f.head...)
				f.plan.enc(e, unsafe.Add(p, f.offset))
			}
		}
		e.depth--
	}
	required := uint64(0)
	for i, f := range fields {
		if !f.optional {
			required |= 1 << i
		}
	}
	p.dec = func(d *Decoder, p unsafe.Pointer) {
		n := d.Map()
		if d.err != nil {
			return
		}
		seen := uint64(0)
		if d.enter() {
			for i := range n {
				// They come in the order in which Go wrote them, or in any other.
				at := -1
				if i < len(fields) && hasPrefix(d.buf[d.pos:], fields[i].head) {
					at = i
					d.pos += len(fields[i].head)
				} else if name := d.Text(); d.err == nil {
					var ok bool
					if at, ok = byName[string(name)]; !ok {
						d.failf("there is no field %q in %s", name, self.Text)
					}
				}
				if d.err == nil && seen&(1<<at) != 0 {
					d.failf("the field %q is there twice", fields[at].name)
				}
				if d.err != nil {
					break
				}
				seen |= 1 << at
				if fields[at].plan.dec(d, unsafe.Add(p, fields[at].offset)); d.err != nil {
					d.at(fields[at].name)
					break
				}
			}
			if missing := required &^ seen; missing != 0 && d.err == nil {
				for i, f := range fields {
					if missing&(1<<i) != 0 {
						d.failf("the field %q is missing of %s", f.name, self.Text)
						break
					}
				}
			}
		}
		d.depth--
	}
	return nil
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
