// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"syscall"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// SectionSource is a section of a checkpoint as a [Source]. Every byte that it returns agrees
// with its checksum, unless the checkpoint is of version 1, which has none for parts of a file.
// Several goroutines may read from it. Close it.
type SectionSource struct {
	c       *Checkpoint
	section string
	tensors map[string]*StoredTensor
	infos   []safetensors.Info

	mu    sync.Mutex
	files map[string]*openObject
	order []*openObject // least recently used first
}

// openObject is a file that stays open between reads.
type openObject struct {
	storage.Object
	name  string
	piece int // see storage.ReadBytes
	users int
}

// maxOpenFiles is how many files of a section stay open. A tensor that a thousand ranks have
// saved lies in a thousand files, and so does the next one.
const maxOpenFiles = 1024

// Source opens a section. The source reads files when it is asked for tensors. A section that
// is not there is an error.
func (c *Checkpoint) Source(section string) (*SectionSource, error) {
	s := c.manifest.Section(section)
	if s == nil {
		names := make([]string, len(c.manifest.Sections))
		for i, s := range c.manifest.Sections {
			names[i] = s.Name
		}
		return nil, fmt.Errorf("checkpoint: %s has no section %q: it has %q", c.Path, section, names)
	}
	src := &SectionSource{c: c, section: section, tensors: make(map[string]*StoredTensor, len(s.Tensors)), files: map[string]*openObject{}}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		src.tensors[t.Name] = t
		src.infos = append(src.infos, t.Info())
	}
	return src, nil
}

// Name returns where the section is, for messages.
func (s *SectionSource) Name() string { return s.c.Path + "/" + s.section }

// Infos returns name, dtype and shape of every tensor, in the order in which they were saved.
func (s *SectionSource) Infos() []safetensors.Info { return s.infos }

// Boxes returns the parts in which a tensor is stored, nil for one that is not there.
func (s *SectionSource) Boxes(name string) []mesh.Box {
	t := s.tensors[name]
	if t == nil {
		return nil
	}
	boxes := make([]mesh.Box, len(t.Boxes))
	for i, b := range t.Boxes {
		boxes[i] = mesh.Box{Start: b.Start, Shape: b.Shape, LocalStart: make([]int, len(b.Start))}
	}
	return boxes
}

// ReadTensor is as in [Source].
func (s *SectionSource) ReadTensor(name string, dst []byte) error {
	t, err := s.find(name)
	if err != nil {
		return err
	}
	return s.ReadBox(name, make([]int, len(t.Shape)), t.Shape, dst)
}

func (s *SectionSource) find(name string) (*StoredTensor, error) {
	t := s.tensors[name]
	if t == nil {
		return nil, fmt.Errorf("checkpoint: %s has no tensor %q", s.Name(), name)
	}
	return t, nil
}

