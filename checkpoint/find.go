// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// Checkpoint is a complete checkpoint whose every file agreed with its
// manifest when it was opened.
type Checkpoint struct {
	Path  string
	Step  int
	Files []FileInfo // by name
}

// Latest returns the newest good checkpoint in the run's directory dir; dir
// may also be a checkpoint's own directory. Every byte is read and compared
// with the manifest.
//
// Newer ones that are damaged are passed over and returned in damaged: tell
// the user, whose run goes back further than expected. If all are damaged the
// error is a [DamagedError]; if there are none, or no dir, it is [ErrNone].
// What may not be read (permissions) is an error, not damage.
func Latest(ctx context.Context, dir string) (latest *Checkpoint, damaged []*DamagedError, err error) {
	if _, err := os.Lstat(filepath.Join(dir, ManifestName)); err == nil {
		latest, err = Open(ctx, dir)
		return latest, nil, err
	}
	// A save may remove checkpoints meanwhile; a newer one is there then.
	for range 10 {
		latest, damaged, again, err := findLatest(ctx, dir)
		if !again {
			return latest, damaged, err
		}
	}
	return nil, nil, fmt.Errorf("checkpoint: %s: checkpoints vanish faster than they can be read: something else removes them", dir)
}

func findLatest(ctx context.Context, dir string) (latest *Checkpoint, damaged []*DamagedError, again bool, err error) {
	steps, err := listSteps(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, false, fmt.Errorf("checkpoint: %s does not exist: %w", dir, ErrNone)
	}
	if err != nil {
		return nil, nil, false, fmt.Errorf("checkpoint: %w", err)
	}
	for _, step := range steps {
		path := Path(dir, step)
		c, err := Open(ctx, path)
		if err == nil {
			return c, damaged, false, nil
		}
		if _, serr := os.Lstat(path); errors.Is(serr, fs.ErrNotExist) {
			return nil, nil, true, nil
		}
		var d *DamagedError
		if !errors.As(err, &d) {
			return nil, damaged, false, err
		}
		damaged = append(damaged, d)
	}
	switch len(damaged) {
	case 0:
		return nil, nil, false, fmt.Errorf("checkpoint: in %s: %w", dir, ErrNone)
	case 1:
		return nil, damaged, false, fmt.Errorf("%w (there is no other one in %s: restore it from a copy, or begin in another directory)", damaged[0], dir)
	default:
		return nil, damaged, false, fmt.Errorf("%w (and so are the other %d in %s: restore one from a copy, or begin in another directory)", damaged[0], len(damaged)-1, dir)
	}
}

