// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

var out = flag.String("out", "", "write the golden tensors to this file")

// golden is the tensors of testdata/golden.py, which wrote golden.safetensors
// with the reference library.
func golden() []safetensors.Tensor {
	specs := []safetensors.Info{
		{Name: "w", DType: safetensors.F32, Shape: []int{3, 5}},
		{Name: "blocks.0.attn.weight", DType: safetensors.BF16, Shape: []int{4, 2}},
		{Name: "half", DType: safetensors.F16, Shape: []int{6}},
		{Name: "ids", DType: safetensors.I64, Shape: []int{2, 2}},
		{Name: "double", DType: safetensors.F64, Shape: []int{2}},
		{Name: "bytes", DType: safetensors.U8, Shape: []int{7}},
		{Name: "mask", DType: safetensors.Bool, Shape: []int{5}},
		{Name: "scalar", DType: safetensors.F32, Shape: []int{}},
		{Name: "empty", DType: safetensors.F32, Shape: []int{0, 4}},
		{Name: "na\"me\\ \t\x01 é 層 \U0001f600", DType: safetensors.I32, Shape: []int{1}},
	}
	tensors := make([]safetensors.Tensor, len(specs))
	for seed, info := range specs {
		mod := 113
		if info.DType == safetensors.Bool {
			mod = 2
		}
		data := make([]byte, info.NumBytes())
		for i := range data {
			data[i] = byte((i*7 + seed*31 + 3) % mod)
		}
		tensors[seed] = safetensors.Tensor{Info: info, Data: data}
	}
	return tensors
}

var ptMetadata = map[string]string{"format": "pt"}

