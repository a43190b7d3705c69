// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// indexed is a file, or the copy of one, with an index of its records.
type indexed struct {
	name  string
	size  int64
	index *index
	file  readerAt
	bytes sync.Pool // *[]byte
}

// readerAt is a file, or the copy of one.
type readerAt interface {
	io.ReaderAt
	io.Closer
}

// The kinds of indexes.
const (
	kindLines = "lines"
	kindList  = "list"
	kindTar   = "tar"
)

func newIndexed(path string, size int64, x *index, f readerAt) *indexed {
	s := &indexed{name: path, size: size, index: x, file: f}
	s.bytes.New = func() any { return new([]byte) }
	return s
}

// openIndexed opens a file where it lies, and its index.
func openIndexed(ctx context.Context, path, kind string, find framing, c *cache) (*indexed, error) {
	x, err := openIndex(ctx, path, kind, find, c)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		x.close()
		return nil, unreadable(path, err)
	}
	info, err := f.Stat()
	if err != nil {
		x.close()
		f.Close()
		return nil, unreadable(path, err)
	}
	return newIndexed(path, info.Size(), x, f), nil
}

// openCopy opens the copy of a file that the cache has, and its index. of is the kind of the copy, kind
// that of its index.
func openCopy(ctx context.Context, path, of, kind string, find framing, c *cache, text func(f *os.File) (io.ReadCloser, error)) (*indexed, error) {
	b, err := openBlocks(ctx, path, of, c, text)
	if err != nil {
		return nil, err
	}
	x, err := openIndexOf(ctx, path, kind, find, c, func(*os.File) io.Reader { return io.NewSectionReader(b, 0, b.size) })
	if err != nil {
		b.Close()
		return nil, err
	}
	return newIndexed(path, b.size, x, b), nil
}

func (s *indexed) path() string { return s.name }

func (s *indexed) num() int { return s.index.num }

func (s *indexed) digest() string { return fmt.Sprintf("%d %08x", s.size, s.index.sum) }

func (s *indexed) close() error { return errors.Join(s.index.close(), s.file.Close()) }

// span returns where record i begins and ends.
func (s *indexed) span(i int) (from, to int64, err error) {
	from, to, err = s.index.span(i)
	if err != nil {
		return 0, 0, fmt.Errorf("its index cannot be read: %w", err)
	}
	if to < from || to > s.size {
		return 0, 0, errors.New("its index is damaged: remove it from the cache (COHORT_CACHE)")
	}
	return from, to, nil
}
