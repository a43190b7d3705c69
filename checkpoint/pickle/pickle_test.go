// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func all(Global) bool { return true }

// text returns a pickle of protocol 2 with instructions.
func text(instructions string) []byte { return []byte("\x80\x02" + instructions) }

// The pickles of testdata/pickles.py.
func TestPythonsPickles(t *testing.T) {
	bigInt := func(s string) *big.Int { x, _ := new(big.Int).SetString(s, 10); return x }
	call := func(name string, args ...any) *Object {
		module := "builtins"
		return &Object{Class: Global{module, name}, Args: args}
	}
	pair := Tuple{"a", int64(1)}
	want := map[any]any{
		"none": nil, "bools": Tuple{true, false},
		"ints": &List{[]any{int64(0), int64(255), int64(256), int64(65535), int64(65536), int64(-1), int64(1<<31 - 1), int64(-1 << 31), int64(1 << 31),
			int64(-1 << 63), int64(1<<63 - 1), bigInt("9223372036854775808"), bigInt("-9223372036854775809"), bigInt("1208925819614629174706176")}},
		"floats": Tuple{0.5, -1e300}, "text": "é\n", "long": strings.Repeat("x", 300), "bytes": []byte{0, 255},
		"array": call("bytearray", []byte("ab")), "empty": Tuple{Tuple{}, &List{}, &Dict{}}, "four": Tuple{int64(1), int64(2), int64(3), int64(4)},
		"set": &Set{Items: []any{int64(7)}}, "frozen": &Set{Items: []any{int64(8)}, Frozen: true},
		"ordered": &Object{Class: Global{"collections", "OrderedDict"}, Args: Tuple{}, Entries: []Entry{{"b", int64(1)}, {"a", int64(2)}}},
		"shared":  &List{[]any{pair, pair}}, int64(1): "one",
	}
	for protocol := 2; protocol <= 5; protocol++ {
		b, err := os.ReadFile(fmt.Sprintf("testdata/value-%d.pickle", protocol))
		if err != nil {
			t.Fatal(err)
		}
		v, err := Decode(b, Options{File: "value", Allow: all})
		if err != nil {
			t.Fatalf("protocol %d: %v", protocol, err)
		}
		d := v.(*Dict)
		if len(d.Entries) != len(want)+1 {
			t.Errorf("protocol %d: %d entries, want %d", protocol, len(d.Entries), len(want)+1)
		}
		for _, e := range d.Entries {
			if key, ok := e.Key.(Tuple); ok {
				if !reflect.DeepEqual(key, Tuple{int64(1), int64(2)}) || e.Value != "pair" {
					t.Errorf("protocol %d: %v is %v", protocol, e.Key, e.Value)
				}
				continue
			}
			got, wanted := e.Value, want[e.Key]
			switch {
			case protocol <= 3 && e.Key == "set", protocol <= 3 && e.Key == "frozen", protocol == 2 && e.Key == "bytes", protocol == 2 && e.Key == "array":
				if o, ok := got.(*Object); !ok || len(o.Args) == 0 {
					t.Errorf("protocol %d: %v is %v, want a call", protocol, e.Key, got)
				}
				continue
			case protocol == 5 && e.Key == "array":
				wanted = []byte("ab")
			}
			if !reflect.DeepEqual(got, wanted) {
				t.Errorf("protocol %d: %v is %#v, want %#v", protocol, e.Key, got, wanted)
			}
		}
	}
}

func TestEncodeDecode(t *testing.T) {
	shared := &List{Items: []any{"w", "w"}}
	long := &List{}
	for i := range 2500 {
		long.Items = append(long.Items, int64(i))
	}
	manyNames := &Dict{}
	for i := range 300 {
		manyNames.Entries = append(manyNames.Entries, Entry{fmt.Sprint("name", i), fmt.Sprint("name", i)})
	}
	for _, protocol := range []int{2, 4} {
		v := &Dict{Entries: []Entry{
			{"a", Tuple{int64(1), 2.5, nil, true, "é"}}, {"shared", Tuple{shared, shared}}, {int64(-7), Tuple{}}, {"long", long}, {"names", manyNames},
			{"big", Tuple{int64(1 << 40), new(big.Int).Lsh(big.NewInt(-3), 70), new(big.Int).Lsh(big.NewInt(1), 63)}},
			{"object", &Object{Class: Global{"m", "C"}, Args: Tuple{int64(1)}, New: true, State: &Dict{Entries: []Entry{{"x", "y"}}}}},
			{"call", &Object{Class: Global{"collections", "OrderedDict"}, Args: Tuple{}, Entries: []Entry{{"k", int64(3)}}}},
			{"id", &Persistent{Tuple{"storage", Global{"torch", "FloatStorage"}, "0", "cpu", int64(8)}}},
		}}
		if protocol == 4 {
			v.Entries = append(v.Entries, Entry{"bytes", []byte{1, 2}}, Entry{"set", &Set{Items: []any{int64(1)}}}, Entry{"frozen", &Set{Items: []any{int64(1)}, Frozen: true}})
		}
		var b bytes.Buffer
		if err := Encode(&b, v, protocol); err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b.Bytes(), Options{Allow: all})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, v) {
			t.Errorf("protocol %d: %#v came back as %#v", protocol, v, got)
		}
	}
	for name, v := range map[string]any{
		"bytes": []byte{1}, "set": &Set{}, "a float32": float32(1), "a channel": make(chan int), "a line in a global": Global{"a\nb", "c"},
	} {
		var e *Error
		if err := Encode(&bytes.Buffer{}, v, 2); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
	loop := &List{}
	loop.Items = []any{loop}
	if err := Encode(&bytes.Buffer{}, loop, 2); err == nil {
		t.Error("a list in itself was encoded")
	}
}