func encode(t testing.TB, tensors []safetensors.Tensor, metadata map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := safetensors.Write(&b, tensors, metadata); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func open(data []byte) (*safetensors.File, error) {
	return safetensors.NewFile(bytes.NewReader(data), int64(len(data)), "test.safetensors")
}

// TestGoldenWrite: the same tensors give the reference library's file, byte
// for byte. With COHORT_SAFETENSORS_OUT the file is kept for golden.py to check.
func TestGoldenWrite(t *testing.T) {
	got := encode(t, golden(), ptMetadata)
	want, err := os.ReadFile("testdata/golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the file differs from the reference's\n got %q\nwant %q", got, want)
	}
	if *out != "" {
		if err := os.WriteFile(*out, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGoldenRead(t *testing.T) {
	f, err := safetensors.Open("testdata/golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := f.Metadata(); !reflect.DeepEqual(got, ptMetadata) {
		t.Errorf("metadata %v", got)
	}
	want := golden()
	if len(f.Entries()) != len(want) {
		t.Fatalf("%d tensors, want %d", len(f.Entries()), len(want))
	}
	for _, w := range want {
		e, ok := f.Lookup(w.Name)
		if !ok {
			t.Errorf("no tensor %q", w.Name)
			continue
		}
		if !reflect.DeepEqual(e.Info, w.Info) {
			t.Errorf("%q is %v, want %v", w.Name, e.Info, w.Info)
		}
		data := make([]byte, e.Size)
		if err := f.ReadTensor(w.Name, data); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(data, w.Data) {
			t.Errorf("%q has other bytes", w.Name)
		}
		if e.Size > 2 {
			part := make([]byte, e.Size-2)
			if err := f.ReadRange(w.Name, part, 1); err != nil || !bytes.Equal(part, w.Data[1:len(w.Data)-1]) {
				t.Errorf("%q: a part of it: %v", w.Name, err)
			}
		}
	}
}

func TestReadAsksForRightSize(t *testing.T) {
	f, err := open(encode(t, golden(), nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		f.ReadTensor("w", make([]byte, 59)),
		f.ReadTensor("nobody", nil),
		f.ReadRange("w", make([]byte, 60), 1),
		f.ReadRange("w", nil, -1),
		f.ReadRange("nobody", nil, 0),
	} {
		if err == nil || !strings.Contains(err.Error(), "test.safetensors") {
			t.Errorf("got %v, want an error that names the file", err)
		}
	}
}

// TestCutAnywhere: whatever number of bytes is left of a file, opening it says
// that it was cut short.
func TestCutAnywhere(t *testing.T) {
	whole := encode(t, golden(), ptMetadata)
	for n := range whole {
		_, err := open(whole[:n])
		var format *safetensors.FormatError
		if !errors.As(err, &format) || !format.Truncated || format.File != "test.safetensors" {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := open(append(whole, 0)); err == nil || !strings.Contains(err.Error(), "1 bytes after its last tensor") {
		t.Errorf("one byte more: %v", err)
	}
}

// TestShrinksAfterOpen: a file cut after its header was read is an error of
// the read, not a short tensor.
func TestShrinksAfterOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	if err := os.WriteFile(path, encode(t, golden(), nil), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 8+f.Entries()[0].Size); err != nil {
		t.Fatal(err)
	}
	var format *safetensors.FormatError
	if err := f.ReadTensor("w", make([]byte, 60)); !errors.As(err, &format) || !format.Truncated || format.Tensor != "w" {
		t.Errorf("got %v", err)
	}
}

// file puts a header of any text before n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func TestMalformed(t *testing.T) {
	tensor := `{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	for _, c := range []struct {
		what, header string
		n            int
		want         string // part of the message
	}{
		{"empty header", "", 0, "does not begin with '{'"},
		{"array", "[]", 0, "does not begin with '{'"},
		{"leading space", " {}", 0, "does not begin with '{'"},
		{"zeros", "\x00\x00", 0, "does not begin with '{'"},
		{"not closed", `{"a":` + tensor, 8, "where '}' should be"},
		{"after the object", `{"a":` + tensor + `}x`, 8, "something after the end"},
		{"bad UTF-8", "{\"a\xff\":" + tensor + "}", 8, "not valid UTF-8"},
		{"name twice", `{"a":` + tensor + `,"a":` + tensor + `}`, 16, `"a" is there twice`},
		{"name twice through an escape", `{"a":` + tensor + `,"\u0061":` + tensor + `}`, 16, `"a" is there twice`},
		{"half a pair", `{"\ud800":` + tensor + `}`, 8, "half a surrogate pair"},
		{"half a pair, other half", `{"\ud800\u0041":` + tensor + `}`, 8, "half a surrogate pair"},
		{"control character", "{\"a\n\":" + tensor + `}`, 8, "control character"},
		{"string without end", `{"a`, 0, "ends inside a string"},
		{"string ends in an escape", `{"a\`, 0, "ends inside a string"},
		{"bad escape", `{"\x":` + tensor + `}`, 8, "malformed string"},
		{"unknown dtype", `{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}`, 8, `unknown dtype "F31"`},
		{"no dtype", `{"a":{"shape":[2],"data_offsets":[0,8]}}`, 8, "lacks one of"},
		{"dtype in capitals", `{"a":{"DTYPE":"F32","shape":[2],"data_offsets":[0,8]}}`, 8, "lacks one of"},
		{"shape twice", `{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}`, 8, `"shape" twice`},
		{"negative size", `{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8, "whole number"},
		{"fraction", `{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8, "']' should be"},
		{"leading zero", `{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}`, 8, "whole number"},
		{"huge size", `{"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}}`, 8, "size of 18446744073709551615"},
		{"beyond 64 bits", `{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}}`, 8, "whole number"},
		{"elements overflow", `{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}`, 8, "more elements than can be counted"},
		{"elements overflow before a zero", `{"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}`, 0, "more elements than can be counted"},
		{"bits overflow", `{"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,8]}}`, 8, "more bytes than can be counted"},
		{"half a byte", `{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2, "does not end on a byte"},
		{"one offset", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}`, 8, "not a begin and an end"},
		{"three offsets", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}`, 8, "more than two"},
		{"backwards", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8, "not a begin and an end"},
		{"wrong size", `{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8, "has 8 bytes, but shape [3] of F32 has 12"},
		{"hole at the start", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12, "begins at byte 4 of the data, but the one before it ends at 0"},
		{"overlap", `{"a":` + tensor + `,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12, `"b" begins at byte 4`},
		{"hole", `{"a":` + tensor + `,"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}`, 20, `"b" begins at byte 12`},
		{"metadata of a number", `{"__metadata__":{"a":1}}`, 0, `where '"' should be`},
		{"metadata twice", `{"__metadata__":{},"__metadata__":{}}`, 0, "is there twice"},
		{"metadata key twice", `{"__metadata__":{"a":"","a":""}}`, 0, `metadata "a" twice`},
		{"tensor is a number", `{"a":1}`, 0, "where '{' should be"},
		{"deep", `{"a":{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}}`, 0, "nested deeper"},
		{"unknown value", `{"a":{"x":nil}}`, 0, "where a value should be"},
	} {
		_, err := open(file(c.header, c.n))
		var format *safetensors.FormatError
		if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "test.safetensors") {
			t.Errorf("%s: got %v, want an error with %q", c.what, err, c.want)
		}
	}
	// The length alone is wrong.
	for _, c := range []struct {
		n    uint64
		want string
	}{{safetensors.MaxHeaderBytes + 1, "more than the format's"}, {1 << 63, "more than the format's"}, {safetensors.MaxHeaderBytes, "cut short"}} {
		if _, err := open(binary.LittleEndian.AppendUint64(nil, c.n)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a header of %d bytes: %v", c.n, err)
		}
	}
}

// TestTolerated: what the reference reads, this package reads.
func TestTolerated(t *testing.T) {
	for _, c := range []struct {
		header string
		n      int
	}{
		{"{}", 0},
		{"{}      ", 0},
		{`{"__metadata__":null}`, 0},
		{"{ \"a\" :\n{ \"shape\" : [ 2 , 1 ] , \"data_offsets\":[ 0 , 8 ],\t\"dtype\":\"F32\" } }\r\n", 8},
		{`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"later":{"x":[1,-2.5e3,null,true,"\"]"],"y":{}}}}`, 8},
		{`{"\ud83d\ude00\\ud800":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, 1},
		// Empty tensors may share their offset with the tensor that follows.
		{`{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[0],"data_offsets":[8,8]},"c":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 8},
	} {
		if _, err := open(file(c.header, c.n)); err != nil {
			t.Errorf("%s: %v", c.header, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	one := func(name string, d safetensors.DType, shape []int, n int) safetensors.Tensor {
		return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: d, Shape: shape}, Data: make([]byte, n)}
	}
	for _, c := range []struct {
		tensors  []safetensors.Tensor
		metadata map[string]string
		want     string
	}{
		{[]safetensors.Tensor{one("a", safetensors.F32, nil, 4), one("a", safetensors.I64, nil, 8)}, nil, `"a" is there twice`},
		{[]safetensors.Tensor{one("__metadata__", safetensors.F32, nil, 4)}, nil, "keeps for metadata"},
		{[]safetensors.Tensor{one("\xff", safetensors.F32, nil, 4)}, nil, "not valid UTF-8"},
		{[]safetensors.Tensor{one("a", safetensors.F32, []int{2}, 4)}, nil, "given with 4 bytes, but shape [2] of F32 has 8"},
		{[]safetensors.Tensor{one("a", safetensors.F32, []int{-1}, 4)}, nil, "negative size"},
		{[]safetensors.Tensor{one("a", 200, nil, 4)}, nil, "unknown dtype"},
		{nil, map[string]string{"a": "\xff"}, "not valid UTF-8"},
	} {
		var b bytes.Buffer
		err := safetensors.Write(&b, c.tensors, c.metadata)
		var format *safetensors.FormatError
		if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
		if b.Len() != 0 {
			t.Errorf("%q: %d bytes were written before the error", c.want, b.Len())
		}
	}
}

// TestWriteEach: a file whose tensors are made one after the other is the file of all at
// once, and they are asked for in the order in which the file has them.
func TestWriteEach(t *testing.T) {
	var infos []safetensors.Info
	var all []safetensors.Tensor
	for i, d := range []safetensors.DType{safetensors.U8, safetensors.F32, safetensors.I64, safetensors.F32} {
		info := safetensors.Info{Name: string(rune('d' - i)), DType: d, Shape: []int{3}}
		infos = append(infos, info)
		all = append(all, safetensors.Tensor{Info: info, Data: bytes.Repeat([]byte{byte(i + 1)}, int(info.NumBytes()))})
	}
	var whole, parts bytes.Buffer
	if err := safetensors.Write(&whole, all, nil); err != nil {
		t.Fatal(err)
	}
	var asked []safetensors.Info
	one := make([]byte, 24) // the memory of one tensor
	data := func(info safetensors.Info) ([]byte, error) {
		asked = append(asked, info)
		i := int('d' - info.Name[0])
		return one[:copy(one, all[i].Data)], nil
	}
	if err := safetensors.WriteEach(&parts, infos, nil, data); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(parts.Bytes(), whole.Bytes()) {
		t.Error("the file is another one")
	}
	if want, err := safetensors.Ordered(infos); err != nil || !reflect.DeepEqual(asked, want) {
		t.Errorf("asked for %v, want %v, %v", asked, want, err)
	}
	if err := safetensors.WriteEach(&parts, infos, nil, func(safetensors.Info) ([]byte, error) { return nil, errFull }); !errors.Is(err, errFull) {
		t.Errorf("got %v, want the error of the data", err)
	}
}

// failAfter is a writer that fails once n bytes are through.
type failAfter struct{ n int }

var errFull = errors.New("disk full")

func (w *failAfter) Write(b []byte) (int, error) {
	if len(b) > w.n {
		return w.n, errFull
	}
	w.n -= len(b)
	return len(b), nil
}

func TestWriteReturnsWritersError(t *testing.T) {
	whole := len(encode(t, golden(), nil))
	for n := 0; n < whole; n += 5 {
		if err := safetensors.Write(&failAfter{n}, golden(), nil); !errors.Is(err, errFull) {
			t.Fatalf("full after %d bytes: %v", n, err)
		}
	}
}

func TestOpenNamesPath(t *testing.T) {
	dir := t.TempDir()
	if _, err := safetensors.Open(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := safetensors.Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestDTypes(t *testing.T) {
	for d := safetensors.Bool; d <= safetensors.U64; d++ {
		if got, ok := safetensors.ParseDType(d.String()); !ok || got != d || d.NumBits() == 0 {
			t.Errorf("%v parses as %v, %v", d, got, ok)
		}
	}
	if _, ok := safetensors.ParseDType("f32"); ok {
		t.Error("f32 is no name of a dtype")
	}
}

// FuzzOpen: no input makes the reader panic or take memory beyond the input's
// size; what it accepts can be read, written again, and reads the same.
func FuzzOpen(f *testing.F) {
	f.Add(encode(f, golden(), ptMetadata))
	f.Add(file("{}", 0))
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":[{}, "\ud83d\ude00"]}}`, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := open(data)
		if err != nil {
			var format *safetensors.FormatError
			if !errors.As(err, &format) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		var tensors []safetensors.Tensor
		for _, e := range file.Entries() {
			b := make([]byte, e.Size)
			if err := file.ReadTensor(e.Name, b); err != nil {
				t.Fatal(err)
			}
			tensors = append(tensors, safetensors.Tensor{Info: e.Info, Data: b})
		}
		again, err := open(encode(t, tensors, file.Metadata()))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range tensors {
			e, ok := again.Lookup(w.Name)
			b := make([]byte, e.Size)
			if err := again.ReadTensor(w.Name, b); !ok || err != nil || !bytes.Equal(b, w.Data) || fmt.Sprint(e.Info) != fmt.Sprint(w.Info) {
				t.Fatalf("%q came back as %v (%v)", w.Name, e.Info, err)
			}
		}
	})
}
