// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// shardingInfo is the key of a file's metadata under which PyTorch's HuggingFaceStorageWriter says
// where the boxes in the file begin, if the file has no whole tensors.
const shardingInfo = "DCP_SHARDING_INFO"

// stored is a tensor of a folder: whole in one file, or boxes of it in several.
type stored struct {
	info  safetensors.Info
	boxes []storedBox
}

// storedBox is what a file has of a tensor.
type storedBox struct {
	shard  *safetensors.File
	object storage.Object
	entry  safetensors.Entry // whose shape is that of the box
	start  []int             // nil for a whole tensor
}

// gap returns how many bytes that nobody wants are read between those of rows: few from a file of
// this machine, so that ranks that each have some columns together read the file once.
func (b storedBox) gap() int64 {
	if storage.ReadBytes(b.object) <= mostLocal {
		return boxes.LocalGap
	}
	return 0
}

// mostLocal is the most that is read at a time of a file of this machine, see [storage.ReadBytes].
const mostLocal = 1 << 20

// parseSharding returns where the boxes of a file begin, by tensor; nil if the file has whole
// tensors.
func parseSharding(f *safetensors.File) (map[string][]int, error) {
	text, ok := f.Metadata()[shardingInfo]
	if !ok {
		return nil, nil
	}
	var raw map[string]struct {
		Offsets []int `json:"saved_offsets"`
	}
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("huggingface: %s: its %s is no such text: %w", f.Name(), shardingInfo, err)
	}
	starts := make(map[string][]int, len(raw))
	for _, e := range f.Entries() {
		start := raw[e.Name].Offsets
		if start == nil {
			start = make([]int, len(e.Shape))
		}
		const most = 1 << 48 // of an index: sums of it and of a shape stay countable
		if len(start) != len(e.Shape) || slices.ContainsFunc(start, func(n int) bool { return n < 0 || n > most }) {
			return nil, fmt.Errorf("huggingface: %s: the tensor %q of shape %v begins at %v: that is no place in a tensor", f.Name(), e.Name, e.Shape, start)
		}
		starts[e.Name] = start
	}
	return starts, nil
}

// add enters a box. Two files that have the same whole tensor are an error.
func (t *stored) add(b storedBox) error {
	if first := t.boxes; len(first) > 0 {
		switch {
		case first[0].start == nil || b.start == nil:
			return fmt.Errorf("is in two shards, %s and %s", baseName(first[0].shard), baseName(b.shard))
		case first[0].entry.DType != b.entry.DType || len(first[0].start) != len(b.start):
			return fmt.Errorf("is %v %v in %s and %v %v in %s", first[0].entry.Shape, first[0].entry.DType, baseName(first[0].shard), b.entry.Shape, b.entry.DType, baseName(b.shard))
		}
	}
	t.boxes = append(t.boxes, b)
	for d, n := range b.start {
		t.info.Shape[d] = max(t.info.Shape[d], n+b.entry.Shape[d])
	}
	return nil
}

// check reports boxes that are not the tensor, and makes one box that is it a whole tensor.
func (t *stored) check() error {
	if t.boxes[0].start == nil {
		return nil
	}
	if t.info.NumBytes() < 0 {
		return fmt.Errorf("has the shape %v, which is too large", t.info.Shape)
	}
	if len(t.boxes) == 1 && slices.Equal(t.boxes[0].entry.Shape, t.info.Shape) {
		t.boxes[0].start = nil
		return nil
	}
	if t.info.DType.NumBits()%8 != 0 {
		return fmt.Errorf("has boxes of %v, whose elements are no whole bytes", t.info.DType)
	}
	list := make([]boxes.Box, len(t.boxes))
	for i, b := range t.boxes {
		list[i] = boxes.Box{Start: b.start, Shape: b.entry.Shape}
	}
	if problem := boxes.Cover(t.info.Shape, list); problem != "" {
		return fmt.Errorf("of shape %v is not whole: %s; is the file of a rank missing?", t.info.Shape, problem)
	}
	return nil
}

// size returns the bytes of an element.
func (t *stored) size() int { return t.info.DType.NumBits() / 8 }

// readBox reads a box of a tensor that lies in boxes.
func (t *stored) readBox(b boxes.Box, dst []byte) error {
	for _, s := range t.boxes {
		in := boxes.Box{Start: s.start, Shape: s.entry.Shape}
		if s.start == nil {
			in.Start = make([]int, len(s.entry.Shape))
		}
		common, ok := boxes.Overlap(in, b)
		if !ok {
			continue
		}
		from, to := boxes.Strides(in.Shape, t.size()), boxes.Strides(b.Shape, t.size())
		c := boxes.Copy{Shape: common.Shape, Size: t.size(), FromStrides: from, ToStrides: to,
			From: s.entry.Offset + boxes.Offset(within(common.Start, in.Start), from),
			To:   boxes.Offset(within(common.Start, b.Start), to), Gap: s.gap()}
		if err := c.Read(s.object, dst); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the file has become shorter since it was opened")
			}
			return fmt.Errorf("huggingface: %s: reading the tensor %q: %w", s.shard.Name(), t.info.Name, err)
		}
	}
	return nil
}

func within(at, start []int) []int {
	out := make([]int, len(at))
	for d := range at {
		out[d] = at[d] - start[d]
	}
	return out
}

// ReadBox reads the elements of a box of a tensor, dense, into dst, which must be exactly as long.
func (f *Folder) ReadBox(name string, start, shape []int, dst []byte) error {
	t, err := f.find(name)
	if err != nil {
		return err
	}
	b := boxes.Box{Start: start, Shape: shape}
	if problem := boxes.Within(b, t.info.Shape); problem != "" {
		return fmt.Errorf("huggingface: %s: tensor %q: the box %s", f.name, name, problem)
	}
	if t.info.DType.NumBits()%8 != 0 {
		return fmt.Errorf("huggingface: %s: tensor %q: elements of %v are no whole bytes: read the whole tensor", f.name, name, t.info.DType)
	}
	if want := boxes.NumElems(shape) * t.size(); len(dst) != want {
		return fmt.Errorf("huggingface: %s: tensor %q: a box of shape %v has %d bytes, %d were asked for", f.name, name, shape, want, len(dst))
	}
	return t.readBox(b, dst)
}

// Boxes returns the boxes in which a tensor lies, one for a whole tensor.
func (f *Folder) Boxes(name string) []mesh.Box {
	t := f.where[name]
	if t == nil {
		return nil
	}
	list := make([]mesh.Box, len(t.boxes))
	for i, b := range t.boxes {
		zeros := make([]int, len(b.entry.Shape))
		list[i] = mesh.Box{Start: zeros, Shape: b.entry.Shape, LocalStart: zeros}
		if b.start != nil {
			list[i].Start = b.start
		}
	}
	return list
}
