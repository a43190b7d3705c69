// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// roleEnds has rank 1 end in a way.
func roleEnds(how string) int {
	if rank() != "1" {
		return roleWait("")
	}
	fmt.Fprintln(os.Stderr, "its last words")
	switch how {
	case "code":
		return 77
	case "signal":
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	case "fault":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		select {}
	case "exception":
		panic(fmt.Sprintf("no rank is called %q", how))
	}
	return 0
}

// TestFailureKinds: how the report of each kind of failure begins, and what it says of
// the cause. An exception has its text from the error file; out of memory is
// TestOutOfMemory.
func TestFailureKinds(t *testing.T) {
	for role, want := range map[string]string{
		"words:go":    `failed: rank 1 exited with code 7\n  first failure: rank 1 \(local rank 1\), host \S+, pid \d+, at \S+, \S+ after the start\n  its error:\n    \| matrix is singular\n`,
		"words:py":    `failed: rank 1 exited with code 7\n  first failure: (.*)\n  its error:\n    \| Traceback:\n    \|   File x\n    \| ValueError: boom\n`,
		"ends:code":   `failed: rank 1 exited with code 77\n  first failure: (.*)\n  its last lines on standard error:\n    \| its last words\n  stopped: rank 0`,
		"ends:signal": `failed: rank 1 was killed by SIGTERM\n  first failure: (.*)\n  its last lines on standard error:\n    \| its last words\n`,
		"ends:fault":  `failed: rank 1 exited with code 2\n  first failure: (.*)\n  its last lines on standard error:\n    \| SIGSEGV: segmentation violation\n`,
		"ends:crash":  `failed: rank 1 exited with code 2\n  first failure: (.*)\n  its last lines on standard error:\n    \| its last words\n    \| panic: no rank is called "exception"`,
		"fault:1:sleep": `failed: rank 1 \(pid \d+\) kept the others waiting\n  likely cause: the flight recorders of the others name rank 1; the ranks below ended because of that\n` +
			`(.*\n)+.*waited for rank 1 of 2`,
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			if role == "ends:crash" {
				role = "ends:exception"
			}
			a := startProcess(t, `agent:{"NumRanks":2,"FailGrace":1000000,"Grace":1000000000}`, "LAUNCH_TEST_WORKER="+role, "TMPDIR="+t.TempDir())
			if code, _ := a.end(t); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if text := a.errs.String(); !regexp.MustCompile(`cohort: \S+ ` + want).MatchString(text) {
				t.Errorf("the report is not\n%s\nbut\n%s", want, text)
			}
		})
	}
}

func TestFailureLine(t *testing.T) {
	f := Failure{Rank: 3, Host: "h", PID: 7, Code: 1, Message: "no data"}
	if got, want := f.Line(), "rank 3 exited with code 1 (pid 7, host h): no data"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A program that has started its own ranks has not failed: its job has.
func TestReportSubject(t *testing.T) {
	for want, e := range map[string]Error{
		"cohort: the job failed: rank 1 exited with code 3\n":  {Program: "cohort", itself: true, Failures: []Failure{{Rank: 1, Code: 3}}},
		"cohort: train.py failed: rank 1 exited with code 3\n": {Program: "train.py", Failures: []Failure{{Rank: 1, Code: 3}}},
	} {
		var b strings.Builder
		e.Report(&b)
		if !strings.HasPrefix(b.String(), want) {
			t.Errorf("%q, want %q", b.String(), want)
		}
	}
}
