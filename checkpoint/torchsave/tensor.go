// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// Tensor is a tensor of a file, or one that is to be written. Its Info has the name of its
// place in the file.
type Tensor struct {
	safetensors.Info
	Strides []int // in elements; nil for one that is to be written
	Offset  int   // in the storage, in elements
	// Storage names the storage. Tensors of a file with the same one share their elements.
	Storage      string
	RequiresGrad bool
	IsParameter  bool

	dtype  *dtype
	stored *storage
	read   func(dst []byte, offset int64) error // instead of a storage
}

// storage is the bytes that tensors share. They are found in the file at the first read.
type storage struct {
	archive *archive
	member  *member
	dtype   *dtype // nil for bytes of no dtype
	size    int64  // bytes
	big     bool   // of a big-endian machine

	once sync.Once
	data *io.SectionReader
	err  error
}

func (s *storage) open() (io.ReaderAt, error) {
	s.once.Do(func() { s.data, s.err = s.archive.data(s.member) })
	return s.data, s.err
}

// NewTensor returns a tensor to be written. read reads bytes of the dense tensor from an
// offset on. Where the same *Tensor is at several places, the file has one storage for them.
func NewTensor(info safetensors.Info, read func(dst []byte, offset int64) error) *Tensor {
	return &Tensor{Info: info, dtype: dtypeOfSafetensors(info.DType), read: read}
}

// FromSource returns the tensors of a source as a dict, in the source's order, for [Write].
func FromSource(src checkpoint.Source) *pickle.Dict {
	d := &pickle.Dict{}
	for _, info := range src.Infos() {
		t := NewTensor(info, func(dst []byte, offset int64) error { return src.ReadRange(info.Name, dst, offset) })
		d.Entries = append(d.Entries, pickle.Entry{Key: info.Name, Value: t})
	}
	return d
}

// ReadBox reads a box of the tensor into dst, which is dense and exactly as long.
func (t *Tensor) ReadBox(start, shape []int, dst []byte) error {
	b := boxes.Box{Start: start, Shape: shape}
	if problem := boxes.Within(b, t.Shape); problem != "" {
		return t.errorf("cannot be read: the box %s", problem)
	}
	if want := boxes.NumElems(shape) * t.dtype.size; len(dst) != want {
		return t.errorf("has %d bytes in the box %v, and %d were asked for", want, b, len(dst))
	}
	return t.ReadBoxTo(start, shape, dst, 0, boxes.Strides(shape, t.dtype.size))
}

// ReadBoxTo reads a box of the tensor into memory with strides, in bytes: its first element
// goes to the byte at.
func (t *Tensor) ReadBoxTo(start, shape []int, dst []byte, at int64, strides []int64) error {
	if t.stored == nil {
		return t.errorf("is to be written and cannot be read")
	}
	r, err := t.stored.open()
	if err != nil {
		return err
	}
	from := make([]int64, len(t.Strides))
	for d, s := range t.Strides {
		from[d] = int64(s) * int64(t.dtype.size)
	}
	c := boxes.Copy{
		Shape: shape, Size: t.dtype.size, To: at, ToStrides: strides,
		From: int64(t.Offset)*int64(t.dtype.size) + boxes.Offset(start, from), FromStrides: from,
	}
	if t.stored.big {
		c.Swap = t.dtype.swap
	}
	err = c.Read(r, dst)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return t.errorf("ends before its last byte: the file has become shorter since it was opened")
	}
	if err != nil {
		return fmt.Errorf("torchsave: %s: reading tensor %q: %w", t.stored.archive.file, t.Name, err)
	}
	return nil
}

// ReadRange reads len(dst) bytes of the dense tensor from its byte offset on. The range is of
// whole elements.
func (t *Tensor) ReadRange(dst []byte, offset int64) error {
	if t.read != nil {
		return t.read(dst, offset)
	}
	err := boxes.ReadRange(t.Shape, t.dtype.size, dst, offset, func(b boxes.Box, dst []byte) error { return t.ReadBox(b.Start, b.Shape, dst) })
	var format *FormatError
	if err != nil && !errors.As(err, &format) {
		return t.errorf("cannot be read: %w", err)
	}
	return err
}

func (t *Tensor) errorf(format string, args ...any) error {
	e := fmt.Errorf(format, args...)
	f := &FormatError{Tensor: t.Name, Problem: e.Error(), Err: errors.Unwrap(e)}
	if t.stored != nil {
		f.File, f.Member = t.stored.archive.file, t.stored.member.name
	}
	return f
}

// maxExpanded bounds the bytes of a tensor that is larger than its storage, as one that was
// expanded.
const maxExpanded = 1 << 30

// view makes a tensor of a storage. The error says what is wrong with it.
func view(s *storage, d *dtype, offset int, shape, strides []int) (*Tensor, error) {
	t := &Tensor{Info: safetensors.Info{DType: d.st, Shape: shape}, Strides: strides, Offset: offset, dtype: d, stored: s}
	if len(shape) != len(strides) {
		return nil, fmt.Errorf("has %d dims and %d strides", len(shape), len(strides))
	}
	if len(shape) > maxDims {
		return nil, fmt.Errorf("has %d dims, more than the %d allowed", len(shape), maxDims)
	}
	size := t.NumBytes()
	if size < 0 {
		return nil, fmt.Errorf("has the shape %v, which no tensor of %s has", shape, d.name)
	}
	numElems := s.size / int64(d.size)
	if offset < 0 || int64(offset) > numElems {
		return nil, fmt.Errorf("begins at element %d of a storage of %d", offset, numElems)
	}
	beyond := func() (*Tensor, error) {
		return nil, fmt.Errorf("of the shape %v with the strides %v from element %d on reaches beyond its storage of %d", shape, strides, offset, numElems)
	}
	last, isEmpty := int64(offset), slices.Contains(shape, 0)
	for i, stride := range strides {
		n := int64(shape[i]) - 1
		switch {
		case stride < 0:
			return nil, fmt.Errorf("has the negative stride %d", stride)
		case isEmpty || n == 0 || stride == 0:
		case n > (numElems-last)/int64(stride):
			return beyond()
		default:
			last += n * int64(stride)
		}
	}
	if !isEmpty && last >= numElems {
		return beyond()
	}
	if size > s.size && size > maxExpanded {
		return nil, fmt.Errorf("of the shape %v is expanded from a storage of %d bytes to %d, more than the %d allowed", shape, s.size, size, maxExpanded)
	}
	return t, nil
}

// maxDims is how many dims a tensor may have; PyTorch's own limit is the same.
const maxDims = 64