// ReadBox reads the elements from start on of a box of a tensor into dst, which is dense.
func (s *SectionSource) ReadBox(name string, start, shape []int, dst []byte) error {
	t, err := s.find(name)
	if err != nil {
		return err
	}
	if err := checkBox(t.Info(), start, shape, dst); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", s.Name(), err)
	}
	size := t.DType.NumBits() / 8
	for i := range t.Boxes {
		b := &t.Boxes[i]
		at, common, ok := intersect(b.Start, b.Shape, start, shape)
		if !ok {
			continue
		}
		r, err := s.open(t, b)
		if err != nil {
			return err
		}
		from, to := minus(at, b.Start), minus(at, start)
		err = stretches(common, b.Shape, from, shape, to, size, func(from, to, n int) error {
			return r.read(dst[to:to+n], int64(from))
		})
		r.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func minus(a, b []int) []int {
	out := make([]int, len(a))
	for d := range a {
		out[d] = a[d] - b[d]
	}
	return out
}

// checkBox reports a box that is not in a tensor, or does not fit dst.
func checkBox(t safetensors.Info, start, shape []int, dst []byte) error {
	ok := len(start) == len(t.Shape) && len(shape) == len(t.Shape)
	for d := 0; ok && d < len(shape); d++ {
		ok = start[d] >= 0 && shape[d] >= 0 && start[d] <= t.Shape[d] && shape[d] <= t.Shape[d]-start[d]
	}
	if !ok {
		return fmt.Errorf("tensor %q has the shape %v, the box %v from %v on was asked for", t.Name, t.Shape, shape, start)
	}
	if want := (safetensors.Info{DType: t.DType, Shape: shape}).NumBytes(); want != int64(len(dst)) {
		return fmt.Errorf("tensor %q: a box of shape %v of %v has %d bytes, %d were asked for", t.Name, shape, t.DType, want, len(dst))
	}
	return nil
}

// ReadRange is as in [Source].
func (s *SectionSource) ReadRange(name string, dst []byte, offset int64) error {
	t, err := s.find(name)
	if err != nil {
		return err
	}
	if whole := t.Info().NumBytes(); offset < 0 || offset > whole || int64(len(dst)) > whole-offset {
		return fmt.Errorf("checkpoint: %s: tensor %q has %d bytes, but %d from byte %d on were asked for", s.Name(), name, whole, len(dst), offset)
	}
	zeros, size, end := make([]int, len(t.Shape)), t.DType.NumBits()/8, offset+int64(len(dst))
	for i := range t.Boxes {
		b := &t.Boxes[i]
		if isEmpty(b.Shape) {
			continue
		}
		r, err := s.open(t, b)
		if err != nil {
			return err
		}
		err = stretches(b.Shape, b.Shape, zeros, t.Shape, b.Start, size, func(from, to, n int) error {
			first, last := max(int64(to), offset), min(int64(to+n), end)
			if first >= last {
				return nil
			}
			return r.read(dst[first-offset:last-offset], int64(from)+first-int64(to))
		})
		r.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes the files.
func (s *SectionSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for name, o := range s.files {
		if err := o.Close(); err != nil && first == nil {
			first = err
		}
		delete(s.files, name)
	}
	s.order = nil
	return first
}

// use opens a file, or takes the one that is open.
func (s *SectionSource) use(name string) (*openObject, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.files[name]
	if o == nil {
		opened, err := s.c.openFile(name)
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			s.closeIdle(0)
			opened, err = s.c.openFile(name)
		}
		if err != nil {
			return nil, err
		}
		o = &openObject{Object: opened, name: name, piece: storage.ReadBytes(opened)}
		s.files[name] = o
		s.closeIdle(maxOpenFiles)
		s.order = append(s.order, o)
	}
	o.users++
	return o, nil
}

// closeIdle closes files that nobody reads, the oldest first, until at most limit are open.
func (s *SectionSource) closeIdle(limit int) {
	s.order = slices.DeleteFunc(s.order, func(o *openObject) bool {
		if len(s.files) <= limit || o.users > 0 {
			return false
		}
		o.Close()
		delete(s.files, o.name)
		return true
	})
}

func (s *SectionSource) unuse(o *openObject) {
	s.mu.Lock()
	o.users--
	s.mu.Unlock()
}

// boxReader reads a box of a file.
type boxReader struct {
	s       *SectionSource
	t       *StoredTensor
	b       *StoredBox
	size    int64
	file    *openObject
	scratch *[]byte // a chunk of which a part was asked for
	loaded  int64   // which one is in scratch, -1 for none
}

var scratches = sync.Pool{New: func() any { b := make([]byte, chunkBytes); return &b }}

func (s *SectionSource) open(t *StoredTensor, b *StoredBox) (*boxReader, error) {
	o, err := s.use(b.File)
	if err != nil {
		return nil, err
	}
	size := safetensors.Info{DType: t.DType, Shape: b.Shape}.NumBytes()
	return &boxReader{s: s, t: t, b: b, size: size, file: o, loaded: -1}, nil
}

func (r *boxReader) close() {
	r.s.unuse(r.file)
	if r.scratch != nil {
		scratches.Put(r.scratch)
	}
}

// readBytes is the most that is read at a time.
const readBytes = 8 << 20

// read reads the bytes of the box from at on. Whole chunks go to dst at once; of others all is
// read, for its checksum, and a part is copied.
func (r *boxReader) read(dst []byte, at int64) error {
	for len(dst) > 0 {
		if r.b.Sums == nil {
			n := min(len(dst), readBytes)
			if err := r.fetch(dst[:n], at); err != nil {
				return err
			}
			dst, at = dst[n:], at+int64(n)
			continue
		}
		chunk, within := at/chunkBytes, at%chunkBytes
		if within == 0 {
			// As many whole chunks as one read takes; the last chunk of the box may be short.
			n := min(int64(len(dst)), readBytes)
			if at+n < r.size {
				n -= n % chunkBytes
			}
			if n > 0 {
				if err := r.fetchChunks(dst[:n], chunk); err != nil {
					return err
				}
				dst, at = dst[n:], at+n
				continue
			}
		}
		if r.loaded != chunk {
			if r.scratch == nil {
				r.scratch = scratches.Get().(*[]byte)
			}
			r.loaded = -1
			if err := r.fetchChunks((*r.scratch)[:min(chunkBytes, r.size-chunk*chunkBytes)], chunk); err != nil {
				return err
			}
			r.loaded = chunk
		}
		n := copy(dst, (*r.scratch)[within:min(chunkBytes, r.size-chunk*chunkBytes)])
		dst, at = dst[n:], at+int64(n)
	}
	return nil
}

// fetchChunks reads chunks of the box from the given one on and compares them with their sums.
func (r *boxReader) fetchChunks(dst []byte, chunk int64) error {
	read := 0 // bytes of dst
	for from := 0; from < len(dst); chunk++ {
		end, sum := min(from+chunkBytes, len(dst)), uint32(0)
		for at := from; at < end; {
			if read == at {
				read = min(at+r.file.piece, len(dst))
				if err := r.fetch(dst[at:read], chunk*chunkBytes+int64(at-from)); err != nil {
					return err
				}
			}
			piece := dst[at:min(read, end)]
			sum = crc32.Update(sum, castagnoli, piece)
			at += len(piece)
		}
		if sum != r.b.Sums[chunk] {
			return &DamagedError{Path: r.s.c.Path, File: r.b.File, Tensor: r.t.Name,
				Problem: fmt.Sprintf("has the checksum %08x for the %d bytes from %d on, its manifest says %08x: its bytes were changed", sum, end-from, r.b.At+chunk*chunkBytes, r.b.Sums[chunk])}
		}
		from = end
	}
	return nil
}

func (r *boxReader) fetch(dst []byte, at int64) error {
	c := r.s.c
	if err := c.ctx.Err(); err != nil {
		return fmt.Errorf("checkpoint: reading %s: %w", c.fileName(r.b.File), err)
	}
	n, err := r.file.ReadAt(dst, r.b.At+at)
	if n < len(dst) {
		return c.damage(r.b.File, fmt.Sprintf("cannot be read at byte %d, in the tensor %q", r.b.At+at+int64(n), r.t.Name), err)
	}
	return nil
}