// Steps returns the steps of which the run's directory dir has a checkpoint, good or
// not, newest first; none where there is no dir.
func Steps(dir string) ([]int, error) {
	steps, err := listSteps(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return steps, nil
}

// listSteps returns the steps that dir has a checkpoint of, good or not,
// newest first.
func listSteps(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var steps []int
	for _, e := range entries {
		if step, ok := parseStep(e.Name()); ok {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	slices.Reverse(steps)
	return steps, nil
}

// Verify reads a checkpoint, given by its own directory, and compares every
// byte with the manifest. What differs is a [DamagedError].
func Verify(ctx context.Context, path string) error {
	_, err := Open(ctx, path)
	return err
}

// Open verifies the checkpoint whose own directory is path and returns it.
// The error is a [DamagedError] when it is not what Save made.
func Open(ctx context.Context, path string) (*Checkpoint, error) {
	c, err := readManifest(path)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 1<<20)
	for _, f := range c.Files {
		if err := c.verify(ctx, f, buf); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readManifest reads a checkpoint's manifest and compares the sizes of its files.
func readManifest(path string) (*Checkpoint, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if !st.IsDir() {
		return nil, &DamagedError{Path: path, Problem: "is not a directory"}
	}
	text, err := readLimited(filepath.Join(path, ManifestName), maxManifestBytes)
	if err != nil {
		return nil, damage(path, ManifestName, "cannot be read", err)
	}
	step, files, err := parseManifest(text)
	if err != nil {
		return nil, &DamagedError{Path: path, File: ManifestName, Problem: err.Error()}
	}
	// A checkpoint that was copied under another name is good; one that has
	// the name of another step is not.
	if named, ok := parseStep(filepath.Base(path)); ok && named != step {
		return nil, &DamagedError{Path: path, File: ManifestName, Problem: fmt.Sprintf("is that of step %d", step)}
	}
	for _, f := range files {
		st, err := os.Stat(filepath.Join(path, f.Name))
		switch {
		case err != nil:
			return nil, damage(path, f.Name, "cannot be read", err)
		case !st.Mode().IsRegular():
			return nil, &DamagedError{Path: path, File: f.Name, Problem: "is not a regular file"}
		case st.Size() != f.Bytes:
			return nil, &DamagedError{Path: path, File: f.Name, Problem: fmt.Sprintf("has %d bytes, its manifest says %d", st.Size(), f.Bytes)}
		}
	}
	return &Checkpoint{Path: path, Step: step, Files: files}, nil
}

// damage makes a DamagedError of an error of the file system, unless its cause
// lies outside the checkpoint and can be mended.
func damage(path, file, problem string, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return &DamagedError{Path: path, File: file, Problem: problem, Err: err}
}

// readLimited reads a regular file of at most limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path) // opening a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("it has %d bytes, more than the %d allowed", st.Size(), limit)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it has more than the %d bytes allowed", limit)
	}
	return b, err
}

func (c *Checkpoint) verify(ctx context.Context, info FileInfo, buf []byte) error {
	f, err := os.Open(filepath.Join(c.Path, info.Name))
	if err != nil {
		return damage(c.Path, info.Name, "cannot be read", err)
	}
	defer f.Close()
	var crc uint32
	var size int64
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("checkpoint: verifying %s: %w", filepath.Join(c.Path, info.Name), err)
		}
		n, err := f.Read(buf)
		crc = crc32.Update(crc, castagnoli, buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damage(c.Path, info.Name, fmt.Sprintf("cannot be read at byte %d", size), err)
		}
	}
	if size != info.Bytes {
		return &DamagedError{Path: c.Path, File: info.Name, Problem: fmt.Sprintf("has %d bytes, its manifest says %d", size, info.Bytes)}
	}
	if crc != info.CRC {
		return &DamagedError{Path: c.Path, File: info.Name, Problem: fmt.Sprintf("has the checksum %08x, its manifest says %08x: its bytes were changed", crc, info.CRC)}
	}
	return nil
}

// Has says whether the checkpoint has a file of that name.
func (c *Checkpoint) Has(name string) bool {
	return slices.ContainsFunc(c.Files, func(f FileInfo) bool { return f.Name == name })
}

// ReadFile reads a file that must have at most limit bytes.
func (c *Checkpoint) ReadFile(name string, limit int64) ([]byte, error) {
	if err := c.need(name); err != nil {
		return nil, err
	}
	path := filepath.Join(c.Path, name)
	b, err := readLimited(path, limit)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: reading %s: %w", path, err)
	}
	return b, nil
}

// ReadJSON reads a file of at most 64 MiB into v.
func (c *Checkpoint) ReadJSON(name string, v any) error {
	b, err := c.ReadFile(name, 64<<20)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("checkpoint: reading %s: %w", filepath.Join(c.Path, name), err)
	}
	return nil
}

// OpenSafetensors opens a safetensors file of the checkpoint. Close it.
func (c *Checkpoint) OpenSafetensors(name string) (*safetensors.File, error) {
	if err := c.need(name); err != nil {
		return nil, err
	}
	return safetensors.Open(filepath.Join(c.Path, name))
}

func (c *Checkpoint) need(name string) error {
	if c.Has(name) {
		return nil
	}
	names := make([]string, len(c.Files))
	for i, f := range c.Files {
		names[i] = f.Name
	}
	return fmt.Errorf("checkpoint: %s has no file %q: it has %q", c.Path, name, names)
}
