// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// disk does every operation of a save that changes the file system, so that a
// test can fail any one of them or stop the world before it.
type disk struct {
	// fault, when set, is asked before each operation; its error is the
	// operation's. A write that fails has written half.
	fault func(op, path string) error
}

func (d *disk) before(op, path string) error {
	if d.fault == nil {
		return nil
	}
	return d.fault(op, path)
}

func (d *disk) mkdir(path string) error {
	if err := d.before("mkdir", path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o777)
}

// mkdirAll makes the run's directory and those above it, and makes their
// names durable.
func (d *disk) mkdirAll(path string) error {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil:
		return errors.New("there is a file of that name")
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
	if err := d.before("create", path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

func (d *disk) write(f *os.File, b []byte) error {
	if err := d.before("write", f.Name()); err != nil {
		_, werr := f.Write(b[:len(b)/2])
		return errors.Join(err, werr)
	}
	_, err := f.Write(b)
	return err
}

func (d *disk) sync(f *os.File) error {
	if err := d.before("sync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (d *disk) close(f *os.File) error {
	// The descriptor goes in any case: a failing disk must not leak it.
	if err := d.before("close", f.Name()); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (d *disk) syncDir(path string) error {
	if err := d.before("syncdir", path); err != nil {
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
	if err := d.before("rename", from); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (d *disk) removeAll(path string) error {
	if err := d.before("remove", path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}
