// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// maxItems is how many items are remembered after they were read.
const maxItems = 4096

// Checkpoint is an opened checkpoint of PyTorch.
type Checkpoint struct {
	name  string
	meta  *metadata
	files *files

	mu    sync.Mutex
	items map[place]*torchsave.File
}

// Open opens the checkpoint in a folder of a storage; "" is the storage itself. It reads
// .metadata, and no tensor. Close it after use.
func Open(ctx context.Context, from storage.Storage, folder string) (*Checkpoint, error) {
	name := from.String()
	if folder != "" {
		name += "/" + folder
	}
	o, err := from.Open(ctx, path.Join(folder, metadataName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &FormatError{Checkpoint: name, Err: err,
			Problem: "has no file " + metadataName + ", which PyTorch writes last: it is no checkpoint of torch.distributed.checkpoint, or was not saved to its end"}
	}
	if err != nil {
		return nil, fmt.Errorf("dcp: %s: %w", name, err)
	}
	defer o.Close()
	if o.Size() > int64(limits.Bytes) {
		return nil, &FormatError{Checkpoint: name, File: metadataName, Problem: fmt.Sprintf("has %d bytes, more than the %d allowed", o.Size(), limits.Bytes)}
	}
	text := make([]byte, o.Size())
	if n, err := o.ReadAt(text, 0); n < len(text) {
		return nil, fmt.Errorf("dcp: %s: reading %s: %w", name, metadataName, err)
	}
	meta, err := parseMetadata(name, text)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{
		name: name, meta: meta, items: map[place]*torchsave.File{},
		files: &files{from: from, folder: folder, open: map[string]*opened{}},
	}, nil
}

// Name returns where the checkpoint lies.
func (c *Checkpoint) Name() string { return c.name }

// Infos returns name, dtype and shape of every tensor, in the order of .metadata. A tensor of
// a dtype that no safetensors file has is left out; see [Checkpoint.Refused].
func (c *Checkpoint) Infos() []safetensors.Info {
	var infos []safetensors.Info
	for _, s := range c.meta.entries {
		if s.isTensor && s.Shape != nil {
			infos = append(infos, s.Info)
		}
	}
	return infos
}

// Refused returns the tensors whose dtype no safetensors file has, each with an error that says
// so.
func (c *Checkpoint) Refused() map[string]error {
	refused := map[string]error{}
	for _, s := range c.meta.entries {
		if s.isTensor && s.Shape == nil {
			refused[s.Name] = c.errorf(s, "", "%s", s.problem)
		}
	}
	return refused
}

// Objects returns the names of what is no tensor, in the order of .metadata.
func (c *Checkpoint) Objects() []string {
	var names []string
	for _, s := range c.meta.entries {
		if !s.isTensor {
			names = append(names, s.Name)
		}
	}
	return names
}

// Path returns the keys of the nested dicts and lists of which PyTorch has made a flat name:
// strings and int64s. It is nil if the checkpoint does not say.
func (c *Checkpoint) Path(name string) []any {
	if s := c.meta.named[name]; s != nil {
		return slices.Clone(s.path)
	}
	return nil
}

// Files returns the names of the files that the tensors and objects lie in.
func (c *Checkpoint) Files() []string {
	var names []string
	for _, s := range c.meta.entries {
		for _, ch := range append(slices.Clone(s.chunks), chunk{place: s.at}) {
			if ch.file != "" {
				names = append(names, ch.file)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c *Checkpoint) errorf(s *stored, file, format string, args ...any) error {
	e := fmt.Errorf(format, args...)
	return &FormatError{Checkpoint: c.name, File: file, Name: s.Name, Problem: e.Error(), Err: errors.Unwrap(e)}
}

// tensor returns the entry of a tensor that can be read.
func (c *Checkpoint) tensor(name string) (*stored, error) {
	s := c.meta.named[name]
	switch {
	case s == nil || !s.isTensor:
		return nil, fmt.Errorf("dcp: %s has no tensor %s", c.name, strconv.Quote(name))
	case s.problem != "":
		return nil, c.errorf(s, "", "%s", s.problem)
	}
	return s, nil
}

// item opens the file of torch.save at a place.
func (c *Checkpoint) item(s *stored, at place) (*torchsave.File, error) {
	c.mu.Lock()
	f := c.items[at]
	c.mu.Unlock()
	if f != nil {
		return f, nil
	}
	size, ok, err := c.files.size(at.file)
	switch {
	case err != nil:
		return nil, c.errorf(s, at.file, "cannot be read: %w", err)
	case !ok:
		return nil, c.errorf(s, at.file, "lies in this file, which is missing: copy all files of the checkpoint")
	case at.offset+at.length > size:
		return nil, c.errorf(s, at.file, "lies at the bytes %d to %d, and the file has %d: it was cut short", at.offset, at.offset+at.length, size)
	}
	f, err = torchsave.NewFile(reader{c.files, at}, at.length, c.name+": "+at.file+fmt.Sprintf(" (item at byte %d)", at.offset), torchsave.Limits{})
	if err != nil {
		return nil, c.errorf(s, at.file, "cannot be read: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.items) >= maxItems {
		clear(c.items)
	}
	c.items[at] = f
	return f, nil
}

// box opens a box of a tensor, and checks that it is what .metadata says.
func (c *Checkpoint) box(s *stored, ch chunk) (*torchsave.Tensor, error) {
	f, err := c.item(s, ch.place)
	if err != nil {
		return nil, err
	}
	t, ok := f.Value().(*torchsave.Tensor)
	if !ok {
		return nil, c.errorf(s, ch.file, "has no tensor at byte %d, where %s says that there is one", ch.offset, metadataName)
	}
	if t.DType != s.DType || !slices.Equal(t.Shape, ch.Shape) {
		return nil, c.errorf(s, ch.file, "has a tensor of %v %v at byte %d, where %s says that there is one of %v %v", t.DType, t.Shape, ch.offset, metadataName, s.DType, ch.Shape)
	}
	return t, nil
}

// ReadBox reads a box of a tensor into dst, which is dense and exactly as long. It reads from
// each of the checkpoint's boxes what the box has of it.
func (c *Checkpoint) ReadBox(name string, start, shape []int, dst []byte) error {
	s, err := c.tensor(name)
	if err != nil {
		return err
	}
	wanted := boxes.Box{Start: start, Shape: shape}
	if why := boxes.Within(wanted, s.Shape); why != "" {
		return c.errorf(s, "", "cannot be read: the box %s", why)
	}
	size := s.DType.NumBits() / 8
	if want := boxes.NumElems(shape) * size; len(dst) != want {
		return c.errorf(s, "", "has %d bytes in the box %v, and %d were asked for", want, wanted, len(dst))
	}
	strides := boxes.Strides(shape, size)
	for _, ch := range s.chunks {
		common, ok := boxes.Overlap(ch.Box, wanted)
		if !ok {
			continue
		}
		t, err := c.box(s, ch)
		if err != nil {
			return err
		}
		from, to := make([]int, len(start)), make([]int, len(start))
		for d := range start {
			from[d], to[d] = common.Start[d]-ch.Start[d], common.Start[d]-start[d]
		}
		if err := t.ReadBoxTo(from, common.Shape, dst, boxes.Offset(to, strides), strides); err != nil {
			return c.errorf(s, ch.file, "cannot be read: %w", err)
		}
	}
	return nil
}

// ReadTensor reads a tensor's bytes into dst, which must be exactly as long.
func (c *Checkpoint) ReadTensor(name string, dst []byte) error {
	s, err := c.tensor(name)
	if err != nil {
		return err
	}
	return c.ReadBox(name, make([]int, len(s.Shape)), s.Shape, dst)
}

// ReadRange reads len(dst) bytes of a tensor from its byte offset on. The range is of whole
// elements.
func (c *Checkpoint) ReadRange(name string, dst []byte, offset int64) error {
	s, err := c.tensor(name)
	if err != nil {
		return err
	}
	err = boxes.ReadRange(s.Shape, s.DType.NumBits()/8, dst, offset, func(b boxes.Box, dst []byte) error { return c.ReadBox(name, b.Start, b.Shape, dst) })
	var format *FormatError
	if err != nil && !errors.As(err, &format) {
		return c.errorf(s, "", "cannot be read: %w", err)
	}
	return err
}

// Boxes returns the boxes in which the checkpoint has a tensor, without those that have no
// elements; nil for an unknown tensor.
func (c *Checkpoint) Boxes(name string) []mesh.Box {
	s := c.meta.named[name]
	if s == nil {
		return nil
	}
	var list []mesh.Box
	for _, ch := range s.chunks {
		if boxes.NumElems(ch.Shape) > 0 {
			list = append(list, mesh.Box{Start: slices.Clone(ch.Start), Shape: slices.Clone(ch.Shape), LocalStart: make([]int, len(ch.Start))})
		}
	}
	return list
}

// Object returns an object as torchsave.File.Value returns it.
func (c *Checkpoint) Object(name string) (any, error) {
	s := c.meta.named[name]
	switch {
	case s == nil || s.isTensor:
		return nil, fmt.Errorf("dcp: %s has no object %s", c.name, strconv.Quote(name))
	case s.problem != "":
		return nil, c.errorf(s, "", "%s", s.problem)
	}
	f, err := c.item(s, s.at)
	if err != nil {
		return nil, err
	}
	return f.Value(), nil
}

// Check returns everything that keeps tensors and objects from being read, without reading
// their bytes: boxes that do not cover a tensor, files that are missing or were cut short,
// items that are not what .metadata says.
func (c *Checkpoint) Check() error {
	var errs []error
	for _, s := range c.meta.entries {
		if s.problem != "" {
			errs = append(errs, c.errorf(s, "", "%s", s.problem))
			continue
		}
		if !s.isTensor {
			_, err := c.Object(s.Name)
			errs = append(errs, err)
			continue
		}
		for _, ch := range s.chunks {
			if boxes.NumElems(ch.Shape) > 0 {
				_, err := c.box(s, ch)
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Close closes the files.
func (c *Checkpoint) Close() error { return c.files.close() }
