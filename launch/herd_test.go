// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestManyRanks: of 64 ranks in an all-reduce that one of them keeps waiting, one is
// killed. All are gone within two seconds (more where it takes long to start them), and nothing
// of them is left: no process, no
// named shared memory, no file but the dumps that the report names. (Sockets of ranks have
// names that end with them.)
func TestManyRanks(t *testing.T) {
	const ranks = "64"
	tmp := t.TempDir()
	segments := func() []string {
		names, _ := filepath.Glob("/dev/shm/*")
		return names
	}
	before := segments()
	begin := time.Now()
	a := startProcess(t, `agent:{"NumRanks":`+ranks+`}`, "LAUNCH_TEST_WORKER=reduce:5+polite", "TMPDIR="+tmp)
	a.out.await(t, 64, "ready")
	up := time.Since(begin)
	pid := a.out.numbers("[rank40] ready")[0]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code, took := a.end(t)
	t.Logf("%s ranks were there after %v, and gone %v after one was killed", ranks, up, took)
	if code != 1 || took > 2*time.Second+5*up {
		t.Errorf("exit code %d after %v", code, took)
	}
	if report := a.errs.String(); !strings.Contains(report, "rank 40 was killed by SIGKILL") {
		t.Errorf("the report does not name the rank:\n%s", report)
	}
	if left := marked(a.mark); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	eventually(t, func() string { // other programs of the machine have some, for a moment
		left := slices.DeleteFunc(segments(), func(s string) bool { return slices.Contains(before, s) })
		return strings.Join(left, ", ")
	})
	files, _ := filepath.Glob(tmp + "/*")
	if files = slices.DeleteFunc(files, func(s string) bool { return strings.Contains(a.errs.String(), s) }); len(files) > 0 {
		t.Errorf("files left: %v", files)
	}
}

// TestRestartIsNew: in every attempt the ranks meet anew, at another port, and reduce,
// though the rank that died in the one before had not left.
func TestRestartIsNew(t *testing.T) {
	var out, errs output
	cfg := self(t, 3, "phoenix")
	cfg.Stdout, cfg.Stderr, cfg.MaxRestarts = &out, &errs, 3
	cfg.Env = append(cfg.Env, "COHORT_RECORDER_DIR="+t.TempDir())
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	for _, want := range []string{"[rank2] attempt 0: 3", "[rank0] attempt 1: 3", "[rank1] attempt 2: 3"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if n := strings.Count(errs.String(), "was killed by SIGKILL"); n < 2 {
		t.Errorf("%d ranks were told to be killed:\n%s", n, errs.String())
	}
}
