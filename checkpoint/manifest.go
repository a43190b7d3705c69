// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// ManifestName is the file in a checkpoint that describes it. It is written last.
const ManifestName = "manifest.json"

const (
	manifestFormat   = "cohort-checkpoint"
	manifestVersion  = 2
	maxManifestBytes = 1 << 30
	maxNameBytes     = 255
	maxDims          = 64
	maxRanks         = 1 << 20
)

// Manifest says what a checkpoint has. It is the content of manifest.json.
type Manifest struct {
	Version    int                          // 2, or 1 for checkpoints of before sections
	Step       int                          // steps done
	Ranks      int                          // that saved
	Mesh       []Axis                       // on which the tensors lay; empty for none
	Program    string                       // that saved, with its version
	Time       time.Time                    // when
	Folder     string                       // in the checkpoint, in which its files lie; mostly ""
	Metric     *Metric                      // nil for none
	Files      []FileInfo                   // by name
	Values     map[string]json.RawMessage   // of the run
	RankValues []map[string]json.RawMessage // by rank
	Sections   []Section

	rank int // that has written it, of a part
}

// Axis is an axis of a mesh.
type Axis struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// Metric is how good a model is.
type Metric struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Lower bool    `json:"lower_is_better,omitempty"` // whether lower values are better, as of a loss
}

// FileInfo is one file of a checkpoint as its manifest describes it.
type FileInfo struct {
	Name  string
	Bytes int64
	CRC   uint32 // CRC-32C of the whole file
	Rank  int    // that wrote it
}

// Section is a set of tensors with names of their own, such as [Model].
type Section struct {
	Name    string
	Tensors []StoredTensor
}

// StoredTensor is a tensor of a checkpoint.
type StoredTensor struct {
	Name       string
	DType      safetensors.DType
	Shape      []int
	Placements []string    // on the axes of the mesh, for people; empty for none
	Boxes      []StoredBox // which together are the tensor
}

