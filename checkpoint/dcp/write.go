// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// bufferBytes is the buffer in front of a file that is written.
const bufferBytes = 1 << 20

// Item is a box of a tensor, or an object, that is to be written.
type Item struct {
	// Path has the keys of the nested dicts and lists in which PyTorch has it: strings and
	// ints. Its flat name is made of them with dots in between.
	Path []any
	// Info is the whole tensor's; its Name is not used. Box is the part that is written.
	// Read reads bytes of the dense box from an offset on.
	Info safetensors.Info
	Box  mesh.Box
	Read func(dst []byte, offset int64) error
	// Value is the object where Read is nil: what torchsave.Write takes.
	Value any
}

// Name returns the flat name of an item.
func (i Item) Name() string { return flat(i.Path) }

func flat(keys []any) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = fmt.Sprint(k)
	}
	return strings.Join(parts, ".")
}

// Source is a source that stores boxes: [Checkpoint], or a section of a checkpoint of Cohort.
type Source interface {
	checkpoint.BoxSource
	// Boxes returns the boxes in which a tensor lies, nil for an unknown tensor.
	Boxes(name string) []mesh.Box
}

var (
	_ Source = (*Checkpoint)(nil)
	_ Source = (*checkpoint.SectionSource)(nil)
)

// Items returns the items of a source's tensors: one for each of its boxes if it stores boxes
// (see [Source]), else one for each tensor. keys returns the path of a tensor's name; a tensor
// for which it is nil is left out.
func Items(src checkpoint.Source, keys func(name string) []any) []Item {
	boxed, _ := src.(Source)
	var items []Item
	for _, info := range src.Infos() {
		at := keys(info.Name)
		if at == nil {
			continue
		}
		whole := mesh.Box{Start: make([]int, len(info.Shape)), Shape: info.Shape}
		var list []mesh.Box
		if boxed != nil {
			list = boxed.Boxes(info.Name)
		}
		if len(list) == 0 || len(list) == 1 && slices.Equal(list[0].Shape, info.Shape) {
			items = append(items, Item{Path: at, Info: info, Box: whole, Read: func(dst []byte, offset int64) error { return src.ReadRange(info.Name, dst, offset) }})
			continue
		}
		for _, b := range list {
			read := func(dst []byte, offset int64) error {
				return boxes.ReadRange(b.Shape, info.DType.NumBits()/8, dst, offset, func(part boxes.Box, dst []byte) error {
					for d := range part.Start {
						part.Start[d] += b.Start[d]
					}
					return boxed.ReadBox(info.Name, part.Start, part.Shape, dst)
				})
			}
			items = append(items, Item{Path: at, Info: info, Box: b, Read: read})
		}
	}
	return items
}

// Written says what a rank has written. It has no functions, so that it can be sent to the
// rank that calls [Commit], as JSON.
type Written struct {
	Items []WrittenItem
}

// WrittenItem is an item, and where it lies.
type WrittenItem struct {
	Path           []any
	IsTensor       bool
	Info           safetensors.Info // of a whole tensor
	Start, Shape   []int            // of the box
	File           string
	Offset, Length int64
}

