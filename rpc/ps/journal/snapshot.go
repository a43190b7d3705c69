// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// maxChain is the number of differences after which a snapshot is full again.
const maxChain = 16

const stagePrefix = ".stage-"

// Snapshot writes a snapshot of tables whose server has a state at an LSN. It is a difference to the
// last snapshot if there is one with the same tables, and full otherwise. Updates go on meanwhile. A
// failed snapshot leaves the earlier ones as they were. If nothing was appended since the last
// snapshot, that one stays the newest.
func (j *Journal) Snapshot(ctx context.Context, at uint64, state []byte, tables []*rows.Table) error {
	_, err := j.snapshot(ctx, at, state, tables, false)
	return err
}

// FullSnapshot is like [Journal.Snapshot] but never a difference.
func (j *Journal) FullSnapshot(ctx context.Context, at uint64, state []byte, tables []*rows.Table) error {
	_, err := j.snapshot(ctx, at, state, tables, true)
	return err
}

// Base returns the manifest of the last snapshot that was made or recovered, nil for none.
func (j *Journal) Base() *Manifest {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.base
}

func (j *Journal) snapshot(ctx context.Context, at uint64, state []byte, tables []*rows.Table, full bool) (*Manifest, error) {
	j.snapshots.Lock()
	defer j.snapshots.Unlock()
	if at > j.Last() {
		return nil, &Error{Kind: Failed, Path: j.dir, What: fmt.Sprintf("a snapshot at entry %d was asked for, and the last entry is %d", at, j.Last())}
	}
	j.mu.Lock()
	base, depth, logged := j.base, j.depth, j.stats.Bytes
	j.mu.Unlock()
	if base != nil && base.At == at && sameTables(base, tables) {
		return base, nil // nothing has changed since
	}
	// A difference to entry 0 would be a scan of all rows, without the tombstones.
	full = full || base == nil || base.At == 0 || base.At >= at || depth >= maxChain || !sameTables(base, tables)
	m := &Manifest{Version: segmentVersion, Journal: fmt.Sprintf("%016x", j.id), Job: j.o.Job, Server: j.o.Server, Servers: j.o.Servers,
		At: at, Full: full, Logged: j.o.Mode != None, Made: time.Now().UTC().Truncate(time.Millisecond)}
	since := uint64(0)
	if !full {
		since = base.At
		m.Base = base.At
	}
	stage := filepath.Join(j.dir, snapshotDir, stagePrefix+snapshotName(at))
	err := j.fillStage(ctx, stage, m, since, state, tables)
	if err == nil {
		err = j.commitStage(stage, m)
	}
	if err != nil {
		if rerr := j.disk.remove(stage); rerr != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w; its folder %s cannot be removed: %v", err, stage, rerr)
		}
		return nil, err
	}
	j.mu.Lock()
	previous := j.base
	j.base, j.saved = m, logged
	if full {
		j.depth = 0
	} else {
		j.depth++
	}
	j.mu.Unlock()
	for _, t := range tables {
		t.Forget(at)
	}
	return m, j.retain(previous)
}

func sameTables(m *Manifest, tables []*rows.Table) bool {
	if len(m.Tables) != len(tables) {
		return false
	}
	for i, t := range tables {
		if m.Tables[i].Schema != t.Schema() {
			return false
		}
	}
	return true
}

// fillStage writes all files of a snapshot but its manifest.
func (j *Journal) fillStage(ctx context.Context, stage string, m *Manifest, since uint64, state []byte, tables []*rows.Table) error {
	if err := os.RemoveAll(stage); err != nil {
		return failure(stage, "cannot begin a snapshot", err)
	}
	if err := os.Mkdir(stage, 0o777); err != nil {
		return failure(stage, "cannot begin a snapshot", err)
	}
	path := filepath.Join(stage, "state")
	if err := j.writeWhole(path, state); err != nil {
		return failure(path, "cannot write the snapshot; the earlier ones are untouched", err)
	}
	m.State = ManifestFile{Name: "state", Bytes: int64(len(state)), Sum: fmt.Sprintf("%08x", crc32.Checksum(state, castagnoli))}
	for i, t := range tables {
		mt := ManifestTable{Schema: t.Schema(), File: ManifestFile{Name: fmt.Sprintf("table-%03d.rows", i)}}
		path := filepath.Join(stage, mt.File.Name)
		if err := j.writeTable(ctx, path, t, since, &mt); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			e := failure(path, fmt.Sprintf("cannot write table %q of the snapshot; the earlier snapshots are untouched", mt.Schema.Name), err)
			return e
		}
		m.Tables = append(m.Tables, mt)
	}
	return nil
}

