// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
)

func tempFile(t testing.TB) *File {
	t.Helper()
	return reopen(t, filepath.Join(t.TempDir(), "store"))
}

func reopen(t testing.TB, path string) *File {
	t.Helper()
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// history makes one change of each kind, and says what the log's ends and
// the states at them were.
func history(t testing.TB, s *File) (ends []int64, states []string) {
	t.Helper()
	ctx := t.Context()
	note := func() {
		ends = append(ends, s.end)
		states = append(states, state(s.m))
	}
	note()
	for _, change := range []func() error{
		func() error { return s.Set(ctx, "k", []byte("value")) },
		func() error { _, err := s.Add(ctx, "n", 41); return err },
		func() error { _, _, err := s.CompareAndSet(ctx, "k", []byte("value"), []byte("other")); return err },
		func() error { return s.Append(ctx, "k", bytes.Repeat([]byte("x"), 300)) },
		func() error { return s.MultiSet(ctx, []string{"a", "b"}, [][]byte{[]byte("1"), nil}) },
		func() error { return s.QueuePush(ctx, "q", []byte("job")) },
		func() error { _, err := s.Delete(ctx, "a"); return err },
		func() error { _, err := s.QueuePop(ctx, "q"); return err },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		note()
	}
	return ends, states
}

// state describes a machine's contents.
func state(m *machine) string {
	queues := map[string]string{}
	for k, q := range m.queues {
		queues[k] = fmt.Sprintf("%q", q.values[q.head:])
	}
	return fmt.Sprintf("%q %q", m.values, queues) // fmt sorts maps
}

// A log that ends anywhere is that of the changes that are whole, for those
// who look and those who go on writing.
func TestFileTornAnywhere(t *testing.T) {
	s := tempFile(t)
	ends, states := history(t, s)
	log, err := os.ReadFile(s.path)
	if err != nil || int64(len(log)) != ends[len(ends)-1] {
		t.Fatalf("%d bytes, want %d, %v", len(log), ends[len(ends)-1], err)
	}
	path := filepath.Join(t.TempDir(), "torn")
	for size := range len(log) + 1 {
		for _, tail := range []string{"", "\x00", strings.Repeat("\x00", 100)} {
			if err := os.WriteFile(path, append(log[:size:size], tail...), 0o600); err != nil {
				t.Fatal(err)
			}
			whole := 0
			for whole+1 < len(ends) && ends[whole+1] <= int64(size) {
				whole++
			}
			if tail != "" && ends[whole] != int64(size) {
				continue // the system gives whole blocks of zeros, and only behind what is there
			}
			r, err := OpenFile(path)
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if got := state(r.m); got != states[whole] {
				t.Errorf("%d bytes: %s, want %s", size, got, states[whole])
			}
			if err := r.Set(t.Context(), "after", []byte("1")); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			want := state(r.m)
			r.Close()
			again, err := OpenFile(path)
			if err != nil || state(again.m) != want || state(again.m) == states[whole] {
				t.Fatalf("%d bytes, after a change: %s, %v, want %s", size, state(again.m), err, want)
			}
			again.Close()
		}
	}
}

// A record that another process is writing is no end of the log for those who look.
func TestFileReaderSeesNoHalf(t *testing.T) {
	s := tempFile(t)
	r := reopen(t, s.path)
	ctx := t.Context()
	if err := s.Set(ctx, "k", []byte("old")); err != nil {
		t.Fatal(err)
	}
	b := appendRecord(nil, &request{op: opSet, keys: []string{"k"}, value: []byte("new")})
	for n := range len(b) {
		if _, err := s.f.WriteAt(b[:n], s.end); err != nil {
			t.Fatal(err)
		}
		if v, err := r.Get(ctx, "k"); string(v) != "old" || err != nil {
			t.Fatalf("%d bytes of the next record: %q, %v", n, v, err)
		}
	}
	if _, err := s.f.WriteAt(b, s.end); err != nil {
		t.Fatal(err)
	}
	if v, err := r.Get(ctx, "k"); string(v) != "new" || err != nil {
		t.Fatalf("the whole record: %q, %v", v, err)
	}
}

// Damage inside the log is an error that says where, and is not made worse.
func TestFileDamaged(t *testing.T) {
	s := tempFile(t)
	ends, _ := history(t, s)
	log, _ := os.ReadFile(s.path)
	for at := len(fileMagic); at < int(ends[len(ends)-2]); at++ {
		bad := bytes.Clone(log)
		bad[at] ^= 0x41
		path := filepath.Join(t.TempDir(), "bad")
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := OpenFile(path)
		if err == nil {
			// A length that leads beyond the end is all that cannot be told
			// from a writer's death.
			if n := binary.LittleEndian.Uint32(bad[r.end:]); int64(n)+r.end+recordHeader <= int64(len(bad)) {
				t.Errorf("byte %d: no error", at)
			}
			r.Close()
			continue
		}
		if !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "at byte") {
			t.Errorf("byte %d: %v, want an error with file and place", at, err)
		}
		if now, _ := os.ReadFile(path); !bytes.Equal(now, bad) {
			t.Errorf("byte %d: the damaged file was changed", at)
		}
	}
	// Damage that comes while the file is open.
	r := reopen(t, s.path)
	if _, err := s.f.WriteAt(append([]byte{9, 0, 0, 0, 1, 2, 3, 4}, make([]byte, 30)...), s.end); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"get": func() error { _, err := r.Get(t.Context(), "k"); return err }(),
		"set": r.Set(t.Context(), "k", nil),
	} {
		if !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFileRefusesOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "notes")
	const notes = "not a store\nbut somebody's notes\n"
	if err := os.WriteFile(path, []byte(notes), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, dir, filepath.Join(dir, "none", "store"), "/dev/null"} {
		s, err := OpenFile(path)
		var e *Error
		if !errors.As(err, &e) || e.Op != "open" || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			s.Close()
		}
	}
	if now, _ := os.ReadFile(path); string(now) != notes {
		t.Errorf("the notes are now %q", now)
	}
}

