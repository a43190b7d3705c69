// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/flightlog"
	events "github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/tensor"
)

// roleReduce makes all-reduces; after the fifth the rank that arg names sleeps,
// whatever happens or ("1+polite") until it is asked to end. Without one the job
// ends well.
func roleReduce(arg string) int {
	return ExitCode(Spawn(context.Background(), 0, dist.Main(func(ctx context.Context, g *dist.Group) error {
		x := tensor.Zeros(8)
		for i := range 10 {
			if i == 5 {
				say("ready %d", os.Getpid())
				rank, polite := strings.CutSuffix(arg, "+polite")
				switch {
				case rank != strconv.Itoa(g.Rank()):
				case polite:
					<-ctx.Done()
					return context.Cause(ctx)
				default:
					time.Sleep(time.Minute)
				}
			}
			if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
				return err
			}
		}
		return nil
	})))
}

// rolePhoenix reduces, says so, and kills rank 1, in the first two attempts.
func rolePhoenix(string) int {
	return ExitCode(Spawn(context.Background(), 0, dist.Main(func(ctx context.Context, g *dist.Group) error {
		x := tensor.FromFloat32([]float32{1}, 1)
		if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
			return err
		}
		attempt := os.Getenv("TORCHELASTIC_RESTART_COUNT")
		say("attempt %s: %v", attempt, x.Item())
		if err := g.Barrier(ctx); err != nil { // all have said so
			return err
		}
		if attempt < "2" && g.Rank() == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return g.Barrier(ctx)
	})))
}

// TestRecorders: the launcher says where the ranks are, when it is asked while
// one of them keeps the others waiting, and when the job has failed.
func TestRecorders(t *testing.T) {
	tmp := t.TempDir()
	a := startProcess(t, `agent:{"NumRanks":3}`, "LAUNCH_TEST_WORKER=reduce:2", "TMPDIR="+tmp, "COHORT_SILENCE=0")
	a.out.await(t, 3, "ready")
	pids := a.out.numbers("[rank2] ready")
	if len(pids) != 1 {
		t.Fatalf("rank 2 is not among the processes:\n%s", a.out.String())
	}
	match := func(want string) {
		t.Helper()
		if text := a.errs.String(); !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the standard error has no %s:\n%s", want, text)
		}
	}
	// The others are there when an answer says so, to which all have given their part.
	waits := regexp.MustCompile(`(?m)^cohort: group "world": all_reduce 7 waits for rank 2 of 3, .* \(launch/recorder_test\.go:\d+ launch\.roleReduce\..*\n` +
		`cohort:   rank 2 \(host .*, pid ` + strconv.Itoa(pids[0]) + `\): has not called it; its last was all_reduce 6, `)
	eventually(t, func() string {
		_ = a.Process.Signal(syscall.SIGUSR1)
		time.Sleep(20 * time.Millisecond)
		if !waits.MatchString(a.errs.String()) {
			return fmt.Sprintf("there is no %s:\n%s", waits, a.errs.String())
		}
		return ""
	})

	// A rank that is stopped cannot answer.
	_ = syscall.Kill(pids[0], syscall.SIGSTOP)
	silent := regexp.MustCompile(`(?m)^cohort: rank 2 \(pid ` + strconv.Itoa(pids[0]) + `\) does not answer: its process is stopped$`)
	eventually(t, func() string {
		_ = a.Process.Signal(syscall.SIGUSR1) // passed over while an answer is on its way
		time.Sleep(20 * time.Millisecond)
		if !silent.MatchString(a.errs.String()) {
			return fmt.Sprintf("there is no %s:\n%s", silent, a.errs.String())
		}
		return ""
	})

	_ = syscall.Kill(pids[0], syscall.SIGKILL)
	if code, took := a.end(t); code != 1 || took > soon {
		t.Errorf("exit code %d after %v", code, took)
	}
	match(`(?m)^  the ranks' flight recorders say:\n    \| group "world": all_reduce 7 waited for rank 2 of 3`)
	match(`(?m)^    \|   told to ranks 0-1: dist: all_reduce 7 of group "world" \(recorder_test\.go:\d+\): rank 2 \(host .*, pid \d+\) died: signal killed$`)
	found, _ := filepath.Glob(filepath.Join(tmp, "cohort-*"))
	if len(found) != 1 {
		t.Fatalf("the directories of dumps are %v, want one", found)
	}
	match(`(?m)^    all of it: cohort recorder ` + regexp.QuoteMeta(found[0]) + `$`)
	if info, err := os.Stat(found[0]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of dumps has mode %v (%v), want 0700", info.Mode(), err)
	}
	if dumps, err := flightlog.Load(found[0]); err != nil || len(dumps) != 3 {
		t.Errorf("there are %d dumps, want 3: %v", len(dumps), err)
	}
}

