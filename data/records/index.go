// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

const (
	// maxRecord bounds the bytes of a record.
	maxRecord = 64 << 20
	// smallFile is the size of a file up to which its index stays in memory, as long as all of these
	// together are not larger than smallIndexes.
	smallFile    = 16 << 20
	smallIndexes = 64 << 20

	indexMagic  = "cohortix"
	indexHeader = 64
	indexEnding = ".idx"
)

// index says where the records of a file begin, and where the last one ends. Of a large file it lies in
// a file of its own, from which places are read when they are wanted: it takes no memory.
type index struct {
	num    int    // records
	sum    uint32 // CRC-32C of the whole file
	blanks bool   // there are lines without a record
	places []int64
	file   *os.File // has the places, if they are nil
}

// key identifies the state of a file that an index is of.
type key struct {
	path  string
	size  int64
	mtime int64 // nanoseconds
	kind  string
}

// keyOf is the key of a file as it is now.
func keyOf(path, kind string, info os.FileInfo) (key, error) {
	abs, err := filepath.Abs(path)
	return key{abs, info.Size(), info.ModTime().UnixNano(), kind}, err
}

// at is the name of the file that the cache has for a key, without its directory.
func (k key) at(ending string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%q %s", k.path, k.kind))
	return hex.EncodeToString(h[:12]) + ending
}

// framing finds records in a file: it calls emit with the place of each, and at the end it returns
// where the last one ends.
type framing func(r *frameReader, emit func(place int64) error) (end int64, err error)

// openKeyed opens a file, and says by what its index or its copy is known.
func openKeyed(path, kind string) (*os.File, key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, key{}, unreadable(path, err)
	}
	info, err := f.Stat()
	var k key
	if err == nil {
		k, err = keyOf(path, kind, info)
	}
	if err != nil {
		f.Close()
		return nil, key{}, unreadable(path, err)
	}
	return f, k, nil
}

// openIndex returns the index of a file: that of the cache, or else a new one.
func openIndex(ctx context.Context, path, kind string, find framing, c *cache) (*index, error) {
	return openIndexOf(ctx, path, kind, find, c, func(f *os.File) io.Reader { return f })
}

// openIndexOf is openIndex of the text that a file has.
func openIndexOf(ctx context.Context, path, kind string, find framing, c *cache, text func(f *os.File) io.Reader) (*index, error) {
	f, k, err := openKeyed(path, kind)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if k.size <= smallFile {
		x := &index{}
		end, err := x.build(ctx, path, text(f), find, func(place int64) error { x.places = append(x.places, place); return nil })
		if err != nil {
			return nil, err
		}
		x.places = append(x.places, end)
		if c.held += 8 * len(x.places); c.held <= smallIndexes || c.dir == "" {
			return x, nil
		}
	}
	at := filepath.Join(c.dir, k.at(indexEnding))
	if x := readIndex(at, k); x != nil {
		return x, nil
	}
	c.tell("finding the records of %s, once", path)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, unreadable(path, err)
	}
	if err := writeIndex(ctx, path, at, k, text(f), find); err != nil {
		return nil, err
	}
	x := readIndex(at, k)
	if x == nil {
		return nil, &Error{Path: path, Detail: fmt.Sprintf("its index %s cannot be read although it was just written: free the disk, or set COHORT_CACHE to another directory", at)}
	}
	return x, nil
}

// build goes through a file.
func (x *index) build(ctx context.Context, path string, f io.Reader, find framing, put func(place int64) error) (end int64, err error) {
	r := newFrameReader(ctx, f)
	end, err = find(r, func(place int64) error { x.num++; return put(place) })
	if err == nil {
		err = r.drain()
	}
	x.sum, x.blanks = r.sum, r.blanks
	if bad := (*Error)(nil); errors.As(err, &bad) {
		bad.Path = path
		return 0, bad
	} else if err != nil && ctx.Err() == nil {
		return 0, unreadable(path, err)
	}
	return end, err
}

// writeIndex makes the index of a file, whole or not at all.
func writeIndex(ctx context.Context, path, at string, k key, f io.Reader, find framing) error {
	out, err := createTemporary(at)
	if err != nil {
		return err
	}
	defer out.discard()
	w := bufio.NewWriterSize(out, 1<<20)
	var b [8]byte
	put := func(place int64) error {
		binary.LittleEndian.PutUint64(b[:], uint64(place))
		_, err := w.Write(b[:])
		return err
	}
	w.Write(make([]byte, indexHeader)) // a bufio.Writer keeps its first error
	x := &index{}
	end, err := x.build(ctx, path, f, find, put)
	if err != nil {
		return err
	}
	put(end)
	if err := w.Flush(); err != nil {
		return out.fail(err)
	}
	if _, err := out.WriteAt(x.header(k), 0); err != nil {
		return out.fail(err)
	}
	return out.keep()
}