// counter counts the bytes that were written.
type counter struct {
	w *bufio.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// WriteFile writes the items of a rank into a file of its own in a folder of a storage. The
// bytes of a tensor are read while they are written, a piece at a time. No item may be written
// by two ranks.
func WriteFile(ctx context.Context, to storage.Storage, folder string, rank int, items []Item) (w *Written, err error) {
	name := fmt.Sprintf("__%d_0.distcp", rank)
	fail := func(item string, err error) (*Written, error) {
		return nil, &FormatError{Checkpoint: nameOf(to, folder), File: name, Name: item, Problem: "cannot be written: " + err.Error(), Err: err}
	}
	f, err := to.Create(ctx, path.Join(folder, name))
	if err != nil {
		return fail("", err)
	}
	defer func() {
		if err != nil {
			f.Abort()
		}
	}()
	c := &counter{w: bufio.NewWriterSize(f, bufferBytes)}
	w = &Written{Items: make([]WrittenItem, 0, len(items))}
	// PyTorch puts objects first.
	sorted := slices.Clone(items)
	slices.SortStableFunc(sorted, func(a, b Item) int { return rankOf(a) - rankOf(b) })
	for _, item := range sorted {
		if err := ctx.Err(); err != nil {
			return fail(item.Name(), err)
		}
		out := WrittenItem{Path: item.Path, File: name, Offset: c.n}
		v := item.Value
		if item.Read != nil {
			box := boxes.Box{Start: item.Box.Start, Shape: item.Box.Shape}
			if why := boxes.Within(box, item.Info.Shape); why != "" {
				return fail(item.Name(), fmt.Errorf("its box %s", why))
			}
			out.IsTensor, out.Info, out.Start, out.Shape = true, item.Info, box.Start, box.Shape
			v = torchsave.NewTensor(safetensors.Info{Name: item.Name(), DType: item.Info.DType, Shape: box.Shape}, item.Read)
		}
		if err := torchsave.Write(c, v); err != nil {
			return fail(item.Name(), err)
		}
		out.Length = c.n - out.Offset
		w.Items = append(w.Items, out)
	}
	if err := c.w.Flush(); err != nil {
		return fail("", err)
	}
	if err := f.Close(); err != nil {
		return fail("", err)
	}
	return w, nil
}

func rankOf(i Item) int {
	if i.Read == nil {
		return 0
	}
	return 1
}

func nameOf(to storage.Storage, folder string) string {
	if folder == "" {
		return to.String()
	}
	return to.String() + "/" + folder
}

// Commit writes .metadata, with which the checkpoint exists, of what all ranks have written.
// Boxes that do not make up their tensor are an error.
func Commit(ctx context.Context, to storage.Storage, folder string, ranks []*Written) error {
	name := nameOf(to, folder)
	m, err := merge(name, ranks)
	if err != nil {
		return err
	}
	f, err := to.Create(ctx, path.Join(folder, metadataName))
	if err != nil {
		return fmt.Errorf("dcp: %s: %w", name, err)
	}
	b := bufio.NewWriterSize(f, bufferBytes)
	if err := errors.Join(pickle.Encode(b, m.pickle(), metadataProtocol), b.Flush()); err != nil {
		f.Abort()
		return fmt.Errorf("dcp: %s: write %s: %w", name, metadataName, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("dcp: %s: write %s: %w", name, metadataName, err)
	}
	return nil
}

// Write writes a checkpoint from one process.
func Write(ctx context.Context, to storage.Storage, folder string, items []Item) error {
	w, err := WriteFile(ctx, to, folder, 0, items)
	if err != nil {
		return err
	}
	return Commit(ctx, to, folder, []*Written{w})
}

// merge puts together what the ranks have written, and checks it.
func merge(checkpoint string, ranks []*Written) (*metadata, error) {
	m := &metadata{named: map[string]*stored{}}
	for rank, w := range ranks {
		for _, item := range w.Items {
			name := flat(item.Path)
			fail := func(format string, args ...any) error {
				return &FormatError{Checkpoint: checkpoint, File: item.File, Name: name, Problem: fmt.Sprintf("of rank %d ", rank) + fmt.Sprintf(format, args...)}
			}
			at := place{item.File, item.Offset, item.Length}
			s := m.named[name]
			if s == nil {
				s = &stored{Info: item.Info, isTensor: item.IsTensor, path: item.Path, at: at}
				s.Name = name
				m.named[name] = s
				m.entries = append(m.entries, s)
			} else if !s.isTensor || !item.IsTensor {
				return nil, fail("is there twice: give it a path of its own")
			}
			if !item.IsTensor {
				continue
			}
			if item.Info.DType != s.DType || !slices.Equal(item.Info.Shape, s.Shape) {
				return nil, fail("is of %v %v, and of %v %v on another rank", item.Info.DType, item.Info.Shape, s.DType, s.Shape)
			}
			s.chunks = append(s.chunks, chunk{boxes.Box{Start: item.Start, Shape: item.Shape}, at})
		}
	}
	for _, s := range m.entries {
		if !s.isTensor {
			continue
		}
		list := make([]boxes.Box, len(s.chunks))
		for i, c := range s.chunks {
			list[i] = c.Box
		}
		if why := boxes.Cover(s.Shape, list); why != "" {
			return nil, &FormatError{Checkpoint: checkpoint, Name: s.Name, Problem: fmt.Sprintf("of the shape %v is not whole: %s: each element must be in one box of one rank", s.Shape, why)}
		}
	}
	return m, nil
}
