// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// TestErrorTexts holds the words of errors that people read at night: who, in
// which operation, called from where.
func TestErrorTexts(t *testing.T) {
	const site = "example.org/app/train.go:88 main.train"
	sum := operation.Call{Op: operation.AllReduce, Reduce: operation.Sum, DType: operation.Float32, Count: 4, Seq: 42}
	barrier := operation.Call{Op: operation.Barrier, Seq: 42}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&RankError{Rank: 3, Host: "h", PID: 4711, Group: "world", Op: "all_reduce", Seq: 42, Site: site,
			Cause: fmt.Errorf("%w for 3s; its process is stopped", ErrSilent)},
			`dist: all_reduce 42 of group "world" (train.go:88): rank 3 (host h, pid 4711) is silent: nothing was heard of it for 3s; its process is stopped`},
		{&RankError{Rank: 3, Group: "world", Op: "all_reduce", Seq: 42, Site: site, Signal: "killed", Cause: ErrDied},
			`dist: all_reduce 42 of group "world" (train.go:88): rank 3 died: signal killed`},
		{&RankError{Rank: 3, Group: "world", Op: "all_reduce", Seq: 42, Cause: ErrLeft},
			`dist: all_reduce 42 of group "world": rank 3 has left the group`},
		{&RankError{Rank: 3, Group: "world", Site: site, Cause: ErrLeft}, // none under way
			`dist: group "world": rank 3 has left the group`},
		{&TimeoutError{Group: "world", Op: "barrier", Seq: 7, Site: "/my work/train.go:90 example.org/app.main", Missing: []Member{{Rank: 1}}, Cause: context.DeadlineExceeded},
			`dist: barrier 7 of group "world" (train.go:90): timed out waiting for rank 1`},
		{&TimeoutError{Group: "world", Op: "barrier", Seq: 7, Missing: []Member{{Rank: 1}}, Cause: fmt.Errorf("the group's limit of 1m0s: %w", context.DeadlineExceeded)},
			`dist: barrier 7 of group "world": timed out (the group's limit of 1m0s) while waiting for rank 1`},
		{&TimeoutError{Group: "world", Op: "barrier", Seq: 7, Missing: []Member{{Rank: 0}}, Cause: ctxerr.Of(endOf(errors.New("rank 1 got SIGTERM")))},
			`dist: barrier 7 of group "world": cancelled (rank 1 got SIGTERM) while waiting for rank 0`},
		{&TimeoutError{Group: "world", Op: "barrier", Seq: 7, Missing: []Member{{Rank: 0}}, Cause: ctxerr.Of(endOf(nil))},
			`dist: barrier 7 of group "world": cancelled waiting for rank 0`},
		{&MismatchError{Group: "world", Seq: 42, Here: RankCall{Rank: 0, Call: sum, Site: site}, There: RankCall{Rank: 1, Call: barrier, Site: "app/eval.go:12 main.eval"}},
			`dist: group "world", call 42: ranks called different things: rank 0 all_reduce sum of 4 float32 at example.org/app/train.go:88 main.train; rank 1 barrier at app/eval.go:12 main.eval`},
		{&MismatchError{Group: "world", Seq: 42, Here: RankCall{Rank: 0, Call: sum}, There: RankCall{Rank: 1, Call: barrier, Group: "tp"}},
			`dist: group "world": ranks wait for each other in calls that do not meet: rank 0 all_reduce sum of 4 float32, its call 42; rank 1 barrier on group "tp", its call 42`},
		{&MismatchError{Group: "world", Seq: 42, Here: RankCall{Rank: 0, Call: sum}, There: RankCall{Rank: 1, Call: barrier}},
			`dist: group "world", call 42: ranks called different things: rank 0 all_reduce sum of 4 float32; rank 1 barrier`},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("the text is\n\t%s\nwant\n\t%s", got, tc.want)
		}
	}
	for _, here := range []bool{false, true} {
		err := error(&RankError{Rank: 3, Group: "world", Cause: &SilentError{Text: "for 3s; its process is stopped", Here: here}})
		want := `dist: group "world": rank 3 is silent: nothing was heard of it for 3s; its process is stopped`
		if here {
			want = `dist: group "world": rank 3, this one, was given up by the others: nothing was heard of it for 3s; its process was stopped`
		}
		if !errors.Is(err, ErrSilent) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := error(&RankError{Cause: fmt.Errorf("%w for 3s", ErrSilent)}); !errors.Is(err, ErrSilent) {
		t.Error("the cause of a silent rank's error is not ErrSilent")
	}
}

// cancelled returns a context that has been cancelled for a reason, or none.
func endOf(why error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	return ctx
}

// TestEndingIsWhatPeopleBranchOn asks the end of a context what it is.
func TestEndingIsWhatPeopleBranchOn(t *testing.T) {
	why := errors.New("my own reason")
	late, stop := context.WithTimeoutCause(context.Background(), 0, why)
	defer stop()
	<-late.Done()
	for _, tc := range []struct {
		err     error
		is      []error
		timeout bool
	}{
		{ctxerr.Of(endOf(why)), []error{why, context.Canceled}, false},
		{ctxerr.Of(endOf(nil)), []error{context.Canceled}, false},
		{ctxerr.Of(late), []error{why, context.DeadlineExceeded}, true},
	} {
		e := &TimeoutError{Cause: tc.err}
		for _, want := range tc.is {
			if !errors.Is(e, want) {
				t.Errorf("%v: not %v", e, want)
			}
		}
		if e.Timeout() != tc.timeout {
			t.Errorf("%v: Timeout is %v", e, e.Timeout())
		}
	}
	if err := ctxerr.Of(context.Background()); err != nil {
		t.Errorf("a context that goes on: %v", err)
	}
}

// TestJobRanks: the number in the job is that of the rank at fault, whatever the
// error is about and however it is wrapped.
func TestJobRanks(t *testing.T) {
	members := []Member{MemberOf("rest", 0, Member{Rank: 1}), MemberOf("rest", 1, Member{Rank: 2}), MemberOf("rest", 2, Member{Rank: 3})}
	died := NewRankError("rest", members[2], ErrDied)
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"of the group":        {Among(members, died), 3},
		"without its members": {Among(members, &RankError{Rank: 2, Group: "rest", Cause: ErrDied}), 3},
		"of its parent":       {Among(members, NewRankError("world", Member{Rank: 2}, ErrLeft)), 2},
		"a forming cancelled": {Among(members, &TimeoutError{Group: "rest", Op: "init", Cause: ctxerr.Of(endOf(died))}), 3},
	} {
		var re *RankError
		if !errors.As(tc.err, &re) || re.JobRank() != tc.want {
			t.Errorf("%s: %v: rank %d of the job, want %d", name, tc.err, re.JobRank(), tc.want)
		}
	}
}
