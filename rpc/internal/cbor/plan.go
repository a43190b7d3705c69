// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"sync"
	"time"
	"unsafe"
)

// Plan is how values of one type are encoded and decoded.
type Plan struct {
	// Text describes the type to others than Go: equal texts mean types of the
	// same encoding.
	Text string
	// Empty says that there is but one value: a struct without fields.
	Empty bool

	name    string                 // of the type, empty if it has none
	pointer bool                   // whether it is one
	text    func(w *writer) string // makes Text of what the type is made of; nil: Text is there
	enc     func(e *Encoder, p unsafe.Pointer)
	dec     func(d *Decoder, p unsafe.Pointer)
}

// Encode appends the value that p points to.
func (pl *Plan) Encode(e *Encoder, p unsafe.Pointer) { pl.enc(e, p) }

// Decode reads a value into what p points to, which has been cleared.
func (pl *Plan) Decode(d *Decoder, p unsafe.Pointer) { pl.dec(d, p) }

// Special is a type that a codec's owner encodes. Both functions get a pointer to
// a value of the type. Failures go to the encoder or decoder.
type Special struct {
	Text   string
	Encode func(e *Encoder, p unsafe.Pointer)
	Decode func(d *Decoder, p unsafe.Pointer)
}

// Codec compiles plans. Those that it has made it gives again.
type Codec struct {
	special func(t reflect.Type) (Special, error)

	mu    sync.Mutex
	plans map[reflect.Type]*Plan
}

// New returns a codec. For every type special says whether the caller knows it
// better: then the Special's Text is not empty. An error is a type that must not be used.
func New(special func(t reflect.Type) (Special, error)) *Codec {
	return &Codec{special: special, plans: map[reflect.Type]*Plan{}}
}

// Plan returns the plan of a type, or why its values cannot be encoded.
func (c *Codec) Plan(t reflect.Type) (*Plan, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.plans[t]; p != nil {
		return p, nil
	}
	b := &builder{codec: c, made: map[reflect.Type]*Plan{}}
	p, err := b.plan(t)
	if err != nil {
		return nil, err
	}
	for t, p := range b.made {
		p.Text = new(writer).of(p)
		c.plans[t] = p
	}
	return p, nil
}

// writer writes what a type is made of. The text of a type that refers to itself
// depends on it alone, not on the types that were planned before: it is written out
// where it comes first, and is "@" and its name thereafter.
type writer struct {
	open, cyclic map[*Plan]bool // being written; referred to by what it is made of
}

func (w *writer) of(p *Plan) string {
	switch {
	case p.text == nil:
		return p.Text
	case p.name == "":
		return p.text(w)
	case w.open[p]:
		w.cyclic[p] = true
		return "@" + p.name
	case w.cyclic[p]:
		return "@" + p.name
	case w.open == nil:
		w.open, w.cyclic = map[*Plan]bool{}, map[*Plan]bool{}
	}
	w.open[p] = true
	defer delete(w.open, p)
	return p.text(w)
}

// builder makes plans, those of types that refer to themselves too.
type builder struct {
	codec *Codec
	made  map[reflect.Type]*Plan // finished or not
}

var (
	timeType = reflect.TypeFor[time.Time]()
	anyType  = reflect.TypeFor[any]()
)

func (b *builder) plan(t reflect.Type) (*Plan, error) {
	if p := b.codec.plans[t]; p != nil {
		return p, nil
	}
	if p := b.made[t]; p != nil {
		return p, nil
	}
	// Until it is finished, it is what a type that refers to itself refers to.
	p := &Plan{}
	if t.Name() != "" {
		p.name = t.String()
	}
	b.made[t] = p
	if b.codec.special != nil {
		s, err := b.codec.special(t)
		if err != nil {
			return nil, err
		}
		if s.Text != "" {
			p.Text, p.enc, p.dec = s.Text, s.Encode, s.Decode
			return p, nil
		}
	}
	if err := b.fill(p, t); err != nil {
		return nil, err
	}
	return p, nil
}

func (b *builder) fill(p *Plan, t reflect.Type) error {
	switch {
	case t == timeType:
		p.Text, p.enc, p.dec = "time", encodeTime, decodeTime
		return nil
	case t == anyType:
		p.Text, p.enc, p.dec = "any", b.codec.encodeAny, decodeAny
		return nil
	}
	switch k := t.Kind(); k {
	case reflect.Bool:
		p.Text, p.enc, p.dec = "bool", encodeBool, decodeBool
	case reflect.String:
		p.Text, p.enc, p.dec = "text", encodeString, decodeString
	case reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n := numbers[k]
		p.Text, p.enc, p.dec = n.text, n.enc, n.dec
	case reflect.Slice:
		return b.slice(p, t)
	case reflect.Array:
		return b.array(p, t)
	case reflect.Map:
		return b.mapping(p, t)
	case reflect.Struct:
		return b.structure(p, t)
	case reflect.Pointer:
		return b.pointer(p, t)
	default:
		return fmt.Errorf("type %v: a %v cannot travel: want bools, numbers, strings, times, any, and slices, arrays, maps, pointers and structs of such", t, k)
	}
	return nil
}

