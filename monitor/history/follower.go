// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Follower reads the history of a run that may be at work: at first all of it, then what is new.
// One goroutine at a time uses it.
type Follower struct {
	path       string
	f          *os.File // kept open, so that another file cannot get its number
	h          History
	generation int
	offset     int64 // of the first line that is not read
	lines      int   // that were read
	err        error // of the file that is open
}

// Follow returns a follower of the history in a run's directory, which need not be there yet.
func Follow(dir string) *Follower { return &Follower{path: filepath.Join(dir, FileName)} }

// Poll reads what has been written since the last call, and says whether there was something. An
// error that wraps [os.ErrNotExist] says that there is no history yet. After another error, what was
// read before stays, until the file is written anew.
func (f *Follower) Poll() (changed bool, err error) {
	now, err := os.Stat(f.path)
	if err != nil {
		return false, fmt.Errorf("history: %w", err)
	}
	if f.f != nil {
		before, err := f.f.Stat()
		if err != nil || !os.SameFile(before, now) || now.Size() < f.offset {
			f.Close()
		}
	}
	if f.f == nil {
		file, err := os.Open(f.path)
		if err != nil {
			return false, fmt.Errorf("history: %w", err)
		}
		f.f, f.h, f.offset, f.lines, f.err = file, History{}, 0, 0, nil
		f.generation++
		changed = true
	}
	if f.err != nil {
		return changed, f.err
	}
	more, err := f.read()
	if err != nil {
		f.err = fmt.Errorf("history: %s: %w", f.path, err)
	}
	return changed || more, f.err
}

// read takes the whole lines behind those that were read.
func (f *Follower) read() (more bool, err error) {
	text, err := io.ReadAll(io.NewSectionReader(f.f, f.offset, maxFile+1-f.offset))
	if err != nil {
		return false, err
	}
	if f.offset+int64(len(text)) > maxFile {
		return false, fmt.Errorf("more than %d bytes", maxFile)
	}
	for {
		i := bytes.IndexByte(text, '\n')
		if i > maxLine || i < 0 && len(text) > maxLine {
			return more, fmt.Errorf("line %d has more than %d bytes", f.lines+1, maxLine)
		}
		if i < 0 {
			return more, nil
		}
		f.lines++
		if err := f.h.add(text[:i+1]); err != nil {
			return more, fmt.Errorf("line %d: %w", f.lines, err)
		}
		f.offset += int64(i + 1)
		text, more = text[i+1:], true
	}
}

// History returns what was read so far, nil if no run has begun. The records in its lists do not
// change, and further ones are appended, as long as [Follower.Generation] is the same.
func (f *Follower) History() *History {
	if len(f.h.Runs) == 0 {
		return nil
	}
	return &f.h
}

// Generation counts how often the file was read from its beginning.
func (f *Follower) Generation() int { return f.generation }

// Close closes the file. The next Poll reads it from its beginning.
func (f *Follower) Close() error {
	if f.f == nil {
		return nil
	}
	err := f.f.Close()
	f.f = nil
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