// TestRecordersOfGoodJob: nothing stays of a job that ended well, though
// somebody asked where it was.
func TestRecordersOfGoodJob(t *testing.T) {
	tmp := t.TempDir()
	a := startProcess(t, `agent:{"NumRanks":2}`, "LAUNCH_TEST_WORKER=reduce", "TMPDIR="+tmp)
	a.out.await(t, 1, "ready")
	_ = a.Process.Signal(syscall.SIGUSR1)
	if code, _ := a.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, a.errs.String())
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestRecordersOfUser: a directory that the user names is used, stays, and what
// an earlier job wrote there is not taken for this one's.
func TestRecordersOfUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "flight")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old := &flightlog.Dump{Version: flightlog.Version, Rank: 7, WorldSize: 8, Reason: "asked", Start: time.Now().Add(-time.Hour)}
	if err := flightlog.Write(dir, old); err != nil {
		t.Fatal(err)
	}
	cfg := self(t, 2, "reduce:1")
	var out, errs output
	cfg.Stdout, cfg.Stderr = &out, &errs
	cfg.Env = append(cfg.Env, "COHORT_RECORDER_DIR="+dir)
	done := make(chan error, 1)
	go func() { done <- Run(t.Context(), cfg) }()
	out.await(t, 2, "ready")
	_ = syscall.Kill(out.numbers("[rank1] ready")[0], syscall.SIGKILL)
	e := ended(t, <-done)
	if e.RecorderDir != dir || len(e.Recorders) == 0 || !strings.Contains(e.Recorders[0], "waited for rank 1 of 2") {
		t.Errorf("of %s the report says %q", e.RecorderDir, e.Recorders)
	}
}

// TestRecordersOfStoppedJob: a job that ends because it is asked to has nothing
// to tell, one that does not end says where it hangs.
func TestRecordersOfStoppedJob(t *testing.T) {
	for _, tc := range []struct {
		worker string
		grace  time.Duration
		want   bool
	}{{"reduce:1+polite", 20 * time.Second, false}, {"reduce:1", 300 * time.Millisecond, true}} {
		t.Run(tc.worker, func(t *testing.T) {
			tmp := t.TempDir()
			a := startProcess(t, fmt.Sprintf(`agent:{"NumRanks":2,"Grace":%d}`, tc.grace), "LAUNCH_TEST_WORKER="+tc.worker, "TMPDIR="+tmp)
			a.out.await(t, 2, "ready")
			before := 0
			if tc.want { // rank 0 is about to wait when it says that it is ready
				eventually(t, func() string {
					_ = a.Process.Signal(syscall.SIGUSR1)
					time.Sleep(20 * time.Millisecond)
					text := a.errs.String()
					if before = len(text); !strings.Contains(text, "waits for rank 1 of 2") {
						return "no rank waits:\n" + text
					}
					return ""
				})
			}
			_ = a.Process.Signal(syscall.SIGTERM)
			if code, _ := a.end(t); code != 1 {
				t.Errorf("exit code %d", code)
			}
			text := a.errs.String()[before:]
			if got := strings.Contains(text, "waits for rank 1 of 2") || strings.Contains(text, "waited for rank 1 of 2"); got != tc.want {
				t.Errorf("the report says who is waited for: %v, want %v:\n%s", got, tc.want, text)
			}
			if left, _ := filepath.Glob(filepath.Join(tmp, "*")); (len(left) > 0) != tc.want {
				t.Errorf("%v is left", left)
			}
		})
	}
}

// TestInterruptedHang: Ctrl-C on ranks that wait for one of them says where, soon,
// and says nothing where they do not, or the program has no recorder.
func TestInterruptedHang(t *testing.T) {
	for _, tc := range []struct {
		worker string
		waits  string // until the ranks are seen to do so
		want   string
	}{
		{"reduce:1", "all_reduce 7 waits for rank 1 of 3", `(?m)^cohort: before the job is stopped, its ranks are here:\ncohort: group "world": all_reduce 7 waits for rank 1 of 3`},
		{"reduce:1", "", ""}, // has not waited for long
		{"late", "ranks 0, 2 of 3 wait in Init for rank 1", `(?m)^cohort: before the job .*\ncohort: ranks 0, 2 of 3 wait in Init for rank 1`},
		{"wait", "", ""},
	} {
		t.Run(tc.worker+" "+tc.waits, func(t *testing.T) {
			t.Parallel()
			look := lookPatience
			if tc.waits != "" {
				look = soon
			}
			began := time.Now()
			a := startProcess(t, fmt.Sprintf(`agent:{"NumRanks":3,"Grace":300000000,"Look":%d}`, look), "LAUNCH_TEST_WORKER="+tc.worker, "TMPDIR="+t.TempDir(), "COHORT_SILENCE=0")
			a.out.await(t, 3, "ready")
			if tc.waits != "" {
				eventually(t, func() string {
					_ = a.Process.Signal(syscall.SIGUSR1)
					time.Sleep(20 * time.Millisecond)
					if !strings.Contains(a.errs.String(), tc.waits) {
						return "not seen yet: " + tc.waits
					}
					return ""
				})
				time.Sleep(hangs) // they are to have waited for so long
			}
			_ = a.Process.Signal(syscall.SIGINT)
			code, took := a.end(t)
			if code != 1 || took > soon {
				t.Errorf("exit code %d after %v", code, took)
			}
			if tc.worker == "reduce:1" && tc.waits == "" && time.Since(began) > hangs {
				t.Skip("the machine is so slow that ranks have waited for long before they were stopped")
			}
			text := a.errs.String()
			if before := strings.Contains(text, "before the job is stopped"); before != (tc.want != "") || !regexp.MustCompile(tc.want).MatchString(text) {
				t.Errorf("the standard error has no %q:\n%s", tc.want, text)
			}
		})
	}
}

