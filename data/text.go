// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sort"
)

// file is one source of text: on disk, or in memory when data is not nil.
type file struct {
	name string // relative to the corpus, with slashes: decides the split
	path string
	size int64
	data []byte

	mark    int64   // bytes of a byte order mark, which is no text
	records records // what it has instead of text
}

// all is the segment of all of a file's text.
func (f *file) all() segment { return segment{file: f, off: f.mark, size: f.size - f.mark} }

// segment is a part of a file that is a part of a Text.
type segment struct {
	file  *file
	off   int64 // in the file
	size  int64
	start int64 // in the text
}

// Text is a long text made of parts of files, one after the other. It reads
// files when asked to and keeps none open and none in memory, so that a text
// may be larger than memory. It is immutable and safe for concurrent use.
type Text struct {
	segments []segment
	size     int64
}

// NewText returns a text held in memory, for tests and small data. It keeps b.
func NewText(name string, b []byte) *Text {
	f := &file{name: name, path: name, size: int64(len(b)), data: b}
	return newText([]segment{{file: f, size: f.size}})
}

func newText(parts []segment) *Text {
	t := &Text{}
	for _, s := range parts {
		if s.size == 0 {
			continue
		}
		s.start = t.size
		t.size += s.size
		t.segments = append(t.segments, s)
	}
	return t
}

// Size is the length of the text in bytes.
func (t *Text) Size() int64 { return t.size }

// NumFiles is the number of files that the text is made of.
func (t *Text) NumFiles() int {
	n := 0
	for i, s := range t.segments {
		if i == 0 || s.file != t.segments[i-1].file {
			n++
		}
	}
	return n
}

// Fingerprint identifies which bytes of which files the text is made of, by
// the files' names and sizes.
func (t *Text) Fingerprint() string {
	h := sha256.New()
	for _, s := range t.segments {
		fmt.Fprintf(h, "%q %d %d\n", s.file.name, s.off, s.size)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Contents returns the size and a checksum of what files of the text hold, by their names. Of many
// files it reads some, evenly over the list, and of a large file some blocks.
func (t *Text) Contents(ctx context.Context) (map[string]string, error) {
	const mostFiles, blocks, block = 256, 16, 16 << 10
	var files []*file
	for i, s := range t.segments {
		if i == 0 || s.file != t.segments[i-1].file {
			files = append(files, s.file)
		}
	}
	out := map[string]string{}
	buf := make([]byte, blocks*block)
	for i := range min(len(files), mostFiles) {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		f := files[i*len(files)/min(len(files), mostFiles)]
		h := crc32.NewIEEE()
		part, step := min(f.size, int64(len(buf))), int64(0)
		if f.size > int64(len(buf)) {
			part, step = block, (f.size-block)/(blocks-1)
		}
		for k := range int64(blocks) {
			if err := f.readAt(buf[:part], k*step); err != nil {
				return nil, err
			}
			h.Write(buf[:part])
			if step == 0 {
				break
			}
		}
		out[f.name] = fmt.Sprintf("%d bytes, checksum %08x", f.size, h.Sum32())
	}
	return out, nil
}

// ReadAt reads the bytes at offset off, as [io.ReaderAt] says. The error is a
// *[SourceError] when a file cannot be read or has another size than when the
// corpus was opened.
func (t *Text) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("data: reading text at the negative offset %d", off)
	}
	i := sort.Search(len(t.segments), func(i int) bool { return t.segments[i].start+t.segments[i].size > off })
	n := 0
	for ; n < len(p) && i < len(t.segments); i++ {
		s := t.segments[i]
		at := off + int64(n) - s.start
		want := int(min(int64(len(p)-n), s.size-at))
		if err := s.file.readAt(p[n:n+want], s.off+at); err != nil {
			return n, err
		}
		n += want
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readRing fills p from offset off; the beginning follows the end.
func (t *Text) readRing(p []byte, off int64) error {
	for n := 0; n < len(p); {
		m, err := t.ReadAt(p[n:], off%t.size)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		n += m
		off += int64(m)
	}
	return nil
}

func (f *file) readAt(p []byte, off int64) error {
	if f.data != nil {
		copy(p, f.data[off:])
		return nil
	}
	h, err := os.Open(f.path)
	if err != nil {
		return f.trouble(err)
	}
	defer h.Close()
	info, err := h.Stat()
	if err != nil {
		return f.trouble(err)
	}
	if info.Size() != f.size {
		return f.changed(info.Size())
	}
	if _, err := h.ReadAt(p, off); errors.Is(err, io.EOF) {
		return f.changed(off)
	} else if err != nil {
		return f.trouble(err)
	}
	return nil
}

func (f *file) changed(size int64) error {
	return &SourceError{
		Path: f.path, Problem: Changed, Detail: fmt.Sprintf("%d bytes long, was %d", size, f.size),
		Advice: "data must stay as it is while a model trains on it: train on a copy",
	}
}

func (f *file) trouble(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return &SourceError{Path: f.path, Problem: Missing, Err: err, Advice: "it was there when training began: put it back"}
	}
	return unreadable(f.path, err)
}

func unreadable(path string, err error) error {
	return &SourceError{Path: path, Problem: Unreadable, Err: err, Advice: "check its permissions, or point --data elsewhere"}
}

// Sample returns about n bytes as blocks of the given length, evenly spaced
// over the text: the whole text if it is no longer than n. It is a pure
// function of the text.
func (t *Text) Sample(n, block int) ([]byte, error) {
	if n <= 0 || block <= 0 {
		return nil, fmt.Errorf("data: sample of %d bytes in blocks of %d: both must be positive", n, block)
	}
	if t.size <= int64(n) {
		b := make([]byte, t.size)
		_, err := t.ReadAt(b, 0)
		return b, err
	}
	blocks := max(n/block, 1)
	block = min(block, n)
	b := make([]byte, blocks*block)
	for i := range blocks {
		off := t.size / int64(blocks) * int64(i)
		m, err := t.ReadAt(b[i*block:(i+1)*block], off)
		if err != nil {
			return nil, fmt.Errorf("data: sample at %d, read %d of %d bytes: %w", off, m, block, err)
		}
	}
	return b, nil
}
