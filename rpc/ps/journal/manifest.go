// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// Manifest says what a snapshot holds. It is the file manifest.json in the snapshot's folder.
type Manifest struct {
	Version int    `json:"version"`
	Journal string `json:"journal"` // the journal's ID
	Job     string `json:"job"`
	Server  int    `json:"server"`
	Servers int    `json:"servers"`
	// At is the LSN of the server's state, and the last that all rows have.
	At uint64 `json:"at"`
	// End is the last LSN that a row can have.
	End uint64 `json:"end"`
	// Base is the At of the snapshot that this one is a difference to. Full snapshots have none.
	Base   uint64          `json:"base,omitempty"`
	Full   bool            `json:"full"`
	Logged bool            `json:"logged"` // the entries between At and End are in the log
	Made   time.Time       `json:"made"`
	State  ManifestFile    `json:"state"`
	Tables []ManifestTable `json:"tables"`
	Sum    string          `json:"crc32c"` // of the content without this field
}

// ManifestFile is a file of a snapshot.
type ManifestFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// Sum is the CRC-32C of the file; for a file of rows, of the checksums of its blocks.
	Sum string `json:"crc32c"`
}

// ManifestTable is a table in a snapshot.
type ManifestTable struct {
	Schema  rows.Schema  `json:"schema"`
	File    ManifestFile `json:"file"`
	Rows    int64        `json:"rows"`
	Rowless int64        `json:"rowless"` // records without a row: tombstones, and keys that were only counted
	Blocks  int64        `json:"blocks"`
}

const manifestFile = "manifest.json"

func snapshotName(at uint64) string { return fmt.Sprintf("%020d", at) }

// listSnapshots returns the LSNs of the snapshots of a journal, the oldest first.
func listSnapshots(dir string) ([]uint64, error) {
	path := filepath.Join(dir, snapshotDir)
	files, err := os.ReadDir(path)
	if err != nil {
		return nil, failure(path, "cannot list the snapshots", err)
	}
	var found []uint64
	for _, f := range files {
		at, err := strconv.ParseUint(f.Name(), 10, 64)
		if err == nil && f.IsDir() && f.Name() == snapshotName(at) {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return found, nil
}

func (m Manifest) sum() string {
	m.Sum = ""
	b, _ := json.Marshal(m)
	return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli))
}

// readManifest reads and checks the manifest of a snapshot.
func readManifest(dir string, at uint64) (*Manifest, error) {
	path := filepath.Join(dir, snapshotDir, snapshotName(at), manifestFile)
	b, err := os.ReadFile(path)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, damaged(path, 0, "the manifest is missing: use another snapshot")
		}
		return nil, failure(path, "cannot read the manifest", err)
	}
	m := new(Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, damaged(path, 0, "the manifest is not what was written (%v): use another snapshot", err)
	}
	if m.Version != segmentVersion {
		return nil, &Error{Kind: Foreign, Path: path, What: fmt.Sprintf("the snapshot has version %d, and this program knows version %d: use the program that wrote it", m.Version, segmentVersion)}
	}
	if m.Sum != m.sum() {
		return nil, damaged(path, 0, "the manifest was changed: use another snapshot")
	}
	if m.At != at {
		return nil, damaged(path, 0, "the manifest is that of snapshot %d: give the folder its name again", m.At)
	}
	return m, nil
}

// chain returns the manifests that a snapshot consists of: a full one, and the differences up to at.
func chain(dir string, at uint64) ([]*Manifest, error) {
	var found []*Manifest
	for {
		m, err := readManifest(dir, at)
		if err != nil {
			return nil, err
		}
		found = append(found, m)
		if m.Full {
			break
		}
		if m.Base >= at {
			return nil, damaged(filepath.Join(dir, snapshotDir, snapshotName(at)), 0, "the snapshot is a difference to snapshot %d, which is not older: use another snapshot", m.Base)
		}
		at = m.Base
	}
	slices.Reverse(found)
	return found, nil
}