func TestForbiddenGlobals(t *testing.T) {
	allow := func(g Global) bool { return g == Global{"collections", "OrderedDict"} }
	for _, c := range []struct{ pickle, global string }{
		{"cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "os.system"},
		{"c__builtin__\neval\n.", "__builtin__.eval"},
		{"\x8c\x02os\x8c\x06system\x93.", "os.system"},
		{"\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93.", "collections.OrderedDict.__init__"},
		{"ccollections\nOrderedDict\n0cposix\nsystem\n.", "posix.system"},
	} {
		_, err := Decode(text(c.pickle), Options{File: "f", Allow: allow})
		var e *ForbiddenError
		if !errors.As(err, &e) || e.Global.String() != c.global || !strings.Contains(err.Error(), c.global) {
			t.Errorf("%q: %v, want a ForbiddenError of %s", c.pickle, err, c.global)
		}
	}
	if _, err := Decode(text("ccollections\nOrderedDict\n)R."), Options{}); err == nil {
		t.Error("a global was allowed without a list")
	}
}

func TestBadPickles(t *testing.T) {
	// Each pair has the one before it twice: 2⁴⁰ values.
	laughs := "Nq\x00" + strings.Repeat("0h\x00h\x00\x86q\x00", 40) + "."
	for _, c := range []struct{ pickle, says string }{
		{"", "STOP"},
		{"N", "STOP"},
		{".", "empty stack"},
		{"NN.", "leaves values"},
		{"(N.", "empty stack|leaves values|mark"},
		{"N(.", "empty stack"},
		{"X\xff\xff\xff\xffab", "wants 4294967295 more bytes|wants -1 more"},
		{"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "claims"},
		{"\x95\xff\x00\x00\x00\x00\x00\x00\x00N.", "claims|frame"},
		{"\x8a\xffab.", "wants 255 more"},
		{"\x8b\xff\xff\xff\x7f.", "integer of"},
		{"\x8b\xff\xff\xff\xff.", "wants -1 more"},
		{"h\x05.", "never remembered"},
		{"j\xff\xff\xff\xff.", "never remembered"},
		{"]q\x00h\x00a.", "contains itself"},
		{"}q\x00Nh\x00s.", "contains itself"},
		{strings.Repeat("]", 100) + strings.Repeat("a", 99) + ".", "deeper"},
		{strings.Repeat(")\x85", 1) + strings.Repeat("\x85", 100) + ".", "deeper"},
		{strings.Repeat("(", 1000) + ".", "deeper"},
		{laughs, "shared value"},
		{"N" + strings.Repeat("2\x86", 40) + ".", "shared value"},
		{"I1\n.", "INT of protocol 0"},
		{"(i__main__\nX\n.", "INST"},
		{"\x82\x01.", "EXT1"},
		{"\x97.", "NEXT_BUFFER"},
		{"\x80\x06N.", "protocol 6"},
		{"\xfe.", "unknown instruction"},
		{"N)R.", "no global"},
		{"ca\nb\nNR.", "no tuple"},
		{"NNa.", "no list"},
		{"NNNs.", "no dict"},
		{"}(Nu.", "without a value"},
		{"]Nb.", "takes none"},
		{"ca\nb\n)RNbNb.N", "follow the end"},
		{"X\x02\x00\x00\x00\xff\xfe.", "UTF-8"},
		{"N.N", "1 bytes follow"},
		{"(]N\x90.", "no set|empty stack"},
		{"t.", "mark"},
	} {
		_, err := Decode(text(c.pickle), Options{File: "ck/.metadata", Allow: all})
		if err == nil {
			t.Errorf("%q was decoded", c.pickle)
			continue
		}
		if !strings.Contains(err.Error(), "ck/.metadata") || !slices.ContainsFunc(strings.Split(c.says, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }) {
			t.Errorf("%q: %v, want %q", c.pickle, err, c.says)
		}
	}
	for _, c := range []struct {
		limits Limits
		says   string
	}{{Limits{Bytes: 10}, "more than the 10 allowed"}, {Limits{Values: 10}, "10 values"}} {
		_, err := Decode(text(strings.Repeat("N0", 20)+"N."), Options{Allow: all, Limits: c.limits})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.limits, err)
		}
	}
}

func TestLastValueOfAKey(t *testing.T) {
	v, err := Decode(text("}X\x01\x00\x00\x00aK\x01sX\x01\x00\x00\x00bK\x02sX\x01\x00\x00\x00aK\x03s."), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&Dict{[]Entry{{"a", int64(3)}, {"b", int64(2)}}}); !reflect.DeepEqual(v, want) {
		t.Errorf("%v", v)
	}
}

// FuzzDecode: no pickle breaks the decoder, and what it returns is encoded to the same value.
func FuzzDecode(f *testing.F) {
	for protocol := 2; protocol <= 5; protocol++ {
		b, err := os.ReadFile(fmt.Sprintf("testdata/value-%d.pickle", protocol))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(text("cos\nsystem\nX\x02\x00\x00\x00id\x85R."))
	f.Add(text("]q\x00h\x00a."))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := Options{Allow: all, Limits: Limits{Values: 10_000, Depth: 30}}
		v, err := Decode(b, o)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := Encode(&again, v, 4); err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			return
		}
		o.Limits.Values *= 2
		w, err := Decode(again.Bytes(), o)
		if err != nil {
			t.Fatalf("%v came back as an error: %v", v, err)
		}
		var third bytes.Buffer
		if err := Encode(&third, w, 4); err != nil || !bytes.Equal(again.Bytes(), third.Bytes()) {
			t.Errorf("%v came back as %v (%v)", v, w, err)
		}
	})
}
