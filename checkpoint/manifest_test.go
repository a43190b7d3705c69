// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// partOf is what rank r of size says of numTensors tensors that are cut over all ranks.
func partOf(r, size, numTensors int) *Manifest {
	m := &Manifest{Step: 3, Ranks: size, Program: "test", Time: time.Unix(1e9, 0).UTC()}
	name := fileName(Model, r+1, size)
	m.Files = []FileInfo{{name, int64(numTensors)*64*64*4 + 4096, uint32(r), r}}
	s := Section{Name: Model}
	for i := range numTensors {
		s.Tensors = append(s.Tensors, StoredTensor{Name: fmt.Sprintf("layers.%d.weight", i), DType: safetensors.F32, Shape: []int{64 * size, 64}, Placements: []string{"Shard(0)"},
			Boxes: []StoredBox{{name, 4096 + int64(i)*64*64*4, []int{64 * r, 0}, []int{64, 64}, []uint32{uint32(r * i)}}}})
	}
	m.Sections = []Section{s}
	return m
}

// TestManifestScale: the manifests of 1,000 ranks with 1,000 boxes each are written, merged and
// read in seconds and less than a GiB.
func TestManifestScale(t *testing.T) {
	size, numTensors := 1000, 1000
	if testing.Short() {
		size = 100
	}
	texts := make([][]byte, size)
	begin := time.Now()
	for r := range texts {
		text, err := partOf(r, size, numTensors).encode()
		if err != nil {
			t.Fatal(err)
		}
		texts[r] = text
	}
	wrote := time.Now()
	all := &Manifest{Step: 3, Ranks: size}
	m := &merger{into: all}
	for _, text := range texts {
		p, err := parsePart(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.add(p); err != nil {
			t.Fatal(err)
		}
	}
	texts = nil
	if err := all.complete(); err != nil {
		t.Fatal(err)
	}
	merged := time.Now()
	text, err := all.encode()
	if err != nil {
		t.Fatal(err)
	}
	encoded := time.Now()
	again, err := parseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	t.Logf("%d boxes: parts written in %v, merged in %v, manifest of %d MB encoded in %v, read in %v; %d MB in the heap, %d MB from the system",
		size*numTensors, wrote.Sub(begin), merged.Sub(wrote), len(text)>>20, encoded.Sub(merged), end.Sub(encoded), mem.HeapAlloc>>20, mem.Sys>>20)
	if limit := loaded.Allow(30 * time.Second); end.Sub(begin) > limit {
		t.Errorf("it took %v, more than %v", end.Sub(begin), limit)
	}
	if mem.Sys > 1<<30 {
		t.Errorf("%d MB were taken from the system", mem.Sys>>20)
	}
	if n := len(again.Section(Model).Tensors); n != numTensors || !reflect.DeepEqual(again.Sections[0].Tensors[7], all.Sections[0].Tensors[7]) {
		t.Errorf("%d tensors, %+v", n, again.Sections[0].Tensors[7].Boxes[:2])
	}
}

// TestManifestChanged changes each byte of a manifest: none of the results is read.
func TestManifestChanged(t *testing.T) {
	text := goodManifest(t)
	if _, err := parseManifest(text); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Errorf("%s", text)
	}
	for i := range text {
		for bit := range 8 {
			changed := append([]byte(nil), text...)
			changed[i] ^= 1 << bit
			if m, err := parseManifest(changed); err == nil {
				t.Errorf("byte %d, bit %d: %+v", i, bit, m)
			}
		}
	}
	for n := range text {
		if _, err := parseManifest(text[:n]); err == nil {
			t.Errorf("cut at %d", n)
		}
	}
}

