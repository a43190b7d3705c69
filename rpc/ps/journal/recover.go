// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// Recovered says what [Journal.Recover] has done.
type Recovered struct {
	At      uint64 // LSN of the snapshot, 0 for none
	Rows    int64  // rows from the snapshot
	Entries uint64 // entries applied behind it
	Skipped []error
	Loading time.Duration
	Replay  time.Duration

	unlogged uint64 // the last LSN that a snapshot without a log can have
}

func isDamaged(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == Damaged
}

// Recover brings a server back: restore gets the state of the newest good snapshot and returns the
// tables, which Recover fills; then entry gets the entries of the log behind the snapshot. Without a
// snapshot restore is not called, and entry gets the whole log. If a snapshot turns out to be damaged,
// Recover goes on with the one before it and calls restore again: restore must then begin anew. The log
// reaches back to the snapshot before the newest, so nothing is lost by that.
func (j *Journal) Recover(restore func(state []byte) ([]*rows.Table, error), entry func(lsn uint64, entry []byte) error) error {
	names, err := listSnapshots(j.dir)
	if err != nil {
		return err
	}
	var r Recovered
	begun := time.Now()
	for i := len(names) - 1; i >= 0 && r.At == 0; i-- {
		err := j.restore(names[i], restore, &r)
		if isDamaged(err) {
			r.Skipped = append(r.Skipped, err)
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	r.Loading = time.Since(begun)
	begun = time.Now()
	err = j.Replay(max(r.At, r.unlogged)+1, func(lsn uint64, e []byte) error {
		r.Entries++
		return entry(lsn, e)
	})
	if err != nil {
		if len(r.Skipped) > 0 {
			err = fmt.Errorf("%w (%d damaged snapshots were skipped; the newest: %v)", err, len(r.Skipped), r.Skipped[0])
		}
		return err
	}
	r.Replay = time.Since(begun)
	if err := j.countUnsaved(r.At); err != nil {
		return err
	}
	j.mu.Lock()
	j.recovered = r
	j.mu.Unlock()
	return nil
}

// Recovered returns what Recover has done.
func (j *Journal) Recovered() Recovered {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.recovered
}

// restore loads the snapshot at an LSN.
func (j *Journal) restore(at uint64, restore func(state []byte) ([]*rows.Table, error), r *Recovered) error {
	s, err := LoadAt(j.dir, at)
	if err != nil {
		return err
	}
	for _, m := range s.chain {
		if m.Journal != fmt.Sprintf("%016x", j.id) || m.Server != j.o.Server || m.Servers != j.o.Servers {
			return &Error{Kind: Foreign, Path: filepath.Join(j.dir, snapshotDir, snapshotName(m.At)),
				What: fmt.Sprintf("the snapshot is of server %d of %d of job %q, journal %s, and the directory is of server %d of %d, journal %016x: take the snapshot away",
					m.Server, m.Servers, m.Job, m.Journal, j.o.Server, j.o.Servers, j.id)}
		}
	}
	state, err := s.State()
	if err != nil {
		return err
	}
	tables, err := restore(state)
	if err != nil {
		return err
	}
	m := s.Manifest()
	if len(tables) != len(m.Tables) {
		return &Error{Kind: Foreign, Path: filepath.Join(j.dir, snapshotDir, snapshotName(at)), What: fmt.Sprintf("the snapshot has %d tables, and the server has %d: start the server with the tables of the snapshot", len(m.Tables), len(tables))}
	}
	n := int64(0)
	for i, t := range tables {
		if got, want := t.Schema(), m.Tables[i].Schema; got != want {
			return &Error{Kind: Foreign, Path: s.path(m, m.Tables[i].File), What: fmt.Sprintf("the snapshot has table %q as %+v, and the server has %q as %+v: start the server with the tables of the snapshot", want.Name, want, got.Name, got)}
		}
		err := s.Records(i, func(rec rows.Record) error {
			put, err := t.Put(rec)
			if put && len(rec.Row) > 0 {
				n++
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	r.At, r.Rows = at, n
	j.mu.Lock()
	defer j.mu.Unlock()
	j.base, j.depth = m, s.Depth()
	if !m.Logged {
		r.unlogged = m.End
	}
	return nil
}
