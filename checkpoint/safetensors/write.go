// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"io"
	"slices"
)

// Tensor is one tensor to write: its bytes are little-endian, row-major and dense.
type Tensor struct {
	Info
	Data []byte // Info.NumBytes() long
}

// Write writes a whole file to w: the header, then the tensors ordered by
// dtype and name as the reference orders them. The order of tensors given does
// not matter and is not changed. Metadata may be nil; many readers want
// {"format":"pt"} in it.
//
// The data is passed on in the slices given, without a copy. It returns a
// [FormatError], before anything is written, when the tensors cannot make a
// file, and w's error as it is.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	infos, data := make([]Info, len(tensors)), make(map[string][]byte, len(tensors))
	for i, t := range tensors {
		infos[i], data[t.Name] = t.Info, t.Data
		if err := t.checkSize(int64(len(t.Data))); err != nil {
			return err
		}
	}
	return WriteEach(w, infos, metadata, func(info Info) ([]byte, error) { return data[info.Name], nil })
}

// WriteEach is [Write] for tensors whose bytes are made one after the other, so that
// those of all need not be there at the same time. It calls data for each tensor, in
// the order of [Ordered]. The bytes must stay as they are until the next call. An error
// of data is returned as it is, and the file is not whole then.
func WriteEach(w io.Writer, infos []Info, metadata map[string]string, data func(info Info) ([]byte, error)) error {
	return WriteFrom(w, infos, metadata, func(w io.Writer, info Info) error {
		b, err := data(info)
		if err != nil {
			return err
		}
		if err := info.checkSize(int64(len(b))); err != nil || len(b) == 0 {
			return err
		}
		_, err = w.Write(b)
		return err
	})
}

// WriteFrom is [WriteEach] for tensors of which not even one need be there whole: write
// writes the bytes of a tensor to w, in as many pieces as it likes.
func WriteFrom(w io.Writer, infos []Info, metadata map[string]string, write func(w io.Writer, info Info) error) error {
	header, infos, err := Header(infos, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, info := range infos {
		counted := &counter{Writer: w}
		if err := write(counted, info); err != nil {
			return err
		}
		if err := info.checkSize(counted.n); err != nil {
			return err
		}
	}
	return nil
}

// counter counts what is written.
type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n += int64(n)
	return n, err
}

// Header returns what a file begins with, for one who writes the bytes of the tensors
// behind it without gaps, in the order returned.
func Header(infos []Info, metadata map[string]string) (header []byte, ordered []Info, err error) {
	if ordered, err = Ordered(infos); err != nil {
		return nil, nil, err
	}
	header, err = encodeHeader(ordered, metadata)
	return header, ordered, err
}

// Ordered returns tensors in the order in which a file has their bytes. A name that is
// there twice is a [FormatError].
func Ordered(infos []Info) ([]Info, error) {
	names := make(map[string]bool, len(infos))
	for _, info := range infos {
		if names[info.Name] {
			return nil, &FormatError{Tensor: info.Name, Offset: -1, Problem: "is there twice"}
		}
		names[info.Name] = true
	}
	ordered := slices.Clone(infos)
	slices.SortFunc(ordered, compareLayout)
	return ordered, nil
}

// checkSize reports bytes that are not those of a tensor. An info that is of no tensor
// is for the header to report.
func (i Info) checkSize(n int64) error {
	if want := i.NumBytes(); want >= 0 && n != want {
		return &FormatError{Tensor: i.Name, Offset: -1,
			Problem: fmt.Sprintf("is given with %d bytes, but shape %v of %v has %d", n, i.Shape, i.DType, want)}
	}
	return nil
}