func encodeBool(e *Encoder, p unsafe.Pointer) { e.Bool(*(*bool)(p)) }
func decodeBool(d *Decoder, p unsafe.Pointer) { *(*bool)(p) = d.Bool() }

func encodeString(e *Encoder, p unsafe.Pointer) { e.Text(*(*string)(p)) }
func decodeString(d *Decoder, p unsafe.Pointer) { *(*string)(p) = string(d.Text()) }

// Times keep their nanoseconds and their offset from UTC.
func encodeTime(e *Encoder, p unsafe.Pointer) {
	e.Tag(0)
	b, err := (*(*time.Time)(p)).MarshalText()
	if err != nil {
		e.Fail(err)
	}
	e.Text(string(b))
}

func decodeTime(d *Decoder, p unsafe.Pointer) {
	if n, ok := d.Tag(); d.err == nil && (!ok || n != 0) {
		d.Mismatch("a time (tag 0)")
		return
	}
	b := d.Text()
	if d.err != nil {
		return
	}
	v, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil {
		d.failf("a time that is none by RFC 3339")
		return
	}
	*(*time.Time)(p) = v
}

// number is what is known of a kind of numbers. Its tag is that of a typed array
// of them, with the lowest byte first.
type number struct {
	text string
	size int
	tag  uint64
	enc  func(e *Encoder, p unsafe.Pointer)
	dec  func(d *Decoder, p unsafe.Pointer)
}

var numbers = map[reflect.Kind]number{
	reflect.Int8:    signed[int8]("int8", 72),
	reflect.Int16:   signed[int16]("int16", 77),
	reflect.Int32:   signed[int32]("int32", 78),
	reflect.Int64:   signed[int64]("int64", 79),
	reflect.Int:     signed[int]("int64", 79),
	reflect.Uint8:   unsigned[uint8]("uint8", 64),
	reflect.Uint16:  unsigned[uint16]("uint16", 69),
	reflect.Uint32:  unsigned[uint32]("uint32", 70),
	reflect.Uint64:  unsigned[uint64]("uint64", 71),
	reflect.Uint:    unsigned[uint]("uint64", 71),
	reflect.Float32: {"float32", 4, 85, encodeFloat32, decodeFloat32},
	reflect.Float64: {"float64", 8, 86, encodeFloat64, decodeFloat64},
}

func signed[T int | int8 | int16 | int32 | int64](text string, tag uint64) number {
	return number{text, int(unsafe.Sizeof(T(0))), tag,
		func(e *Encoder, p unsafe.Pointer) { e.Int(int64(*(*T)(p))) },
		func(d *Decoder, p unsafe.Pointer) {
			v := d.Int()
			if int64(T(v)) != v {
				d.failf("%d does not fit into %s", v, text)
				return
			}
			*(*T)(p) = T(v)
		}}
}

func unsigned[T uint | uint8 | uint16 | uint32 | uint64](text string, tag uint64) number {
	return number{text, int(unsafe.Sizeof(T(0))), tag,
		func(e *Encoder, p unsafe.Pointer) { e.Uint(uint64(*(*T)(p))) },
		func(d *Decoder, p unsafe.Pointer) {
			v := d.Uint()
			if uint64(T(v)) != v {
				d.failf("%d does not fit into %s", v, text)
				return
			}
			*(*T)(p) = T(v)
		}}
}

func encodeFloat32(e *Encoder, p unsafe.Pointer) { e.Float32(*(*float32)(p)) }
func encodeFloat64(e *Encoder, p unsafe.Pointer) { e.Float64(*(*float64)(p)) }
func decodeFloat64(d *Decoder, p unsafe.Pointer) { *(*float64)(p) = d.Float() }

// decodeFloat32 takes what others than Go have as 64 bits, but no number that is
// out of reach.
func decodeFloat32(d *Decoder, p unsafe.Pointer) {
	v := d.Float()
	if math.Abs(v) > math.MaxFloat32 && !math.IsInf(v, 0) {
		d.failf("%v does not fit into float32", v)
		return
	}
	*(*float32)(p) = float32(v)
}

// index is a step of a path.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }
