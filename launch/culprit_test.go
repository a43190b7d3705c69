// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

// roleFault makes all-reduces, in which the rank that arg names ("2:stop") at the
// third is at fault. What the others get is not theirs, yet they end first.
func roleFault(arg string) int {
	who, how, _ := strings.Cut(arg, ":")
	if how == "same" {
		_ = os.Setenv(string(envvar.Spawn), "1") // as of a program that has started itself
	}
	return ExitCode(Spawn(context.Background(), 0, dist.Main(func(ctx context.Context, g *dist.Group) error {
		x := tensor.Zeros(8)
		for i := range 5 {
			if how == "same" {
				return errors.New("row 7 is wrong")
			}
			if i == 2 && who == strconv.Itoa(g.Rank()) {
				switch how {
				case "stop":
					_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
					time.Sleep(100 * time.Millisecond) // other threads stop a little later
				case "sleep":
					time.Sleep(time.Minute)
				case "leave":
					_ = g.Close()
					os.Exit(0)
				case "fail":
					return errors.New("the disk is full")
				case "shape":
					x = tensor.Zeros(9)
				}
			}
			limit, cancel := context.WithTimeout(ctx, 10*time.Second)
			if how == "sleep" && i == 2 {
				limit, cancel = context.WithTimeout(ctx, 2*time.Second)
			}
			err := g.AllReduce(limit, x, dist.Sum)
			cancel()
			if err != nil {
				return err
			}
		}
		return nil
	})))
}

// TestHeadline: the report's first lines name the rank that is at fault, not the
// one that was the first to end because of it.
func TestHeadline(t *testing.T) {
	for arg, want := range map[string]string{
		"2:stop":  `failed: rank 2 \(pid \d+\) had been stopped \(SIGSTOP\)\n  likely cause: .* name rank 2;`,
		"1:sleep": `failed: rank 1 \(pid \d+\) kept the others waiting\n  likely cause: .* name rank 1;`,
		"1:leave": `failed: rank 1 \(pid \d+\) ended with code 0 before the others\n  likely cause: .* name rank 1;`,
		"3:fail":  `failed: rank 3 exited with code 1\n  (first failure|likely cause): rank 3 `,
		"3:shape": `failed: rank \d exited with code 1\n  (first failure|likely cause): rank \d `,
	} {
		t.Run(arg, func(t *testing.T) {
			t.Parallel()
			if strings.HasSuffix(arg, "stop") && runtime.GOOS != "linux" {
				t.Skip("who is stopped is known on Linux only")
			}
			a := startProcess(t, `agent:{"NumRanks":4,"FailGrace":500000000,"Grace":1000000000}`, "LAUNCH_TEST_WORKER=fault:"+arg, "TMPDIR="+t.TempDir(), "COHORT_SILENCE=1s")
			if code, _ := a.end(t); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if text := a.errs.String(); !regexp.MustCompile(`cohort: \S+ ` + want).MatchString(text) {
				t.Errorf("the report does not begin with %s:\n%s", want, text)
			}
			for _, double := range []string{"does not answer, or its dump is elsewhere", "after the others had given up"} {
				if strings.Contains(a.errs.String(), double) && !strings.HasSuffix(arg, "stop") { // it may wake and come
					t.Errorf("the report says %q, though the launcher knows better:\n%s", double, a.errs.String())
				}
			}
		})
	}
}

// TestSameError: an error that all ranks have is told once, by one rank and by the
// report, which has no flight recorders then.
func TestSameError(t *testing.T) {
	tmp := t.TempDir()
	a := startProcess(t, `agent:{"NumRanks":4,"FailGrace":5000000000,"Grace":1000000000}`, "LAUNCH_TEST_WORKER=fault:0:same", "TMPDIR="+tmp)
	if code, _ := a.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	text := a.errs.String()
	if n := strings.Count(text, "row 7 is wrong"); n != 2 || strings.Contains(text, "recorder") ||
		!strings.Contains(text, "    | row 7 is wrong\n  and 3 other ranks with the same error\n") {
		t.Errorf("the error stands there %d times, want 2:\n%s", n, text)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, dumpPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// blaming is a report in which the errors of others name a rank, of a job whose recorders
// know these ranks.
func blaming(rank int, dumps ...int) *flightlog.Report {
	r := &flightlog.Report{Groups: []flightlog.GroupReport{{Size: 4, Told: []flightlog.Told{{
		Ranks: flightlog.Ranks{{First: 2, Last: 2}}, Culprits: flightlog.Ranks{{First: rank, Last: rank}}}}}}}
	for _, d := range dumps {
		r.Dumps = append(r.Dumps, flightlog.Span{First: d, Last: d})
	}
	return r
}

// TestStoppedRankIsTheCause: where neighbours in a ring name each other, the rank that
// was stopped is named; not where it is known that another failed by itself.
func TestStoppedRankIsTheCause(t *testing.T) {
	failures := []Failure{{Rank: 3, Code: 1}, {Rank: 0, Code: 1}, {Rank: 1, Code: -1, Stopped: true, Suspended: true}}
	for _, tc := range []struct {
		report *flightlog.Report
		want   int
	}{
		{blaming(0), 1},       // PyTorch's, which keeps no recorder
		{blaming(2, 2), 1},    // it waited itself
		{blaming(3, 2, 3), 3}, // by its dump it waited for nobody
		{&flightlog.Report{}, 1},
	} {
		a := &agent{workers: []*worker{{proc: &os.Process{}}, {proc: &os.Process{}}, {proc: &os.Process{}}, {proc: &os.Process{}}}}
		if got := a.suspects(tc.report, failures); len(got) != 1 || got[0].Rank != tc.want {
			t.Errorf("the suspects are %+v, want rank %d", got, tc.want)
		}
	}
}

// TestStruckRankIsTheCause: who was asked to end because a rank was killed is not
// the cause, although a third waited for it in what they did without the dead one.
func TestStruckRankIsTheCause(t *testing.T) {
	for _, tc := range []struct {
		first Failure
		want  []int
	}{
		{Failure{Rank: 2, Signal: syscall.SIGKILL}, nil},
		{Failure{Rank: 2, Signal: syscall.SIGABRT}, []int{0}}, // as by a watchdog that waited for rank 0
		{Failure{Rank: 2, Code: 1}, []int{0}},
	} {
		a := &agent{workers: []*worker{{proc: &os.Process{}}, {proc: &os.Process{}}, {proc: &os.Process{}}}}
		got := a.suspects(blaming(0), []Failure{tc.first, {Rank: 0, Code: 1, Stopped: true}, {Rank: 1, Code: 1, Stopped: true}})
		var ranks []int
		for _, s := range got {
			ranks = append(ranks, s.Rank)
		}
		if !slices.Equal(ranks, tc.want) {
			t.Errorf("after %s the suspects are %v, want %v", tc.first.how(), ranks, tc.want)
		}
	}
}
