// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// small writes a checkpoint with the tensor "w" of 4 bytes in two boxes, and the object "o".
func small(t testing.TB) string {
	t.Helper()
	box := func(start int) Item {
		return Item{Path: []any{"w"}, Info: safetensors.Info{DType: safetensors.U8, Shape: []int{4}}, Box: mesh.Box{Start: []int{start}, Shape: []int{2}},
			Read: func(dst []byte, offset int64) error {
				for i := range dst {
					dst[i] = byte(start + int(offset) + i + 1)
				}
				return nil
			}}
	}
	dir := t.TempDir()
	if err := Write(t.Context(), storage.Dir(dir), "", []Item{box(0), box(2), {Path: []any{"o"}, Value: 7}}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// get returns an attribute of an object of .metadata, or an entry of a dict.
func get(t testing.TB, v any, key string) any {
	t.Helper()
	if o, ok := v.(*pickle.Object); ok {
		v = o.State
	}
	x, ok := v.(*pickle.Dict).Get(key)
	if !ok {
		t.Fatalf("there is no %s", key)
	}
	return x
}

func set(t testing.TB, v any, key string, value any) {
	t.Helper()
	if o, ok := v.(*pickle.Object); ok {
		v = o.State
	}
	d := v.(*pickle.Dict)
	for i, e := range d.Entries {
		if e.Key == any(key) {
			d.Entries[i].Value = value
			return
		}
	}
	d.Entries = append(d.Entries, pickle.Entry{Key: key, Value: value})
}

func TestHostileCheckpoints(t *testing.T) {
	tensorOf := func(t *testing.T, m any) any { return get(t, get(t, m, "state_dict_metadata"), "w") }
	chunkOf := func(t *testing.T, m any, i int) any { return get(t, tensorOf(t, m), "chunks").(*pickle.List).Items[i] }
	places := func(t *testing.T, m any) []pickle.Entry { return get(t, m, "storage_data").(*pickle.Dict).Entries }
	// placeOf returns where the i-th box lies; the object's place is the first.
	placeOf := func(t *testing.T, m any, i int) any {
		for _, e := range places(t, m) {
			if get(t, e.Key, "fqn") == any("w") {
				if i == 0 {
					return e.Value
				}
				i--
			}
		}
		return nil
	}
	numbers := func(n ...int) *pickle.Object { return torchSize(n) }
	for _, c := range []struct {
		name, says string
		meta       func(t *testing.T, m any)      // changes .metadata
		files      func(t *testing.T, dir string) // or the files
	}{
		{name: "no metadata", says: "has no file .metadata", files: func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, ".metadata")) }},
		{name: "cut metadata", says: "STOP|ends within", files: func(t *testing.T, dir string) { os.Truncate(filepath.Join(dir, ".metadata"), 300) }},
		{name: "empty metadata", says: "STOP", files: func(t *testing.T, dir string) { os.Truncate(filepath.Join(dir, ".metadata"), 0) }},
		{name: "JSON", says: "unknown instruction|protocol", files: func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, ".metadata"), []byte(`{"a":1}`), 0o666)
		}},
		{name: "code", says: "posix.system", meta: func(t *testing.T, m any) {
			set(t, m, "planner_data", &pickle.Object{Class: class("posix", "system"), Args: pickle.Tuple{"id"}})
		}},
		{name: "a class of another module", says: "torch.distributed.checkpoint.metadata.Evil", meta: func(t *testing.T, m any) { set(t, m, "storage_meta", class(metadataModule, "Evil")) }},
		{name: "no storage", says: "does not say where the tensors lie", meta: func(t *testing.T, m any) { set(t, m, "storage_data", nil) }},
		{name: "no tensors", says: "no dict of tensors", meta: func(t *testing.T, m any) { set(t, m, "state_dict_metadata", nil) }},
		{name: "path outside", says: `"../w"`, meta: func(t *testing.T, m any) { set(t, placeOf(t, m, 0), "relative_path", "../w") }},
		{name: "absolute path", says: `"/etc/passwd"`, meta: func(t *testing.T, m any) { set(t, placeOf(t, m, 0), "relative_path", "/etc/passwd") }},
		{name: "path of Windows", says: "is not the name of a file", meta: func(t *testing.T, m any) { set(t, placeOf(t, m, 0), "relative_path", `..\w`) }},
		{name: "negative offset", says: "makes no sense", meta: func(t *testing.T, m any) { set(t, placeOf(t, m, 0), "offset", int64(-1)) }},
		{name: "offset and length that overflow", says: "makes no sense", meta: func(t *testing.T, m any) {
			set(t, placeOf(t, m, 0), "offset", int64(1<<62))
			set(t, placeOf(t, m, 0), "length", int64(1<<62))
		}},
		{name: "beyond the file", says: "cut short", meta: func(t *testing.T, m any) { set(t, placeOf(t, m, 0), "offset", int64(1<<40)) }},
		{name: "one byte off", says: "__0_0.distcp", meta: func(t *testing.T, m any) {
			set(t, placeOf(t, m, 0), "offset", get(t, placeOf(t, m, 0), "offset").(int64)+1)
		}},
		{name: "compressed", says: "was transformed", meta: func(t *testing.T, m any) {
			set(t, placeOf(t, m, 0), "transform_descriptors", &pickle.List{Items: []any{"stream.zstd"}})
		}},
		{name: "the object for a box", says: "has no tensor at byte", meta: func(t *testing.T, m any) {
			for _, e := range places(t, m) {
				if get(t, e.Key, "fqn") == any("o") {
					*placeOf(t, m, 0).(*pickle.Object) = *e.Value.(*pickle.Object)
				}
			}
		}},
		{name: "box outside", says: "not within", meta: func(t *testing.T, m any) { set(t, chunkOf(t, m, 1), "offsets", numbers(3)) }},
		{name: "boxes that overlap", says: "both have", meta: func(t *testing.T, m any) { set(t, chunkOf(t, m, 1), "offsets", numbers(1)) }},
		{name: "a hole", says: "does not say where|3 of the 4 elements", meta: func(t *testing.T, m any) { set(t, chunkOf(t, m, 1), "sizes", numbers(1)) }},
		{name: "another shape of a box", says: "says that there is one of", meta: func(t *testing.T, m any) {
			set(t, chunkOf(t, m, 0), "sizes", numbers(1))
			set(t, chunkOf(t, m, 1), "offsets", numbers(1))
			set(t, chunkOf(t, m, 1), "sizes", numbers(3))
			for _, e := range places(t, m) {
				if get(t, e.Key, "index") == any(int64(1)) {
					set(t, e.Key, "offset", numbers(1))
				}
			}
		}},
		{name: "another dtype", says: "says that there is one of I8", meta: func(t *testing.T, m any) {
			o := get(t, tensorOf(t, m), "properties").(*pickle.Object)
			state := slices.Clone(o.State.(pickle.Tuple))
			state[0] = class("torch", "int8")
			o.State = state
		}},
		{name: "a dtype that nobody has", says: "complex128", meta: func(t *testing.T, m any) {
			o := get(t, tensorOf(t, m), "properties").(*pickle.Object)
			state := slices.Clone(o.State.(pickle.Tuple))
			state[0] = class("torch", "complex128")
			o.State = state
		}},
		{name: "a size of billions", says: "which no tensor|of the", meta: func(t *testing.T, m any) { set(t, tensorOf(t, m), "size", numbers(1<<40)) }},
		{name: "a size that overflows", says: "which no tensor", meta: func(t *testing.T, m any) {
			set(t, tensorOf(t, m), "size", numbers(1<<62, 1<<62))
			set(t, tensorOf(t, m), "chunks", &pickle.List{})
		}},
		{name: "a negative size", says: "no size", meta: func(t *testing.T, m any) { set(t, tensorOf(t, m), "size", numbers(-4)) }},
		{name: "many dims", says: "more than the 64", meta: func(t *testing.T, m any) { set(t, tensorOf(t, m), "size", numbers(make([]int, 1000)...)) }},
		{name: "dims of a box", says: "dims for a tensor", meta: func(t *testing.T, m any) { set(t, chunkOf(t, m, 0), "sizes", numbers(2, 1)) }},
		{name: "no chunks", says: "no list of boxes", meta: func(t *testing.T, m any) { set(t, tensorOf(t, m), "chunks", nil) }},
		{name: "a box that lies nowhere", says: "does not say where it lies", meta: func(t *testing.T, m any) {
			d := get(t, m, "storage_data").(*pickle.Dict)
			d.Entries = slices.DeleteFunc(d.Entries, func(e pickle.Entry) bool { return get(t, e.Key, "index") == any(int64(1)) })
		}},
		{name: "file gone", says: "is missing", files: func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "__0_0.distcp")) }},
		{name: "file cut", says: "cut short", files: func(t *testing.T, dir string) { os.Truncate(filepath.Join(dir, "__0_0.distcp"), 700) }},
		{name: "file of zeros", says: "torch.save", files: func(t *testing.T, dir string) {
			st, _ := os.Stat(filepath.Join(dir, "__0_0.distcp"))
			os.WriteFile(filepath.Join(dir, "__0_0.distcp"), make([]byte, st.Size()), 0o666)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := small(t)
			if c.files != nil {
				c.files(t, dir)
			} else {
				path := filepath.Join(dir, ".metadata")
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				m, err := pickle.Decode(text, pickle.Options{Allow: allow})
				if err != nil {
					t.Fatal(err)
				}
				c.meta(t, m)
				var b bytes.Buffer
				if err := pickle.Encode(&b, m, 4); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			ck, err := Open(t.Context(), storage.Dir(dir), "")
			if err == nil {
				defer ck.Close()
				err = ck.Check()
				if refused := ck.Refused(); (refused["w"] != nil) != strings.HasPrefix(c.name, "a dtype") {
					t.Errorf("refused are %v", refused)
				}
				if read := ck.ReadTensor("w", make([]byte, 4)); read == nil {
					t.Error("the tensor can be read")
				}
			}
			if err == nil {
				t.Fatal("nothing is wrong with it")
			}
			if !slices.ContainsFunc(strings.Split(c.says, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if c.name == "no metadata" && !errors.Is(err, fs.ErrNotExist) {
				t.Error("the error is not fs.ErrNotExist")
			}
		})
	}
}

// Boxes without elements, which PyTorch lists for ranks that have none of a tensor, begin where
// others begin or at the end.
func TestEmptyBoxes(t *testing.T) {
	var items []Item
	for _, b := range []mesh.Box{{Start: []int{0}, Shape: []int{0}}, {Start: []int{0}, Shape: []int{2}}, {Start: []int{2}, Shape: []int{1}}, {Start: []int{3}, Shape: []int{0}}} {
		items = append(items, Item{Path: []any{"w"}, Info: safetensors.Info{DType: safetensors.U8, Shape: []int{3}}, Box: b, Read: func(dst []byte, offset int64) error {
			for i := range dst {
				dst[i] = byte(b.Start[0] + i + 1)
			}
			return nil
		}})
	}
	dir := t.TempDir()
	if err := Write(t.Context(), storage.Dir(dir), "", items); err != nil {
		t.Fatal(err)
	}
	c := open(t, dir, "")
	got := make([]byte, 3)
	if err := errors.Join(c.Check(), c.ReadTensor("w", got)); err != nil || !bytes.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("%v (%v)", got, err)
	}
	if n := len(c.Boxes("w")); n != 2 {
		t.Errorf("%d boxes with elements", n)
	}
}

