// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/checkpoint/torchstate"
	"github.com/cohort-ml/cohort/optim"
)

// Section is a part of what was saved: the model or the optimizer.
type Section struct {
	Name   string
	Source checkpoint.Source
}

// ModelSection is the section of the formats that have only one.
const ModelSection = "model"

// Input is an opened checkpoint of any format. Close it after use.
type Input struct {
	Kind     Kind
	Where    string // the location, of a run with the checkpoint's name
	Step     int    // -1 where the format has none
	Sections []Section
	Files    []File // that the tensors lie in
	// Refused are the tensors that cannot be read, by name.
	Refused map[string]error
	// NumObjects is how many values that are no tensors lie beside them.
	NumObjects int
	// Values are the names of the values that no format of tensors has a place for: those of a
	// run, or what a PyTorch job has saved beside its model and its optimizer, such as epoch.
	Values []string
	// Checkpoint is the opened one of Cohort's kinds, else nil.
	Checkpoint *checkpoint.Checkpoint
	// Groups are those of the optimizer's parameters, if they are known.
	Groups []optim.ParamGroup
	// Notices say what was passed over.
	Notices []string
	// CheckSums reads all bytes, compares them with the checksums of the format and calls report with
	// each part that differs; has says whether all parts have one. It is nil for formats without checksums.
	CheckSums func(ctx context.Context, report func(part string, err error)) (has bool, err error)

	beside  storage.Storage // where the files of the model lie, nil where there are none
	closers []io.Closer
}

// File is a file of an input.
type File struct {
	Name  string
	Bytes int64
}

