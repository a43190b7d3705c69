// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// Loaded is a snapshot of a directory: a full one and the differences behind it. It only reads, so
// that a directory of another server can be loaded from.
type Loaded struct {
	dir   string
	chain []*Manifest
}

// Load finds the newest good snapshot of a directory. Damaged ones are skipped: skipped says why. An
// error of kind [Damaged] tells that there is no good one.
func Load(dir string) (s *Loaded, skipped []error, err error) {
	names, err := listSnapshots(dir)
	if err != nil {
		return nil, nil, err
	}
	for i := len(names) - 1; i >= 0; i-- {
		s, err := LoadAt(dir, names[i])
		if err == nil {
			return s, skipped, nil
		}
		if !isDamaged(err) {
			return nil, skipped, err
		}
		skipped = append(skipped, err)
	}
	if len(skipped) > 0 {
		return nil, skipped, damaged(filepath.Join(dir, snapshotDir), 0, "none of %d snapshots can be read; the newest: %v", len(names), skipped[0])
	}
	return nil, nil, damaged(filepath.Join(dir, snapshotDir), 0, "there is no snapshot: take one from the running server (cohort ps checkpoint)")
}

// LoadAt returns the snapshot at an LSN. It checks the manifests and the sizes of all files.
func LoadAt(dir string, at uint64) (*Loaded, error) {
	manifests, err := chain(dir, at)
	if err != nil {
		return nil, err
	}
	s := &Loaded{dir: dir, chain: manifests}
	for _, m := range manifests {
		files := []ManifestFile{m.State}
		for _, t := range m.Tables {
			files = append(files, t.File)
		}
		for _, f := range files {
			path := s.path(m, f)
			if f.Name != filepath.Base(f.Name) {
				return nil, damaged(path, 0, "the manifest names a file of another folder")
			}
			st, err := os.Stat(path)
			if err != nil {
				return nil, damaged(path, 0, "a file of the snapshot cannot be read (%v): use another snapshot", err)
			}
			if st.Size() != f.Bytes {
				return nil, damaged(path, 0, "the file has %d bytes, and the manifest says %d: use another snapshot", st.Size(), f.Bytes)
			}
		}
	}
	return s, nil
}

func (s *Loaded) path(m *Manifest, f ManifestFile) string {
	return filepath.Join(s.dir, snapshotDir, snapshotName(m.At), f.Name)
}

// Manifest returns the manifest of the newest part.
func (s *Loaded) Manifest() *Manifest { return s.chain[len(s.chain)-1] }

// Depth returns the number of differences behind the full snapshot.
func (s *Loaded) Depth() int { return len(s.chain) - 1 }

// Bytes returns the size of all files of rows.
func (s *Loaded) Bytes() (n int64) {
	for _, m := range s.chain {
		for _, t := range m.Tables {
			n += t.File.Bytes
		}
	}
	return n
}

// State returns the server's state.
func (s *Loaded) State() ([]byte, error) {
	m := s.Manifest()
	path := s.path(m, m.State)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, failure(path, "cannot read the server's state", err)
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)); sum != m.State.Sum {
		return nil, damaged(path, 0, "the server's state has the checksum %s, not %s: use another snapshot", sum, m.State.Sum)
	}
	return b, nil
}

// Records gives all records of a table to fn, older parts first: a later record of a key replaces
// an earlier one if its LSN is higher. A block is checked before fn gets its records. Their bytes are
// valid until fn returns.
func (s *Loaded) Records(table int, fn func(rows.Record) error) error {
	for _, m := range s.chain {
		if err := readTable(s.path(m, m.Tables[table].File), m.Tables[table], fn); err != nil {
			return err
		}
	}
	return nil
}

// Verify reads all that the snapshot has and checks it.
func (s *Loaded) Verify() error {
	if _, err := s.State(); err != nil {
		return err
	}
	for i := range s.Manifest().Tables {
		if err := s.Records(i, func(rows.Record) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

func readTable(path string, mt ManifestTable, fn func(rows.Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return failure(path, "cannot read the snapshot", err)
	}
	defer f.Close()
	var (
		rd       = &window{f: f, size: mt.File.Bytes}
		at       int64
		blocks   int64
		sums     uint32
		withRows int64
		rowless  int64
	)
	for at < mt.File.Bytes {
		head, err := rd.at(at, blockHeader)
		if err != nil {
			return failure(path, "cannot read the snapshot", err)
		}
		if head == nil {
			return damaged(path, 0, "table %q: the file ends inside of a block: use another snapshot", mt.Schema.Name)
		}
		h, size, err := parseBlock(head, mt.File.Bytes-at)
		if err != nil {
			return damaged(path, 0, "table %q: byte %d: %v: use another snapshot", mt.Schema.Name, at, err)
		}
		b, err := rd.at(at, int(size))
		if err != nil {
			return failure(path, "cannot read the snapshot", err)
		}
		if crc32.Checksum(b[8:], castagnoli) != h.sum {
			return damaged(path, 0, "table %q: the block at byte %d has a wrong checksum: use another snapshot", mt.Schema.Name, at)
		}
		sums = crc32.Update(sums, castagnoli, b[4:8])
		if err := h.each(b, fn); err != nil {
			return err
		}
		if h.row > 0 {
			withRows += int64(h.records)
		} else {
			rowless += int64(h.records)
		}
		at += size
		blocks++
	}
	if fmt.Sprintf("%08x", sums) != mt.File.Sum || blocks != mt.Blocks || withRows != mt.Rows || rowless != mt.Rowless {
		return damaged(path, 0, "table %q: the file has %d rows in %d blocks, and the manifest says %d in %d: use another snapshot", mt.Schema.Name, withRows, blocks, mt.Rows, mt.Blocks)
	}
	return nil
}
