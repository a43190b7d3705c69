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
	order := make([]*Tensor, len(tensors))
	names := make(map[string]bool, len(tensors))
	for i := range tensors {
		t := &tensors[i]
		if names[t.Name] {
			return &FormatError{Tensor: t.Name, Offset: -1, Problem: "is there twice"}
		}
		names[t.Name] = true
		order[i] = t
	}
	slices.SortFunc(order, func(a, b *Tensor) int { return compareLayout(a.Info, b.Info) })
	infos := make([]Info, len(order))
	for i, t := range order {
		infos[i] = t.Info
	}
	header, err := encodeHeader(infos, metadata)
	if err != nil {
		return err
	}
	for _, t := range order {
		if want := t.NumBytes(); int64(len(t.Data)) != want {
			return &FormatError{Tensor: t.Name, Offset: -1,
				Problem: fmt.Sprintf("is given with %d bytes, but shape %v of %v has %d", len(t.Data), t.Shape, t.DType, want)}
		}
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range order {
		if len(t.Data) == 0 {
			continue
		}
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}
