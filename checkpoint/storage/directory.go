// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/checkpoint/internal/filelock"
)

const (
	// tempInfix is in the name of a stage, of a checkpoint that is being removed,
	// and of a file before it is closed.
	tempInfix    = ".tmp-"
	damagedInfix = ".damaged-"
)

// Directory is a [Storage] in a directory of this machine, or of one that it
// mounts. It is made when the first file is.
type Directory struct {
	path string
	disk disk
}

var _ Storage = (*Directory)(nil)

// A DirOption changes how a [Directory] works.
type DirOption func(*Directory)

// WithHook has a directory call around in place of each operation on its file
// system; do is the operation. An error that around returns is the operation's. A
// write that around does not do has written half. It is how tests break a disk,
// see the package storagetest.
func WithHook(around func(op Op, do func() error) error) DirOption {
	return func(d *Directory) { d.disk.around = around }
}

// WithoutSync leaves files to the kernel: nothing is durable. It is for
// measuring what durability costs, and for tests.
func WithoutSync() DirOption { return func(d *Directory) { d.disk.noSync = true } }

// Dir returns the storage in a directory, which need not exist.
func Dir(path string, opts ...DirOption) *Directory {
	d := &Directory{path: path}
	for _, opt := range opts {
		opt(d)
	}
	return d
}

func (d *Directory) String() string { return d.path }

// Path returns the path of a file or a folder, for what reads files by themselves.
func (d *Directory) Path(name string) string {
	return filepath.Join(d.path, filepath.FromSlash(name))
}

// at checks a name that a caller gives and returns its path.
func (d *Directory) at(ctx context.Context, name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	return d.Path(name), d.begin(ctx, name)
}

func (d *Directory) begin(ctx context.Context, name string) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("storage: %s: %w", d.Path(name), err)
	}
	return nil
}

func fail(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("storage: %w", err)
}

// List is as in [Storage]. Symbolic links are followed and marked; one that leads
// nowhere is a file without bytes. What is neither a file nor a folder is left out.
func (d *Directory) List(ctx context.Context, folder string) ([]Entry, error) {
	if folder != "" {
		if err := CheckName(folder); err != nil {
			return nil, err
		}
	}
	if err := d.begin(ctx, folder); err != nil {
		return nil, err
	}
	found, err := d.disk.list(d.Path(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fail(err)
	}
	entries := make([]Entry, 0, len(found))
	for _, f := range found {
		isLink := f.Type()&fs.ModeSymlink != 0
		var st fs.FileInfo
		if isLink {
			st, err = os.Stat(filepath.Join(d.Path(folder), f.Name()))
		} else {
			st, err = f.Info()
		}
		switch {
		case err != nil && isLink: // to nowhere, or in a circle
			entries = append(entries, Entry{Name: f.Name(), IsLink: true})
			continue
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			continue
		case err != nil:
			return nil, fail(err)
		case !st.IsDir() && !st.Mode().IsRegular():
			continue
		}
		e := Entry{Name: f.Name(), IsFolder: st.IsDir(), IsLink: isLink, Modified: st.ModTime()}
		if !e.IsFolder {
			e.Size = st.Size()
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Open is as in [Storage]. Symbolic links are followed.
func (d *Directory) Open(ctx context.Context, name string) (Object, error) {
	path, err := d.at(ctx, name)
	if err != nil {
		return nil, err
	}
	f, err := d.disk.open(path)
	if err != nil {
		return nil, fail(err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fail(err)
	}
	return &object{f: f, disk: &d.disk, size: st.Size()}, nil
}

// object is an open file of a directory.
type object struct {
	f    *os.File
	disk *disk
	size int64
}

func (o *object) Size() int64  { return o.size }
func (o *object) Close() error { return o.f.Close() }

// ReadBytes is as in [ReadBytes]: a part of a core's cache.
func (o *object) ReadBytes() int { return 128 << 10 }

// ReadAt is as in [io.ReaderAt].
func (o *object) ReadAt(b []byte, at int64) (int, error) {
	n, err := o.disk.readAt(o.f, b, at)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fail(err)
	}
	return n, err
}

// Stage is as in [Storage]: the stage lies beside the checkpoint.
func (d *Directory) Stage(name, id string) (stage, folder string) {
	return name + tempInfix + id, ""
}

// Link is as in [Storage]: a hard link, or a copy where the file system has none.
func (d *Directory) Link(ctx context.Context, from, to string) error {
	source, err := d.at(ctx, from)
	if err != nil {
		return err
	}
	target, err := d.at(ctx, to)
	if err != nil {
		return err
	}
	if err := d.disk.mkdirAll(filepath.Dir(target)); err != nil {
		return fail(err)
	}
	err = d.disk.link(source, target)
	switch {
	case err == nil:
		return fail(d.disk.syncDir(filepath.Dir(target)))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EIO):
		return fail(err)
	default: // no links here, or too many to this file
		return d.copyFile(ctx, from, to)
	}
}

func (d *Directory) copyFile(ctx context.Context, from, to string) error {
	o, err := d.Open(ctx, from)
	if err != nil {
		return err
	}
	defer o.Close()
	f, err := d.Create(ctx, to)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, io.NewSectionReader(o, 0, o.Size()), make([]byte, 1<<20)); err != nil {
		return err
	}
	return f.Close()
}

// Commit is as in [Storage]: the rename of a folder in which all is durable.
func (d *Directory) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	from, err := d.at(ctx, stage)
	if err != nil {
		return err
	}
	to, err := d.at(ctx, name)
	if err != nil {
		return err
	}
	// A rename replaces an empty folder, but nothing else; so this look is for
	// the sake of early and plain errors.
	if _, err := os.Lstat(to); err == nil {
		return d.taken(to)
	}
	if err := WriteFile(ctx, d, stage+"/"+ManifestName, manifest); err != nil {
		return err
	}
	err = d.disk.rename(from, to)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && d.isOwn(to, manifest): // see "Shared directories"
	case errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTDIR):
		return d.taken(to)
	default:
		return fail(err)
	}
	if err := d.disk.syncDir(filepath.Dir(to)); err != nil {
		return &CommittedError{Name: to, Err: err}
	}
	return nil
}

