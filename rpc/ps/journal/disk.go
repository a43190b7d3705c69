// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"io"
	"os"
	"path/filepath"
)

// Op is an operation that a journal is about to do to its file system.
type Op struct {
	Kind  string // "create", "write", "sync", "truncate", "rename", "remove"
	Path  string
	Bytes int // of a write
}

// disk does all that changes the file system, so that a test can slow or fail any operation.
type disk struct {
	around func(op Op, do func() error) error // nil: operations are just done
	sync   bool
}

func (d *disk) do(op Op, do func() error) error {
	if d.around == nil {
		return do()
	}
	return d.around(op, do)
}

func (d *disk) create(path string) (f *os.File, err error) {
	err = d.do(Op{Kind: "create", Path: path}, func() error {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
	if err != nil && f != nil {
		f.Close()
	}
	return f, err
}

// writeAt writes b at an offset. If a test fails the write, half of b is written, as on a full disk.
func (d *disk) writeAt(f *os.File, b []byte, at int64) error {
	done := false
	err := d.do(Op{Kind: "write", Path: f.Name(), Bytes: len(b)}, func() error {
		done = true
		_, err := f.WriteAt(b, at)
		return err
	})
	if err != nil && !done {
		f.WriteAt(b[:len(b)/2], at)
	}
	return err
}

// flush makes the bytes of a file durable.
func (d *disk) flush(f *os.File) error {
	if !d.sync {
		return nil
	}
	return d.do(Op{Kind: "sync", Path: f.Name()}, func() error { return syncData(f) })
}

func (d *disk) truncate(f *os.File, size int64) error {
	return d.do(Op{Kind: "truncate", Path: f.Name()}, func() error { return f.Truncate(size) })
}

// flushDir makes the names in a directory durable.
func (d *disk) flushDir(path string) error {
	if !d.sync {
		return nil
	}
	return d.do(Op{Kind: "sync", Path: path}, func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}

func (d *disk) rename(from, to string) error {
	err := d.do(Op{Kind: "rename", Path: from}, func() error { return os.Rename(from, to) })
	if err != nil {
		return err
	}
	return d.flushDir(filepath.Dir(to))
}

func (d *disk) remove(path string) error {
	return d.do(Op{Kind: "remove", Path: path}, func() error { return os.RemoveAll(path) })
}

// replaceFile gives a file new contents by one rename.
func (d *disk) replaceFile(path string, b []byte) error {
	part := path + ".part"
	if err := os.Remove(part); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := d.create(part)
	if err != nil {
		return err
	}
	err = d.writeAt(f, b, 0)
	if err == nil {
		err = d.flush(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(part)
		return err
	}
	return d.rename(part, path)
}

// readFull reads exactly len(b) bytes from an offset: io.EOF for none, io.ErrUnexpectedEOF for fewer.
func readFull(f io.ReaderAt, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF && n > 0:
		return io.ErrUnexpectedEOF
	}
	return err
}
