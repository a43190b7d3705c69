// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"errors"
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
	before func(Op) error // nil: nobody asks
	noSync bool
}

func (d *disk) ask(kind, path string) error { return d.askFor(Op{Kind: kind, Path: path}) }

func (d *disk) askFor(op Op) error {
	if d.before == nil {
		return nil
	}
	if err := d.before(op); err != nil {
		return &fs.PathError{Op: op.Kind, Path: op.Path, Err: err}
	}
	return nil
}

func (d *disk) mkdir(path string) error {
	if err := d.ask(OpMkdir, path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
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

func (d *disk) create(path string) (*os.File, error) {
	if err := d.ask(OpCreate, path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// write writes all of b, or after an asked error half of it.
func (d *disk) write(f *os.File, b []byte) error {
	if err := d.askFor(Op{Kind: OpWrite, Path: f.Name(), Bytes: len(b)}); err != nil {
		_, werr := f.Write(b[:len(b)/2])
		return errors.Join(err, werr)
	}
	_, err := f.Write(b)
	return err
}

func (d *disk) sync(f *os.File) error {
	if d.noSync {
		return nil
	}
	if err := d.ask(OpSync, f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (d *disk) close(f *os.File) error {
	// The descriptor goes in any case: a failing disk must not leak it.
	if err := d.ask(OpClose, f.Name()); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (d *disk) syncDir(path string) error {
	if d.noSync {
		return nil
	}
	if err := d.ask(OpSyncDir, path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func (d *disk) rename(from, to string) error {
	if err := d.askFor(Op{Kind: OpRename, Path: from, To: to}); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (d *disk) link(from, to string) error {
	if err := d.askFor(Op{Kind: OpLink, Path: from, To: to}); err != nil {
		return err
	}
	return os.Link(from, to)
}

func (d *disk) remove(path string) error {
	if err := d.ask(OpRemove, path); err != nil {
		return err
	}
	return os.Remove(path)
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

func (d *disk) open(path string) (*os.File, error) {
	if err := d.ask(OpOpen, path); err != nil {
		return nil, err
	}
	st, err := os.Stat(path) // opening a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: OpOpen, Path: path, Err: errors.New("it is not a regular file")}
	}
	return os.Open(path)
}

func (d *disk) readAt(f *os.File, b []byte, at int64) (int, error) {
	if err := d.askFor(Op{Kind: OpRead, Path: f.Name(), Bytes: len(b)}); err != nil {
		return 0, err
	}
	return f.ReadAt(b, at)
}

func (d *disk) list(path string) ([]os.DirEntry, error) {
	if err := d.ask(OpList, path); err != nil {
		return nil, err
	}
	return os.ReadDir(path)
}
