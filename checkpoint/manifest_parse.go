// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// parseManifest reads a manifest of this version or of version 1, which lists the files
// alone. Anything that a save would not have written is an error: nothing in the result lies
// outside its file or its tensor.
func parseManifest(text []byte) (*Manifest, error) {
	m, err := parsePart(text)
	if err != nil {
		return nil, err
	}
	files := make(map[string]int64, len(m.Files))
	for _, f := range m.Files {
		files[f.Name] = f.Bytes
	}
	left := maps.Clone(files)
	for _, s := range m.Sections {
		for _, t := range s.Tensors {
			if err := t.check(files); err != nil {
				return nil, fmt.Errorf("has the tensor %q of %s %w", t.Name, s.Name, err)
			}
			for _, b := range t.Boxes {
				size := safetensors.Info{DType: t.DType, Shape: b.Shape}.NumBytes()
				if left[b.File] -= size; left[b.File] < 0 {
					return nil, fmt.Errorf("has more tensors in the %d bytes of %q than fit: %q of %s is one of them", files[b.File], b.File, t.Name, s.Name)
				}
			}
		}
	}
	return m, nil
}

// parsePart reads what one rank says, whose boxes need not be whole tensors and may lie in files
// of which others tell.
func parsePart(text []byte) (*Manifest, error) {
	// A later version may have fields that this one does not know: look at
	// the version before anything else.
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	if head.Format != manifestFormat {
		return nil, fmt.Errorf("has format %q, not %q", head.Format, manifestFormat)
	}
	if head.Version < 1 || head.Version > manifestVersion {
		return nil, fmt.Errorf("has version %d, this program reads versions 1 to %d: use the program that wrote it, or a newer one", head.Version, manifestVersion)
	}
	var j manifestJSON
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has something after its end")
	}
	m := &Manifest{Version: j.Version, Step: j.Step, Ranks: j.Ranks, Mesh: j.Mesh, Program: j.Program, Time: j.Time, Folder: j.Folder,
		Metric: j.Metric, Values: j.Values, RankValues: j.RankValues, Sections: j.Tensors}
	switch {
	case m.Step < 0:
		return nil, fmt.Errorf("has the negative step %d", m.Step)
	case m.Ranks < 0 || m.Ranks > maxRanks || len(m.RankValues) > m.Ranks:
		return nil, fmt.Errorf("has %d ranks, and values of %d", m.Ranks, len(m.RankValues))
	case m.Version == 1 && len(m.Sections) > 0:
		return nil, errors.New("has version 1 and tensors, which that version does not have")
	}
	if m.Folder != "" {
		if err := checkName(m.Folder); err != nil {
			return nil, err
		}
	}
	if m.Version == 1 {
		m.Ranks = 1
	}
	seen := make(map[string]bool, len(j.Files))
	for _, f := range j.Files {
		if err := checkName(f.Name); err != nil {
			return nil, err
		}
		if seen[f.Name] {
			return nil, fmt.Errorf("lists %q twice", f.Name)
		}
		if f.Bytes < 0 {
			return nil, fmt.Errorf("gives %q the size %d", f.Name, f.Bytes)
		}
		seen[f.Name] = true
		crc, err := parseSum(f.CRC)
		if err != nil {
			return nil, fmt.Errorf("gives %q %w", f.Name, err)
		}
		m.Files = append(m.Files, FileInfo{f.Name, f.Bytes, crc, f.Rank})
	}
	return m, nil
}

func parseSum(text string) (uint32, error) {
	sum, err := hex.DecodeString(text)
	if err != nil || len(sum) != 4 || strings.ToLower(text) != text {
		return 0, fmt.Errorf("the checksum %q, not 8 hexadecimal digits", text)
	}
	return uint32(sum[0])<<24 | uint32(sum[1])<<16 | uint32(sum[2])<<8 | uint32(sum[3]), nil
}

