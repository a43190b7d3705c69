// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

var histories = flag.Int("histories", 40, "number of random histories of TestHistories")

// server is the least that a parameter server does with a journal: it applies entries to tables and
// counts them.
type server struct {
	j      *Journal
	tables []*rows.Table
	count  uint64 // the state: entries applied
}

const testWidth = 4

func testSchema(i int) rows.Schema {
	return rows.Schema{Name: fmt.Sprintf("t%d", i), Width: testWidth, Optimizer: rows.Optimizer{Kind: "sgd", LR: -1}}
}

func newServer(t testing.TB, j *Journal, numTables int) *server {
	s := &server{j: j}
	for i := range numTables {
		table, err := rows.New(testSchema(i), rows.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.tables = append(s.tables, table)
	}
	return s
}

// An entry of the test: a table, 1 for an update or 2 for a removal, the value to add, the keys.
func testEntry(table int, op, value byte, keys []int64) []byte {
	b := []byte{byte(table), op, value}
	for _, k := range keys {
		b = binary.LittleEndian.AppendUint64(b, uint64(k))
	}
	return b
}

func (s *server) apply(lsn uint64, entry []byte) error {
	table, at := s.tables[entry[0]], rows.Mark{LSN: lsn}
	var keys []int64
	for b := entry[3:]; len(b) > 0; b = b[8:] {
		keys = append(keys, int64(binary.LittleEndian.Uint64(b)))
	}
	s.count++
	if entry[1] == 2 {
		table.Remove(at, keys)
		return nil
	}
	grad := make([]float32, len(keys)*testWidth)
	for i := range grad {
		grad[i] = float32(entry[2])
	}
	_, err := table.Update(at, keys, grad)
	return err
}

// push logs an entry and applies it. It reports whether the entry is acknowledged.
func (s *server) push(entry []byte) (bool, error) {
	lsn, err := s.j.Append(entry)
	if err != nil {
		return false, nil
	}
	return true, s.apply(lsn, entry)
}

func (s *server) close() {
	for _, t := range s.tables {
		t.Close()
	}
}

func (s *server) state() []byte { return binary.LittleEndian.AppendUint64(nil, s.count) }

// back brings the server of a directory back.
func back(j *Journal, numTables int, t testing.TB) (*server, error) {
	s := newServer(t, j, numTables)
	err := j.Recover(func(state []byte) ([]*rows.Table, error) {
		*s = *newServer(t, j, numTables)
		s.count = binary.LittleEndian.Uint64(state)
		return s.tables, nil
	}, s.apply)
	return s, err
}

// contents returns the rows of a table by key.
func contents(t testing.TB, table *rows.Table) map[int64]rows.Record {
	t.Helper()
	m := map[int64]rows.Record{}
	err := table.Scan(0, func(r rows.Record) error {
		if len(r.Row) > 0 {
			r.Row, r.State = bytes.Clone(r.Row), bytes.Clone(r.State)
			m[r.Key] = r
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// sameServers compares all rows with their LSNs, and the states.
func sameServers(t testing.TB, got, want *server) error {
	if got.count != want.count {
		return fmt.Errorf("%d entries are applied, want %d", got.count, want.count)
	}
	for i := range want.tables {
		g, w := contents(t, got.tables[i]), contents(t, want.tables[i])
		for k, r := range w {
			o, ok := g[k]
			if !ok {
				return fmt.Errorf("table %d: key %d of entry %d is lost", i, k, r.LSN)
			}
			if o.LSN != r.LSN || o.Count != r.Count || !bytes.Equal(o.Row, r.Row) || !bytes.Equal(o.State, r.State) {
				return fmt.Errorf("table %d: key %d is %+v, want %+v", i, k, o, r)
			}
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				return fmt.Errorf("table %d: key %d was removed and is there again", i, k)
			}
		}
	}
	return nil
}

// TestHistories plays random pushes, removals and snapshots. The pushes come also while a snapshot is
// written. At a random operation the process ends, or the disk is full for a while. The server that
// comes back must have the rows of an oracle: a server that applied the acknowledged entries.
func TestHistories(t *testing.T) {
	seed := seeded.Of(t)
	snapshots, crashes, refused, increments := 0, 0, 0, 0
	for n := range *histories {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		dir := filepath.Join(t.TempDir(), "j")
		oracle := newServer(t, nil, 2)
		var acknowledged [][]byte
		var unanswered []byte // the push that the end of the process interrupted
		accept := func(entry []byte) error {
			acknowledged = append(acknowledged, entry)
			return oracle.apply(uint64(len(acknowledged)), entry)
		}
		modes := []Mode{OS, OS, Disk}
		for life := range 4 {
			var s *server
			dead, full, inside := false, false, false
			left := 3 + r.IntN(120) // operations until the process ends
			push := func() error {
				keys := make([]int64, 1+r.IntN(4))
				for i, k := range r.Perm(12)[:len(keys)] {
					keys[i] = int64(k) - 6
				}
				entry := testEntry(r.IntN(2), byte(1+r.IntN(5)/4), byte(1+r.IntN(3)), keys)
				ok, err := s.push(entry)
				if ok {
					return errors.Join(err, accept(entry))
				}
				if refused++; dead && unanswered == nil {
					unanswered = entry
				}
				return err
			}
			o := Options{Servers: 1, Mode: modes[r.IntN(3)], SegmentBytes: 500, Keep: 1 + r.IntN(2), Around: func(op Op, do func() error) error {
				left--
				if s != nil && left < 0 {
					dead = true
				}
				if dead || full && (op.Kind == "write" || op.Kind == "create") {
					return &os.PathError{Op: op.Kind, Path: op.Path, Err: syscall.ENOSPC}
				}
				if op.Kind == "sync" {
					return nil // a disk costs time, and the test only kills processes
				}
				if err := do(); err != nil {
					return err
				}
				if s != nil && !inside && filepath.Dir(filepath.Dir(op.Path)) == filepath.Join(dir, snapshotDir) {
					inside = true // updates beside a snapshot
					defer func() { inside = false }()
					for range r.IntN(3) {
						if err := push(); err != nil {
							return err
						}
					}
				}
				return nil
			}}
			j, err := Open(dir, o)
			if err != nil {
				t.Fatalf("history %d, life %d: %v", n, life, err)
			}
			came, err := back(j, 2, t)
			if err == nil && unanswered != nil && came.count == oracle.count+1 {
				err = accept(unanswered) // it was written before the end
			}
			unanswered = nil
			if err == nil {
				err = sameServers(t, came, oracle)
			}
			if err != nil {
				t.Fatalf("history %d, life %d: %v", n, life, err)
			}
			s = came
			for range 40 {
				full = r.IntN(12) == 0
				if r.IntN(8) == 0 {
					before := j.Base()
					if err := j.Snapshot(t.Context(), j.Last(), s.state(), s.tables); err == nil && j.Base() != before {
						snapshots++
						if !j.Base().Full {
							increments++
						}
					}
				} else if err := push(); err != nil {
					t.Fatal(err)
				}
				if dead {
					crashes++
					break
				}
			}
			full = false
			j.Close()
			s.close()
		}
		oracle.close()
	}
	t.Logf("%d snapshots, %d of them differences, %d crashes, %d pushes refused", snapshots, increments, crashes, refused)
	if snapshots == 0 || increments == 0 || crashes == 0 || refused == 0 {
		t.Error("the histories show too little")
	}
}

// filled returns a server with a few snapshots: a full one, two differences, and entries behind.
func filled(t *testing.T, dir string, o Options) (s *server) {
	j := open(t, dir, o)
	s = newServer(t, j, 2)
	for part := range 3 {
		for i := range 30 {
			op := byte(1)
			if i%7 == 6 {
				op = 2
			}
			if ok, err := s.push(testEntry(i%2, op, byte(part+1), []int64{int64(i), int64(i * part)}[:1+min(i*part, 1)])); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if err := j.Snapshot(t.Context(), j.Last(), s.state(), s.tables); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		s.push(testEntry(0, 1, 1, []int64{int64(i)}))
	}
	return s
}

// TestDamagedSnapshot flips a bit of each byte of each file of the newest snapshot. The server comes
// back by the snapshot before it, and nothing is lost.
func TestDamagedSnapshot(t *testing.T) {
	dir := t.TempDir()
	want := filled(t, dir, Options{})
	want.j.Close()
	names, err := listSnapshots(dir)
	if err != nil || len(names) != 3 {
		t.Fatal(names, err)
	}
	newest := filepath.Join(dir, snapshotDir, snapshotName(names[2]))
	files, err := os.ReadDir(newest)
	if err != nil {
		t.Fatal(err)
	}
	skipped := 0
	for _, f := range files {
		path := filepath.Join(newest, f.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(b); at += 1 + len(b)/40 {
			bad := bytes.Clone(b)
			bad[at] ^= 4
			if err := os.WriteFile(path, bad, 0o666); err != nil {
				t.Fatal(err)
			}
			j := open(t, dir, Options{})
			got, err := back(j, 2, t)
			if e := new(Error); errors.As(err, &e) && e.Kind == Foreign && f.Name() == manifestFile {
				j.Close()
				continue // the version
			}
			if err == nil {
				err = sameServers(t, got, want)
			}
			if err != nil {
				t.Fatalf("%s: byte %d was flipped: %v", f.Name(), at, err)
			}
			if r := j.Recovered(); r.At == names[1] && len(r.Skipped) == 1 {
				skipped++
			} else if f.Name() != manifestFile { // white space there means nothing
				t.Fatalf("%s: byte %d was flipped, and nobody noticed: %+v", f.Name(), at, r)
			}
			j.Close()
			got.close()
		}
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d flips noticed", skipped)
	// A lost snapshot is like a damaged one; a lost log behind it is an error.
	if err := os.RemoveAll(newest); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, Options{})
	got, err := back(j, 2, t)
	if err == nil {
		err = sameServers(t, got, want)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.Close()
}

// TestRetention: old snapshots and segments go, and what is left is enough.
func TestRetention(t *testing.T) {
	dir := t.TempDir()
	o := Options{SegmentBytes: 300, Keep: 2}
	j := open(t, dir, o)
	s := newServer(t, j, 1)
	for i := range 60 {
		for k := range 5 {
			s.push(testEntry(0, 1, 1, []int64{int64(i*5 + k)}))
		}
		if n := j.Unsaved(); n < 5*8 || n > 5*100 {
			t.Fatalf("%d bytes of the log behind snapshot %d, with 5 entries", n, i)
		}
		if err := j.Snapshot(t.Context(), j.Last(), s.state(), s.tables); err != nil {
			t.Fatal(err)
		}
		if n := j.Unsaved(); n != 0 {
			t.Fatalf("%d bytes of the log behind a snapshot of all", n)
		}
	}
	names, _ := listSnapshots(dir)
	segments, _ := listSegments(filepath.Join(dir, logDir))
	if len(names) > 2*(maxChain+1) || len(segments) > 4 {
		t.Fatalf("%d snapshots and %d segments are left", len(names), len(segments))
	}
	j.Close()
	j = open(t, dir, o)
	got, err := back(j, 1, t)
	if err == nil {
		err = sameServers(t, got, s)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.Close()
	// Without the segments of the log, the loss is told.
	for _, s := range segments {
		os.Remove(s.path)
	}
	newest := filepath.Join(dir, snapshotDir, snapshotName(names[len(names)-1]), manifestFile)
	os.WriteFile(newest, []byte("{"), 0o666)
	if j, err := tryOpen(dir, o); err == nil {
		// What is left is the state of an older snapshot: its log is gone, and the number of the
		// last entry with it. Only the clients can tell: see ID.
		j.Close()
	} else if !isDamaged(err) {
		t.Fatal(err)
	}
}

// TestWithoutLog: in mode none a snapshot is all that comes back, and numbers go on behind it.
func TestWithoutLog(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{Mode: None})
	s := newServer(t, j, 1)
	for i := range 10 {
		s.push(testEntry(0, 1, 1, []int64{int64(i)}))
	}
	if err := j.Snapshot(t.Context(), j.Last(), s.state(), s.tables); err != nil {
		t.Fatal(err)
	}
	s.push(testEntry(0, 1, 1, []int64{99}))
	j.Close()
	for _, mode := range []Mode{None, OS, Disk} {
		j = open(t, dir, Options{Mode: mode})
		got, err := back(j, 1, t)
		if err != nil {
			t.Fatal(err)
		}
		keys := contents(t, got.tables[0])
		if _, ok := keys[99]; ok || got.count < 10 {
			t.Fatalf("mode %s: count %d, rows %v", mode, got.count, keys)
		}
		if ok, err := got.push(testEntry(0, 1, 1, []int64{1})); !ok || err != nil {
			t.Fatal(ok, err)
		}
		j.Close()
	}
	j = open(t, dir, Options{})
	got, err := back(j, 1, t)
	if err != nil || got.count != 12 {
		t.Fatal(got.count, err)
	}
}

// TestForeignSnapshot: tables of another form, and snapshots of another journal, are refused by name.
func TestForeignSnapshot(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, Options{}).j.Close()
	j := open(t, dir, Options{})
	var e *Error
	other := testSchema(1)
	other.Width = 5
	err := j.Recover(func([]byte) ([]*rows.Table, error) {
		a, _ := rows.New(testSchema(0), rows.Options{})
		b, err := rows.New(other, rows.Options{})
		return []*rows.Table{a, b}, err
	}, nil)
	if !errors.As(err, &e) || e.Kind != Foreign || !bytes.Contains([]byte(err.Error()), []byte(`"t1"`)) {
		t.Fatalf("another width: %v", err)
	}
	err = j.Recover(func([]byte) ([]*rows.Table, error) { return nil, nil }, nil)
	if !errors.As(err, &e) || e.Kind != Foreign {
		t.Fatalf("no tables: %v", err)
	}
	stranger := t.TempDir()
	open(t, stranger, Options{}).Close()
	if err := os.RemoveAll(filepath.Join(stranger, snapshotDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(stranger, snapshotDir), os.DirFS(filepath.Join(dir, snapshotDir))); err != nil {
		t.Fatal(err)
	}
	k := open(t, stranger, Options{})
	if _, err := back(k, 2, t); !errors.As(err, &e) || e.Kind != Foreign {
		t.Fatalf("snapshots of another journal: %v", err)
	}
}

// TestLoad: another process reads the snapshots beside the server, and takes the keys that it owns.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, Options{})
	if err := s.j.Snapshot(t.Context(), s.j.Last(), s.state(), s.tables); err != nil {
		t.Fatal(err)
	}
	l, skipped, err := Load(dir)
	if err != nil || len(skipped) > 0 || l.Depth() != 3 {
		t.Fatal(l, skipped, err)
	}
	if err := l.Verify(); err != nil {
		t.Fatal(err)
	}
	var keys []int64
	for part := range int64(3) {
		table, _ := rows.New(testSchema(0), rows.Options{})
		err := l.Records(0, func(r rows.Record) error {
			if ((r.Key%3)+3)%3 != part {
				return nil
			}
			_, err := table.Put(r)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for k := range contents(t, table) {
			keys = append(keys, k)
		}
	}
	var want []int64
	for k := range contents(t, s.tables[0]) {
		want = append(want, k)
	}
	slices.Sort(keys)
	slices.Sort(want)
	if !slices.Equal(keys, want) {
		t.Fatalf("keys %v, want %v", keys, want)
	}
	if _, _, err := Load(t.TempDir()); err == nil {
		t.Fatal("an empty directory was loaded")
	}
}