func TestFileRemovedOrShrunk(t *testing.T) {
	s := tempFile(t)
	if err := s.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := s.f.Truncate(20); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "k", nil); err == nil || !strings.Contains(err.Error(), "shrunk") {
		t.Errorf("a file cut short: %v", err)
	}
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "removed") || !strings.Contains(err.Error(), s.path) {
		t.Errorf("a removed file: %v", err)
	}
}

// A change that the disk does not take is not made.
func TestFileFullDisk(t *testing.T) {
	s := tempFile(t)
	_, states := history(t, s)
	write := s.append
	full := errors.New("no space left on device")
	for n := range 12 {
		s.append = func(b []byte, at int64) error {
			if _, err := s.f.WriteAt(b[:n], at); err != nil {
				t.Fatal(err)
			}
			return full
		}
		if err := s.Set(t.Context(), "more", nil); !errors.Is(err, full) || !strings.Contains(err.Error(), `"more"`) {
			t.Errorf("%v", err)
		}
		if k, err := s.NumKeys(t.Context(), "more"); k != 0 || err != nil {
			t.Errorf("the key is there: %d, %v", k, err)
		}
		if got := state(s.m); got != states[len(states)-1] {
			t.Errorf("state %s, want %s", got, states[len(states)-1])
		}
	}
	s.append = write
	if err := s.Set(t.Context(), "more", nil); err != nil {
		t.Error(err)
	}
	if got := state(reopen(t, s.path).m); got != state(s.m) {
		t.Errorf("reopened: %s, want %s", got, state(s.m))
	}
}

