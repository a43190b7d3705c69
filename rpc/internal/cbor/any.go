// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// encodeAny encodes what an interface holds by the plan of its own type.
func (c *Codec) encodeAny(e *Encoder, p unsafe.Pointer) {
	v := *(*any)(p)
	if v == nil {
		e.Null()
		return
	}
	plan, err := c.Plan(reflect.TypeOf(v))
	if err != nil {
		e.Fail(err)
		return
	}
	if e.enter() {
		box := reflect.New(reflect.TypeOf(v))
		box.Elem().Set(reflect.ValueOf(v))
		plan.enc(e, box.UnsafePointer())
	}
	e.depth--
}

// decodeAny makes of an item what its encoding says: nil, bool, int64 (uint64 where
// that does not do), float64, string, []byte, []any, map[string]any, or a slice
// of numbers of a typed array. Specials cannot be told and are an error.
func decodeAny(d *Decoder, p unsafe.Pointer) {
	v := d.any()
	if d.err == nil {
		*(*any)(p) = v
	}
}

func (d *Decoder) any() any {
	if !d.enter() {
		return nil
	}
	defer func() { d.depth-- }()
	switch b := d.peek(); b & 0xe0 {
	case majorUint:
		if _, n := d.head(); n > math.MaxInt64 {
			return n
		} else {
			return int64(n)
		}
	case majorInt:
		return d.Int()
	case majorBytes:
		return append([]byte{}, d.Bytes()...)
	case majorText:
		return string(d.Text())
	case majorArray:
		n := d.Array()
		if !d.Spend(n, int(unsafe.Sizeof(any(nil)))) {
			return nil
		}
		list := make([]any, n)
		for i := range list {
			if list[i] = d.any(); d.err != nil {
				d.at(index(i))
				return nil
			}
		}
		return list
	case majorMap:
		n := d.Map()
		if !d.Spend(n, int(unsafe.Sizeof("")+unsafe.Sizeof(any(nil)))) {
			return nil
		}
		m := make(map[string]any, n)
		for range n {
			key := string(d.Text())
			if _, twice := m[key]; twice {
				d.failf("the key %q is there twice", key)
			}
			v := d.any()
			if d.err != nil {
				d.at(fmt.Sprintf("[%.40q]", key))
				return nil
			}
			m[key] = v
		}
		return m
	case majorTag:
		return d.anyTagged()
	}
	switch d.peek() {
	case valueNull:
		d.pos++
		return nil
	case valueTrue, valueFalse:
		return d.Bool()
	case valueFloat16, valueFloat32, valueFloat64:
		return d.Float()
	}
	d.Mismatch("a value")
	return nil
}

// anySlices are the types that typed arrays become.
var anySlices = []reflect.Kind{reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
	reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64}

var kindTypes = map[reflect.Kind]reflect.Type{
	reflect.Int8: reflect.TypeFor[int8](), reflect.Int16: reflect.TypeFor[int16](), reflect.Int32: reflect.TypeFor[int32](), reflect.Int64: reflect.TypeFor[int64](),
	reflect.Uint16: reflect.TypeFor[uint16](), reflect.Uint32: reflect.TypeFor[uint32](), reflect.Uint64: reflect.TypeFor[uint64](),
	reflect.Float32: reflect.TypeFor[float32](), reflect.Float64: reflect.TypeFor[float64](),
}

func (d *Decoder) anyTagged() any {
	from := d.pos
	tag, _ := d.Tag()
	d.pos = from
	if tag == 0 {
		var t = reflect.New(timeType)
		decodeTime(d, t.UnsafePointer())
		return t.Elem().Interface()
	}
	for _, k := range anySlices {
		if n := numbers[k]; n.tag == tag {
			raw := d.typedArray(n)
			if d.err != nil {
				return nil
			}
			s := reflect.MakeSlice(reflect.SliceOf(kindTypes[k]), len(raw)/n.size, len(raw)/n.size)
			copy(unsafe.Slice((*byte)(s.UnsafePointer()), len(raw)), raw)
			return s.Interface()
		}
	}
	d.Mismatch("a value that says its own type")
	return nil
}
