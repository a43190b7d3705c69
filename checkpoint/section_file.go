// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/tensor"
)

// summed writes a file and sums its bytes while they are in the cache.
type summed struct {
	name  string
	file  storage.File
	size  int64
	crc   uint32   // of the file so far
	sums  []uint32 // of the chunks of a box, since begin; the last one may go on
	chunk int      // bytes in the last one of sums
	pace  func(n int) error
}

// sumBytes is how much is summed and then written at a time.
const sumBytes = 256 << 10

// Write appends b.
func (f *summed) Write(b []byte) (n int, err error) {
	for n < len(b) {
		piece := b[n:min(n+sumBytes, len(b), n+chunkBytes-f.chunk)]
		if f.pace != nil {
			if err := f.pace(len(piece)); err != nil {
				return n, err
			}
		}
		if f.chunk == 0 {
			f.sums = append(f.sums, 0)
		}
		last := &f.sums[len(f.sums)-1]
		*last = crc32.Update(*last, castagnoli, piece)
		if _, err := f.file.Write(piece); err != nil {
			return n, err
		}
		n += len(piece)
		f.size += int64(len(piece))
		if f.chunk += len(piece); f.chunk == chunkBytes {
			f.crc, f.chunk = joinSums(f.crc, *last, chunkBytes), 0
		}
	}
	return n, nil
}

// begin begins a box, and returns the sums of the box before it.
func (f *summed) begin() (sums []uint32) {
	if f.chunk > 0 {
		f.crc, f.chunk = joinSums(f.crc, f.sums[len(f.sums)-1], int64(f.chunk)), 0
	}
	sums, f.sums = f.sums, nil
	return sums
}

// Close ends the file, which is durable then.
func (f *summed) Close() error {
	f.begin()
	return f.file.Close()
}

func (f *summed) info(rank int) FileInfo {
	return FileInfo{Name: f.name, Bytes: f.size, CRC: f.crc, Rank: rank}
}

// write writes the boxes of a file and returns where they lie in it, by their place in f.
func (f filePlan) write(ctx context.Context, to storage.Storage, folder string, rank int, pace func(n int) error) (FileInfo, []StoredBox, error) {
	file, err := to.Create(ctx, folder+"/"+f.name)
	if err != nil {
		return FileInfo{}, nil, err
	}
	defer file.Abort()
	out := &summed{name: f.name, file: file, pace: pace}
	infos, number := make([]safetensors.Info, len(f.boxes)), make(map[string]int, len(f.boxes))
	for i, b := range f.boxes {
		infos[i], number[b.info.Name] = b.info, i
	}
	metadata, err := f.metadata()
	if err != nil {
		return FileInfo{}, nil, err
	}
	header, infos, err := safetensors.Header(infos, metadata)
	if err != nil {
		return FileInfo{}, nil, err
	}
	if _, err := out.Write(header); err != nil {
		return FileInfo{}, nil, err
	}
	out.begin()
	stored := make([]StoredBox, len(f.boxes))
	for _, info := range infos {
		i := number[info.Name]
		b := f.boxes[i]
		at := out.size
		if err := b.write(out); err != nil {
			return FileInfo{}, nil, err
		}
		if got, want := out.size-at, info.NumBytes(); got != want {
			return FileInfo{}, nil, fmt.Errorf("the tensor %q has %d bytes, want %d", info.Name, got, want)
		}
		stored[i] = StoredBox{File: f.name, At: at, Start: b.box.Start, Shape: b.box.Shape, Sums: out.begin()}
	}
	if err := out.Close(); err != nil {
		return FileInfo{}, nil, err
	}
	return out.info(rank), stored, nil
}

// write writes the bytes of a box.
func (b boxPlan) write(out *summed) error {
	if b.src != nil {
		return b.copy(out)
	}
	if b.data != nil {
		_, err := out.Write(b.data)
		return err
	}
	data, dense, isCopy := b.bytes()
	_, err := out.Write(data)
	runtime.KeepAlive(dense)
	if isCopy {
		dense.Free()
	}
	return err
}

// bytes returns the bytes of a box, and the tensor that they are of: it is a copy, to be freed,
// if they do not lie densely where the CPU sees them.
func (b boxPlan) bytes() (data []byte, dense *tensor.Tensor, isCopy bool) {
	view := b.part.Local
	for d, n := range b.box.Shape {
		if n != view.Shape()[d] {
			view = view.Narrow(d, b.box.LocalStart[d], n)
		}
	}
	dense = onHost(view)
	return dense.Buffer().Data[:b.info.NumBytes()], dense, dense != view
}