// Waits end with their contexts, by the clock, and name what they waited for.
func TestFileDeadlines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	synctest.Test(t, func(t *testing.T) {
		s, holder := reopen(t, path), reopen(t, path)
		ended := func(want time.Duration, substr string, f func(ctx context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			if want == DefaultTimeout {
				ctx = context.Background()
			}
			began := time.Now()
			err := f(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), substr) || time.Since(began) != want {
				t.Errorf("%v after %v, want the deadline after %v, naming %s", err, time.Since(began), want, substr)
			}
		}
		get := func(ctx context.Context) error { _, err := s.Get(ctx, "nobody"); return err }
		ended(3*time.Second, `"nobody"`, get)
		ended(DefaultTimeout, `"nobody"`, get)
		ended(3*time.Second, `"jobs"`, func(ctx context.Context) error { _, err := s.QueuePop(ctx, "jobs"); return err })
		if err := holder.lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended(3*time.Second, "lock", func(ctx context.Context) error { return s.Set(ctx, "k", nil) })
		// Who only looks needs no lock.
		if n, err := s.NumKeys(t.Context(), ""); n != 0 || err != nil {
			t.Errorf("%d keys, %v", n, err)
		}
		holder.unlock()
		// Somebody's wait sees what comes, soon.
		began := time.Now()
		time.AfterFunc(time.Second, func() { holder.Set(context.Background(), "late", nil) })
		if err := s.Wait(t.Context(), "late"); err != nil || time.Since(began) > time.Second+maxLook {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// Close ends a wait.
		time.AfterFunc(time.Second, func() { s.Close() })
		if err := get(context.Background()); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		if err := s.Set(t.Context(), "k", nil); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}

// TestFileWriterProcess is not a test but what TestFileKilledWriters starts:
// it adds and appends until it is killed, and says what it has done.
func TestFileWriterProcess(t *testing.T) {
	path, name := os.Getenv("STORE_TEST_FILE"), os.Getenv("STORE_TEST_NAME")
	if path == "" {
		t.Skip("runs inside TestFileKilledWriters")
	}
	s := reopen(t, path)
	ctx := context.Background()
	big := bytes.Repeat([]byte("b"), 100<<10)
	for i := 0; ; i++ {
		n, err := s.Add(ctx, "n/"+name, 1)
		if err == nil {
			err = s.Append(ctx, "all", []byte(name))
		}
		if err == nil {
			err = s.Set(ctx, "big", big) // large enough to be killed within
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\nDONE %d\n", n)
	}
}

// Processes that are killed while they write lose nothing that they were told
// was done, and stop nobody.
func TestFileKilledWriters(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	s := tempFile(t)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	done := map[string]int{} // what each name was told
	for range rounds {
		type writer struct {
			name string
			cmd  *exec.Cmd
			out  io.Reader
		}
		var writers []writer
		for _, name := range []string{"a", "b", "c"} {
			cmd := exec.Command(exe, "-test.run=^TestFileWriterProcess$")
			cmd.Env = append(os.Environ(), "STORE_TEST_FILE="+s.path, "STORE_TEST_NAME="+name)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			writers = append(writers, writer{name, cmd, out})
		}
		for _, w := range writers {
			lines := bufio.NewScanner(w.out)
			limit := 3 + r.IntN(20)
			for num := 0; lines.Scan(); {
				if n, ok := strings.CutPrefix(lines.Text(), "DONE "); ok {
					fmt.Sscan(n, &num)
					done[w.name] = num
					if limit--; limit == 0 {
						_ = w.cmd.Process.Kill()
					}
				}
			}
			if err := w.cmd.Wait(); err == nil || limit > 0 {
				t.Fatalf("%s: ended by itself", w.name)
			}
		}
	}
	ctx := t.Context()
	all, err := s.Get(ctx, "all")
	if err != nil {
		t.Fatal(err)
	}
	for name, told := range done {
		n, err := s.Add(ctx, "n/"+name, 0)
		// Each kill may have come between a change and its report.
		if int(n) < told || int(n) > told+rounds || err != nil {
			t.Errorf("%s was told %d additions, there are %d, %v", name, told, n, err)
		}
		if m := bytes.Count(all, []byte(name)); m < told-rounds || m > int(n) {
			t.Errorf("%s has appended %d times after %d additions", name, m, n)
		}
	}
	if got := state(reopen(t, s.path).m); got != state(s.m) {
		t.Error("a replica that was there from the beginning and one from the log differ")
	}
}

// The log grows beyond what is read at once.
func TestFileLongLog(t *testing.T) {
	s := tempFile(t)
	r := reopen(t, s.path)
	for i := range 60 {
		v := bytes.Repeat([]byte{byte(i)}, 1+i*i*i)
		if err := s.Set(t.Context(), fmt.Sprint(i), v); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			if got, err := r.Get(t.Context(), fmt.Sprint(i)); err != nil || !bytes.Equal(got, v) {
				t.Fatalf("value %d: %d bytes, %v", i, len(got), err)
			}
		}
	}
	if got := state(reopen(t, s.path).m); got != state(s.m) {
		t.Error("another state after reading again")
	}
}

// FuzzFile opens any bytes as a store: what opens is used, and means the same
// to the next one who opens it.
func FuzzFile(f *testing.F) {
	var log []byte
	for _, q := range []request{
		{op: opSet, keys: []string{"k"}, value: []byte("v")},
		{op: opAdd, keys: []string{"k"}, delta: 1},
		{op: opMultiSet, keys: []string{"a", "b"}, values: [][]byte{nil, []byte("x")}},
		{op: opPush, keys: []string{"q"}, value: []byte("v")},
		{op: opPop, keys: []string{"q"}},
	} {
		log = appendRecord(log, &q)
		f.Add(bytes.Clone(log), false)
	}
	f.Add(appendRecord(nil, &request{op: opPop, keys: []string{"q"}}), true) // of nothing
	f.Add(appendRecord(nil, &request{op: opSet, keys: []string{""}}), true)
	f.Add(log[:len(log)-3], true)
	f.Add([]byte{255, 255, 255, 255, 0, 0, 0, 0, 1}, true)
	f.Fuzz(func(t *testing.T, data []byte, more bool) {
		if more { // past the checksum
			data = appendChecked(nil, data)
		}
		path := filepath.Join(t.TempDir(), "store")
		if err := os.WriteFile(path, append([]byte(fileMagic), data...), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenFile(path)
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Fatal(err)
			}
			return
		}
		defer s.Close()
		if err := s.Set(t.Context(), "mine", []byte("1")); err != nil {
			t.Fatal(err)
		}
		r, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if state(r.m) != state(s.m) {
			t.Fatalf("%s, reopened %s", state(s.m), state(r.m))
		}
	})
}

// appendChecked makes a record of any payload.
func appendChecked(b, payload []byte) []byte {
	r := appendRecord(nil, &request{op: opSet, keys: []string{"k"}})
	r = append(r[:recordHeader], payload...)
	binary.LittleEndian.PutUint32(r, uint32(len(payload)))
	binary.LittleEndian.PutUint32(r[4:], checksum(payload))
	return append(b, r...)
}