// TestOldDumps: dumps of a job that failed long ago go, and nothing else does.
func TestOldDumps(t *testing.T) {
	tmp := t.TempDir()
	old := time.Now().Add(-8 * 24 * time.Hour)
	name := func(digit string) string { return dumpPrefix + strings.Repeat(digit, 2*dumpBytes) }
	for dir, tc := range map[string]struct {
		files []string
		age   time.Time
	}{
		name("1"):         {[]string{"rank-0.json", "rank-1.json", ".rank-77"}, old},
		name("2"):         {[]string{"rank-0.json"}, time.Now()},
		name("3"):         {[]string{"rank-0.json", "notes"}, old},
		"cohort-run-1234": {[]string{"rank-0.json"}, old},
		"cohort-of-mine":  {[]string{"rank-0.json"}, old},
	} {
		path := filepath.Join(tmp, dir)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range tc.files {
			if err := os.WriteFile(filepath.Join(path, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(path, tc.age, tc.age); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(tmp, "cohort-of-mine"), filepath.Join(tmp, name("4"))); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	newRecorders(&Config{})
	var left []string
	files, _ := filepath.Glob(filepath.Join(tmp, "*", "*"))
	for _, f := range files {
		left = append(left, strings.TrimPrefix(f, tmp+"/"))
	}
	want := []string{name("2") + "/rank-0.json", name("3") + "/notes", name("4") + "/rank-0.json", "cohort-of-mine/rank-0.json", "cohort-run-1234/rank-0.json"}
	if !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
	if _, err := os.Stat(filepath.Join(tmp, name("1"))); err == nil {
		t.Error("the directory of old dumps is left")
	}
}

// roleLate forms a group, to which rank 1 does not come.
func roleLate(string) int {
	say("ready")
	if rank() == "1" {
		time.Sleep(time.Minute)
	}
	return ExitCode(Spawn(context.Background(), 0, dist.Main(func(context.Context, *dist.Group) error { return nil })))
}

// TestRecordersWhileForming: who does not come to dist.Init is named too.
func TestRecordersWhileForming(t *testing.T) {
	a := startProcess(t, `agent:{"NumRanks":3}`, "LAUNCH_TEST_WORKER=late", "TMPDIR="+t.TempDir())
	a.out.await(t, 3, "ready")
	eventually(t, func() string {
		_ = a.Process.Signal(syscall.SIGUSR1)
		time.Sleep(20 * time.Millisecond)
		if !strings.Contains(a.errs.String(), "cohort: ranks 0, 2 of 3 wait in Init for rank 1\n") {
			return "rank 1 is not named:\n" + a.errs.String()
		}
		return ""
	})
	if want := regexp.MustCompile(`(?m)^cohort: rank 1 \(pid \d+\) does not answer(: it has not called dist\.Init.*)?$`); !want.MatchString(a.errs.String()) {
		t.Errorf("the standard error has no %s:\n%s", want, a.errs.String())
	}
	_ = a.Process.Signal(syscall.SIGINT)
	a.end(t)
}

// TestFiguresAreRemoved: what ranks have answered goes with the job; a directory of the user's stays, with
// what else is in it.
func TestFiguresAreRemoved(t *testing.T) {
	for _, ours := range []bool{true, false} {
		for _, other := range []bool{true, false} {
			dir := filepath.Join(t.TempDir(), "dumps")
			names := []string{events.FileName(0), "." + events.FileName(1) + "-2"}
			if other {
				names = append(names, "other")
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			(&recorders{dir: dir, ours: ours}).removeFigures()
			left, err := os.ReadDir(dir)
			if stays := !ours || other; stays != (err == nil) || other && len(left) != 1 || !other && len(left) != 0 {
				t.Errorf("ours %v, with another file %v: left %v, %v", ours, other, left, err)
			}
		}
	}
}