// copy copies a tensor from a source, a piece at a time.
func (b boxPlan) copy(out *summed) error {
	buf := make([]byte, min(copyBytes, b.info.NumBytes()))
	for at := int64(0); at < b.info.NumBytes(); {
		piece := buf[:min(int64(len(buf)), b.info.NumBytes()-at)]
		if err := b.src.ReadRange(b.info.Name, piece, at); err != nil {
			return err
		}
		if _, err := out.Write(piece); err != nil {
			return err
		}
		at += int64(len(piece))
	}
	return nil
}

// copyBytes is how much of a tensor is copied at a time.
const copyBytes = 8 << 20

// metadata returns what Hugging Face's tools and, for boxes, PyTorch's HuggingFaceStorageReader
// ask for.
func (f filePlan) metadata() (map[string]string, error) {
	metadata := map[string]string{"format": "pt"}
	if !slices.ContainsFunc(f.boxes, func(b boxPlan) bool { return !b.isWhole() }) {
		return metadata, nil
	}
	type saved struct {
		Offsets []int `json:"saved_offsets"`
	}
	where := make(map[string]saved, len(f.boxes))
	for _, b := range f.boxes {
		where[b.info.Name] = saved{b.box.Start}
	}
	text, err := json.Marshal(where)
	metadata["DCP_SHARDING_INFO"], metadata["DCP_VERSION"] = string(text), "1.0"
	return metadata, err
}

// A Writer takes the further files of a checkpoint, see [State]. It belongs to the function
// that it is given to and ends with it. Several goroutines may use it, each of its files one at
// a time.
type Writer struct {
	ctx    context.Context
	to     storage.Storage
	folder string
	step   int
	pace   func(n int) error

	mu    sync.Mutex
	taken map[string]bool
	open  map[*File]bool
	files []FileInfo
	// failed is the first error of any file: a save whose writer failed is
	// not committed, whoever forgot to look at the error.
	failed error
}

// File is one file of a checkpoint while it is written.
type File struct {
	w *Writer
	summed
}

// Step returns the step that is being saved.
func (w *Writer) Step() int { return w.step }

// Create begins a file. Write to it and close it; a save with a file that is
// not closed fails. Names are plain: no separators, no leading dot.
func (w *Writer) Create(name string) (*File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := checkName(name)
	if err == nil && w.taken[name] {
		err = fmt.Errorf("the file %q is there already", name)
	}
	if err != nil {
		return nil, w.fail(err)
	}
	file, err := w.to.Create(w.ctx, w.folder+"/"+name)
	if err != nil {
		return nil, w.fail(err)
	}
	f := &File{w, summed{name: name, file: file, pace: w.pace}}
	w.taken[name], w.open[f] = true, true
	return f, nil
}

// Write appends b.
func (f *File) Write(b []byte) (int, error) {
	n, err := f.summed.Write(b)
	if err != nil {
		f.w.mu.Lock()
		defer f.w.mu.Unlock()
		f.w.fail(err)
	}
	return n, err
}

// Close makes the file durable and enters it in the manifest.
func (f *File) Close() error {
	err := f.summed.Close()
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if !f.w.open[f] {
		return err
	}
	delete(f.w.open, f)
	if err != nil {
		return f.w.fail(err)
	}
	f.w.files = append(f.w.files, f.info(0))
	return nil
}

// WriteFile writes a whole file.
func (w *Writer) WriteFile(name string, data []byte) error {
	f, err := w.Create(name)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err // the save closes the file
	}
	return f.Close()
}

// WriteJSON writes v as indented JSON.
func (w *Writer) WriteJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.fail(err)
	}
	return w.WriteFile(name, append(b, '\n'))
}

// fail records the first error. The caller holds mu.
func (w *Writer) fail(err error) error {
	if w.failed == nil {
		w.failed = err
	}
	return err
}

// finish gives up what was left open and returns the files.
func (w *Writer) finish() ([]FileInfo, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range maps.Keys(w.open) {
		f.file.Abort()
		w.fail(fmt.Errorf("the file %q was not closed by the function that writes it", f.name))
	}
	w.open = nil
	return w.files, w.failed
}