// Section returns a section by its name. The error names those that there are.
func (in *Input) Section(name string) (Section, error) {
	var names []string
	for _, s := range in.Sections {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Section{}, fmt.Errorf("%s has no section %q: it has %q", in.Where, name, names)
}

// Close closes all files.
func (in *Input) Close() error {
	var errs []error
	for _, c := range in.closers {
		errs = append(errs, c.Close())
	}
	in.closers = nil
	return errors.Join(errs...)
}

// Open opens what lies at a location. Of a run it is the newest checkpoint.
func Open(ctx context.Context, at Location) (_ *Input, err error) {
	kind, err := Recognize(ctx, at)
	if err != nil {
		return nil, err
	}
	in := &Input{Kind: kind, Where: at.Text, Step: -1, beside: at.Inside}
	defer func() {
		if err != nil {
			in.Close()
		}
	}()
	switch kind {
	case Safetensors:
		return in, in.openFile(ctx, at, at.Name, ModelSection)
	case HuggingFace:
		return in, in.openFolder(ctx, at)
	case Torch:
		return in, in.openTorch(ctx, at)
	case Run:
		return in, in.openRun(ctx, at)
	case Checkpoint:
		return in, in.openNamed(ctx, at)
	case DCP:
		return in, in.openDCP(ctx, at)
	}
	return nil, fmt.Errorf("%s is a %s, which this program cannot read", at.Text, kind)
}

// openFile opens one safetensors file as a section.
func (in *Input) openFile(ctx context.Context, at Location, name, section string) error {
	from, text := at.Parent, at.Text
	if at.Inside != nil {
		from, text = at.Inside, strings.TrimSuffix(at.Text, "/")+"/"+name
	}
	o, err := from.Open(ctx, name)
	if err != nil {
		return openError(Location{Text: text}, err)
	}
	in.closers = append(in.closers, o)
	f, err := safetensors.NewFile(o, o.Size(), text)
	if err != nil {
		return err
	}
	in.Sections = append(in.Sections, Section{section, f})
	in.Files = append(in.Files, File{name, o.Size()})
	return nil
}

func (in *Input) openFolder(ctx context.Context, at Location) error {
	if isAdapter, err := has(ctx, at, adapterFile); err != nil {
		return err
	} else if isAdapter {
		if whole, err := has(ctx, at, weightsFile); err != nil {
			return err
		} else if !whole {
			return in.openFile(ctx, at, adapterFile, ModelSection)
		}
	}
	f, err := huggingface.OpenIn(ctx, at.Inside, at.Text)
	if err != nil {
		return err
	}
	in.closers = append(in.closers, f)
	in.Sections = []Section{{ModelSection, f}}
	for _, shard := range f.Files() {
		name := shard.Name()
		in.Files = append(in.Files, File{name[strings.LastIndexByte(name, '/')+1:], shard.Size()})
	}
	return nil
}

// openTorchFile opens one file of torch.save, which errors call text.
func (in *Input) openTorchFile(ctx context.Context, from storage.Storage, name, text string) (*torchsave.File, error) {
	o, err := from.Open(ctx, name)
	if err != nil {
		return nil, openError(Location{Text: text}, err)
	}
	in.closers = append(in.closers, o)
	f, err := torchsave.NewFile(o, o.Size(), text, torchsave.Limits{})
	if err != nil {
		return nil, err
	}
	in.Files = append(in.Files, File{name, o.Size()})
	return f, nil
}

// openTorch opens a file of torch.save, or a folder with one or with shards.
func (in *Input) openTorch(ctx context.Context, at Location) error {
	from, name, text := at.Parent, at.Name, at.Text
	if at.Inside != nil {
		if indexed, err := has(ctx, at, torchIndexFile); err != nil {
			return err
		} else if indexed {
			return in.openTorchShards(ctx, at)
		}
		from, name, text = at.Inside, torchFile, strings.TrimSuffix(at.Text, "/")+"/"+torchFile
	}
	f, err := in.openTorchFile(ctx, from, name, text)
	if err != nil {
		return err
	}
	in.Refused, in.CheckSums = f.Refused(), f.CheckSums
	keys := map[string]string{}
	for _, leaf := range f.Leaves() {
		switch leaf.Value.(type) {
		case *torchsave.Tensor, torchsave.Refused:
		default:
			in.NumObjects++
		}
		if key, ok := firstKey(leaf.Path); ok {
			keys[leaf.Name] = key
		}
	}
	state, err := torchstate.FromFile(f)
	return in.takeState(f, state, err, keys)
}

// takeState makes sections of what a PyTorch job has saved. An optimizer's state gets Cohort's
// names. Where there is none, keys has the first key of each tensor that lies in a dict of its own.
func (in *Input) takeState(src checkpoint.Source, state *torchstate.State, err error, keys map[string]string) error {
	var form *torchstate.FormError
	if err != nil && !errors.As(err, &form) {
		return err
	}
	if err == nil {
		in.Values = slices.Sorted(maps.Keys(state.Others))
	}
	if err != nil || state.Optimizer == nil {
		in.Sections, err = split(src, keys)
		return err
	}
	in.Sections = []Section{{ModelSection, state.Model}, {OptimizerSection, state.Optimizer}}
	in.Groups = state.Groups
	if len(state.OtherTensors) > 0 {
		other := map[string]bool{}
		for _, name := range state.OtherTensors {
			other[name] = true
		}
		others, err := checkpoint.Select(src, func(name string) (string, bool) { return name, other[name] })
		if err != nil {
			return err
		}
		in.Sections = append(in.Sections, Section{"other", others})
	}
	return nil
}

// firstKey returns the first key of a place that is in a dict within the outermost one.
func firstKey(path []any) (string, bool) {
	if len(path) < 2 {
		return "", false
	}
	key, ok := path[0].(string)
	return key, ok
}

// openRun opens the newest checkpoint of a run. Newer ones that are damaged are told of.
func (in *Input) openRun(ctx context.Context, at Location) error {
	steps, err := checkpoint.Steps(ctx, at.Inside)
	if err != nil {
		return openError(at, err)
	}
	var first error
	for _, step := range steps {
		c, err := checkpoint.Open(ctx, at.Inside, checkpoint.StepName(step))
		if err == nil {
			return in.openCheckpoint(c)
		}
		var damaged *checkpoint.DamagedError
		if !errors.As(err, &damaged) && !errors.Is(err, checkpoint.ErrNone) {
			return err
		}
		if first == nil {
			first = err
		}
		in.Notices = append(in.Notices, "passed over: "+err.Error())
	}
	if first != nil {
		return first
	}
	return &UnknownError{at.Text, "has no whole checkpoint, only what saves left that did not end"}
}

// openNamed opens the checkpoint whose folder is the location.
func (in *Input) openNamed(ctx context.Context, at Location) error {
	c, err := checkpoint.Open(ctx, at.Inside, "")
	if err != nil {
		return err
	}
	return in.openCheckpoint(c)
}

func (in *Input) openCheckpoint(c *checkpoint.Checkpoint) error {
	in.Checkpoint, in.Where, in.Step = c, c.Path, c.Step
	m := c.Manifest()
	for _, s := range m.Sections {
		src, err := c.Source(s.Name)
		if err != nil {
			return err
		}
		in.closers = append(in.closers, src)
		in.Sections = append(in.Sections, Section{s.Name, src})
	}
	for _, f := range c.Files {
		in.Files = append(in.Files, File{f.Name, f.Bytes})
	}
	for _, name := range slices.Sorted(maps.Keys(m.Values)) {
		if name != groupsValue {
			in.Values = append(in.Values, name)
		}
	}
	if c.HasValue(groupsValue) {
		return c.Value(groupsValue, &in.Groups)
	}
	return nil
}

// groupsValue is the value of a checkpoint with the groups of its optimizer, which PyTorch's
// jobs want.
const groupsValue = "param_groups"

// openDCP opens a directory of PyTorch's distributed checkpoints.
func (in *Input) openDCP(ctx context.Context, at Location) error {
	c, err := dcp.Open(ctx, at.Inside, "")
	if err != nil {
		return err
	}
	in.closers = append(in.closers, c)
	for _, name := range c.Files() {
		o, err := at.Inside.Open(ctx, name)
		if err != nil {
			return openError(Location{Text: at.Text + "/" + name}, err)
		}
		in.Files = append(in.Files, File{name, o.Size()})
		if err := o.Close(); err != nil {
			return err
		}
	}
	keys := map[string]string{}
	for _, info := range c.Infos() {
		if key, ok := firstKey(c.Path(info.Name)); ok {
			keys[info.Name] = key
		}
	}
	in.NumObjects = len(c.Objects())
	state, err := torchstate.FromDCP(c)
	return in.takeState(c, state, err, keys)
}
