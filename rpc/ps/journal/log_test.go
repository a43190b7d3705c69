// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
)

func open(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	j, err := tryOpen(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func tryOpen(dir string, o Options) (*Journal, error) {
	if o.Servers == 0 {
		o.Servers = 1
	}
	if o.Around == nil { // a disk costs time, and the tests that need it say so
		o.Around = func(op Op, do func() error) error {
			if op.Kind == "sync" {
				return nil
			}
			return do()
		}
	}
	return Open(dir, o)
}

func add(t *testing.T, j *Journal, entries ...[]byte) {
	t.Helper()
	if _, err := j.Append(entries...); err != nil {
		t.Fatal(err)
	}
}

// entriesOf returns all entries of a journal from an LSN on.
func entriesOf(t *testing.T, j *Journal, from uint64) (found [][]byte) {
	t.Helper()
	next := from
	err := j.Replay(from, func(lsn uint64, entry []byte) error {
		if lsn != next {
			return fmt.Errorf("entry %d comes where %d is due", lsn, next)
		}
		next++
		found = append(found, bytes.Clone(entry))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func same(t *testing.T, what string, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d entries, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("%s: entry %d differs", what, i)
		}
	}
}

func randomEntries(r *rand.Rand, n, largest int) (es [][]byte) {
	for range n {
		e := make([]byte, r.IntN(largest+1))
		for i := range e {
			e[i] = byte(r.Uint32())
		}
		es = append(es, e)
	}
	return es
}

func TestLog(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 1))
	for _, mode := range []Mode{OS, Disk} {
		t.Run(string(mode), func(t *testing.T) {
			dir, o := t.TempDir(), Options{Mode: mode, SegmentBytes: 2000}
			var want [][]byte
			for range 8 {
				j := open(t, dir, o)
				if j.Last() != uint64(len(want)) {
					t.Fatalf("the last entry is %d, want %d", j.Last(), len(want))
				}
				same(t, "after opening", entriesOf(t, j, 1), want)
				for range r.IntN(6) {
					es := randomEntries(r, 1+r.IntN(4), 700)
					first, err := j.Append(es...)
					if err != nil || first != uint64(len(want))+1 {
						t.Fatal(first, err)
					}
					want = append(want, es...)
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
			j := open(t, dir, o)
			for from := 1; from <= len(want)+1; from++ {
				same(t, fmt.Sprint("from ", from), entriesOf(t, j, uint64(from)), want[from-1:])
			}
			if n, _ := listSegments(filepath.Join(dir, logDir)); len(n) < 3 {
				t.Fatalf("%d segments: the test shows no change of segments", len(n))
			}
		})
	}
}

// TestLargeCall: a call that is larger than one write.
func TestLargeCall(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	big := bytes.Repeat([]byte{7}, 5<<20)
	add(t, j, big, []byte("a"), big, []byte("b"))
	same(t, "large", entriesOf(t, j, 1), [][]byte{big, []byte("a"), big, []byte("b")})
	if _, err := j.Append(make([]byte, MaxEntry+1)); err == nil {
		t.Fatal("an entry beyond the limit was taken")
	}
}

// copyDir copies the directory of a journal that is closed or idle.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// lastSegment returns the path of the last segment of a journal.
func lastSegment(t *testing.T, dir string) string {
	t.Helper()
	s, err := listSegments(filepath.Join(dir, logDir))
	if err != nil || len(s) == 0 {
		t.Fatal(s, err)
	}
	return s[len(s)-1].path
}

// TestTornTail: the process can end at any byte of a write. What was acknowledged before is there,
// a part of the write may be, and the journal goes on.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	add(t, j, []byte("one"), []byte("two"))
	before, _ := os.Stat(lastSegment(t, dir))
	add(t, j, []byte("three"), []byte("number four"))
	after, _ := os.Stat(lastSegment(t, dir))
	j.Close()
	all := [][]byte{[]byte("one"), []byte("two"), []byte("three"), []byte("number four")}
	for size := before.Size(); size <= after.Size(); size++ {
		for _, rest := range []string{"", "zeros", "noise"} {
			torn := copyDir(t, dir)
			path := lastSegment(t, torn)
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			if rest != "" {
				f, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
				noise := make([]byte, 64)
				if rest == "noise" {
					for i := range noise {
						noise[i] = byte(i*37 + 11)
					}
				}
				f.Write(noise)
				f.Close()
			}
			j := open(t, torn, Options{})
			got := entriesOf(t, j, 1)
			if len(got) < 2 {
				t.Fatalf("size %d: %d entries", size, len(got))
			}
			same(t, fmt.Sprint("size ", size), got, all[:len(got)])
			add(t, j, []byte("next"))
			j.Close()
			j = open(t, torn, Options{})
			same(t, fmt.Sprint("after size ", size), entriesOf(t, j, 1), append(got, []byte("next")))
			j.Close()
		}
	}
}

// TestDamage: no flipped bit of an acknowledged entry is taken for a torn tail, as long as a later
// entry says that it was acknowledged.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{SegmentBytes: 200})
	want := [][]byte{}
	for i := range 12 {
		e := bytes.Repeat([]byte{byte(i)}, 110-10*i)
		want = append(want, e)
		add(t, j, e)
	}
	same(t, "whole", entriesOf(t, j, 1), want)
	j.Close()
	segments, _ := listSegments(filepath.Join(dir, logDir))
	found, cut := 0, 0
	for i, s := range segments {
		b, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		for at := range b {
			bad := bytes.Clone(b)
			bad[at] ^= 0x10
			if err := os.WriteFile(s.path, bad, 0o666); err != nil {
				t.Fatal(err)
			}
			var got [][]byte
			j, err := tryOpen(dir, Options{})
			if err == nil {
				err = j.Replay(1, func(_ uint64, e []byte) error { got = append(got, bytes.Clone(e)); return nil })
				j.Close()
			}
			var e *Error
			switch {
			case errors.As(err, &e) && (e.Kind == Damaged || e.Kind == Foreign):
				found++
			case err == nil && i == len(segments)-1:
				// Only the last entry can be lost unseen: nothing behind it tells.
				same(t, "cut", got, want[:len(got)])
				if len(got) < len(want)-1 {
					t.Fatalf("%s: byte %d was flipped, and only %d of %d entries came back without an error", filepath.Base(s.path), at, len(got), len(want))
				}
				cut++
			default:
				t.Fatalf("%s: byte %d was flipped: %v", filepath.Base(s.path), at, err)
			}
			if err := os.WriteFile(s.path, b, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d flips found, %d cut the last entry off", found, cut)
	if err := os.Remove(segments[1].path); err != nil {
		t.Fatal(err)
	}
	j = open(t, dir, Options{})
	err := j.Replay(1, func(uint64, []byte) error { return nil })
	if e := new(Error); !errors.As(err, &e) || e.Kind != Damaged || e.LSN != segments[1].first {
		t.Fatalf("a missing segment: %v", err)
	}
}

// TestFullDisk: a call that does not fit leaves nothing, and later calls succeed when there is room.
func TestFullDisk(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 2))
	for _, mode := range []Mode{OS, Disk} {
		for _, kind := range []string{"create", "write"} {
			full := false
			o := Options{Mode: mode, SegmentBytes: 600, Around: func(op Op, do func() error) error {
				if full && op.Kind == kind {
					return &os.PathError{Op: op.Kind, Path: op.Path, Err: syscall.ENOSPC}
				}
				return do()
			}}
			dir := t.TempDir()
			j := open(t, dir, o)
			var want [][]byte
			refused := 0
			for range 200 {
				es := randomEntries(r, 1+r.IntN(3), 100)
				full = r.IntN(3) == 0
				if _, err := j.Append(es...); err == nil {
					want = append(want, es...)
				} else if full && errors.Is(err, ErrFull) {
					refused++
				} else {
					t.Fatal(err)
				}
			}
			full = false
			if refused == 0 {
				t.Fatalf("%s %s: no call was refused", mode, kind)
			}
			same(t, "full disk", entriesOf(t, j, 1), want)
			j.Close()
			j = open(t, dir, Options{})
			same(t, "after a full disk", entriesOf(t, j, 1), want)
			j.Close()
		}
	}
}

// TestBroken: if what a failed write has left cannot be cut off, nothing more is taken.
func TestBroken(t *testing.T) {
	bad := false
	dir := t.TempDir()
	j := open(t, dir, Options{Mode: Disk, Around: func(op Op, do func() error) error {
		if bad && op.Kind == "sync" {
			return syscall.EIO
		}
		return do()
	}})
	add(t, j, []byte("a"))
	bad = true
	if _, err := j.Append([]byte("b")); err == nil {
		t.Fatal("an entry that was not synced was acknowledged")
	}
	bad = false
	if _, err := j.Append([]byte("c")); err == nil {
		t.Fatal("the journal goes on behind an entry that it may not have cut off")
	}
	j.Close()
	j = open(t, dir, Options{})
	same(t, "broken", entriesOf(t, j, 1), [][]byte{[]byte("a")})
}

func TestWhose(t *testing.T) {
	dir := t.TempDir()
	o := Options{Server: 1, Servers: 4, Job: "clicks"}
	j := open(t, dir, o)
	if !j.Fresh() {
		t.Fatal("a new journal is not fresh")
	}
	var e *Error
	if _, err := Open(dir, o); !errors.As(err, &e) || e.Kind != Busy {
		t.Fatalf("a second opener: %v", err)
	}
	id := j.ID()
	add(t, j, []byte("a"))
	j.Close()
	if _, err := j.Append([]byte("b")); !errors.As(err, &e) || e.Kind != Closed {
		t.Fatalf("after Close: %v", err)
	}
	for _, other := range []Options{{Server: 2, Servers: 4, Job: "clicks"}, {Server: 1, Servers: 3, Job: "clicks"}, {Server: 1, Servers: 4, Job: "other"}} {
		if _, err := Open(dir, other); !errors.As(err, &e) || e.Kind != Foreign {
			t.Fatalf("%+v: %v", other, err)
		}
	}
	j = open(t, dir, o)
	if j.Fresh() || j.ID() != id {
		t.Fatalf("the journal has another ID after it was opened again")
	}
	j.Close()
	if err := os.Remove(filepath.Join(dir, identityFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, o); !errors.As(err, &e) || e.Kind != Damaged {
		t.Fatalf("without its identity: %v", err)
	}
	// A segment of another journal is not read.
	other := t.TempDir()
	j = open(t, other, Options{})
	add(t, j, []byte("x"))
	j.Close()
	mine := t.TempDir()
	j = open(t, mine, Options{})
	j.Close()
	b, _ := os.ReadFile(lastSegment(t, other))
	if err := os.WriteFile(filepath.Join(mine, logDir, segmentName(1)), b, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(mine, Options{Servers: 1}); !errors.As(err, &e) || e.Kind != Foreign {
		t.Fatalf("a segment of another journal: %v", err)
	}
	for _, bad := range []Options{{Servers: 0}, {Servers: 2, Server: 2}, {Servers: 1, Mode: "fast"}} {
		if _, err := Open(t.TempDir(), bad); err == nil {
			t.Fatalf("%+v was taken", bad)
		}
	}
}

// FuzzSegment: no bytes of a segment make a journal panic or ask for memory beyond the file.
func FuzzSegment(f *testing.F) {
	dir := f.TempDir()
	j, err := Open(dir, Options{Servers: 1})
	if err != nil {
		f.Fatal(err)
	}
	j.Append([]byte("hello"), nil, bytes.Repeat([]byte{1}, 100))
	j.Append([]byte("again"))
	j.Close()
	s, _ := listSegments(filepath.Join(dir, logDir))
	b, _ := os.ReadFile(s[0].path)
	f.Add(b)
	f.Add(b[:len(b)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), segmentName(1))
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		r, err := segment{path: path, first: 1}.scan(j.id, func(lsn uint64, payload []byte) error { last = lsn; return nil })
		if err == nil && (r.last != last || r.end > r.size) {
			t.Fatalf("%+v after entry %d", r, last)
		}
	})
}
