// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/cohort-ml/cohort/dist/fault"
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

// The rank whose error was first is the cause, though it ended last.
func TestFirstErrorFirst(t *testing.T) {
	cfg := self(t, 2, "words:late")
	cfg.Stdout, cfg.Stderr = &output{}, &output{}
	begin := time.Now()
	job := ended(t, Run(t.Context(), cfg))
	// The job is younger than what rank 1 says: such a clock is not believed.
	// (On a busy machine rank 1 may have ended first.)
	other := job.Failures[len(job.Failures)-1]
	if time.Since(begin) < 2*time.Second && job.Failures[0].Rank != 0 && other.Time.Before(job.Failures[0].Time) {
		t.Errorf("a time before the job was believed: %+v", job.Failures)
	}
	at := time.Unix(1000, 0)
	fs := []Failure{
		{Rank: 0, Time: at.Add(5 * time.Second), After: time.Minute},
		{Rank: 1, Time: at.Add(6 * time.Second), After: time.Minute, Raised: at.Add(2 * time.Second)},
		{Rank: 2, Time: at.Add(6500 * time.Millisecond), After: time.Minute, Raised: at.Add(time.Hour)},
		{Rank: 3, Time: at.Add(5900 * time.Millisecond), After: time.Minute, Raised: at.Add(5 * time.Second)},
		{Rank: 4, Time: at.Add(7 * time.Second), After: time.Minute, Raised: at, Stopped: true},
	}
	sortByTime(fs)
	var got []int
	for _, f := range fs {
		got = append(got, f.Rank)
	}
	if want := []int{1, 0, 3, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestCauseFirst: the report begins with the failure that does not follow from
// another one.
func TestCauseFirst(t *testing.T) {
	const lost3 = `dist: init rank %d of 4: rank 0 (host h, pid 100) failed: environment variable COHORT_INTERFACE is "eth77": want`
	for name, tc := range map[string]struct {
		tails [][]string // by rank, which is the order in which they ended too
		ranks []int
		want  []int
	}{
		"the culprit ends last": {
			ranks: []int{3, 1, 0},
			tails: [][]string{{fmt.Sprintf(lost3, 3)}, {"some log", fmt.Sprintf(lost3, 1)}, {`dist: init rank 0 of 4: environment variable COHORT_INTERFACE is "eth77": want`}},
			want:  []int{0, 3, 1},
		},
		"as it happened": {
			ranks: []int{0, 1}, tails: [][]string{{"panic: boom"}, {`dist: all_reduce 3 of group "world": rank 0 (host h, pid 100) died: process ended with exit code 2`}},
			want: []int{0, 1},
		},
		"without its process": {
			ranks: []int{1, 0}, tails: [][]string{{`dist: init rank 1 of 2: rank 0 failed: store: get: the connection to the store is lost`}, nil},
			want: []int{0, 1},
		},
		"of PyTorch's, whose process nobody knows": {
			ranks: []int{1, 0}, tails: [][]string{{`dist: all_reduce 2 of group "world": rank 0 (host h) failed: its connection has ended`}, nil},
			want: []int{0, 1},
		},
		"in a group of some": {
			ranks: []int{3, 2}, tails: [][]string{{`dist: barrier 1 of group "evens": rank 1 of "evens" (rank 2 of the job, host h, pid 102) has left the group`}, {"no space left"}},
			want: []int{2, 3},
		},
		"missed": {
			ranks: []int{0, 2, 1}, tails: [][]string{{`dist: barrier 1 of group "world": timed out (the group's limit of 1s) while waiting for rank 1 (host h, pid 101), rank 2 (host h, pid 102)`},
				{`dist: barrier 1 of group "world": timed out waiting for rank 1 (host h, pid 101)`}, {"gave up"}},
			want: []int{1, 0, 2},
		},
		"agents that lost a peer": {
			ranks: []int{1, 2, 3, 0}, tails: [][]string{{"rpc: shutdown of table: rpc: cohort.rpc.meet at trainer (rank 0): connection lost: the peer closed it"},
				{"rpc: table.Read at trainer (rank 0): unreachable: connection refused"}, {"rpc: shutdown of d: trainer (rank 0) has gone without a Shutdown: rpc: closed"}, {"no space left"}},
			want: []int{0, 1, 2, 3},
		},
		"a peer that answers with an error": {
			ranks: []int{1, 0}, tails: [][]string{{"rpc: table.Read at trainer (rank 0): row 7: no such row"}, {"no space left"}},
			want: []int{1, 0},
		},
		"each blames the other": {
			ranks: []int{1, 0}, tails: [][]string{{"dist: rank 0 (host h, pid 100) failed: x"}, {"dist: rank 1 (host h, pid 101) failed: y"}},
			want: []int{1, 0},
		},
		"words about itself, and about nobody here": {
			ranks: []int{1, 0}, tails: [][]string{{"rank 1 (host h, pid 101) failed: x", "rank 7 (host h, pid 107) failed: x"}, {"exit"}},
			want: []int{1, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(0, 0)
			var failures []Failure
			for i, r := range tc.ranks {
				failures = append(failures, Failure{Rank: r, PID: 100 + r, Code: 1, Tail: tc.tails[i], Time: start.Add(time.Duration(i) * time.Millisecond)})
			}
			failures = append(failures, Failure{Rank: 9, PID: 109, Stopped: true, Time: start.Add(time.Second)})
			putCauseFirst(failures)
			var got []int
			for _, f := range failures {
				got = append(got, f.Rank)
			}
			if !slices.Equal(got, append(tc.want, 9)) {
				t.Errorf("the order is %v, want %v", got, tc.want)
			}
			var b strings.Builder
			(&Error{Program: "p", NumRanks: 4, Failures: failures}).Report(&b)
			if want := fmt.Sprintf("failed: rank %d exited", tc.want[0]); !strings.Contains(b.String(), want) || strings.Contains(b.String(), " -") {
				t.Errorf("the report is\n%s", b.String())
			}
			if moved := tc.want[0] != tc.ranks[0]; moved != strings.Contains(b.String(), "ms earlier") || moved != strings.Contains(b.String(), "likely cause") {
				t.Errorf("the report does not say who ended earlier:\n%s", b.String())
			}
		})
	}
}

// TestFaultWords: the words of the errors of dist/fault are those by which a failure is
// told from one that follows from it. Whoever changes them finds it out here.
func TestFaultWords(t *testing.T) {
	member := fault.Member{Rank: 1, Host: "h", PID: 101}
	other := Failure{Rank: 1, PID: 101}
	rank := func(m fault.Member, cause error) *fault.RankError { return fault.NewRankError("world", m, cause) }
	killed := rank(member, fault.ErrDied)
	killed.Signal = "killed"
	wire := rank(member, &fault.WireError{Sent: "NOTIFY of 16 bytes", Peer: "10.0.0.7", Why: "this rank's call is another"})
	for name, err := range map[string]error{
		"died":        rank(member, fault.ErrDied),
		"killed":      killed,
		"left":        rank(member, fault.ErrLeft),
		"silent":      rank(member, &fault.SilentError{Text: "for 3s"}),
		"gone":        rank(member, fault.ErrGone),
		"gave up":     rank(member, errors.New("no space left")),
		"no process":  rank(fault.Member{Rank: 1, Host: "h"}, fault.ErrGone),
		"in a group":  rank(fault.MemberOf("odds", 0, member), fault.ErrDied),
		"bytes":       wire,
		"timed out":   &fault.TimeoutError{Group: "world", Op: "barrier", Seq: 1, Missing: []fault.Member{{Rank: 0, PID: 100}, member}},
		"interrupted": &fault.TimeoutError{Group: "world", Op: "barrier", Seq: 1, Missing: []fault.Member{member}, Cause: context.Canceled},
	} {
		f := Failure{Rank: 2, PID: 102, Code: 1, Tail: []string{err.Error()}}
		if !f.follows(&other) {
			t.Errorf("%s: %q does not name rank 1", name, err)
		}
		if f.follows(&Failure{Rank: 3, PID: 103}) {
			t.Errorf("%s: %q names rank 3", name, err)
		}
		var late *fault.TimeoutError
		if f.waited() != errors.As(err, &late) {
			t.Errorf("%s: %q says that the rank waited in vain: %v", name, err, f.waited())
		}
		if f.isMismatch() != (err == wire) {
			t.Errorf("%s: %q says that calls differ: %v", name, err, f.isMismatch())
		}
	}
}
