// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/tensor"
)

func someTensors() map[string]*tensor.Tensor {
	out := map[string]*tensor.Tensor{}
	for i, name := range []string{"a.weight", "b.weight", "c.bias"} {
		data := make([]float32, 6+i)
		for j := range data {
			data[j] = float32(10*i + j)
		}
		out[name] = tensor.FromFloat32(data)
	}
	return out
}

func load(t *testing.T, dir string, into map[string]*tensor.Tensor) error {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkpoint.LoadTensors(f, maps.All(into))
}

func TestFoldersRoundTrip(t *testing.T) {
	for _, shardBytes := range []int64{0, 1, 24, 30, 60} {
		dir := filepath.Join(t.TempDir(), "deep", "model")
		want := someTensors()
		o := SaveOptions{MaxShardBytes: shardBytes, Files: map[string][]byte{"config.json": []byte("{}")}}
		if err := Save(dir, maps.All(want), o); err != nil {
			t.Fatal(err)
		}
		got := someTensors()
		for _, x := range got {
			x.Fill(0)
		}
		if err := load(t, dir, got); err != nil {
			t.Fatal(err)
		}
		for name, x := range want {
			if !slices.Equal(x.Float32s(), got[name].Float32s()) {
				t.Errorf("shards of %d bytes: %s is %v, want %v", shardBytes, name, got[name], x)
			}
		}
		if err := Save(dir, maps.All(want), o); !errors.Is(err, fs.ErrExist) {
			t.Errorf("saving over a model returned %v", err)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*"))
		if err != nil || len(left) > 0 {
			t.Errorf("the save has left %v (%v)", left, err)
		}
	}
}

func TestBadFoldersAreNamed(t *testing.T) {
	saved := func(t *testing.T) string {
		dir := filepath.Join(t.TempDir(), "model")
		if err := Save(dir, maps.All(someTensors()), SaveOptions{MaxShardBytes: 1}); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	edit := func(change func(m map[string]string)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, indexFile)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var x index
			if err := json.Unmarshal(text, &x); err != nil {
				t.Fatal(err)
			}
			change(x.WeightMap)
			if text, err = json.Marshal(x); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	const second = "model-00002-of-00003.safetensors"
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		says  []string
	}{
		{"empty folder", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, []string{"model.safetensors", "model.safetensors.index.json"}},
		{"shard gone", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, second)); err != nil {
				t.Fatal(err)
			}
		}, []string{second, "index.json"}},
		{"shard cut", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, second), 40); err != nil {
				t.Fatal(err)
			}
		}, []string{second}},
		{"path in a name", edit(func(m map[string]string) { m["a.weight"] = "../x.safetensors" }), []string{"a.weight", "../x.safetensors"}},
		{"absolute name", edit(func(m map[string]string) { m["a.weight"] = "/etc/x.safetensors" }), []string{"a.weight"}},
		{"no tensors", edit(func(m map[string]string) { clear(m) }), []string{"weight_map"}},
		{"tensor twice", func(t *testing.T, dir string) {
			text, err := os.ReadFile(filepath.Join(dir, second))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "model-00003-of-00003.safetensors"), text, 0o666)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, []string{"in two shards, model-00002-of-00003.safetensors and model-00003-of-00003.safetensors"}},
		{"shard of another format", edit(func(m map[string]string) { m["a.weight"] = "pytorch_model-00001-of-00003.bin" }), []string{"pytorch_model-00001-of-00003.bin"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := saved(t)
			c.spoil(t, dir)
			f, err := Open(dir)
			if err == nil {
				f.Close()
				t.Fatal("it opens")
			}
			if !slices.ContainsFunc(c.says, func(s string) bool { return strings.Contains(err.Error(), s) }) {
				t.Errorf("the error %q names none of %q", err, c.says)
			}
		})
	}
}

// An index that is not quite right does not keep a model from being read: the
// shards say what is in them.
func TestIndexesThatAreNotQuiteRight(t *testing.T) {
	for name, change := range map[string]func(x map[string]any, m map[string]any){
		"a tensor is left out":   func(_, m map[string]any) { m["zz"] = m["c.bias"]; delete(m, "c.bias") },
		"a tensor is promised":   func(_, m map[string]any) { m["lm_head.weight"] = m["c.bias"] },
		"tensors are elsewhere":  func(_, m map[string]any) { m["a.weight"], m["b.weight"] = m["b.weight"], m["a.weight"] },
		"the size is a fraction": func(x, _ map[string]any) { x["metadata"] = map[string]any{"total_size": 1.5e3, "total_parameters": 7} },
		"the size is a text":     func(x, _ map[string]any) { x["metadata"] = map[string]any{"total_size": "12"} },
		"there is no metadata":   func(x, _ map[string]any) { delete(x, "metadata") },
		"the metadata are null":  func(x, _ map[string]any) { x["metadata"] = nil; x["more"] = 3 },
	} {
		dir := filepath.Join(t.TempDir(), "model")
		if err := Save(dir, maps.All(someTensors()), SaveOptions{MaxShardBytes: 1}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, indexFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var x map[string]any
		if err := json.Unmarshal(text, &x); err != nil {
			t.Fatal(err)
		}
		change(x, x["weight_map"].(map[string]any))
		if text, err = json.Marshal(x); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
		f, err := Open(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		into := someTensors()
		for _, into := range into {
			into.Fill(0)
		}
		if err := checkpoint.LoadTensors(f, maps.All(into)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for key, want := range someTensors() {
			if !slices.Equal(into[key].Float32s(), want.Float32s()) {
				t.Errorf("%s: %s is %v", name, key, into[key])
			}
		}
		f.Close()
	}
}

func TestRename(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := Save(dir, maps.All(someTensors()), SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	src, err := checkpoint.Rename(f, func(name string) string {
		if name == "c.bias" {
			return ""
		}
		return "model." + name
	})
	if err != nil {
		t.Fatal(err)
	}
	into := map[string]*tensor.Tensor{"model.a.weight": tensor.Zeros(6), "model.b.weight": tensor.Zeros(7)}
	if err := checkpoint.LoadTensors(src, maps.All(into)); err != nil {
		t.Fatal(err)
	}
	if got := into["model.b.weight"].Float32s(); got[0] != 10 {
		t.Errorf("model.b.weight is %v", got)
	}
	if _, err := checkpoint.Rename(f, func(string) string { return "same" }); err == nil || !strings.Contains(err.Error(), "same") {
		t.Errorf("two tensors of one name: %v", err)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00001.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":".safetensors","":"b"}}`))
	f.Add([]byte(`{"weight_map":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		x, err := parseIndex("i.json", text)
		if err != nil {
			return
		}
		for _, shard := range x.shards() {
			if filepath.Join("d", shard) != "d"+string(filepath.Separator)+shard {
				t.Errorf("the shard %q leaves the folder", shard)
			}
		}
	})
}