func (x *index) header(k key) []byte {
	h := append(make([]byte, 0, indexHeader), indexMagic...)
	for _, n := range []int64{1, int64(x.num), k.size, k.mtime, int64(x.sum)} {
		h = binary.LittleEndian.AppendUint64(h, uint64(n))
	}
	blanks := uint32(0)
	if x.blanks {
		blanks = 1
	}
	h = binary.LittleEndian.AppendUint32(h, blanks)
	h = append(h, make([]byte, indexHeader-4-len(h))...)
	return binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readIndex opens an index in the cache. It is nil where there is none of this state of the file, or
// where it is damaged.
func readIndex(at string, k key) *index {
	f, err := os.Open(at)
	if err != nil {
		return nil
	}
	h := make([]byte, indexHeader)
	if _, err := io.ReadFull(f, h); err != nil {
		f.Close()
		return nil
	}
	n := func(i int) int64 { return int64(binary.LittleEndian.Uint64(h[8+8*i:])) }
	x := &index{num: int(n(1)), sum: uint32(n(4)), blanks: h[48] != 0, file: f}
	info, err := f.Stat()
	if err != nil || !bytes.Equal(h, x.header(k)) || info.Size() != indexHeader+8*int64(x.num+1) {
		f.Close()
		return nil
	}
	return x
}

// span returns where record i begins and ends.
func (x *index) span(i int) (from, to int64, err error) {
	if x.file == nil {
		return x.places[i], x.places[i+1], nil
	}
	var b [16]byte
	if _, err := x.file.ReadAt(b[:], indexHeader+8*int64(i)); err != nil {
		return 0, 0, err
	}
	return int64(binary.LittleEndian.Uint64(b[:])), int64(binary.LittleEndian.Uint64(b[8:])), nil
}

func (x *index) close() error {
	if x.file == nil {
		return nil
	}
	return x.file.Close()
}

// frameReader reads a file from its beginning, and sums it up.
type frameReader struct {
	ctx    context.Context
	r      *bufio.Reader
	pos    int64
	sum    uint32
	blanks bool
}

func newFrameReader(ctx context.Context, f io.Reader) *frameReader {
	fr := &frameReader{ctx: ctx}
	fr.r = bufio.NewReaderSize(io.TeeReader(f, fr), 1<<20)
	return fr
}

// Write sums up what is read from the file.
func (r *frameReader) Write(b []byte) (int, error) {
	r.sum = crc32.Update(r.sum, castagnoli, b)
	return len(b), context.Cause(r.ctx)
}

// drain reads what is left.
func (r *frameReader) drain() error {
	_, err := io.Copy(io.Discard, r.r)
	return err
}

// readLine returns the next line with its end, or the last part of one that is longer than the
// buffer: then size is that of all of it. At the end of the file the line is empty.
func (r *frameReader) readLine() (head []byte, size int64, err error) {
	head, err = r.r.ReadSlice('\n')
	size = int64(len(head))
	if !errors.Is(err, bufio.ErrBufferFull) {
		r.pos += size
		return head, size, endsFile(err)
	}
	head = bytes.Clone(head[:min(len(head), 64)])
	for errors.Is(err, bufio.ErrBufferFull) && size <= maxRecord {
		var more []byte
		more, err = r.r.ReadSlice('\n')
		size += int64(len(more))
	}
	r.pos += size
	if errors.Is(err, bufio.ErrBufferFull) {
		err = nil // longer than a record may be
	}
	return head, size, endsFile(err)
}

func endsFile(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// frameLines finds the records of lines. Lines of spaces have none.
func frameLines(r *frameReader, emit func(place int64) error) (end int64, err error) {
	if mark, err := r.r.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		r.r.Discard(len(mark))
		r.pos = int64(len(mark))
	}
	for line := 1; ; line++ {
		at := r.pos
		head, size, err := r.readLine()
		if err != nil {
			return 0, err
		}
		switch {
		case size == 0:
			return r.pos, nil
		case size > maxRecord:
			return 0, &Error{Line: line, Detail: fmt.Sprintf("the line has more than %d MiB: a record is at most that long; split it, or leave it out", maxRecord>>20)}
		case len(bytes.TrimSpace(head)) == 0 && size == int64(len(head)):
			r.blanks = true
			continue
		}
		if err := emit(at); err != nil {
			return 0, err
		}
	}
}

const byteOrderMark = "\xef\xbb\xbf"
