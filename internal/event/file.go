// SPDX-License-Identifier: Apache-2.0

package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// FileVersion is the version of the file.
const FileVersion = 1

// FilePattern matches the names of all files of figures, and behind a "." what is left of one that was
// being written.
const FilePattern = "figures-*"

// Limits of a file. A rank has at most maxChannels groups with numOps operations.
const (
	maxFile   = 1 << 20
	maxCommas = 1 << 15
	maxText   = 256
)

// File is what a rank writes when the launcher asks for its figures.
type File struct {
	Version   int     `json:"version"`
	Rank      int     `json:"rank"`
	WorldSize int     `json:"world_size"`
	Host      string  `json:"host"`
	PID       int     `json:"pid"`
	Request   uint64  `json:"request"` // of the launcher, which the file answers
	Figures   Figures `json:"figures"`
}

// Answer is what a rank has answered a launcher; File is nil if it has not.
type Answer struct {
	Rank int
	File *File
}

// FileName is the name of a rank's file in the directory of a job.
func FileName(rank int) string { return fmt.Sprintf("figures-%d.json", rank) }

// Write puts the file into a directory, whole or not at all.
func Write(dir string, f File) error {
	f.Version = FileVersion
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("figures of rank %d: %w", f.Rank, err)
	}
	t, err := os.CreateTemp(dir, ".figures-*")
	if err != nil {
		return fmt.Errorf("figures of rank %d: %w", f.Rank, err)
	}
	_, err = t.Write(append(text, '\n'))
	if closeErr := t.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(t.Name(), filepath.Join(dir, FileName(f.Rank)))
	}
	if err != nil {
		_ = os.Remove(t.Name())
		return fmt.Errorf("figures of rank %d: %w", f.Rank, err)
	}
	return nil
}

// ReadFile reads a file. What is none, or larger than one can be, is an error.
func ReadFile(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// parse reads the text of a file.
func parse(text []byte) (*File, error) {
	if len(text) > maxFile || bytes.Count(text, []byte{','}) > maxCommas {
		return nil, fmt.Errorf("more than %d bytes or %d commas: no rank has such figures", maxFile, maxCommas)
	}
	f := &File{}
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("not the figures of a rank: %w", err)
	}
	if f.Version != FileVersion || f.WorldSize < 1 || f.Rank < 0 || f.Rank >= f.WorldSize {
		return nil, fmt.Errorf("not the figures of a rank: version %d, rank %d of %d", f.Version, f.Rank, f.WorldSize)
	}
	if n := len(f.Figures.Channels); n > maxChannels {
		return nil, fmt.Errorf("not the figures of a rank: %d groups", n)
	}
	for _, g := range f.Figures.Channels {
		if len(g.Ops) > numOps || len(g.Name) > maxText {
			return nil, fmt.Errorf("not the figures of a rank: a group has %d operations and a name of %d bytes", len(g.Ops), len(g.Name))
		}
		for _, op := range g.Ops {
			if len(op.Op) > maxText {
				return nil, fmt.Errorf("not the figures of a rank: an operation has a name of %d bytes", len(op.Op))
			}
		}
	}
	return f, nil
}
