// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// part is a member of an archive that a test makes.
type part struct {
	name string
	data []byte
}

func zipOf(t testing.TB, parts ...part) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, p := range parts {
		w, err := z.CreateHeader(&zip.FileHeader{Name: p.name, Method: zip.Store})
		if err == nil {
			_, err = w.Write(p.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// inBigEndian copies a file as a big-endian machine would have written it.
func inBigEndian(t testing.TB, from, to string) {
	t.Helper()
	f, err := Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zip.OpenReader(from)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	swaps := map[string]int{}
	for _, x := range f.tensors {
		swaps[x.Storage] = x.dtype.swap
	}
	var parts []part
	for _, m := range z.File {
		r, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(m.Name, "/byteorder") {
			data = []byte("big")
		}
		if n := swaps[m.Name]; n > 1 {
			for number := range slices.Chunk(data, n) {
				slices.Reverse(number)
			}
		}
		parts = append(parts, part{m.Name, data})
	}
	if err := os.WriteFile(to, zipOf(t, parts...), 0o666); err != nil {
		t.Fatal(err)
	}
}

func openBytes(b []byte) (*File, error) {
	return NewFile(bytes.NewReader(b), int64(len(b)), "x.pt", Limits{Values: 100_000})
}

// pickled returns the pickle of a value.
func pickled(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := pickle.Encode(&b, v, 2); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func global(module, name string) pickle.Global { return pickle.Global{Module: module, Name: name} }

// call returns the call that rebuilds a tensor of a storage of 4 float32.
func call(offset int64, shape, strides pickle.Tuple, more ...any) *pickle.Object {
	id := &pickle.Persistent{ID: pickle.Tuple{"storage", global("torch", "FloatStorage"), "0", "cpu", int64(4)}}
	args := pickle.Tuple{id, offset, shape, strides, false, &pickle.Object{Class: global("collections", "OrderedDict"), Args: pickle.Tuple{}}}
	return &pickle.Object{Class: global("torch._utils", "_rebuild_tensor_v2"), Args: append(args, more...)}
}

// tensorFile is a file whose value is made by a call on a storage of 4 float32.
func tensorFile(t testing.TB, v any) []byte {
	return zipOf(t, part{"a/data.pkl", pickled(t, v)}, part{"a/byteorder", []byte("little")}, part{"a/data/0", make([]byte, 16)}, part{"a/version", []byte("3\n")})
}

func TestHostileFiles(t *testing.T) {
	ints := func(n ...int64) pickle.Tuple {
		out := pickle.Tuple{}
		for _, n := range n {
			out = append(out, n)
		}
		return out
	}
	good := tensorFile(t, call(0, ints(2, 2), ints(2, 1)))
	if _, err := openBytes(good); err != nil {
		t.Fatal(err)
	}
	edit := func(from, to string) []byte {
		if len(from) != len(to) || !bytes.Contains(good, []byte(from)) {
			t.Fatalf("%q is not in the file, or %q has another length", from, to)
		}
		return bytes.ReplaceAll(good, []byte(from), []byte(to))
	}
	central := func(change func(entry []byte)) []byte {
		b := bytes.Clone(good)
		at := bytes.Index(b, []byte("PK\x01\x02"))
		change(b[at:])
		return b
	}
	var deflated bytes.Buffer
	z := zip.NewWriter(&deflated)
	w, _ := z.Create("a/data.pkl") // a bomb: a million zeros in a thousand bytes
	_, _ = w.Write(make([]byte, 1_000_000))
	z.Close()
	le := binary.LittleEndian
	for _, c := range []struct {
		name string
		file []byte
		says string
	}{
		{"nothing", nil, "is empty"},
		{"text", []byte(strings.Repeat("hello ", 100)), "no zip archive"},
		{"legacy", []byte("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."), "before PyTorch 1.6"},
		{"tar", append(append(make([]byte, 257), "ustar"...), make([]byte, 700)...), "tar archive"},
		{"pickle", []byte("\x80\x02N."), "bare pickle"},
		{"safetensors", append([]byte{2, 0, 0, 0, 0, 0, 0, 0}, "{}  "...), "is a safetensors file"},
		{"cut", good[:len(good)-30], "cut short"},
		{"something in front", append([]byte("junk"), good...), "something in front"},
		{"compressed", deflated.Bytes(), "is compressed"},
		{"encrypted", central(func(e []byte) { e[8] |= 1 }), "is encrypted"},
		{"sizes differ", central(func(e []byte) { le.PutUint32(e[20:], 7) }), "in the file and"},
		{"beyond the file", central(func(e []byte) { le.PutUint32(e[20:], 1<<30); le.PutUint32(e[24:], 1<<30) }), "and the file has"},
		{"overlap", central(func(e []byte) { le.PutUint32(e[20:], 400); le.PutUint32(e[24:], 400) }), "overlaps"},
		{"same place", central(func(e []byte) { le.PutUint32(e[42:], 1000) }), "overlaps|and the file has|no header"},
		{"traversal", edit("a/byteorder", "../yteorder"), "leaves the archive"},
		{"absolute", edit("a/byteorder", "/ebyteorder"), "leaves the archive"},
		{"member twice", edit("a/byteorder", "a/data.pklx"), ""},
		{"no data.pkl", edit("a/data.pkl", "a/data.pkk"), "no member data.pkl"},
		{"storage gone", edit("a/data/0", "a/data/1"), `names the storage "0"`},
		{"header of another", append(bytes.Replace(bytes.Clone(good), []byte("a/data/0"), []byte("a/data/2"), 1), nil...), "in its header"},
		{"two files", zipOf(t, part{"a/data.pkl", pickled(t, nil)}, part{"b/data.pkl", pickled(t, nil)}), "two members data.pkl"},
		{"torchscript", zipOf(t, part{"a/data.pkl", pickled(t, nil)}, part{"a/constants.pkl", pickled(t, nil)}), "TorchScript"},
		{"byte order", zipOf(t, part{"a/data.pkl", pickled(t, nil)}, part{"a/byteorder", []byte("middle")}), "byte order"},
		{"byte order too long", zipOf(t, part{"a/data.pkl", pickled(t, nil)}, part{"a/byteorder", make([]byte, 100)}), "more than the 16"},
		{"code", tensorFile(t, &pickle.Object{Class: global("os", "system"), Args: pickle.Tuple{"id"}}), "os.system"},
		{"DTensor", tensorFile(t, global("torch.distributed.tensor", "DTensor")), "full_tensor()"},
		{"module", tensorFile(t, global("torch.nn.modules.linear", "Linear")), "state_dict()"},
		{"compressed code", compressedCode(t), "TorchScript"},
		{"numpy", tensorFile(t, global("numpy.core.multiarray", "_reconstruct")), "numpy.core.multiarray._reconstruct"},
		{"storage size", zipOf(t, part{"a/data.pkl", pickled(t, call(0, ints(2), ints(1)))}, part{"a/data/0", make([]byte, 12)}), "has 12 bytes"},
		{"offset", tensorFile(t, call(1, ints(4), ints(1))), "beyond its storage"},
		{"negative offset", tensorFile(t, call(-1, ints(1), ints(1))), "begins at element -1"},
		{"stride", tensorFile(t, call(0, ints(2, 2), ints(3, 1))), "beyond its storage"},
		{"negative stride", tensorFile(t, call(0, ints(2), ints(-1))), "negative stride"},
		{"negative size", tensorFile(t, call(0, ints(-1), ints(1))), "which no tensor"},
		{"overflow", tensorFile(t, call(0, ints(1<<62, 1<<62), ints(0, 0))), "which no tensor"},
		{"stride overflow", tensorFile(t, call(0, ints(3, 1), ints(1<<62, 1))), "beyond its storage"},
		{"expanded bomb", tensorFile(t, call(0, ints(1<<40), ints(0))), "is expanded"},
		{"dims and strides", tensorFile(t, call(0, ints(2, 2), ints(1))), "2 dims and 1 strides"},
		{"billions of dims", tensorFile(t, call(0, make(pickle.Tuple, 1000), ints())), "at most 64"},
		{"size of text", tensorFile(t, call(0, pickle.Tuple{"2"}, ints(1))), "no number"},
		{"no storage", tensorFile(t, &pickle.Object{Class: global("torch._utils", "_rebuild_tensor_v2"), Args: pickle.Tuple{nil, int64(0), ints(), ints(), false, nil}}), "without a storage"},
		{"few arguments", tensorFile(t, &pickle.Object{Class: global("torch._utils", "_rebuild_tensor_v2"), Args: pickle.Tuple{}}), "0 arguments"},
		{"names that meet", tensorFile(t, &pickle.Dict{Entries: []pickle.Entry{
			{Key: "a.b", Value: call(0, ints(1), ints(1))}, {Key: "a", Value: &pickle.Dict{Entries: []pickle.Entry{{Key: "b", Value: call(0, ints(1), ints(1))}}}}}}), `"a.b"`},
	} {
		f, err := openBytes(c.file)
		if err == nil && c.says != "" {
			// What is not looked at when the file is opened is found when it is read.
			for _, info := range f.Infos() {
				err = errors.Join(err, f.ReadTensor(info.Name, make([]byte, info.NumBytes())))
			}
		}
		if c.says == "" {
			continue
		}
		if err == nil {
			t.Errorf("%s: it opens", c.name)
		} else if !slices.ContainsFunc(strings.Split(c.says, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }) || !strings.Contains(err.Error(), "x.pt") {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
	f, err := openBytes(tensorFile(t, &pickle.Dict{Entries: []pickle.Entry{{Key: "neg", Value: call(0, ints(1), ints(1), &pickle.Dict{Entries: []pickle.Entry{{Key: "neg", Value: true}}})}}}))
	if err != nil || f.Refused()["neg"] == nil {
		t.Errorf("a view with the neg bit: %v", err)
	}
	for name, v := range map[string]any{
		"a channel": make(chan int), "a refused tensor": Refused{"is sparse"}, "a forbidden global": global("os", "system"),
		"a dtype that PyTorch lacks": NewTensor(safetensors.Info{Name: "w", DType: safetensors.F6E2M3, Shape: []int{4}}, nil),
		"an object with a state":     &pickle.Object{Class: global("torch", "device"), State: int64(1)},
	} {
		if err := Write(io.Discard, map[string]any{"x": v}); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	failing := NewTensor(safetensors.Info{Name: "w", DType: safetensors.F32, Shape: []int{4}}, func([]byte, int64) error { return io.ErrClosedPipe })
	if err := Save(t.TempDir()+"/x.pt", failing); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a tensor that cannot be read: %v", err)
	}
}

// compressedCode is an archive as torch.jit.save writes it.
func compressedCode(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("a/code/__torch__/linear.py")
	if err == nil {
		_, err = w.Write(bytes.Repeat([]byte("pass\n"), 100))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A flipped byte anywhere gives an error or a file that can be read; nothing breaks.
func TestFlippedBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 4))
	b, err := os.ReadFile("testdata/odd-2.15.pt")
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		c := bytes.Clone(b)
		for range 1 + r.IntN(3) {
			c[r.IntN(len(c))] ^= byte(1 << r.IntN(8))
		}
		readAll(t, c)
	}
}

// readAll opens a file and reads what it has.
func readAll(t testing.TB, b []byte) {
	f, err := openBytes(b)
	if err != nil {
		return
	}
	for _, info := range f.Infos() {
		if info.NumBytes() < 1<<20 {
			_ = f.ReadTensor(info.Name, make([]byte, info.NumBytes())) // an error is as good
		}
	}
}

// FuzzFile: no file breaks the reader, or makes it take memory that the file does not have.
func FuzzFile(f *testing.F) {
	for _, name := range []string{"testdata/odd-1.13.pt", "testdata/odd-2.15.pt"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(tensorFile(f, call(0, pickle.Tuple{int64(2)}, pickle.Tuple{int64(1)})))
	f.Fuzz(func(t *testing.T, b []byte) { readAll(t, b) })
}
