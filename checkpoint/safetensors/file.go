// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
)

// File is an open safetensors file whose header has been checked.
type File struct {
	name     string
	size     int64
	r        io.ReaderAt
	closer   io.Closer // nil when the caller owns r
	entries  []Entry   // by offset
	index    map[string]int
	metadata map[string]string
}

// Open opens the file at path and checks its header. The error is a
// [FormatError] when the file is not a whole safetensors file. Close it.
func Open(path string) (*File, error) {
	// Opening a pipe would wait for its writer: look first.
	if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	} else if !st.Mode().IsRegular() {
		return nil, &FormatError{File: path, Offset: -1, Problem: "is not a regular file (" + st.Mode().Type().String() + ")"}
	}
	o, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	st, err := o.Stat()
	if err != nil {
		o.Close()
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f, err := NewFile(o, st.Size(), path)
	if err != nil {
		o.Close()
		return nil, err
	}
	f.closer = o
	return f, nil
}

// NewFile reads and checks the header of a file of size bytes; name stands for
// it in errors. The caller keeps r, and closes it after the last read.
func NewFile(r io.ReaderAt, size int64, name string) (*File, error) {
	if size < 8 {
		return nil, &FormatError{File: name, Offset: 0, Truncated: true,
			Problem: fmt.Sprintf("has %d bytes, too few for a header", size)}
	}
	var length [8]byte
	if err := readFull(r, length[:], 0); err != nil {
		return nil, fmt.Errorf("safetensors: %s: reading the header's length: %w", name, err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > MaxHeaderBytes:
		return nil, &FormatError{File: name, Offset: 0,
			Problem: fmt.Sprintf("claims a header of %d bytes, more than the format's %d", n, MaxHeaderBytes)}
	case int64(n) > size-8:
		return nil, &FormatError{File: name, Offset: 0, Truncated: true,
			Problem: fmt.Sprintf("has %d bytes, but its header alone ends at %d", size, 8+n)}
	}
	text := make([]byte, n)
	if err := readFull(r, text, 8); err != nil {
		return nil, fmt.Errorf("safetensors: %s: reading the header: %w", name, err)
	}
	entries, metadata, err := parseHeader(name, text, size-8-int64(n))
	if err != nil {
		return nil, err
	}
	f := &File{name: name, size: size, r: r, entries: entries, metadata: metadata, index: make(map[string]int, len(entries))}
	for i, e := range entries {
		f.index[e.Name] = i
	}
	return f, nil
}

// readFull is ReadAt without its two ways to say that all was read.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Name returns the name given to Open or NewFile.
func (f *File) Name() string { return f.name }

// Size returns the bytes of the file.
func (f *File) Size() int64 { return f.size }

// Entries returns the tensors in the order of their bytes. The slice belongs
// to the file: do not change it.
func (f *File) Entries() []Entry { return f.entries }

// Infos returns name, dtype and shape of every tensor in the order of their bytes.
func (f *File) Infos() []Info {
	infos := make([]Info, len(f.entries))
	for i, e := range f.entries {
		infos[i] = e.Info
	}
	return infos
}

// Lookup finds a tensor by name.
func (f *File) Lookup(name string) (Entry, bool) {
	i, ok := f.index[name]
	if !ok {
		return Entry{}, false
	}
	return f.entries[i], true
}

// Metadata returns a copy of the file's metadata, nil if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// ReadTensor reads a tensor's bytes into dst, which must be exactly as long.
func (f *File) ReadTensor(name string, dst []byte) error {
	e, ok := f.Lookup(name)
	if !ok {
		return fmt.Errorf("safetensors: %s has no tensor %q", f.name, name)
	}
	if int64(len(dst)) != e.Size {
		return fmt.Errorf("safetensors: %s: tensor %q has %d bytes (shape %v of %v), %d were asked for", f.name, name, e.Size, e.Shape, e.DType, len(dst))
	}
	return f.readAt(e, dst, 0)
}

// ReadRange reads len(dst) bytes of a tensor from its byte offset on, for a
// reader that wants a part of it.
func (f *File) ReadRange(name string, dst []byte, offset int64) error {
	e, ok := f.Lookup(name)
	if !ok {
		return fmt.Errorf("safetensors: %s has no tensor %q", f.name, name)
	}
	if offset < 0 || offset > e.Size || int64(len(dst)) > e.Size-offset {
		return fmt.Errorf("safetensors: %s: tensor %q has %d bytes, but %d from byte %d on were asked for", f.name, name, e.Size, len(dst), offset)
	}
	return f.readAt(e, dst, offset)
}

func (f *File) readAt(e Entry, dst []byte, offset int64) error {
	err := readFull(f.r, dst, e.Offset+offset)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &FormatError{File: f.name, Tensor: e.Name, Offset: e.Offset + offset, Truncated: true,
			Problem: "ends before its last byte: the file has become shorter since it was opened"}
	}
	if err != nil {
		return fmt.Errorf("safetensors: %s: reading tensor %q (%d bytes at %d): %w", f.name, e.Name, len(dst), e.Offset+offset, err)
	}
	return nil
}

// Close closes the file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}
