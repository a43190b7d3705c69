// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/tensor"
)

// The sections of a training run. A program may have others. A section's name is what its
// files are called: model.safetensors.
const (
	Model     = "model"
	Optimizer = "optimizer"
)

// The files of a section that is written into one file.
const (
	ModelFile     = Model + ".safetensors"
	OptimizerFile = Optimizer + ".safetensors"
)

// State is what a rank saves of a run, or what it loads.
type State struct {
	// Sections are the tensors that this rank holds, by section. All ranks list the same
	// names. Load fills the tensors in place.
	Sections map[string][]Part
	// Sources are further sections, which rank 0 copies, a piece of a tensor at a time. Load
	// does not look at them.
	Sources map[string]Source
	// Values are values of the run, which encoding/json writes. They are the same on all
	// ranks, and rank 0 saves its own. For Load they are pointers.
	Values map[string]any
	// RankValues are values of this rank alone, such as the state of a random generator.
	// They are loaded if as many ranks load as saved; [Loaded] says whether they were. For
	// Load they are pointers.
	RankValues map[string]any
	// Files writes further files, such as config.json. Save calls it on rank 0, and Load
	// does not.
	Files func(w *Writer) error
	// Metric says how good the model is, for [Retention] by the best. It may be nil. One whose
	// value is not a number or infinite counts as none: a run that diverges is saved too.
	Metric *Metric
}

// orNone returns the metric, nil if its value is none that a manifest can have.
func (m *Metric) orNone() *Metric {
	if m == nil || math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
		return nil
	}
	return m
}

// sectionNames returns the names of the sections, in the order in which they are saved.
func (s State) sectionNames() []string { return slices.Sorted(maps.Keys(s.Sections)) }

// parts returns the parts of all sections, section by section.
func (s State) parts() []Part {
	var all []Part
	for _, name := range s.sectionNames() {
		all = append(all, s.Sections[name]...)
	}
	return all
}

// check reports a state that cannot be saved or loaded.
func (s State) check() error {
	for name := range s.Sources {
		if _, twice := s.Sections[name]; twice {
			return fmt.Errorf("checkpoint: the section %q is there twice, as tensors and as a source", name)
		}
		if err := checkSection(name); err != nil {
			return err
		}
	}
	for _, name := range s.sectionNames() {
		if err := checkSection(name); err != nil {
			return err
		}
		if _, err := describe(name, s.Sections[name]); err != nil {
			return err
		}
	}
	return nil
}

// checkSection accepts names of sections: plain ones that no other file has.
func checkSection(name string) error {
	if strings.Contains(name, ".") || checkName(name) != nil {
		return fmt.Errorf("checkpoint: %q is no name for a section: use letters, digits, - and _", name)
	}
	return nil
}

// hash returns a number that is the same where the same tensors are saved.
func (s State) hash() uint64 {
	sum := fnv.New64a()
	for _, name := range s.sectionNames() {
		fmt.Fprintf(sum, "%q:", name)
		for _, p := range s.Sections[name] {
			fmt.Fprintf(sum, "%q %v %v %v,", p.Name, p.Local.DType(), p.shape(), p.Frozen)
		}
	}
	return sum.Sum64()
}

// describeMesh returns the axes of the largest mesh on which tensors lie.
func (s State) describeMesh() (axes []Axis) {
	for _, p := range s.parts() {
		if p.Mesh == nil || len(p.Mesh.Axes()) <= len(axes) {
			continue
		}
		axes = nil
		for _, a := range p.Mesh.Axes() {
			axes = append(axes, Axis{a.Name, a.Size})
		}
	}
	return axes
}

func encodeValues(values map[string]any) (map[string]json.RawMessage, error) {
	if len(values) == 0 {
		return nil, nil
	}
	texts := make(map[string]json.RawMessage, len(values))
	for name, v := range values {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: the value %q cannot be saved: %w", name, err)
		}
		texts[name] = text
	}
	return texts, nil
}

// decodeValues fills values, which are pointers, and returns the names of those that are not
// there.
func decodeValues(texts map[string]json.RawMessage, values map[string]any) (missing []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text, ok := texts[name]
		if !ok {
			missing = append(missing, name)
			continue
		}
		if e := json.Unmarshal(text, values[name]); e != nil {
			err = errors.Join(err, fmt.Errorf("the value %q: %w", name, e))
		}
	}
	return missing, err
}

// programVersion names the program that saves.
func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "cohort"
	}
	if info.Main.Path == "" {
		return "cohort " + info.GoVersion
	}
	return info.Main.Path + " " + info.Main.Version
}

// onHost returns a tensor whose elements lie densely where the CPU sees them: t itself
// or a copy.
func onHost(t *tensor.Tensor) *tensor.Tensor {
	dense := t
	if !t.IsContiguous() {
		dense = t.Detach().Contiguous()
	}
	if dev := dense.Device(); !tensor.CPUSees(dev) {
		dense = dense.ToDevice(tensor.CPU())
	}
	return dense
}
