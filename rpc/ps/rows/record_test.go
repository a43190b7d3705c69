// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// contents are the records of a table by key, as text.
func contents(t testing.TB, table *Table, since uint64) map[int64]string {
	t.Helper()
	out := map[int64]string{}
	if err := table.Scan(since, func(r Record) error {
		if _, twice := out[r.Key]; twice {
			return fmt.Errorf("key %d came twice", r.Key)
		}
		out[r.Key] = fmt.Sprint(r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t testing.TB, got, want map[int64]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for k, w := range want {
		if got[k] != w {
			t.Errorf("key %d: %q, want %q", k, got[k], w)
		}
	}
	for k, g := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("key %d: %q, want nothing", k, g)
		}
	}
	t.FailNow()
}

// logEntry is an entry of a log.
type logEntry struct {
	keys   []int64
	grad   []float32
	remove bool
}

func (e logEntry) apply(t testing.TB, table *Table, lsn uint64) {
	t.Helper()
	at := Mark{LSN: lsn, Step: lsn / 4}
	if e.remove {
		table.Remove(at, e.keys)
	} else if _, err := table.Update(at, e.keys, e.grad); err != nil {
		t.Fatal(err)
	}
}

func draw(r *rand.Rand, width int) logEntry {
	keys := map[int64]bool{}
	for range 1 + r.IntN(400) {
		keys[int64(r.ExpFloat64()*2000)] = true
	}
	e := logEntry{keys: slices.Sorted(maps.Keys(keys)), remove: r.IntN(5) == 0}
	if e.remove {
		e.keys = e.keys[:1+len(e.keys)/4]
	}
	e.grad = make([]float32, len(e.keys)*width)
	for i := range e.grad {
		e.grad[i] = float32(r.NormFloat64())
	}
	return e
}

// TestSnapshotAndLog takes full and incremental snapshots while a writer goes on, loads them
// into new tables, replays the log from where each snapshot's scan began, and compares all
// of the table.
func TestSnapshotAndLog(t *testing.T) {
	seed := seeded.Of(t)
	for _, c := range []struct {
		name   string
		schema Schema
	}{
		{"float32", Schema{Width: 3, Optimizer: Optimizer{Kind: Adagrad}}},
		{"admission", Schema{Width: 3, DType: tensor.BFloat16, Admit: 3, Optimizer: Optimizer{Kind: LazyAdam}}},
		{"int8", Schema{Width: 7, DType: tensor.Int8, Admit: 2, Optimizer: Optimizer{Kind: RowwiseAdagrad}, Init: Init{Kind: Normal, Scale: 1}}},
		{"cold", Schema{Width: 5, DType: tensor.Float16, Admit: 2, Optimizer: Optimizer{Kind: Adagrad}, Memory: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			table := newTable(t, c.schema)
			var log []logEntry // entry i has number i+1
			appendSome := func(n int) {
				for range n {
					log = append(log, draw(r, c.schema.Width))
					log[len(log)-1].apply(t, table, uint64(len(log)))
				}
			}
			var snapshots [][]Record // a full one and increments
			begins := []uint64{0}
			for i := range 4 {
				appendSome(40)
				since := begins[len(begins)-1]
				if i == 0 {
					since = 0
				}
				begins = append(begins, uint64(len(log)))
				var records []Record
				n := 0
				if err := table.Scan(since, func(r Record) error {
					if n++; n%1500 == 0 {
						appendSome(1) // a push in the middle of the scan
					}
					r.Row, r.State = bytes.Clone(r.Row), bytes.Clone(r.State)
					records = append(records, r)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				snapshots = append(snapshots, records)
			}
			table.Forget(begins[2])
			appendSome(10)
			want := contents(t, table, 0)
			for full := range len(snapshots) {
				back := newTable(t, c.schema)
				for _, records := range snapshots[:full+1] {
					for _, r := range records {
						if _, err := back.Put(r); err != nil {
							t.Fatal(err)
						}
					}
				}
				for lsn := begins[full+1] + 1; lsn <= uint64(len(log)); lsn++ {
					log[lsn-1].apply(t, back, lsn)
				}
				same(t, contents(t, back, 0), want)
				if a, b := back.Stats(), table.Stats(); a.Rows != b.Rows || a.Skew != b.Skew || a.Young != b.Young {
					t.Errorf("the table that came back has %+v, the first %+v", a, b)
				}
			}
		})
	}
}

// TestScanBesideUpdates: readers, scans and the writer at the same time. A row is seen whole,
// and each row that was there before a scan comes once.
func TestScanBesideUpdates(t *testing.T) {
	for _, memory := range []int64{0, 1} {
		t.Run(fmt.Sprintf("memory=%d", memory), func(t *testing.T) { scanBesideUpdates(t, memory) })
	}
}

func scanBesideUpdates(t *testing.T, memory int64) {
	const width, fixed = 16, 5000
	table := newTable(t, Schema{Width: width, Optimizer: Optimizer{LR: -1}, Memory: memory})
	keys, grad := make([]int64, fixed), make([]float32, fixed*width)
	for i := range keys {
		keys[i] = int64(i)
	}
	for i := range grad {
		grad[i] = 1
	}
	if _, err := table.Update(Mark{LSN: 1}, keys, grad); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	whole := func(row []float32) {
		for _, v := range row {
			if v != row[0] {
				t.Errorf("a row is half updated: %v", row)
				return
			}
		}
	}
	readers.Go(func() {
		row := make([]float32, width*fixed)
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := table.Gather(bytesOf(row), tensor.Float32, keys); err != nil {
				t.Error(err)
				return
			}
			for i := range keys {
				whole(row[i*width : (i+1)*width])
			}
		}
	})
	readers.Go(func() {
		row := make([]float32, width)
		for {
			select {
			case <-done:
				return
			default:
			}
			seen := 0
			if err := table.Scan(0, func(r Record) error {
				if r.Key < fixed {
					seen++
				}
				decode(row, r.Row, tensor.Float32, width)
				whole(row)
				return nil
			}); err != nil || seen != fixed {
				t.Errorf("a scan saw %d of %d rows, %v", seen, fixed, err)
				return
			}
		}
	})
	for lsn := uint64(2); lsn < 60; lsn++ {
		if _, err := table.Update(Mark{LSN: lsn}, keys, grad); err != nil {
			t.Fatal(err)
		}
		others := make([]int64, 2000) // the index grows, and shrinks again
		for i := range others {
			others[i] = int64(lsn)<<32 + int64(i)
		}
		if _, err := table.Update(Mark{LSN: lsn}, others, grad[:len(others)*width]); err != nil {
			t.Fatal(err)
		}
		if lsn%3 == 0 {
			table.Remove(Mark{LSN: lsn + 1}, others)
			table.Forget(lsn)
		}
	}
	close(done)
	readers.Wait()
}

// TestFullDisk: rows that the disk does not take stay in memory, and nothing is lost.
func TestFullDisk(t *testing.T) {
	table := newTable(t, Schema{Width: 4, Optimizer: Optimizer{LR: -1}, Memory: 1})
	file := table.cold.file
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	defer full.Close()
	table.cold.file = full
	keys, grad := make([]int64, 3*minHot), make([]float32, 3*minHot*4)
	for i := range keys {
		keys[i] = int64(i)
	}
	for i := range grad {
		grad[i] = float32(i)
	}
	if _, err := table.Update(Mark{LSN: 1}, keys, grad); err != nil {
		t.Fatal(err)
	}
	if err := sameBits(values(t, table, keys), grad); err != nil {
		t.Error(err)
	}
	if s := table.Stats(); s.Hot != len(keys) || s.DiskProblem == "" {
		t.Errorf("%+v", s)
	}
	table.cold.file = file
	for i := range grad {
		grad[i] = 1
	}
	if _, err := table.Update(Mark{LSN: 2}, keys, grad); err != nil {
		t.Fatal(err)
	}
	for i := range grad {
		grad[i] += float32(i)
	}
	if err := sameBits(values(t, table, keys), grad); err != nil {
		t.Error(err)
	}
	if s := table.Stats(); s.Hot > minHot || s.DiskProblem != "" {
		t.Errorf("%+v", s)
	}
}

// TestAdmission: pushes below the bound are counted, and the row begins with the first
// value that its key has.
func TestAdmission(t *testing.T) {
	s := Schema{Name: "a", Width: 1, Admit: 3, Init: Init{Kind: Constant, Scale: 10}, Optimizer: Optimizer{LR: -1}}
	table := newTable(t, s)
	for i, want := range []struct {
		changes Changes
		value   float32
	}{{Changes{Waiting: 1}, 10}, {Changes{Waiting: 1}, 10}, {Changes{Changed: 1, Made: 1}, 11}, {Changes{Changed: 1}, 12}} {
		c, err := table.Update(Mark{LSN: uint64(i + 1), Step: 1}, []int64{7}, []float32{1})
		if err != nil || c != want.changes {
			t.Errorf("push %d: %+v, %v; want %+v", i+1, c, err, want.changes)
		}
		if v := values(t, table, []int64{7})[0]; v != want.value {
			t.Errorf("after push %d the value is %v, want %v", i+1, v, want.value)
		}
		again, err := table.Update(Mark{LSN: uint64(i + 1), Step: 1}, []int64{7}, []float32{1})
		if err != nil || again != (Changes{Older: 1}) {
			t.Errorf("push %d once more: %+v, %v", i+1, again, err)
		}
	}
	if s := table.Stats(); s.Rows != 1 || s.Admitted != 1 || s.Young != 0 || s.Pushes != 2 {
		t.Errorf("%+v", s)
	}
}

// TestEviction by age and by number.
func TestEviction(t *testing.T) {
	table := newTable(t, Schema{Width: 1, Admit: 2, Evict: Eviction{Steps: 10, Rows: 64}})
	push := func(step uint64, lo, hi int64) {
		var keys []int64
		for k := lo; k < hi; k++ {
			keys = append(keys, k)
		}
		if _, err := table.Update(Mark{LSN: step, Step: step}, keys, make([]float32, len(keys))); err != nil {
			t.Fatal(err)
		}
	}
	push(1, 0, 50)
	push(2, 0, 40) // 0 to 39 are rows, 40 to 49 wait
	if keys := table.Evict(Mark{Step: 11}); len(keys) != 0 {
		t.Errorf("Evict chose %v too early", keys)
	}
	if keys := table.Evict(Mark{Step: 12}); len(keys) != 10 || keys[0] != 40 {
		t.Errorf("Evict chose %v, want the keys that wait", keys)
	}
	push(12, 0, 5)
	keys := table.Evict(Mark{Step: 13})
	if len(keys) != 45 || keys[0] != 5 {
		t.Fatalf("Evict chose %v, want 5 to 49", keys)
	}
	table.Remove(Mark{LSN: 13, Step: 13}, keys)
	if s := table.Stats(); s.Rows != 5 || s.Young != 0 || s.Gone != 45 || s.Removed != 45 {
		t.Errorf("%+v", s)
	}
	push(14, 100, 170)
	push(15, 100, 170)
	keys = table.Evict(Mark{Step: 15}) // 75 rows: 11 too many, and 4 for room
	if len(keys) != 15 || keys[4] != 4 {
		t.Errorf("Evict chose %v, want 0 to 4 and ten more", keys)
	}
	table.Forget(12)
	if s := table.Stats(); s.Gone != 45 {
		t.Errorf("Forget dropped what a later entry removed: %+v", s)
	}
	table.Forget(13)
	if s := table.Stats(); s.Gone != 0 {
		t.Errorf("Forget left %d keys", s.Gone)
	}
}

// TestOwns: a table takes what it owns from the snapshot of another number of servers.
func TestOwns(t *testing.T) {
	all := newTable(t, Schema{Width: 2})
	keys := []int64{1, 2, 3, 4, 5, 6, 7, 8}
	if _, err := all.Update(Mark{LSN: 1}, keys, make([]float32, 16)); err != nil {
		t.Fatal(err)
	}
	part, err := New(Schema{Name: "test", Width: 2}, Options{Owns: func(k int64) bool { return k%2 == 0 }})
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	taken := 0
	if err := all.Scan(0, func(r Record) error {
		ok, err := part.Put(r)
		if ok {
			taken++
		}
		return err
	}); err != nil || taken != 4 || part.Len() != 4 {
		t.Errorf("%d records were taken, %d rows, %v", taken, part.Len(), err)
	}
	var e *Error
	if err := part.Check([]int64{2, 3}, make([]float32, 4)); !errors.As(err, &e) || e.Key != 3 {
		t.Errorf("%v: want an error about key 3", err)
	}
}

func FuzzPut(f *testing.F) {
	f.Add(int64(1), uint64(1), uint64(1), uint32(1), false, []byte{1, 2, 3, 4, 5, 6, 7, 8}, []byte{1, 2, 3, 4})
	f.Add(int64(2), uint64(9), uint64(1), uint32(1), true, []byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, key int64, lsn, step uint64, count uint32, young bool, row, state []byte) {
		table := newTable(t, Schema{Width: 4, DType: tensor.BFloat16, Admit: 2, Optimizer: Optimizer{Kind: RowwiseAdagrad}})
		if row != nil && len(row) == 0 {
			row = nil
		}
		r := Record{Key: key, LSN: lsn, Step: step, Count: count, Young: young, Row: row, State: state}
		ok, err := table.Put(r)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || ok || len(contents(t, table, 0)) != 0 {
				t.Fatalf("%v, taken: %v", err, ok)
			}
			return
		}
		found := false
		if err := table.Scan(1, func(got Record) error { found = found || got.Key == key; return nil }); err != nil || !found && lsn > 1 {
			t.Fatalf("the record is not there: %v", err)
		}
		values(t, table, []int64{key})
		if _, err := table.Update(Mark{LSN: lsn + 1, Step: 1}, []int64{key}, make([]float32, 4)); err != nil && lsn+1 != 0 {
			t.Fatal(err)
		}
	})
}
