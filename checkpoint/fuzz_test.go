// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// aManifest is one with all that a manifest may have.
func aManifest() *Manifest {
	box := func(file string, at int64, start, shape []int, sums ...uint32) StoredBox {
		return StoredBox{File: file, At: at, Start: start, Shape: shape, Sums: sums}
	}
	return &Manifest{
		Version: 2, Step: 8, Ranks: 2, Mesh: []Axis{{"fsdp", 2}}, Program: "cohort v1", Time: time.Unix(1e9, 0).UTC(), Folder: "ab",
		Metric:     &Metric{Name: "loss", Value: 0.5, Lower: true},
		Values:     map[string]json.RawMessage{"progress": json.RawMessage(`{"step":8}`)},
		RankValues: []map[string]json.RawMessage{{"random": json.RawMessage(`"AAEC"`)}, nil},
		Files:      []FileInfo{{"config.json", 2, 7, 0}, {"model-00001-of-00002.safetensors", 200, 8, 0}, {"model-00002-of-00002.safetensors", 200, 9, 1}},
		Sections: []Section{{Name: "model", Tensors: []StoredTensor{
			{Name: "w", DType: safetensors.F32, Shape: []int{3, 4}, Placements: []string{"Shard(0)"}, Boxes: []StoredBox{
				box("model-00001-of-00002.safetensors", 100, []int{0, 0}, []int{2, 4}, 1), box("model-00002-of-00002.safetensors", 100, []int{2, 0}, []int{1, 4}, 2)}},
			{Name: "count", DType: safetensors.I64, Shape: []int{}, Boxes: []StoredBox{box("model-00001-of-00002.safetensors", 192, []int{}, []int{}, 3)}},
			{Name: `größe "x"`, DType: safetensors.BF16, Shape: []int{0, 5}, Boxes: []StoredBox{}},
		}}, {Name: "optimizer"}},
	}
}

func encoded(t testing.TB, m *Manifest) []byte {
	t.Helper()
	text, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// addManifests adds texts that look like manifests.
func addManifests(f *testing.F) {
	good := encoded(f, aManifest())
	f.Add(good)
	f.Add(bytes.TrimSpace(good[:len(good)/2]))
	for _, text := range []string{
		"", "{}", "[]", "null", `{"format":"cohort-checkpoint","version":1,"step":3,"files":[{"name":"a","bytes":1,"crc32c":"00000000"}]}`,
		`{"format":"cohort-checkpoint","version":2,"step":1,"ranks":1,"files":[],"tensors":{"model":{"a":{"dtype":"F32","shape":[-1],"boxes":[]}}}`,
		`{"format":"cohort-checkpoint","version":2,"step":1,"ranks":1,"tensors":{"model":{"a":{"dtype":"F32","shape":[1099511627776,1099511627776,0],"boxes":[{"file":"x","at":-1,"start":[0,0,0],"shape":[0,0,0],"crc32c":[]}]}}}`,
		`{"format":"cohort-checkpoint","version":99}`, `{"format":"cohort-checkpoint","version":2,"files":[{"name":"../x","bytes":-1,"crc32c":"zz"}]`,
	} {
		f.Add([]byte(text))
	}
}

// parsed checks what a parser has made of a text: what it accepts can be written and read again.
func parsed(t *testing.T, text []byte, parse func([]byte) (*Manifest, error)) *Manifest {
	t.Helper()
	m, err := parse(text)
	if err != nil {
		if m != nil {
			t.Errorf("%q: a manifest and an error: %v", text, err)
		}
		return nil
	}
	if m.Version == 1 {
		return m
	}
	again := encoded(t, m)
	n, err := parse(again)
	if err != nil {
		t.Fatalf("%q is read, and not %q: %v", text, again, err)
	}
	if last := encoded(t, n); !bytes.Equal(again, last) {
		t.Errorf("%q is read as %q, and that as %q", text, again, last)
	}
	return m
}

// FuzzManifestBoxes: no text makes the reader of manifests fail otherwise than by an error. What it
// accepts lies within its files and its tensors.
func FuzzManifestBoxes(f *testing.F) {
	addManifests(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, text := range [][]byte{text, sealed(bytes.Clone(text))} {
			m := parsed(t, text, parseManifest)
			if m == nil {
				continue
			}
			size := make(map[string]int64)
			for _, f := range m.Files {
				if size[f.Name] = f.Bytes; checkName(f.Name) != nil || f.Bytes < 0 {
					t.Errorf("%q: the file %q of %d bytes", text, f.Name, f.Bytes)
				}
			}
			for _, s := range m.Sections {
				for _, tensor := range s.Tensors {
					checkInside(t, tensor, size)
				}
			}
		}
	})
}

// checkInside says which box of a tensor lies outside, by arithmetic that cannot overflow.
func checkInside(t *testing.T, s StoredTensor, size map[string]int64) {
	t.Helper()
	bits := int64(s.DType.NumBits())
	for _, b := range s.Boxes {
		elems := int64(1)
		for d, n := range b.Shape {
			if b.Start[d] < 0 || n < 0 || b.Start[d] > s.Shape[d]-n {
				t.Errorf("%q of %v has the box %v, %v", s.Name, s.Shape, b.Start, b.Shape)
			}
			elems *= int64(n)
		}
		if all, ok := size[b.File]; !ok || b.At < 0 || elems*bits/8 > all-b.At {
			t.Errorf("%q has a box of %d elements at %d of the %d bytes of %q", s.Name, elems, b.At, all, b.File)
		}
	}
}

// FuzzPart: the same of what one rank says, whose boxes are compared when all ranks' are
// together.
func FuzzPart(f *testing.F) {
	addManifests(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, text := range [][]byte{text, sealed(bytes.Clone(text))} {
			m := parsed(t, text, parsePart)
			if m == nil {
				continue
			}
			all := &Manifest{Step: m.Step, Ranks: m.Ranks}
			if err := (&merger{into: all}).add(m); err == nil && all.complete() == nil {
				size := make(map[string]int64)
				for _, f := range all.Files {
					size[f.Name] = f.Bytes
				}
				for _, s := range all.Sections {
					for _, tensor := range s.Tensors {
						checkInside(t, tensor, size)
					}
				}
			}
		}
	})
}
