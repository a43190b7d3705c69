// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// Leaf is something in a value that is no container: its path of keys and indices, the name
// that is made of the path, and what it is.
type Leaf struct {
	Name  string
	Path  []any // a string or an int64 for each container around it
	Value any
}

// File is an opened file of torch.save.
type File struct {
	archive  *archive
	closer   io.Closer
	top      string // the folder in the archive
	big      bool
	storages map[string]*storage
	value    any
	leaves   []Leaf
	infos    []safetensors.Info
	tensors  map[string]*Tensor
	refused  map[string]error
}

// Limits bound the pickle of a file; a zero is the default of package pickle.
type Limits = pickle.Limits

// Open opens the file at a path. Close it after use.
func Open(name string) (*File, error) {
	// Opening a pipe would wait for its writer: look first.
	if st, err := os.Stat(name); err != nil {
		return nil, fmt.Errorf("torchsave: %w", err)
	} else if !st.Mode().IsRegular() {
		return nil, &FormatError{File: name, Problem: "is not a regular file (" + st.Mode().Type().String() + ")"}
	}
	o, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("torchsave: %w", err)
	}
	st, err := o.Stat()
	if err != nil {
		o.Close()
		return nil, fmt.Errorf("torchsave: %w", err)
	}
	f, err := NewFile(o, st.Size(), name, Limits{})
	if err != nil {
		o.Close()
		return nil, err
	}
	f.closer = o
	return f, nil
}

// NewFile opens a file of size bytes; name stands for it in errors. The caller keeps r, and
// closes it after the last read.
func NewFile(r io.ReaderAt, size int64, name string, limits Limits) (*File, error) {
	a, err := openArchive(r, size, name)
	if err != nil {
		return nil, err
	}
	f := &File{archive: a, storages: map[string]*storage{}, tensors: map[string]*Tensor{}, refused: map[string]error{}}
	if err := f.findTop(); err != nil {
		return nil, err
	}
	if limits.Bytes == 0 {
		limits.Bytes = maxPickle
	}
	m := a.members[f.top+"/data.pkl"]
	text, err := a.bytes(m, int64(limits.Bytes))
	if err != nil {
		return nil, err
	}
	raw, err := pickle.Decode(text, pickle.Options{File: name + ": " + m.name, Allow: Allow, Limits: limits})
	if err != nil {
		return nil, fmt.Errorf("torchsave: %w%s", err, hint(err))
	}
	if f.value, err = (builder{f}).value(raw); err != nil {
		return nil, err
	}
	return f, f.list()
}

// CheckSums reads all members and compares them with the checksums of the archive. It calls report
// with the error of each that differs. has is false if the archive has a member without a checksum: PyTorch
// writes none after torch.serialization.set_crc32_options(False).
func (f *File) CheckSums(ctx context.Context, report func(member string, err error)) (has bool, err error) {
	has = true
	for _, name := range slices.Sorted(maps.Keys(f.archive.members)) {
		m := f.archive.members[name]
		if m.crc == 0 && m.size > 0 {
			has = false
			continue
		}
		if err := f.archive.checkSum(ctx, m); err != nil {
			if ctx.Err() != nil {
				return has, err
			}
			report(name, err)
		}
	}
	return has, nil
}

// hint says what to do about globals that files often have.
func hint(err error) string {
	var e *pickle.ForbiddenError
	if !errors.As(err, &e) {
		return ""
	}
	for _, h := range []struct{ module, text string }{
		{"torch.distributed.tensor", "a DTensor is a rank's part of a tensor: save its full_tensor(), or save with torch.distributed.checkpoint"},
		{"torch.distributed._shard", "a ShardedTensor is a rank's part of a tensor: save with torch.distributed.checkpoint"},
		{"torch.nn.modules", "a module is code: save its state_dict()"},
		{"numpy", "save a NumPy value as a number, or as a tensor (torch.from_numpy)"},
	} {
		if strings.HasPrefix(e.Global.Module, h.module) {
			return "; " + h.text
		}
	}
	return ""
}

// maxPickle bounds data.pkl, which has about 200 bytes for a tensor.
const maxPickle = 256 << 20

// findTop finds the folder that everything is in, and reads what says how to read it.
func (f *File) findTop() error {
	for name := range f.archive.members {
		dir, base := path.Split(name)
		if base != "data.pkl" || dir == "" || path.Dir(path.Clean(dir)) != "." {
			continue
		}
		if f.top != "" {
			return f.errorf("has two members data.pkl, in %q and in %q", f.top, dir)
		}
		f.top = path.Clean(dir)
	}
	if f.top == "" {
		return f.errorf("has no member data.pkl: it is a zip archive, and no file of torch.save")
	}
	if f.archive.members[f.top+"/constants.pkl"] != nil {
		return f.errorf("%s", torchScript)
	}
	m := f.archive.members[f.top+"/byteorder"]
	if m == nil {
		return nil // before PyTorch 2.1, little-endian machines only
	}
	order, err := f.archive.bytes(m, 16)
	switch {
	case err != nil:
		return err
	case string(order) == "big":
		f.big = true
	case string(order) != "little":
		return f.errorf("has the byte order %q, which is neither little nor big", order)
	}
	return nil
}

