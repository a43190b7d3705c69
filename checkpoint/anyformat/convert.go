// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/checkpoint/torchstate"
)

// Progress is told how many bytes of tensors were written.
type Progress func(done, total int64)

// copier copies tensors of a source, piece by piece, and counts their bytes.
type copier struct {
	ctx         context.Context
	done, total int64
	progress    Progress
}

func newCopier(ctx context.Context, progress Progress, sources ...checkpoint.Source) *copier {
	c := &copier{ctx: ctx, progress: progress}
	for _, s := range sources {
		if s == nil {
			continue
		}
		for _, info := range s.Infos() {
			c.total += max(info.NumBytes(), 0)
		}
	}
	return c
}

// tensor writes the bytes of a tensor to w.
func (c *copier) tensor(w io.Writer, src checkpoint.Source, info safetensors.Info) error {
	return Pieces(c.ctx, src, info, func(b []byte, _ int64) error {
		_, err := w.Write(b)
		c.advance(len(b))
		return err
	})
}

func (c *copier) advance(n int) {
	c.done += int64(n)
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}

// WriteHuggingFace writes a section as a folder that Hugging Face's tools open, with the
// companions of the input (its configuration, its tokenizer) beside. The folder must not
// exist, or be empty.
func WriteHuggingFace(ctx context.Context, to Location, in *Input, section Section, o huggingface.WriteOptions, progress Progress) error {
	if o.Files == nil {
		files, err := in.Companions(ctx)
		if err != nil {
			return err
		}
		o.Files = files
	}
	return inNewFolder(ctx, to, func(folder storage.Storage) error {
		c := newCopier(ctx, progress, section.Source)
		return huggingface.Write(ctx, folder, section.Source.Infos(), o, func(w io.Writer, info safetensors.Info) error {
			return c.tensor(w, section.Source, info)
		})
	})
}

// counted is a source whose reads are counted.
type counted struct {
	checkpoint.Source
	c *copier
}

func (s counted) ReadRange(name string, dst []byte, offset int64) error {
	if err := context.Cause(s.c.ctx); err != nil {
		return err
	}
	err := s.Source.ReadRange(name, dst, offset)
	s.c.advance(len(dst))
	return err
}

// WriteTorch writes a model as one file of torch.save: its state dict or, with an optimizer,
// {"model": …, "optimizer": …}, which load_state_dict of both takes. The file must not exist.
func WriteTorch(ctx context.Context, to Location, in *Input, sections []Section, progress Progress) error {
	if err := checkNoFile(ctx, to); err != nil {
		return err
	}
	model, optimizer := modelAndOptimizer(sections)
	c := newCopier(ctx, progress, model, optimizer)
	var value any
	if optimizer == nil {
		value = torchsave.FromSource(counted{model, c})
	} else {
		var err error
		if value, err = torchstate.Value(counted{model, c}, counted{optimizer, c}, in.Groups); err != nil {
			return fmt.Errorf("%s: %w", in.Where, err)
		}
	}
	f, err := to.Parent.Create(ctx, to.Name)
	if err != nil {
		return openError(to, err)
	}
	defer f.Abort()
	if err := torchsave.Write(f, value); err != nil {
		return fmt.Errorf("%s: %w", to.Text, err)
	}
	return f.Close()
}

// modelAndOptimizer returns the sources of the sections of these names, nil for none.
func modelAndOptimizer(sections []Section) (model, optimizer checkpoint.Source) {
	for _, s := range sections {
		switch s.Name {
		case ModelSection:
			model = s.Source
		case OptimizerSection:
			optimizer = s.Source
		}
	}
	return model, optimizer
}

// WriteDCP writes a model, and an optimizer if there is one, as a directory of PyTorch's
// distributed checkpoints: {"model": …, "optim": …}. The directory must not exist, or be empty.
func WriteDCP(ctx context.Context, to Location, in *Input, sections []Section, progress Progress) error {
	model, optimizer := modelAndOptimizer(sections)
	c := newCopier(ctx, progress, model, optimizer)
	items, err := torchstate.Items(model, optimizer, in.Groups)
	if err != nil {
		return fmt.Errorf("%s: %w", in.Where, err)
	}
	for i := range items {
		read := items[i].Read
		if read == nil {
			continue
		}
		items[i].Read = func(dst []byte, offset int64) error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			err := read(dst, offset)
			c.advance(len(dst))
			return err
		}
	}
	return inNewFolder(ctx, to, func(folder storage.Storage) error { return dcp.Write(ctx, folder, "", items) })
}

// CohortOptions say how a checkpoint of Cohort is written.
type CohortOptions struct {
	Step   int // -1 is that of the input, 0 if it has none
	Layout checkpoint.Rewriting
}

// WriteCohort writes sections as a checkpoint of a step in the run at a location, with the
// values and files of the input. Values of single ranks are kept if the number of ranks is.
func WriteCohort(ctx context.Context, to Location, in *Input, sections []Section, o CohortOptions, progress Progress) (step int, err error) {
	if to.Inside == nil {
		return 0, &AccessError{to.Text, "is a file, and the folder of a run is to be written: give another name", fs.ErrExist}
	}
	if step = o.Step; step < 0 {
		step = max(in.Step, 0)
	}
	further, err := in.further(ctx)
	if err != nil {
		return 0, err
	}
	s := checkpoint.State{Sources: map[string]checkpoint.Source{}, Values: map[string]any{}}
	var sources []checkpoint.Source
	for _, section := range sections {
		s.Sources[section.Name] = section.Source
		sources = append(sources, section.Source)
	}
	if c := in.Checkpoint; c != nil {
		m := c.Manifest()
		s.Metric, o.Layout.RankValues = m.Metric, m.RankValues
		for name, text := range m.Values {
			s.Values[name] = text
		}
		if name := "progress"; m.Version == 1 && c.HasValue(name) {
			var text json.RawMessage
			if err := c.Value(name, &text); err != nil {
				return 0, err
			}
			s.Values[name] = text
		}
	}
	if len(in.Groups) > 0 {
		s.Values[groupsValue] = in.Groups
	}
	s.Files = further
	total := newCopier(ctx, nil, sources...).total
	o.Layout.Progress = func(done int64) {
		if progress != nil {
			progress(min(done, total), total) // headers and files are written too
		}
	}
	return step, checkpoint.Rewrite(ctx, to.Inside, step, s, o.Layout)
}