func goodManifest(t testing.TB) []byte {
	m := partOf(0, 1, 2)
	m.Values = map[string]rawJSON{"progress": rawJSON(`{"lr":0.25,"deep":[{"a":"b\n"}]}`)}
	m.RankValues = []map[string]rawJSON{{"generator": rawJSON("7")}}
	m.Metric = &Metric{"loss", 1.5, true}
	m.Mesh = []Axis{{"fsdp", 1}}
	text, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestManifestRefused: what no save has written is refused, with the reason.
func TestManifestRefused(t *testing.T) {
	const head = `{"format":"cohort-checkpoint","version":2,"step":1,"ranks":1`
	box := func(shape, boxes string) string {
		return head + `,"files":[{"name":"a.safetensors","bytes":1000,"crc32c":"00000000"}],"tensors":{"model":{"w":{"dtype":"F32","shape":` + shape + `,"boxes":[` + boxes + `]}}}`
	}
	one := func(at, start, shape, sums string) string {
		return `{"file":"a.safetensors","at":` + at + `,"start":` + start + `,"shape":` + shape + `,"crc32c":` + sums + `}`
	}
	const sum = `["00000000"]`
	for text, want := range map[string]string{
		`[]`:                        "want '{'",
		`{"format":"x","version":2`: `has format "x"`,
		`{"version":2,"format":"cohort-checkpoint"`:                                  "has 0 ranks",
		`{"format":"cohort-checkpoint","version":3,"new":1`:                          "has version 3, this program reads versions 1 to 2",
		`{"format":"cohort-checkpoint","version":1,"step":1,"files":[],"tensors":{}`: "not known in version 1",
		head + `,"ranks":1`:        `"ranks" is there twice`,
		head + `,"color":1`:        `"color" is not known`,
		head + `,"folder":"../up"`: "no plain file name",
		head + `,"files":[{"name":"/etc/passwd","bytes":1,"crc32c":"00000000"}]`:                "no plain file name",
		head + `,"files":[{"name":"a","bytes":-1,"crc32c":"00000000"}]`:                         "want a whole number",
		head + `,"files":[{"name":"a","bytes":1,"crc32c":"0000000G"}]`:                          "not 8 hexadecimal digits",
		head + `,"tensors":{"a.b":{}}`:                                                          "no name for one",
		head + `,"values":` + strings.Repeat("[", 300):                                          "nested more than",
		box(`[2]`, one("0", "[0]", "[2]", sum)+","+one("8", "[0]", "[2]", sum)):                 "of 8 bytes, and its boxes have 16",
		box(`[4]`, one("0", "[0]", "[2]", sum)+","+one("8", "[1]", "[2]", sum)):                 "overlap",
		box(`[4]`, one("0", "[0]", "[2]", sum)):                                                 "of 16 bytes, and its boxes have 8",
		box(`[2]`, one("0", "[1]", "[2]", sum)):                                                 "outside of the tensor",
		box(`[2]`, one("996", "[0]", "[2]", sum)):                                               "outside of the file",
		box(`[2]`, one("9223372036854775807", "[0]", "[2]", sum)):                               "outside of the file",
		box(`[2]`, one("0", "[0]", "[2]", "[]")):                                                "with 0 checksums for 8 bytes",
		box(`[2]`, one("0", "[0,0]", "[2]", sum)):                                               "dims",
		box(`[4611686018427387904,4611686018427387904]`, one("0", "[0,0]", "[1,1]", sum)):       "makes no sense",
		box(`[`+strings.Repeat("1,", 100)+`1]`, one("0", "[0]", "[2]", sum)):                    "more than 64 dims",
		strings.Replace(box(`[2]`, one("0", "[0]", "[2]", sum)), `"file":"a.`, `"file":"b.`, 1): "which the manifest does not list",
	} {
		_, err := parseManifest(sealed([]byte(text)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n\t%v, want %q", text[:min(len(text), 200)], err, want)
		}
	}
	if _, err := parseManifest(sealed([]byte(box(`[2]`, one("0", "[0]", "[2]", sum))))); err != nil {
		t.Error(err)
	}
}

func FuzzParseManifest(f *testing.F) {
	text := goodManifest(f)
	f.Add(text[:len(text)-len(sealOf(nil))], true)
	f.Add([]byte(`{"format":"cohort-checkpoint","version":1,"step":3,"files":[{"name":"a","bytes":1,"crc32c":"00000000"}]}`), false)
	f.Fuzz(func(t *testing.T, text []byte, seal bool) {
		if seal {
			text = sealed(text)
		}
		m, err := parseManifest(text)
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("read what is no JSON: %q", text)
		}
		if m.Version == 1 {
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		other, err := parseManifest(again)
		if err != nil {
			t.Fatalf("%v: %s", err, again)
		}
		third, err := other.encode()
		if err != nil || string(third) != string(again) {
			t.Fatalf("%v\n%s\n%s", err, again, third)
		}
	})
}
