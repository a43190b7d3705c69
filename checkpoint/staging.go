// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/tensor"
)

// staging is memory for copies of what a rank writes. It is kept from save to save: the first
// copy pays for fresh pages, and the later ones only for the copying.
type staging struct{ slab *tensor.Tensor }

// copyTasks is how many goroutines copy at most.
const copyTasks = 4

// alignBytes is where a copy may begin, for the sake of vector loads.
const alignBytes = 64

// copy puts the bytes of boxes into the slab, from which they will be written. Frozen tensors
// do not change, and sources are read when they are written. Beside the slab, tensors that do
// not lie densely on the host take [maxMade] and one tensor more.
func (s *staging) copy(files []filePlan) {
	need := int64(0)
	each := func(do func(b *boxPlan)) {
		for i := range files {
			for j := range files[i].boxes {
				if b := &files[i].boxes[j]; b.src == nil && !files[i].frozen {
					do(b)
				}
			}
		}
	}
	size := func(b *boxPlan) int64 { return (b.info.NumBytes() + alignBytes - 1) / alignBytes * alignBytes }
	each(func(b *boxPlan) { need += size(b) })
	if need == 0 {
		return
	}
	if s.slab == nil || int64(s.slab.NumElems()) < need {
		s.free()
		s.slab = tensor.Empty(tensor.Uint8, int(need))
	}
	memory := s.slab.Buffer().Data
	var tasks []copyTask
	var made []*tensor.Tensor // for their bytes
	madeBytes := int64(0)
	flush := func() {
		runTasks(tasks)
		for _, t := range made {
			t.Free()
		}
		tasks, made, madeBytes = tasks[:0], made[:0], 0
	}
	each(func(b *boxPlan) {
		from, dense, isCopy := b.bytes()
		if isCopy {
			made = append(made, dense)
			madeBytes += int64(len(from))
		}
		b.data, memory = memory[:len(from):len(from)], memory[size(b):]
		for to := b.data; len(from) > 0; {
			n := min(len(from), 4*chunkBytes)
			tasks = append(tasks, copyTask{to[:n], from[:n]})
			to, from = to[n:], from[n:]
		}
		if madeBytes >= maxMade {
			flush()
		}
	})
	flush()
}

// maxMade is about how many bytes lie in dense copies of tensors beside the slab.
const maxMade = 64 << 20

type copyTask struct{ to, from []byte }

func runTasks(tasks []copyTask) {
	var work sync.WaitGroup
	numTasks := min(copyTasks, runtime.GOMAXPROCS(0), len(tasks))
	for i := range numTasks {
		work.Go(func() {
			for k := i; k < len(tasks); k += numTasks {
				copy(tasks[k].to, tasks[k].from)
			}
		})
	}
	work.Wait()
}

func (s *staging) free() {
	if s.slab != nil {
		s.slab.Free()
		s.slab = nil
	}
}

// memory takes files that are written later.
type memory struct {
	storage.Storage // nothing but Create is used
	files           map[string]*memoryFile
}

type memoryFile struct {
	bytes.Buffer
	owner *memory
	name  string
}

// Create begins a file.
func (m *memory) Create(_ context.Context, name string) (storage.File, error) {
	return &memoryFile{owner: m, name: name}, nil
}

// Close keeps the file.
func (f *memoryFile) Close() error {
	f.owner.files[f.name] = f
	return nil
}

// Abort forgets it.
func (f *memoryFile) Abort() {}

// keepFiles calls write now, and returns what writes the same files later.
func keepFiles(ctx context.Context, step int, write func(w *Writer) error) (later func(w *Writer) error, err error) {
	kept := &memory{files: map[string]*memoryFile{}}
	w := &Writer{ctx: ctx, to: kept, folder: "kept", step: step, taken: map[string]bool{}, open: map[*File]bool{}}
	defer func() {
		// Files is the user's function: its panic is an error of all ranks.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	err = write(w)
	if _, ferr := w.finish(); err == nil {
		err = ferr
	}
	if err != nil {
		return nil, err
	}
	return func(w *Writer) error {
		for _, name := range slices.Sorted(maps.Keys(kept.files)) {
			if err := w.WriteFile(name[len("kept/"):], kept.files[name].Bytes()); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
