// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"fmt"
	"reflect"
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
