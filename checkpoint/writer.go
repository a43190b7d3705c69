// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

const (
	// writeBytes is how much is summed and then written at a time: little
	// enough to be still in the cache for the copy into the kernel, enough
	// to make the call itself cheap.
	writeBytes = 512 << 10
	// smallBytes is the size below which writes are gathered.
	smallBytes = 64 << 10
)

// Writer takes the files of a checkpoint that is being saved. It belongs to
// the function given to [Save] and ends with it.
type Writer struct {
	ctx  context.Context
	save *save
	temp string // the directory written into

	mu    sync.Mutex
	files []FileInfo       // closed ones
	open  map[string]*File // by name
	// failed is the first error of any file: a save whose writer failed is
	// not committed, whoever forgot to look at the error.
	failed error
}

// Step returns the step that is being saved.
func (w *Writer) Step() int { return w.save.step }

// Create begins a file. Write to it and close it; a save with a file that is
// not closed fails. Names are plain: no separators, no leading dot.
func (w *Writer) Create(name string) (*File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	path := filepath.Join(w.temp, name)
	if err := checkName(name); err != nil {
		return nil, w.fail("create", path, err)
	}
	f, err := w.save.disk.create(path)
	if err != nil {
		return nil, w.fail("create", path, err)
	}
	file := &File{w: w, f: f, name: name}
	w.open[name] = file
	return file, nil
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
		return w.fail("encode", filepath.Join(w.temp, name), err)
	}
	return w.WriteFile(name, append(b, '\n'))
}

// WriteSafetensors writes tensors, given as raw bytes, as a safetensors file
// with the metadata {"format":"pt"}, which Hugging Face's tools ask for, and
// metadata besides.
func (w *Writer) WriteSafetensors(name string, tensors []safetensors.Tensor, metadata map[string]string) error {
	return w.writeSafetensors(name, metadata, func(f *File, metadata map[string]string) error {
		return safetensors.Write(f, tensors, metadata)
	})
}

// writeSafetensors writes a file by write, which is given the metadata with the format.
func (w *Writer) writeSafetensors(name string, metadata map[string]string, write func(f *File, metadata map[string]string) error) error {
	all := map[string]string{"format": "pt"}
	for k, v := range metadata {
		all[k] = v
	}
	f, err := w.Create(name)
	if err != nil {
		return err
	}
	if err := write(f, all); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.fail("encode", f.f.Name(), err)
	}
	return f.Close()
}

// fail records the save's first error. The caller holds mu.
func (w *Writer) fail(op, path string, err error) error {
	err = w.save.fail(op, path, err)
	if w.failed == nil {
		w.failed = err
	}
	return err
}

// finish closes what the save's function left open and returns its files.
func (w *Writer) finish() ([]FileInfo, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, f := range w.open {
		w.save.disk.close(f.f)
		if w.failed == nil {
			w.fail("close", f.f.Name(), errors.New("the file was not closed by the function that writes the checkpoint"))
		}
		delete(w.open, name)
	}
	sortFiles(w.files)
	return w.files, w.failed
}

// File is one file of a checkpoint while it is written.
type File struct {
	w       *Writer
	f       *os.File
	name    string
	size    int64
	crc     uint32
	begun   int64  // bytes that the kernel was asked to write back
	pending []byte // small writes, not yet summed and written
	failed  error
	closed  bool
}

// Write appends b. It stops between pieces of half a megabyte when the save's
// context ends.
func (f *File) Write(b []byte) (n int, err error) {
	if f.closed {
		return 0, fmt.Errorf("checkpoint: %s is written to after its end", f.name)
	}
	if len(b) < smallBytes {
		if len(f.pending)+len(b) > writeBytes {
			if err := f.flush(); err != nil {
				return 0, err
			}
		}
		if f.pending == nil {
			f.pending = make([]byte, 0, writeBytes)
		}
		f.pending = append(f.pending, b...)
		return len(b), f.failed
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	for n < len(b) {
		piece := b[n:min(n+writeBytes, len(b))]
		if err := f.emit(piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

func (f *File) flush() error {
	if f.failed != nil || len(f.pending) == 0 {
		return f.failed
	}
	err := f.emit(f.pending)
	f.pending = f.pending[:0]
	return err
}

func (f *File) emit(b []byte) error {
	if f.failed != nil {
		return f.failed
	}
	err := f.w.ctx.Err()
	if err == nil {
		f.crc = crc32.Update(f.crc, castagnoli, b)
		err = f.w.save.disk.write(f.f, b)
	}
	if err != nil {
		return f.fail("write", err)
	}
	f.size += int64(len(b))
	f.w.save.writeBack(f)
	return nil
}

func (f *File) fail(op string, err error) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.failed = f.w.fail(op, f.f.Name(), err)
	return f.failed
}

// Close writes what is left, makes the file durable and enters it in the manifest.
func (f *File) Close() error {
	if f.closed {
		return f.failed
	}
	f.closed = true
	err := f.flush()
	if err == nil {
		if serr := f.w.save.sync(f.f); serr != nil {
			err = f.fail("sync", serr)
		}
	}
	if cerr := f.w.save.disk.close(f.f); err == nil && cerr != nil {
		err = f.fail("close", cerr)
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.open, f.name)
	f.w.files = append(f.w.files, FileInfo{f.name, f.size, f.crc})
	return err
}