func (j *Journal) writeWhole(path string, b []byte) error {
	f, err := j.disk.create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := j.disk.writeAt(f, b, 0); err != nil {
		return err
	}
	return j.disk.flush(f)
}

// commitStage makes a snapshot durable and gives it its name.
func (j *Journal) commitStage(stage string, m *Manifest) error {
	// Rows can be as new as the last entry: the log must be on the disk up to there before the rows
	// count, or the log could go back behind them when the machine fails.
	m.End = j.Last()
	if err := j.Sync(); err != nil {
		return err
	}
	m.Sum = m.sum()
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = j.writeWhole(filepath.Join(stage, manifestFile), append(text, '\n'))
	}
	if err == nil {
		err = j.disk.flushDir(stage)
	}
	if err != nil {
		return failure(stage, "cannot write the manifest; the earlier snapshots are untouched", err)
	}
	final := filepath.Join(j.dir, snapshotDir, snapshotName(m.At))
	if _, err := os.Stat(final); err == nil { // a damaged one, or one of other tables
		if err := j.disk.remove(final); err != nil {
			return failure(final, "cannot replace the snapshot", err)
		}
	}
	if err := j.disk.rename(stage, final); err != nil {
		return failure(final, "cannot name the snapshot", err)
	}
	return nil
}

// writeTable writes the records of a table that changed after an LSN.
func (j *Journal) writeTable(ctx context.Context, path string, t *rows.Table, since uint64, mt *ManifestTable) (err error) {
	f, err := j.disk.create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := newBlockWriter(&j.disk, f)
	err = t.Scan(since, func(r rows.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(r.Row) > 0 {
			mt.Rows++
		} else {
			mt.Rowless++
		}
		return w.add(&r)
	})
	if werr := w.finish(); err == nil {
		err = werr
	}
	if err != nil {
		return err
	}
	if err := j.disk.flush(f); err != nil {
		return err
	}
	mt.Blocks, mt.File.Bytes, mt.File.Sum = w.blocks, w.end, fmt.Sprintf("%08x", w.sum)
	return nil
}

// blockWriter writes blocks behind the one that fills them.
type blockWriter struct {
	now    *block
	free   chan *block
	full   chan *block
	done   chan struct{}
	failed chan error

	blocks, end int64
	sum         uint32 // of the blocks' sums
}

// writeBackBytes is how much is written before the kernel is asked to move it to the disk, so that the
// last sync is short.
const writeBackBytes = 16 << 20

func newBlockWriter(d *disk, f *os.File) *blockWriter {
	w := &blockWriter{free: make(chan *block, 2), full: make(chan *block, 2), done: make(chan struct{}), failed: make(chan error, 1)}
	for range 2 {
		w.free <- &block{buf: make([]byte, 0, blockBytes+4096)}
	}
	go func() {
		defer close(w.done)
		asked, failed := int64(0), false
		for b := range w.full {
			if !failed {
				var sum [4]byte
				binary.LittleEndian.PutUint32(sum[:], b.seal())
				if err := d.writeAt(f, b.buf, w.end); err != nil {
					w.failed <- err
					failed = true
				}
				w.sum = crc32.Update(w.sum, castagnoli, sum[:])
				w.blocks++
				w.end += int64(len(b.buf))
				if w.end-asked >= writeBackBytes {
					writeBack(f, asked, w.end-asked)
					asked = w.end
				}
			}
			w.free <- b
		}
	}()
	return w
}

func (w *blockWriter) add(r *rows.Record) error {
	if w.now != nil && !w.now.takes(r) {
		w.full <- w.now
		w.now = nil
	}
	if w.now == nil {
		select {
		case err := <-w.failed:
			w.failed <- err
			return err
		case w.now = <-w.free:
			w.now.begin(len(r.Row), len(r.State))
		}
	}
	w.now.add(r)
	return nil
}

// finish writes the last block and waits.
func (w *blockWriter) finish() error {
	if w.now != nil {
		w.full <- w.now
	}
	close(w.full)
	<-w.done
	select {
	case err := <-w.failed:
		return err
	default:
		return nil
	}
}

// clearStages removes what a process has left that ended while it wrote a snapshot.
func (j *Journal) clearStages() error {
	path := filepath.Join(j.dir, snapshotDir)
	files, err := os.ReadDir(path)
	if err != nil {
		return failure(path, "cannot list the snapshots", err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), stagePrefix) {
			if err := j.disk.remove(filepath.Join(path, f.Name())); err != nil {
				return failure(filepath.Join(path, f.Name()), "cannot remove an unfinished snapshot", err)
			}
		}
	}
	return nil
}
