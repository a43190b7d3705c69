// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Save makes the checkpoint of a step in the run's directory dir, which it
// creates if need be. write writes the files; when it returns nil they become
// the checkpoint at [Path](dir, step), all of them or, after any failure, none.
// Then old checkpoints are removed: of those of this step and lower ones, the
// newest keep remain (keep ≤ 0: all). Checkpoints of higher steps, as a run
// that was set back leaves them, are not touched.
//
// A step that is already there, complete, is an error that wraps
// [fs.ErrExist]; a damaged one is renamed aside (step-….damaged-RANDOM) for
// its owner to look at. The error is a [BusyError] while another save is under
// way in dir, else a [SaveError]. The end of ctx stops a save between writes;
// once the rename is done, the save counts.
func Save(ctx context.Context, dir string, step int, write func(*Writer) error, keep int) error {
	return (&save{dir: dir, step: step, keep: keep}).run(ctx, write)
}

// Path returns where the checkpoint of a step is.
func Path(dir string, step int) string { return filepath.Join(dir, stepName(step)) }

// save is one save under way.
type save struct {
	disk      disk
	dir       string
	step      int
	keep      int
	alone     bool // no other checkpoint stays, see Replace
	committed bool
	// noSync leaves the files to the kernel: for measuring what durability costs.
	noSync bool
}

func (s *save) fail(op, path string, err error) error {
	var done *SaveError
	if errors.As(err, &done) {
		return err
	}
	return &SaveError{Dir: s.dir, Step: s.step, Op: op, Path: path, Committed: s.committed, Err: err}
}

func (s *save) sync(f *os.File) error {
	if s.noSync {
		return nil
	}
	return s.disk.sync(f)
}

func (s *save) run(ctx context.Context, write func(*Writer) error) (err error) {
	if s.step < 0 {
		return s.fail("begin", s.dir, errors.New("a step cannot be negative"))
	}
	if err := ctx.Err(); err != nil {
		return s.fail("begin", s.dir, err)
	}
	if err := s.disk.mkdirAll(s.dir); err != nil {
		return s.fail("mkdir", s.dir, err)
	}
	unlock, locked, err := lockDir(s.dir)
	if err != nil {
		var busy *BusyError
		if errors.As(err, &busy) {
			return err
		}
		return s.fail("lock", s.dir, err)
	}
	defer unlock()
	if locked { // else somebody may be at work in them
		if err := s.removeStale(); err != nil {
			return err
		}
	}
	final := Path(s.dir, s.step)
	damaged := false
	if !s.alone {
		if damaged, err = s.checkFree(ctx, final); err != nil {
			return err
		}
	}

	temp, err := s.mkdirTemp(final)
	if err != nil {
		return s.fail("mkdir", final, err)
	}
	defer func() {
		// Also when write panics. A failure to clean up is not worth more
		// than the failure that led here; the next save tries again.
		if !s.committed {
			s.disk.removeAll(temp)
		}
	}()
	if err := s.fill(ctx, temp, write); err != nil {
		return err
	}
	if damaged {
		if err := s.disk.rename(final, final+damagedInfix+randomName()); err != nil {
			return s.fail("rename", final, err)
		}
	}
	old := ""
	if s.alone {
		if old, err = s.makeRoom(final); err != nil {
			return err
		}
	}
	if err := s.disk.rename(temp, final); err != nil {
		if old != "" {
			s.disk.rename(old, final) // if that fails too, the first error says it
		}
		return s.fail("rename", temp, err)
	}
	s.committed = true
	if err := s.syncDir(s.dir); err != nil {
		return s.fail("sync", s.dir, fmt.Errorf("it may not survive a power failure: %w", err))
	}
	if old != "" {
		if err := s.disk.removeAll(old); err != nil {
			return s.fail("prune", old, err)
		}
	}
	return s.prune()
}

// checkFree says whether the step's place is free, or taken by something that
// is no checkpoint.
func (s *save) checkFree(ctx context.Context, final string) (damaged bool, err error) {
	if _, err := os.Lstat(final); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, s.fail("stat", final, err)
	}
	_, err = Open(ctx, final)
	var d *DamagedError
	switch {
	case err == nil:
		return false, s.fail("create", final, fmt.Errorf("this step is there already: %w", fs.ErrExist))
	case errors.As(err, &d):
		return true, nil
	default:
		return false, s.fail("verify", final, err)
	}
}

func randomName() string { return fmt.Sprintf("%016x", rand.Uint64()) }

func (s *save) mkdirTemp(final string) (string, error) {
	temp := final + tempInfix + randomName()
	return temp, s.disk.mkdir(temp)
}

// fill writes the files and the manifest and makes them durable.
func (s *save) fill(ctx context.Context, temp string, write func(*Writer) error) error {
	w := &Writer{ctx: ctx, save: s, temp: temp, open: map[string]*File{}}
	finished := false
	defer func() {
		if !finished {
			w.finish() // write panicked: leave no descriptor behind
		}
	}()
	err := write(w)
	finished = true
	files, ferr := w.finish()
	switch {
	case err != nil:
		return s.fail("write", temp, err)
	case ferr != nil:
		return ferr
	case ctx.Err() != nil:
		return s.fail("write", temp, ctx.Err())
	}
	path := filepath.Join(temp, ManifestName)
	f, err := s.disk.create(path)
	if err != nil {
		return s.fail("create", path, err)
	}
	op := "write"
	if err = s.disk.write(f, encodeManifest(s.step, files)); err == nil {
		op = "sync"
		err = s.sync(f)
	}
	if cerr := s.disk.close(f); err == nil && cerr != nil {
		op, err = "close", cerr
	}
	if err != nil {
		return s.fail(op, path, err)
	}
	if err := s.syncDir(temp); err != nil {
		return s.fail("sync", temp, err)
	}
	return nil
}

func (s *save) syncDir(path string) error {
	if s.noSync {
		return nil
	}
	return s.disk.syncDir(path)
}

// removeStale removes what killed saves and prunes left. The directory is
// locked, so nobody is at work in them.
func (s *save) removeStale() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return s.fail("list", s.dir, err)
	}
	for _, e := range entries {
		if e.IsDir() && isTemp(e.Name()) {
			path := filepath.Join(s.dir, e.Name())
			if err := s.disk.removeAll(path); err != nil {
				return s.fail("remove", path, err)
			}
		}
	}
	return nil
}

// prune removes old checkpoints, once the new one is durable. The new one
// counts among those kept; a damaged one does not, so that keep good ones
// remain, and goes when it is older than the oldest kept.
func (s *save) prune() error {
	if s.keep <= 0 {
		return nil
	}
	steps, err := listSteps(s.dir)
	if err != nil {
		return s.fail("prune", s.dir, err)
	}
	numKept := 0
	for _, step := range steps { // newest first
		path := Path(s.dir, step)
		switch {
		case s.alone:
			if step == s.step {
				continue
			}
		case step > s.step:
			continue
		case numKept < s.keep:
			// Whether the files are there with their sizes is enough to
			// count; their bytes are read when one is opened.
			if _, err := readManifest(path); err == nil {
				numKept++
			}
			continue
		}
		// A checkpoint half removed must not look like one: it gets the
		// name of a temporary directory first.
		temp := path + tempInfix + randomName()
		if err := s.disk.rename(path, temp); err != nil {
			return s.fail("prune", path, err)
		}
		if err := s.disk.removeAll(temp); err != nil {
			return s.fail("prune", temp, err)
		}
	}
	return nil
}