// list finds the leaves and gives the tensors their names.
func (f *File) list() error {
	seen := map[string]bool{}
	for leaf := range Leaves(f.value) {
		t, isTensor := leaf.Value.(*Tensor)
		refused, isRefused := leaf.Value.(Refused)
		f.leaves = append(f.leaves, leaf)
		if !isTensor && !isRefused {
			continue
		}
		if seen[leaf.Name] {
			return f.errorf("has two tensors whose places make the name %q", leaf.Name)
		}
		seen[leaf.Name] = true
		if isRefused {
			f.refused[leaf.Name] = &RefusedError{f.Name(), leaf.Name, refused.Reason}
			continue
		}
		t.Name = leaf.Name
		f.tensors[leaf.Name] = t
		f.infos = append(f.infos, t.Info)
	}
	return nil
}

// rootName is the name of a tensor that is not in a container.
const rootName = "tensor"

// Leaves yields everything in a value that is no container, in its order. The name of a leaf
// is made of its keys and indices with dots between them.
func Leaves(v any) func(yield func(Leaf) bool) {
	return func(yield func(Leaf) bool) {
		if !isContainer(v) {
			yield(Leaf{rootName, nil, v})
			return
		}
		walk(v, "", nil, yield)
	}
}

func isContainer(v any) bool {
	switch v.(type) {
	case *pickle.Dict, *pickle.List, pickle.Tuple:
		return true
	}
	return false
}

func walk(v any, prefix string, at []any, yield func(Leaf) bool) bool {
	under := func(key, v any) bool {
		switch key.(type) {
		case string, int64:
		default:
			key = fmt.Sprint(key)
		}
		name := fmt.Sprint(key)
		if prefix != "" || len(at) > 0 {
			name = prefix + "." + name
		}
		path := append(slices.Clip(at), key)
		if isContainer(v) {
			return walk(v, name, path, yield)
		}
		return yield(Leaf{name, path, v})
	}
	var items []any
	switch v := v.(type) {
	case *pickle.Dict:
		for _, e := range v.Entries {
			if !under(e.Key, e.Value) {
				return false
			}
		}
	case *pickle.List:
		items = v.Items
	case pickle.Tuple:
		items = v
	}
	for i, item := range items {
		if !under(int64(i), item) {
			return false
		}
	}
	return true
}

// Name returns the name given to Open or NewFile.
func (f *File) Name() string { return f.archive.file }

// Value returns what was saved: nil, a bool, an int64, a *big.Int, a float64, a complex128, a
// string, bytes, a pickle.Tuple, a *pickle.List, *pickle.Dict or *pickle.Set of these, a
// *[Tensor], a [Refused] in the place of a tensor that cannot be read, and a pickle.Global or
// *pickle.Object for a dtype, a layout or a device. Do not change it.
func (f *File) Value() any { return f.value }

// Leaves returns everything in the value that is no container, in the order of the file.
func (f *File) Leaves() []Leaf { return slices.Clone(f.leaves) }

// Infos returns name, dtype and shape of every tensor that can be read, in the order of the
// file.
func (f *File) Infos() []safetensors.Info { return slices.Clone(f.infos) }

// Refused returns the tensors that cannot be read, each with a [RefusedError].
func (f *File) Refused() map[string]error { return f.refused }

// Tensor returns a tensor by its name.
func (f *File) Tensor(name string) (*Tensor, error) {
	if t := f.tensors[name]; t != nil {
		return t, nil
	}
	if err := f.refused[name]; err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("torchsave: %s has no tensor %s", f.Name(), strconv.Quote(name))
}

// ReadTensor reads the bytes of a dense tensor into dst, which must be exactly as long.
func (f *File) ReadTensor(name string, dst []byte) error {
	t, err := f.Tensor(name)
	if err != nil {
		return err
	}
	return t.ReadBox(make([]int, len(t.Shape)), t.Shape, dst)
}

// ReadRange reads len(dst) bytes of a dense tensor from its byte offset on. The range is of
// whole elements.
func (f *File) ReadRange(name string, dst []byte, offset int64) error {
	t, err := f.Tensor(name)
	if err != nil {
		return err
	}
	return t.ReadRange(dst, offset)
}

// ReadBox reads a box of a tensor into dst, which is dense.
func (f *File) ReadBox(name string, start, shape []int, dst []byte) error {
	t, err := f.Tensor(name)
	if err != nil {
		return err
	}
	return t.ReadBox(start, shape, dst)
}

// Boxes returns the one box that the file has of a tensor, all of it; nil for an unknown one.
func (f *File) Boxes(name string) []mesh.Box {
	t := f.tensors[name]
	if t == nil {
		return nil
	}
	at := make([]int, len(t.Shape))
	return []mesh.Box{{Start: at, Shape: slices.Clone(t.Shape), LocalStart: at}}
}

// Close closes the file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

func (f *File) errorf(format string, args ...any) error {
	e := fmt.Errorf(format, args...)
	return &FormatError{File: f.Name(), Problem: e.Error(), Err: errors.Unwrap(e)}
}