// Replace is as in [Storage]: an exchange of two names, or two renames.
func (d *Directory) Replace(ctx context.Context, stage, name string, manifest []byte) error {
	from, err := d.at(ctx, stage)
	if err != nil {
		return err
	}
	to, err := d.at(ctx, name)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
		return d.Commit(ctx, stage, name, manifest)
	}
	if err := WriteFile(ctx, d, stage+"/"+ManifestName, manifest); err != nil {
		return err
	}
	old := from
	err = d.disk.exchange(from, to)
	if errors.Is(err, errors.ErrUnsupported) {
		old = to + tempInfix + randomName()
		if err = d.disk.rename(to, old); err == nil {
			if err = d.disk.rename(from, to); err != nil {
				err = errors.Join(err, d.disk.rename(old, to))
			}
		}
	}
	if err != nil {
		return fail(err)
	}
	if err := d.disk.syncDir(filepath.Dir(to)); err != nil {
		return &CommittedError{Name: to, Err: err}
	}
	_ = d.disk.removeAll(old) // else the next save does, as it has the name of a stage
	return nil
}

func (d *Directory) taken(path string) error {
	if _, err := os.Lstat(filepath.Join(path, ManifestName)); err != nil {
		return &ExistError{"storage: " + path + " is taken by something that is no checkpoint: set it aside"}
	}
	return &ExistError{"storage: " + path + " is there already"}
}

func (d *Directory) isOwn(path string, manifest []byte) bool {
	b, err := os.ReadFile(filepath.Join(path, ManifestName))
	return err == nil && bytes.Equal(b, manifest)
}

// Remove is as in [Storage]. A folder gets the name of a stage first.
func (d *Directory) Remove(ctx context.Context, name string) error {
	path, err := d.at(ctx, name)
	if err != nil {
		return err
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fail(err)
	case !st.IsDir():
		return fail(d.disk.remove(path))
	}
	// What is half removed must not look like a checkpoint, not even after a
	// power failure that brings the old name back.
	if !strings.Contains(filepath.Base(path), tempInfix) {
		temp := path + tempInfix + randomName()
		if err := d.disk.rename(path, temp); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return fail(err)
		}
		if err := d.disk.syncDir(filepath.Dir(path)); err != nil {
			return fail(err)
		}
		path = temp
	}
	return fail(d.disk.removeAll(path))
}

// SetAside is as in [Storage]: a rename.
func (d *Directory) SetAside(ctx context.Context, name string) error {
	path, err := d.at(ctx, name)
	if err != nil {
		return err
	}
	if err := d.disk.rename(path, path+damagedInfix+randomName()); err != nil {
		return fail(err)
	}
	return fail(d.disk.syncDir(filepath.Dir(path)))
}

// Free is as in [Storage]: what the file system gives to this user.
func (d *Directory) Free(ctx context.Context) (bytes int64, known bool, err error) {
	if err := d.begin(ctx, ""); err != nil {
		return 0, false, err
	}
	path, err := filepath.Abs(d.path)
	if err != nil {
		return 0, false, fail(err)
	}
	for {
		bytes, known, err = freeBytes(path)
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return bytes, known, fail(err)
		}
		path = filepath.Dir(path) // the directory is not there yet
	}
}

// Lock is as in [Storage]: the kernel's lock of the directory. It goes with the
// process, so one that is killed leaves none behind.
func (d *Directory) Lock(ctx context.Context) (release func(), held bool, err error) {
	if err := d.begin(ctx, ""); err != nil {
		return nil, false, err
	}
	if err := d.disk.mkdirAll(d.path); err != nil {
		return nil, false, fail(err)
	}
	f, err := os.Open(d.path)
	if err != nil {
		return nil, false, fail(err)
	}
	return filelock.Lock(f, &BusyError{Where: d.path})
}

func randomName() string { return fmt.Sprintf("%016x", rand.Uint64()) }
