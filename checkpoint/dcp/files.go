// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// maxOpen is how many files of a checkpoint are open when nobody reads from them.
const maxOpen = 128

// files are the opened files of a checkpoint.
type files struct {
	from   storage.Storage
	folder string

	mu   sync.Mutex
	open map[string]*opened
}

// opened is a file with its readers.
type opened struct {
	storage.Object
	numUsers int
}

// use calls f with an opened file.
func (s *files) use(name string, f func(o storage.Object) error) error {
	o, err := s.acquire(name)
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		o.numUsers--
	}()
	return f(o)
}

func (s *files) acquire(name string) (*opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[name]; o != nil {
		o.numUsers++
		return o, nil
	}
	if len(s.open) >= maxOpen {
		for other, o := range s.open {
			if o.numUsers == 0 {
				delete(s.open, other)
				o.Close() // it was only read
			}
		}
	}
	object, err := s.from.Open(context.Background(), path.Join(s.folder, name))
	if err != nil {
		return nil, err
	}
	o := &opened{object, 1}
	s.open[name] = o
	return o, nil
}

// size returns the bytes of a file; ok is false if it is not there.
func (s *files) size(name string) (size int64, ok bool, err error) {
	err = s.use(name, func(o storage.Object) error { size = o.Size(); return nil })
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	return size, err == nil, err
}

func (s *files) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, o := range s.open {
		errs = append(errs, o.Close())
		delete(s.open, name)
	}
	return errors.Join(errs...)
}

// reader reads from a file that may be closed in between.
type reader struct {
	files *files
	place
}

// ReadAt reads from the item that begins at the reader's offset.
func (r reader) ReadAt(b []byte, at int64) (n int, err error) {
	err = r.files.use(r.file, func(o storage.Object) error {
		n, err = o.ReadAt(b, r.offset+at)
		return err
	})
	return n, err
}
