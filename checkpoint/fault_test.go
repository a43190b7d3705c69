// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	childDir = flag.String("save-forever", "", "save into this directory until killed (for TestKill)")
	seed     = flag.Uint64("seed", 1, "of the random moments at which TestKill kills")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *childDir != "" {
		saveForever(*childDir)
	}
	os.Exit(m.Run())
}

// numFDs counts this process's open descriptors, 0 where they are not listed.
func numFDs(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// world runs saves on a disk that fails or stops at a chosen operation, and
// remembers which files were not made durable yet.
type world struct {
	at      int   // the operation that fails, counted from 0; -1: none
	err     error // with what
	stop    bool  // and every later one too: the machine is off
	ops     []string
	unsaved map[string]bool // files written to and not synced since
	unnamed map[string]bool // files whose directory was not synced since they came
}

func (w *world) fault(op, path string) error {
	n := len(w.ops)
	w.ops = append(w.ops, op+" "+filepath.Base(path))
	if n == w.at || w.stop && w.at >= 0 && n > w.at {
		if op == "write" {
			w.unsaved[path] = true // half of it
		}
		return w.err
	}
	switch op {
	case "create":
		w.unsaved[path], w.unnamed[path] = true, true
	case "write":
		w.unsaved[path] = true
	case "sync":
		delete(w.unsaved, path)
	case "syncdir":
		for file := range w.unnamed {
			if filepath.Dir(file) == path {
				delete(w.unnamed, file)
			}
		}
	}
	return nil
}

func (w *world) save(dir string, step, keep int) error {
	w.unsaved, w.unnamed = map[string]bool{}, map[string]bool{}
	s := &save{dir: dir, step: step, keep: keep, disk: disk{fault: w.fault}}
	return s.run(context.Background(), contents(step))
}

// numOps returns the operations of the save that the fault tests break: into
// a directory with two checkpoints, a stale temporary directory and a damaged
// checkpoint in the new one's place.
func numOps(t *testing.T) []string {
	t.Helper()
	w := &world{at: -1}
	dir := prepare(t)
	if err := w.save(dir, 3, 2); err != nil {
		t.Fatal(err)
	}
	return w.ops
}

func prepare(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for step := 1; step <= 2; step++ {
		if err := (&save{dir: dir, step: step, noSync: true}).run(t.Context(), contents(step)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"step-00000003.tmp-1", "step-00000003"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// checkSurvives fails unless the directory's newest good checkpoint is 2 or 3,
// complete, and a further save succeeds and clears up.
func checkSurvives(t *testing.T, what, dir string, committed bool) {
	t.Helper()
	c, _, err := Latest(t.Context(), dir)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	p, err := c.ReadProgress()
	if err != nil || p.Step != c.Step || c.Step != 3 && (committed || c.Step != 2) {
		t.Fatalf("%s: latest is step %d (%v), committed %v", what, c.Step, err, committed)
	}
	if err := (&save{dir: dir, step: 4, noSync: true}).run(t.Context(), contents(4)); err != nil {
		t.Fatalf("%s: the next save: %v", what, err)
	}
	checkGood(t, dir, 4)
	for _, n := range names(t, dir) {
		if strings.Contains(n, tempInfix) {
			t.Errorf("%s: %s is still there", what, n)
		}
	}
}

// TestFailAtEveryOperation: any single operation fails, as on a full or a
// broken disk. The save says which one, leaves the older checkpoints and no
// descriptor, and the next save works.
func TestFailAtEveryOperation(t *testing.T) {
	ops := numOps(t)
	t.Logf("%d operations: %s", len(ops), strings.Join(ops, ", "))
	for _, kind := range []string{"create", "mkdir", "write", "sync", "close", "syncdir", "rename", "remove"} {
		if !strings.Contains(strings.Join(ops, "\n"), kind+" ") {
			t.Fatalf("the save does no %s", kind)
		}
	}
	for at, op := range ops {
		dir := prepare(t)
		before := numFDs(t)
		w := &world{at: at, err: syscall.ENOSPC}
		err := w.save(dir, 3, 2)
		var save *SaveError
		if !errors.As(err, &save) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s fails: got %v", op, err)
		}
		if _, serr := os.Stat(filepath.Join(Path(dir, 3), ManifestName)); (serr == nil) != save.Committed {
			t.Errorf("%s fails: committed is %v (%v)", op, save.Committed, err)
		}
		if after := numFDs(t); after != before {
			t.Errorf("%s fails: %d descriptors before, %d after", op, before, after)
		}
		checkSurvives(t, op+" fails", dir, save.Committed)
	}
}

// TestPowerFailure: the machine stops before any one operation, and what was
// not made durable by then is lost: cut to half, or gone.
func TestPowerFailure(t *testing.T) {
	ops := numOps(t)
	off := errors.New("the machine is off")
	for at, op := range ops {
		for _, loss := range []string{"half", "all"} {
			dir := prepare(t)
			w := &world{at: at, err: off, stop: true}
			err := w.save(dir, 3, 2)
			var save *SaveError
			if !errors.As(err, &save) {
				t.Fatalf("off at %s: got %v", op, err)
			}
			lost := maps.Clone(w.unsaved)
			maps.Copy(lost, w.unnamed)
			for path := range lost {
				st, err := os.Stat(path)
				switch {
				case err != nil: // never came to be, or moved to its place
					if save.Committed {
						t.Errorf("off at %s: %s was committed before it was durable", op, path)
					}
				case loss == "all":
					err = os.Remove(path)
				case w.unsaved[path]:
					err = os.Truncate(path, st.Size()/2)
				}
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			checkSurvives(t, fmt.Sprintf("off at %s, %s lost", op, loss), dir, save.Committed)
		}
	}
}

// saveForever is the child of TestKill: it says which steps are committed.
func saveForever(dir string) {
	for step := 1; ; step++ {
		if err := Save(context.Background(), dir, step, contents(step), 2); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(step)
	}
}

// TestKill kills a saving process with SIGKILL at random moments: what it said
// was committed is there and whole, and nothing stays in the way.
func TestKill(t *testing.T) {
	t.Logf("seed %d", *seed)
	rng := rand.New(rand.NewPCG(*seed, 0))
	numKills, numTemp := 12, 0
	if testing.Short() {
		numKills = 3
	}
	for range numKills {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-save-forever", dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The moment counts from the first commit, so that there is one
		// however slow the machine is.
		lines := bufio.NewScanner(out)
		last := 0
		for lines.Scan() {
			if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
				t.Fatalf("the child says %q", lines.Text())
			}
			if last == 1 {
				time.AfterFunc(time.Duration(rng.IntN(40_000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the child ended with %v", err)
		}
		if strings.Contains(strings.Join(names(t, dir), " "), tempInfix) {
			numTemp++
		}
		c, damaged, err := Latest(t.Context(), dir)
		if err != nil || len(damaged) > 0 || c.Step < last {
			t.Fatalf("killed after step %d: latest %v, damaged %v, %v", last, c, damaged, err)
		}
		mustSave(t, dir, c.Step+1, 2)
		checkGood(t, dir, c.Step+1)
		if got := names(t, dir); len(got) > 2 || strings.Contains(strings.Join(got, " "), tempInfix) {
			t.Errorf("the directory has %v", got)
		}
	}
	t.Logf("%d of %d kills left a temporary directory", numTemp, numKills)
}
