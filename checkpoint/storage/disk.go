// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// The kinds of operations that a [Directory] does to its file system.
const (
	OpMkdir   = "mkdir"
	OpCreate  = "create"
	OpWrite   = "write"
	OpSync    = "sync" // of a file
	OpClose   = "close"
	OpSyncDir = "syncdir"
	OpRename  = "rename"
	OpLink    = "link"
	OpRemove  = "remove" // of a file or an empty folder
	OpOpen    = "open"   // for reading
	OpRead    = "read"
	OpList    = "list"
)

// Op is an operation that a [Directory] is about to do to its file system.
type Op struct {
	Kind  string // OpMkdir, …
	Path  string // what it is done to
	To    string // the new name, of a rename or a link
	Bytes int    // of a write or a read
}

// disk does every operation of a Directory to its file system, so that a test can
// fail any one of them, or stop the world before it.
type disk struct {
	around func(op Op, do func() error) error // nil: operations are just done
	noSync bool
}

func (d *disk) do(op Op, do func() error) error {
	if d.around == nil {
		return do()
	}
	if err := d.around(op, do); err != nil {
		if errors.As(err, new(*fs.PathError)) || errors.As(err, new(*os.LinkError)) || errors.Is(err, io.EOF) {
			return err
		}
		return &fs.PathError{Op: op.Kind, Path: op.Path, Err: err}
	}
	return nil
}

func (d *disk) mkdir(path string) error {
	return d.do(Op{Kind: OpMkdir, Path: path}, func() error { return os.Mkdir(path, 0o777) })
}

// mkdirAll makes a folder and those above it, and makes their names durable.
func (d *disk) mkdirAll(path string) error {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: OpMkdir, Path: path, Err: errors.New("there is a file of that name")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := d.mkdirAll(parent); err != nil {
			return err
		}
	}
	if err := d.mkdir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.syncDir(parent)
}

func (d *disk) create(path string) (f *os.File, err error) {
	err = d.do(Op{Kind: OpCreate, Path: path}, func() error {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
	return f, closeIf(err, f)
}

// write writes all of b, or half of it if the hook does not let it.
func (d *disk) write(f *os.File, b []byte) error {
	if d.around == nil {
		_, err := f.Write(b)
		return err
	}
	done := false
	err := d.do(Op{Kind: OpWrite, Path: f.Name(), Bytes: len(b)}, func() error {
		done = true
		_, err := f.Write(b)
		return err
	})
	if err != nil && !done {
		_, werr := f.Write(b[:len(b)/2])
		err = errors.Join(err, werr)
	}
	return err
}

func (d *disk) sync(f *os.File) error {
	if d.noSync {
		return nil
	}
	return d.do(Op{Kind: OpSync, Path: f.Name()}, f.Sync)
}

func (d *disk) close(f *os.File) error {
	defer f.Close() // in any case: a failing disk must not leak a descriptor
	return d.do(Op{Kind: OpClose, Path: f.Name()}, f.Close)
}

func (d *disk) syncDir(path string) error {
	if d.noSync {
		return nil
	}
	return d.do(Op{Kind: OpSyncDir, Path: path}, func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}

func (d *disk) rename(from, to string) error {
	return d.do(Op{Kind: OpRename, Path: from, To: to}, func() error { return os.Rename(from, to) })
}

// exchange gives two folders each other's names, at one instant.
func (d *disk) exchange(a, b string) error {
	return d.do(Op{Kind: OpRename, Path: a, To: b}, func() error { return exchange(a, b) })
}

func (d *disk) link(from, to string) error {
	return d.do(Op{Kind: OpLink, Path: from, To: to}, func() error { return os.Link(from, to) })
}

func (d *disk) remove(path string) error {
	return d.do(Op{Kind: OpRemove, Path: path}, func() error { return os.Remove(path) })
}

// removeAll removes a file, or a folder with all that is in it. It goes on
// after an error and returns the first. It does not follow symbolic links.
func (d *disk) removeAll(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var first error
	if st.IsDir() {
		entries, err := os.ReadDir(path)
		first = err
		for _, e := range entries {
			if err := d.removeAll(filepath.Join(path, e.Name())); first == nil {
				first = err
			}
		}
	}
	if first != nil {
		return first
	}
	if err := d.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *disk) open(path string) (f *os.File, err error) {
	err = d.do(Op{Kind: OpOpen, Path: path}, func() error {
		st, err := os.Stat(path) // opening a pipe would wait for its writer
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return &fs.PathError{Op: OpOpen, Path: path, Err: fmt.Errorf("it is not a regular file: %w", fs.ErrInvalid)}
		}
		f, err = os.Open(path)
		return err
	})
	return f, closeIf(err, f)
}

// closeIf closes a file whose operation a hook has failed afterwards.
func closeIf(err error, f *os.File) error {
	if err != nil && f != nil {
		f.Close()
	}
	return err
}

func (d *disk) readAt(f *os.File, b []byte, at int64) (n int, err error) {
	if d.around == nil {
		return f.ReadAt(b, at)
	}
	err = d.do(Op{Kind: OpRead, Path: f.Name(), Bytes: len(b)}, func() error {
		n, err = f.ReadAt(b, at)
		return err
	})
	return n, err
}

func (d *disk) list(path string) (found []os.DirEntry, err error) {
	err = d.do(Op{Kind: OpList, Path: path}, func() error {
		found, err = os.ReadDir(path)
		return err
	})
	return found, err
}