// further returns what writes the files that a checkpoint of Cohort has beside the tensors: those of
// the input if it is one too, of any size, else its companions.
func (in *Input) further(ctx context.Context) (func(w *checkpoint.Writer) error, error) {
	c := in.Checkpoint
	if c == nil {
		files, err := in.Companions(ctx)
		return func(w *checkpoint.Writer) error {
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if err := w.WriteFile(name, files[name]); err != nil {
					return err
				}
			}
			return nil
		}, err
	}
	return func(w *checkpoint.Writer) error {
		for _, f := range c.Files {
			isValue := c.Manifest().Version == 1 && f.Name == "progress.json"
			if isValue || strings.HasSuffix(f.Name, ".safetensors") || strings.HasSuffix(f.Name, ".safetensors.index.json") {
				continue
			}
			out, err := w.Create(f.Name)
			if err != nil {
				return err
			}
			if err := errors.Join(c.WriteFile(out, f.Name), out.Close()); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// checkNoFile reports a location that is taken.
func checkNoFile(ctx context.Context, to Location) error {
	o, err := to.Parent.Open(ctx, to.Name)
	switch {
	case err == nil:
		return errors.Join(&AccessError{to.Text, "is there already: give another name", fs.ErrExist}, o.Close())
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return openError(to, err)
}

// inNewFolder calls write with a folder, which appears at a location if write returns nil. On a
// storage that cannot rename, write must leave last what makes the folder whole.
func inNewFolder(ctx context.Context, to Location, write func(folder storage.Storage) error) error {
	if err := checkFree(ctx, to); err != nil {
		return err
	}
	parent, ok := to.Parent.(*storage.Directory)
	if !ok {
		return write(to.Inside)
	}
	path := parent.Path(to.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	suffix := make([]byte, 4)
	rand.Read(suffix) // never fails
	temp := filepath.Join(filepath.Dir(path), "."+to.Name+".tmp-"+hex.EncodeToString(suffix))
	if err := os.Mkdir(temp, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(temp) // gone after the rename
	if err := write(storage.Dir(temp)); err != nil {
		return &renamedError{strings.ReplaceAll(err.Error(), temp, to.Text), err}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// renamedError has the name that the user knows in place of that of a temporary folder.
type renamedError struct {
	text string
	err  error
}

func (e *renamedError) Error() string { return e.text }
func (e *renamedError) Unwrap() error { return e.err }

func syncFolder(path string) (err error) {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// checkFree reports a location that has something already.
func checkFree(ctx context.Context, to Location) error {
	if to.Inside == nil {
		return &AccessError{to.Text, "is a file, and a folder is to be written: give another name", fs.ErrExist}
	}
	entries, err := to.Inside.List(ctx, "")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return openError(to, err)
	}
	if len(entries) > 0 {
		return &AccessError{to.Text, "is not empty: give the checkpoint a folder of its own", fs.ErrExist}
	}
	return nil
}

// maxCompanion bounds the files beside the weights that are copied.
const maxCompanion = 64 << 20

// companions are the endings of files beside weights that belong to a model.
var companions = []string{".json", ".model", ".txt", ".jinja", ".md"}

// isCompanion reports whether a file beside the weights belongs to the model: its
// configuration, its tokenizer. The files of a run that only Cohort knows do not.
func isCompanion(name string) bool {
	switch name {
	case manifestFile, "progress.json", "proof.json": // what only Cohort knows
		return false
	}
	return slices.ContainsFunc(companions, func(end string) bool { return strings.HasSuffix(name, end) }) &&
		!strings.HasSuffix(name, ".index.json") && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "part-")
}

// usualCompanions are asked for by name where a storage lists nothing.
var usualCompanions = []string{configFile, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	"vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "chat_template.jinja"}

// Companions reads the files beside the weights that belong to the model.
func (in *Input) Companions(ctx context.Context) (map[string][]byte, error) {
	files := map[string][]byte{}
	if c := in.Checkpoint; c != nil {
		for _, f := range c.Files {
			if !isCompanion(f.Name) || f.Bytes > maxCompanion {
				continue
			}
			text, err := c.ReadFile(f.Name, maxCompanion)
			if err != nil {
				return nil, err
			}
			files[f.Name] = text
		}
		return files, nil
	}
	if in.beside == nil {
		return files, nil
	}
	names := usualCompanions
	entries, err := in.beside.List(ctx, "")
	switch {
	case err == nil:
		names = nil
		for _, e := range entries {
			if !e.IsFolder && isCompanion(e.Name) && e.Size <= maxCompanion {
				names = append(names, e.Name)
			}
		}
	case !errors.Is(err, errors.ErrUnsupported):
		return nil, fmt.Errorf("%s: %w", in.Where, err)
	}
	for _, name := range names {
		text, err := storage.ReadFile(ctx, in.beside, name, maxCompanion)
		switch {
		case err == nil:
			files[name] = text
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return files, nil
}