// Flipped bytes give errors, or a checkpoint that can be read; nothing breaks.
func TestFlippedBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 5))
	dir := small(t)
	for _, name := range []string{".metadata", "__0_0.distcp"} {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 300 {
			b := bytes.Clone(text)
			for range 1 + r.IntN(3) {
				b[r.IntN(len(b))] ^= byte(1 << r.IntN(8))
			}
			if err := os.WriteFile(path, b, 0o666); err != nil {
				t.Fatal(err)
			}
			readAll(t, dir)
		}
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// readAll reads what a checkpoint has; errors are as good as values.
func readAll(t testing.TB, dir string) {
	c, err := Open(t.Context(), storage.Dir(dir), "")
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.Check()
	for _, info := range c.Infos() {
		if n := info.NumBytes(); n < 1<<16 {
			_ = c.ReadTensor(info.Name, make([]byte, n))
		}
	}
}

// FuzzMetadata: no metadata breaks the reader, or leads it out of the directory.
func FuzzMetadata(f *testing.F) {
	for _, dir := range []string{small(f), filepath.Join(unpack(f), "mlp")} {
		text, err := os.ReadFile(filepath.Join(dir, metadataName))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMetadata("ck", text)
		if err != nil {
			return
		}
		for _, s := range m.entries {
			for _, c := range append(slices.Clone(s.chunks), chunk{place: s.at}) {
				if c.file != "" && !filepath.IsLocal(c.file) {
					t.Errorf("%q lies in %q", s.Name, c.file)
				}
			}
		}
	})
}