// Info returns name, dtype and shape.
func (t StoredTensor) Info() safetensors.Info {
	return safetensors.Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// StoredBox is a part of a tensor that lies densely in a file.
type StoredBox struct {
	File         string
	At           int64    // the byte of the file where it begins
	Start, Shape []int    // in the tensor
	Sums         []uint32 // CRC-32C of each MiB; nil in a checkpoint of version 1
}

// Section returns the section with a name, nil if there is none.
func (m *Manifest) Section(name string) *Section {
	for i := range m.Sections {
		if m.Sections[i].Name == name {
			return &m.Sections[i]
		}
	}
	return nil
}

// ownSum is the last member of a manifest: the CRC-32C of all that comes before it, from the
// first byte to the line before.
const ownSum = "crc32c"

// sealed returns the text of a manifest with its own checksum.
func sealed(text []byte) []byte { return append(text, sealOf(text)...) }

func sealOf(text []byte) []byte {
	return fmt.Appendf(nil, ",\n  %q: \"%08x\"\n}\n", ownSum, crc32.Checksum(text, castagnoli))
}

// isIntact says whether a text is what sealed has made.
func isIntact(text []byte) bool {
	n := len(text) - len(sealOf(nil))
	return n > 0 && bytes.Equal(sealOf(text[:n]), text[n:])
}

// encode returns the text of manifest.json: one line for each file and each tensor.
func (m *Manifest) encode() ([]byte, error) {
	b := make([]byte, 0, 4096+m.numBoxes()*128)
	member := func(name string, v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b = append(b, "  "...)
		b = appendJSON(b, name)
		b = append(append(append(b, ": "...), text...), ",\n"...)
		return nil
	}
	b = append(b, "{\n"...)
	err := errors.Join(member("format", manifestFormat), member("version", manifestVersion), member("step", m.Step), member("ranks", m.Ranks))
	if len(m.Mesh) > 0 {
		err = errors.Join(err, member("mesh", m.Mesh))
	}
	err = errors.Join(err, member("program", m.Program), member("time", m.Time.UTC().Truncate(time.Second)), member("folder", m.Folder))
	if m.Metric != nil {
		err = errors.Join(err, member("metric", m.Metric))
	}
	if len(m.Values) > 0 {
		err = errors.Join(err, member("values", m.Values))
	}
	if slices.ContainsFunc(m.RankValues, func(v map[string]json.RawMessage) bool { return len(v) > 0 }) {
		err = errors.Join(err, member("rank_values", m.RankValues))
	}
	if err != nil {
		return nil, err
	}
	b = append(b, "  \"files\": ["...)
	for i, f := range m.Files {
		b = append(b, next(i, "\n    ")...)
		b = append(appendJSON(append(b, `{"name":`...), f.Name), `,"bytes":`...)
		b = append(strconv.AppendInt(b, f.Bytes, 10), `,"crc32c":`...)
		b = append(appendSum(b, f.CRC), `,"rank":`...)
		b = append(strconv.AppendInt(b, int64(f.Rank), 10), '}')
	}
	b = append(b, "\n  ],\n  \"tensors\": {"...)
	for i, s := range m.Sections {
		b = append(appendJSON(append(b, next(i, "\n    ")...), s.Name), ": {"...)
		for j, t := range s.Tensors {
			b = t.append(append(b, next(j, "\n      ")...))
		}
		b = append(b, "\n    }"...)
	}
	return sealed(append(b, "\n  }"...)), nil
}

func (m *Manifest) numBoxes() int {
	n := len(m.Files)
	for _, s := range m.Sections {
		for _, t := range s.Tensors {
			n += 1 + len(t.Boxes)
		}
	}
	return n
}

func (t StoredTensor) append(b []byte) []byte {
	b = append(appendJSON(b, t.Name), `: {"dtype":`...)
	b = append(appendJSON(b, t.DType.String()), `,"shape":`...)
	b = appendInts(b, t.Shape)
	if len(t.Placements) > 0 {
		b = append(b, `,"placements":[`...)
		for i, p := range t.Placements {
			b = appendJSON(append(b, next(i, "")...), p)
		}
		b = append(b, ']')
	}
	b = append(b, `,"boxes":[`...)
	for i, box := range t.Boxes {
		b = append(append(b, next(i, "")...), `{"file":`...)
		b = append(appendJSON(b, box.File), `,"at":`...)
		b = append(strconv.AppendInt(b, box.At, 10), `,"start":`...)
		b = append(appendInts(b, box.Start), `,"shape":`...)
		b = append(appendInts(b, box.Shape), `,"crc32c":[`...)
		for j, sum := range box.Sums {
			b = appendSum(append(b, next(j, "")...), sum)
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

// next returns what comes before element i of a list: a comma, unless it is the first, and
// then space.
func next(i int, space string) string {
	if i == 0 {
		return space
	}
	return "," + space
}

func appendInts(b []byte, list []int) []byte {
	b = append(b, '[')
	for i, n := range list {
		b = strconv.AppendInt(append(b, next(i, "")...), int64(n), 10)
	}
	return append(b, ']')
}

func appendSum(b []byte, sum uint32) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, hex[sum>>shift&15])
	}
	return append(b, '"')
}

func appendJSON(b []byte, s string) []byte {
	if !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r > '~' || r == '"' || r == '\\' || r == '<' || r == '>' || r == '&'
	}) {
		return append(append(append(b, '"'), s...), '"')
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always marshal
	}
	return append(b, text...)
}

// checkName accepts the names that a file of a checkpoint may have: plain ones
// that mean the same on every file system.
func checkName(name string) error {
	switch {
	case name == "" || len(name) > maxNameBytes || !utf8.ValidString(name):
		return fmt.Errorf("%q is no name for a file: it must have 1 to %d bytes of UTF-8", name, maxNameBytes)
	case name == ManifestName:
		return fmt.Errorf("the name %q belongs to the manifest itself", name)
	case strings.ContainsAny(name, `/\:`) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) || !filepath.IsLocal(name) || name[0] == '.':
		return fmt.Errorf("%q is no plain file name: no separators, no leading dot", name)
	}
	return nil
}

// StepName returns the name of a step's checkpoint. Names sort as steps do up to step
// 99,999,999.
func StepName(step int) string { return fmt.Sprintf("step-%08d", step) }

// ParseStep is the inverse of [StepName].
func ParseStep(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	if !ok {
		return 0, false
	}
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && StepName(step) == name
}

// Path returns where the checkpoint of a step is in a directory.
func Path(dir string, step int) string { return filepath.Join(dir, StepName(step)) }

// sortFiles orders files by name, so that equal checkpoints have equal manifests.
func sortFiles(files []FileInfo) {
	slices.SortFunc(files, func(a, b FileInfo) int { return strings.Compare(a.Name, b.Name) })
}