// UnmarshalJSON keeps the order of sections and tensors.
func (list *sectionsJSON) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	sections := map[string]bool{}
	return eachMember(d, func(name string) error {
		if err := checkName(name); err != nil || sections[name] {
			return fmt.Errorf("has the section %q twice, or it is no plain name", name)
		}
		sections[name] = true
		s := Section{Name: name}
		tensors := map[string]bool{}
		err := eachMember(d, func(name string) error {
			if tensors[name] {
				return fmt.Errorf("has the tensor %q twice", name)
			}
			tensors[name] = true
			var j tensorJSON
			if err := d.Decode(&j); err != nil {
				return err
			}
			t, err := j.tensor(name)
			s.Tensors = append(s.Tensors, t)
			return err
		})
		*list = append(*list, s)
		return err
	})
}

// eachMember calls member with the name of each member of the object that comes next, which
// reads the value.
func eachMember(d *json.Decoder, member func(name string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, errors.New("has a value where an object should be"))
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if err := member(t.(string)); err != nil { // the keys of an object are strings
			return err
		}
	}
	_, err := d.Token()
	return err
}

func (j tensorJSON) tensor(name string) (StoredTensor, error) {
	t := StoredTensor{Name: name, Shape: j.Shape, Placements: j.Placements, Boxes: make([]StoredBox, len(j.Boxes))}
	var ok bool
	if t.DType, ok = safetensors.ParseDType(j.DType); !ok {
		return t, fmt.Errorf("has the tensor %q of the unknown dtype %q", name, j.DType)
	}
	for i, b := range j.Boxes {
		box := StoredBox{File: b.File, At: b.At, Start: b.Start, Shape: b.Shape, Sums: make([]uint32, len(b.Sums))}
		for k, text := range b.Sums {
			var err error
			if box.Sums[k], err = parseSum(text); err != nil {
				return t, fmt.Errorf("gives box %d of the tensor %q %w", i, name, err)
			}
		}
		t.Boxes[i] = box
	}
	return t, nil
}

// check reports a tensor that does not fit its files, whose sizes are given by name, or whose
// boxes are not all of it.
func (t StoredTensor) check(files map[string]int64) error {
	if len(t.Shape) > maxDims {
		return fmt.Errorf("of %d dims, more than %d", len(t.Shape), maxDims)
	}
	whole := t.Info().NumBytes()
	if whole < 0 {
		return fmt.Errorf("with the shape %v of %v, which makes no sense", t.Shape, t.DType)
	}
	var sum int64
	for i, b := range t.Boxes {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("with box %d %s", i, fmt.Sprintf(format, args...))
		}
		if len(b.Start) != len(t.Shape) || len(b.Shape) != len(t.Shape) {
			return fail("of %d and %d dims, and the tensor has %d", len(b.Start), len(b.Shape), len(t.Shape))
		}
		for d, n := range t.Shape {
			if b.Start[d] < 0 || b.Shape[d] < 0 || b.Start[d] > n || b.Shape[d] > n-b.Start[d] {
				return fail("outside of the tensor: start %v, shape %v of %v", b.Start, b.Shape, t.Shape)
			}
		}
		size := safetensors.Info{DType: t.DType, Shape: b.Shape}.NumBytes()
		bytes, ok := files[b.File]
		switch {
		case size < 0:
			return fail("of the shape %v, which makes no sense", b.Shape)
		case !ok:
			return fail("in the file %q, which the manifest does not list", b.File)
		case b.At < 0 || b.At > bytes || size > bytes-b.At:
			return fail("outside of the file %q: %d bytes from %d of %d", b.File, size, b.At, bytes)
		case b.Sums != nil && int64(len(b.Sums)) != numChunks(size):
			return fail("with %d checksums for %d bytes: want one for each MiB", len(b.Sums), size)
		case sum > math.MaxInt64-size:
			return fail("beyond what can be counted")
		}
		sum += size
	}
	if sum != whole {
		return fmt.Errorf("of %d bytes, and its boxes have %d", whole, sum)
	}
	return t.checkOverlap()
}
