// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func encode[T any](t testing.TB, c *Codec, v T) []byte {
	t.Helper()
	p, err := c.Plan(reflect.TypeFor[T]())
	if err != nil {
		t.Fatal(err)
	}
	var e Encoder
	p.Encode(&e, unsafe.Pointer(&v))
	if e.Err != nil {
		t.Fatal(e.Err)
	}
	return e.Buf
}

func decode[T any](t testing.TB, c *Codec, b []byte) (v T, err error) {
	t.Helper()
	p, err := c.Plan(reflect.TypeFor[T]())
	if err != nil {
		t.Fatal(err)
	}
	var d Decoder
	d.Reset(b)
	p.Decode(&d, unsafe.Pointer(&v))
	d.End()
	return v, d.Err()
}

type inner struct {
	A int8
	B string
}

type everything struct {
	Bool     bool
	I        int
	I8       int8
	I16      int16
	I32      int32
	I64      int64
	U        uint
	U8       uint8
	U16      uint16
	U32      uint32
	U64      uint64
	F32      float32
	F64      float64
	S        string
	Bytes    []byte
	Ints     []int
	Floats   []float32
	Bools    []bool
	Strings  []string
	Array    [3]int16
	Struct   inner
	Structs  []inner
	Pointer  *inner
	Nil      *inner
	Map      map[string]int
	Keys     map[int][]float64
	At       time.Time
	For      time.Duration
	Any      any
	Anything []any
	Renamed  int `rpc:"other"`
	Optional int `rpc:"Optional,optional"`
	Left     int `rpc:"-"`
}

func full() everything {
	return everything{
		Bool: true, I: -1 << 62, I8: -128, I16: 300, I32: -70000, I64: math.MinInt64, U: math.MaxUint, U8: 255, U16: 65535, U32: 1 << 31, U64: 1 << 63,
		F32: 1.5, F64: math.Pi, S: "grün", Bytes: []byte{0, 1}, Ints: []int{1, -2, 3}, Floats: []float32{1, 2}, Bools: []bool{true, false},
		Strings: []string{"", "a"}, Array: [3]int16{1, 2, 3}, Struct: inner{1, "x"}, Structs: []inner{{2, "y"}, {3, "z"}}, Pointer: &inner{4, "p"},
		Map: map[string]int{"a": 1, "b": -2}, Keys: map[int][]float64{7: {1, 2}, -8: nil}, At: time.Date(2024, 2, 29, 1, 2, 3, 456789, time.FixedZone("", 3600)),
		For: time.Second, Any: "text", Anything: []any{nil, true, int64(-5), 2.5, "s", []byte{1}, []any{int64(1)}, map[string]any{"k": int64(2)}, []float32{1}, []int64{2}},
		Renamed: 5, Optional: 6,
	}
}

func TestRoundTrip(t *testing.T) {
	c := New(nil)
	want := full()
	got, err := decode[everything](t, c, encode(t, c, want))
	if err != nil {
		t.Fatal(err)
	}
	want.At, got.At = want.At.UTC(), got.At.UTC()
	if !reflect.DeepEqual(want, got) {
		t.Errorf("got\n%s, want\n%s", show(got), show(want))
	}
	if empty, err := decode[everything](t, c, encode(t, c, everything{})); err != nil || !reflect.DeepEqual(empty, everything{}) {
		t.Errorf("the zero value: %+v, %v", empty, err)
	}
}

// TestEncoding holds encodings to RFC 8949, appendix A.
func TestEncoding(t *testing.T) {
	c := New(nil)
	for _, tc := range []struct {
		got  []byte
		want string
	}{
		{encode(t, c, uint64(math.MaxUint64)), "1bffffffffffffffff"},
		{encode(t, c, 23), "17"},
		{encode(t, c, 24), "1818"},
		{encode(t, c, 1000), "1903e8"},
		{encode(t, c, 1000000), "1a000f4240"},
		{encode(t, c, -1), "20"},
		{encode(t, c, -1000), "3903e7"},
		{encode(t, c, float32(100000)), "fa47c35000"},
		{encode(t, c, 1.1), "fb3ff199999999999a"},
		{encode(t, c, true), "f5"},
		{encode(t, c, "IETF"), "6449455446"},
		{encode(t, c, []byte{1, 2, 3, 4}), "4401020304"},
		{encode(t, c, [3]int{1, 2, 3}), "83010203"},
		{encode(t, c, []string{"a"}), "816161"},
		{encode(t, c, []int32{1, -1}), "d84e4801000000ffffffff"},
		{encode(t, c, inner{1, "x"}), "a261410161426178"},
		{encode(t, c, map[string]int(nil)), "f6"},
		{encode(t, c, struct{}{}), "a0"},
		{encode(t, c, time.Date(2013, 3, 21, 20, 4, 0, 0, time.UTC)), "c074323031332d30332d32315432303a30343a30305a"},
	} {
		if got := hex.EncodeToString(tc.got); got != tc.want {
			t.Errorf("encoded %s, want %s", got, tc.want)
		}
	}
}

