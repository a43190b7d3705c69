// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// pieceBytes is how much is written at a time. Between two pieces the context
	// is looked at.
	pieceBytes = 4 << 20
	// gatherBytes is the size of the buffer for small writes, smallBytes the size
	// below which a write is small.
	gatherBytes = 512 << 10
	smallBytes  = 64 << 10
	// writeBackBytes is how much of a file is written before the kernel is asked
	// to begin moving it to the disk.
	writeBackBytes = 32 << 20
)

// Create is as in [Storage]. Until it is closed, the file has the name of a stage.
func (d *Directory) Create(ctx context.Context, name string) (File, error) {
	path, err := d.at(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := d.disk.mkdirAll(filepath.Dir(path)); err != nil {
		return nil, fail(err)
	}
	f, err := d.disk.create(path + tempInfix + randomName())
	if err != nil {
		return nil, fail(err)
	}
	return &file{ctx: ctx, disk: &d.disk, f: f, path: path}, nil
}

// file is a file of a directory while it is written.
type file struct {
	ctx     context.Context
	disk    *disk
	f       *os.File
	path    string // its name once it is closed
	size    int64
	begun   int64  // bytes that the kernel was asked to write back
	pending []byte // small writes
	failed  error
	closed  bool
}

// Write appends b. After an error the file can only be aborted.
func (f *file) Write(b []byte) (n int, err error) {
	if f.closed {
		return 0, fmt.Errorf("storage: %s is written to after its end", f.path)
	}
	if f.failed != nil {
		return 0, f.failed
	}
	if len(b) < smallBytes {
		if len(f.pending)+len(b) > gatherBytes {
			if err := f.flush(); err != nil {
				return 0, err
			}
		}
		if f.pending == nil {
			f.pending = make([]byte, 0, gatherBytes)
		}
		f.pending = append(f.pending, b...)
		return len(b), nil
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	for n < len(b) {
		piece := b[n:min(n+pieceBytes, len(b))]
		if err := f.emit(piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

func (f *file) flush() error {
	if len(f.pending) == 0 {
		return nil
	}
	err := f.emit(f.pending)
	f.pending = f.pending[:0]
	return err
}

func (f *file) emit(b []byte) error {
	if err := context.Cause(f.ctx); err != nil {
		f.failed = fmt.Errorf("storage: writing %s: %w", f.path, err)
		return f.failed
	}
	if err := f.disk.write(f.f, b); err != nil {
		f.failed = fail(err)
		return f.failed
	}
	f.size += int64(len(b))
	if !f.disk.noSync && f.size-f.begun >= writeBackBytes {
		// The disk works while the rest of the file is still being written, so
		// that the fsync at the end finds less to do.
		writeBack(f.f, f.begun, f.size-f.begun)
		f.begun = f.size
	}
	return nil
}

// Close is as in [File]: the file is durable, then it gets its name, then the
// name is durable.
func (f *file) Close() error {
	if f.closed {
		return f.failed
	}
	f.closed = true
	err := f.failed
	if err == nil {
		err = f.flush()
	}
	if err == nil {
		err = fail(context.Cause(f.ctx))
	}
	if err == nil {
		err = fail(f.disk.sync(f.f))
	}
	if cerr := f.disk.close(f.f); err == nil {
		err = fail(cerr)
	}
	f.pending = nil
	if err == nil {
		err = fail(f.disk.rename(f.f.Name(), f.path))
	}
	if err != nil {
		f.failed = err
		f.drop()
		return err
	}
	if err := f.disk.syncDir(filepath.Dir(f.path)); err != nil {
		f.failed = fail(err)
		return f.failed
	}
	return nil
}

// Abort is as in [File].
func (f *file) Abort() {
	if f.closed {
		return
	}
	f.closed = true
	f.pending = nil
	f.failed = errors.New("storage: " + f.path + " was given up")
	f.disk.close(f.f)
	f.drop()
}

// drop removes the unfinished file. A failure to clean up is not worth more than
// the failure that led here.
func (f *file) drop() { f.disk.remove(f.f.Name()) }
