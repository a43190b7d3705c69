// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"hash/crc32"
	"runtime"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// linker finds files of frozen tensors in the checkpoint before, so that they need not be
// written again. A link has the bytes under a second name: when the older checkpoint is removed,
// the newer one keeps them.
type linker struct {
	from *Checkpoint
	// boxes and numBoxes describe the files of a section, by tensor and by file.
	boxes    map[string]map[string][]namedTensorBox
	numBoxes map[string]int
	files    map[string]FileInfo
}

type namedTensorBox struct {
	tensor *StoredTensor
	box    *StoredBox
}

// newLinker opens the checkpoint before; it returns nil if that cannot be used.
func newLinker(ctx context.Context, from storage.Storage, name string) *linker {
	if name == "" {
		return nil
	}
	c, err := open(ctx, from, name)
	if err != nil || c.manifest.Version != manifestVersion {
		return nil
	}
	l := &linker{from: c, boxes: map[string]map[string][]namedTensorBox{}, numBoxes: map[string]int{}, files: map[string]FileInfo{}}
	for _, f := range c.Files {
		l.files[f.Name] = f
	}
	for _, s := range c.manifest.Sections {
		of := map[string][]namedTensorBox{}
		for i := range s.Tensors {
			t := &s.Tensors[i]
			for j := range t.Boxes {
				of[t.Name] = append(of[t.Name], namedTensorBox{t, &t.Boxes[j]})
				l.numBoxes[t.Boxes[j].File]++
			}
		}
		l.boxes[s.Name] = of
	}
	return l
}

// link gives a file of the checkpoint before a second name in the stage, if it has the same
// boxes of the same tensors with the same checksums, and nothing else.
func (l *linker) link(ctx context.Context, f filePlan, stage string, rank int) (info FileInfo, boxes []StoredBox, ok bool) {
	file := ""
	for _, b := range f.boxes {
		found := (*StoredBox)(nil)
		for _, old := range l.boxes[f.section][b.info.Name] {
			if slices.Equal(old.box.Start, b.box.Start) && slices.Equal(old.box.Shape, b.box.Shape) && old.tensor.DType == b.info.DType && slices.Equal(old.tensor.Shape, b.shape()) {
				found = old.box
			}
		}
		if found == nil || file != "" && found.File != file || !slices.Equal(found.Sums, b.sums()) {
			return info, nil, false
		}
		file = found.File
		box := *found
		box.File = f.name
		boxes = append(boxes, box)
	}
	if file == "" || l.numBoxes[file] != len(f.boxes) {
		return info, nil, false
	}
	c := l.from
	if err := c.from.Link(ctx, join(join(c.Name, c.manifest.Folder), file), stage+"/"+f.name); err != nil {
		return info, nil, false // it is written again: a save may have removed the older one
	}
	info = l.files[file]
	info.Name, info.Rank = f.name, rank
	return info, boxes, true
}

// sums returns the checksums of the chunks of a box.
func (b boxPlan) sums() []uint32 {
	data, dense, isCopy := b.bytes()
	sums := make([]uint32, 0, numChunks(int64(len(data))))
	for len(data) > 0 {
		n := min(len(data), chunkBytes)
		sums = append(sums, crc32.Checksum(data[:n], castagnoli))
		data = data[n:]
	}
	runtime.KeepAlive(dense)
	if isCopy {
		dense.Free()
	}
	return sums
}