// TestLenient: what others than Go write is taken too.
func TestLenient(t *testing.T) {
	c := New(nil)
	take := func(h string) []byte { b, _ := hex.DecodeString(h); return b }
	if v, err := decode[float64](t, c, take("f93e00")); v != 1.5 || err != nil {
		t.Errorf("half: %v, %v", v, err)
	}
	if v, err := decode[float32](t, c, take("fb3ff8000000000000")); v != 1.5 || err != nil {
		t.Errorf("double into float32: %v, %v", v, err)
	}
	if v, err := decode[float64](t, c, take("2c")); v != -13 || err != nil {
		t.Errorf("integer into float64: %v, %v", v, err)
	}
	if v, err := decode[[]int32](t, c, take("820120")); !reflect.DeepEqual(v, []int32{1, -1}) || err != nil {
		t.Errorf("an array of numbers: %v, %v", v, err)
	}
	if v, err := decode[int](t, c, take("1b0000000000000005")); v != 5 || err != nil {
		t.Errorf("a long form: %v, %v", v, err)
	}
	if v, err := decode[inner](t, c, take("a261426178614101")); v != (inner{1, "x"}) || err != nil {
		t.Errorf("fields in another order: %v, %v", v, err)
	}
	for h, want := range map[string]float64{"f90001": math.Ldexp(1, -24), "f97bff": 65504, "f9fc00": math.Inf(-1), "f90000": 0} {
		if v, err := decode[float64](t, c, take(h)); v != want || err != nil {
			t.Errorf("half %s: %v, %v, want %v", h, v, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	c := New(nil)
	type recursive struct{ Next *recursive }
	type pair struct{ X, Y []inner }
	deep := strings.Repeat("a1644e657874", 70) + "f6"
	for _, tc := range []struct {
		name, hex string
		decode    func(b []byte) error
		want      string
	}{
		{"out of range", "190100", into[int8](t, c), "256 does not fit into int8"},
		{"negative", "20", into[uint](t, c), "want a number that is not negative, got a negative integer"},
		{"kind", "6161", into[int](t, c), "want an integer, got text"},
		{"unknown field", "a1614301", into[inner](t, c), `there is no field "C" in {A int8, B text}`},
		{"missing field", "a1614101", into[inner](t, c), `the field "B" is missing`},
		{"twice", "a2614101614101", into[inner](t, c), `the field "A" is there twice`},
		{"path", "a2615880615981a261410161420a", into[pair](t, c), "at Y[0].B: want text, got an integer"},
		{"cut", "a26141", into[inner](t, c), "end within"},
		{"after", "0101", into[int](t, c), "1 bytes follow"},
		{"huge", "9b00000000ffffffff", into[[]string](t, c), "end within"},
		{"huge bytes", "5b7fffffffffffffff", into[[]byte](t, c), "end within"},
		{"indefinite", "9fff", into[[]string](t, c), "indefinite"},
		{"reserved", "1c", into[int](t, c), "begins no value"},
		{"deep", deep, into[recursive](t, c), "nests deeper"},
		{"deep any", strings.Repeat("81", 100) + "00", into[any](t, c), "nests deeper"},
		{"utf8", "62ff41", into[string](t, c), "UTF-8"},
		{"typed length", "d84e43010203", into[[]int32](t, c), "no whole number"},
		{"typed kind", "d85544000000", into[[]int32](t, c), "want numbers of type int32 (tag 78), got tag 85"},
		{"array length", "820102", into[[3]int](t, c), "want an array of 3"},
		{"key twice", "a2616101616102", into[map[string]int](t, c), "twice"},
		{"time", "c06161", into[time.Time](t, c), "RFC 3339"},
		{"no time", "6161", into[time.Time](t, c), "want a time"},
		{"float range", "fb7fe0000000000000", into[float32](t, c), "does not fit"},
		{"inexact", "1b0020000000000001", into[float64](t, c), "exactly"},
		{"memory", "9a00010000" + strings.Repeat("a0", 1<<16), into[[][1 << 10]everything](t, c), "more than so short"},
	} {
		b, err := hex.DecodeString(tc.hex)
		if err != nil {
			t.Fatal(tc.name, err)
		}
		err = tc.decode(b)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func into[T any](t testing.TB, c *Codec) func([]byte) error {
	return func(b []byte) error { _, err := decode[T](t, c, b); return err }
}

// left and right refer to each other.
type (
	left   struct{ R *right }
	right  struct{ L []left }
	inside struct{ A int }
)

func TestTypes(t *testing.T) {
	c := New(nil)
	type list struct {
		Head int
		Tail *list
	}
	for _, tc := range []struct {
		t    reflect.Type
		want string
	}{
		{reflect.TypeFor[inner](), "{A int8, B text}"},
		{reflect.TypeFor[map[string][]*inner](), "map[text][?{A int8, B text}]"},
		{reflect.TypeFor[[2][]int](), "[[int64];2]"},
		{reflect.TypeFor[struct {
			At time.Time
			X  any `rpc:"x,optional"`
		}](), "{At time, x? any}"},
		{reflect.TypeFor[list](), "{Head int64, Tail ?@cbor.list}"},
		{reflect.TypeFor[*list](), "?{Head int64, Tail ?@cbor.list}"},
		{reflect.TypeFor[[2]list](), "[{Head int64, Tail ?@cbor.list};2]"},
		{reflect.TypeFor[map[bool]struct{ A, B list }](), "map[bool]{A {Head int64, Tail ?@cbor.list}, B @cbor.list}"},
		{reflect.TypeFor[left](), "{R ?{L [@cbor.left]}}"},
		{reflect.TypeFor[right](), "{L [{R ?@cbor.right}]}"},
	} {
		p, err := c.Plan(tc.t)
		if err != nil || p.Text != tc.want {
			t.Errorf("%v: %v, %v, want %q", tc.t, p, err, tc.want)
		}
	}
	for _, bad := range []reflect.Type{
		reflect.TypeFor[chan int](), reflect.TypeFor[func()](), reflect.TypeFor[complex64](), reflect.TypeFor[struct{ x int }](),
		reflect.TypeFor[map[float64]int](), reflect.TypeFor[**int](), reflect.TypeFor[error](), reflect.TypeFor[struct {
			A int `rpc:"x"`
			B int `rpc:"x"`
		}](), reflect.TypeFor[struct {
			A int `rpc:"x,often"`
		}](), reflect.TypeFor[struct {
			inside
			B int
		}](), reflect.TypeFor[struct {
			*inside
			B int
		}](),
	} {
		if p, err := c.Plan(bad); err == nil {
			t.Errorf("%v has the plan %q", bad, p.Text)
		}
	}
	// What was planned before makes no difference: two processes declare their methods
	// in different orders.
	kinds := []reflect.Type{reflect.TypeFor[list](), reflect.TypeFor[*list](), reflect.TypeFor[left](), reflect.TypeFor[right](), reflect.TypeFor[*right](), reflect.TypeFor[[]left]()}
	for first := range kinds {
		c := New(nil)
		for i := range kinds {
			kind := kinds[(first+i)%len(kinds)]
			got, err := c.Plan(kind)
			alone, err2 := New(nil).Plan(kind)
			if err != nil || err2 != nil || got.Text != alone.Text {
				t.Errorf("%v after others: %q, %v; alone %q, %v", kind, got.Text, err, alone.Text, err2)
			}
		}
	}
	if _, err := c.Plan(reflect.TypeFor[struct {
		inside `rpc:"-"`
		B      int
	}]()); err != nil {
		t.Error(err)
	}
	loop := &list{}
	loop.Tail = loop
	p, _ := c.Plan(reflect.TypeFor[*list]())
	var e Encoder
	p.Encode(&e, unsafe.Pointer(&loop))
	if e.Err == nil {
		t.Error("a list that refers to itself has an encoding")
	}
}

// FuzzDecode gives arbitrary bytes to plans. What is taken encodes to something
// that is taken too, and is the same value.
func FuzzDecode(f *testing.F) {
	c := New(nil)
	f.Add(encode(f, c, full()))
	f.Add(encode(f, c, everything{}))
	f.Add([]byte{0x9b, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0xd8, 0x4e, 0x43, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		d.Reset(b)
		d.Skip()
		if v, err := decode[any](t, c, b); err == nil {
			if again, err := decode[any](t, c, encode(t, c, v)); err != nil || fmt.Sprint(v) != fmt.Sprint(again) {
				t.Errorf("%#v is %#v after another round, %v", v, again, err)
			}
		}
		if v, err := decode[everything](t, c, b); err == nil {
			if again, err := decode[everything](t, c, encode(t, c, v)); err != nil || show(v) != show(again) {
				t.Errorf("%+v is %+v after another round, %v", v, again, err)
			}
		}
	})
}

// show prints a value so that equal ones, and numbers that are none, look equal.
func show(v everything) string {
	var pointed []inner
	for _, p := range []*inner{v.Pointer, v.Nil} {
		if p != nil {
			pointed = append(pointed, *p)
		}
	}
	v.Pointer, v.Nil = nil, nil
	return fmt.Sprintf("%+v %+v", v, pointed)
}

func BenchmarkStruct(b *testing.B) {
	c := New(nil)
	type args struct {
		Name string
		Step int
		Rate float64
	}
	p, _ := c.Plan(reflect.TypeFor[args]())
	in, out := args{"worker", 1000, 0.1}, args{}
	var e Encoder
	var d Decoder
	b.ReportAllocs()
	for b.Loop() {
		e.Buf = e.Buf[:0]
		p.Encode(&e, unsafe.Pointer(&in))
		d.Reset(e.Buf)
		p.Decode(&d, unsafe.Pointer(&out))
	}
}
