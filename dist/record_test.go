// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

// dumpOf returns a rank's dump as another program would read it.
func dumpOf(t *testing.T, g *Group) *flightlog.Dump {
	t.Helper()
	var b bytes.Buffer
	if err := g.Dump(&b); err != nil {
		t.Fatal(err)
	}
	d, err := flightlog.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDumpOf512 runs a job of 512 ranks in which three do not come to a
// collective: the first line of the merged report names them.
func TestDumpOf512(t *testing.T) {
	if testing.Short() {
		t.Skip("512 ranks")
	}
	const numRanks = 512
	missing := map[int]bool{17: true, 230: true, 231: true}
	dumps := make([]*flightlog.Dump, numRanks)
	var waiting, dumped sync.WaitGroup
	waiting.Add(numRanks)
	dumped.Add(numRanks)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		waiting.Wait()
		dumped.Wait()
		stop()
	}()
	err := Spawn(ctx, numRanks, func(ctx context.Context, g *Group) error {
		x := tensor.Zeros(1)
		for range 3 {
			if err := g.AllReduce(ctx, x, Sum); err != nil {
				return err
			}
		}
		var w *Work
		if !missing[g.Rank()] {
			w = g.AllReduceAsync(ctx, x, Sum)
		}
		waiting.Done()
		waiting.Wait()
		dumps[g.Rank()] = dumpOf(t, g)
		dumped.Done()
		if w == nil {
			<-ctx.Done()
			return nil
		}
		return w.Wait(context.Background())
	})
	if err == nil {
		t.Error("ranks that wait for others have ended well")
	}
	lines := flightlog.Merge(dumps).Lines()
	want := regexp.MustCompile(`^group "world": all_reduce 4 waits for ranks 17, 230-231 of 512, .*\(dist/record_test\.go:\d+ dist\.TestDumpOf512\.func2\)$`)
	if !want.MatchString(lines[0]) {
		t.Errorf("the report begins with %q, want %s", lines[0], want)
	}
	if want := "  rank 17: has not called it"; !strings.HasPrefix(lines[1], want) || !strings.Contains(lines[1], "its last was all_reduce 3, ended ") {
		t.Errorf("the second line is %q", lines[1])
	}
}

// TestDumpAtFailure: every rank of a group that fails writes its dump, once,
// into the directory that the environment names.
func TestDumpAtFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when needed")
	t.Setenv(string(envvar.RecorderDir), dir)
	err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
		x := tensor.Zeros(10)
		if err := g.AllReduce(ctx, x, Sum); err != nil {
			return err
		}
		if _, err := os.Stat(dir); err == nil {
			t.Error("there is a dump before anything has failed")
		}
		sub, err := g.NewGroup(ctx, []int{2, 0, 1}, WithName("sub"))
		if err != nil {
			return err
		}
		if g.Rank() == 1 {
			return errors.New("out of paper")
		}
		if err := sub.Broadcast(ctx, x, 2); err == nil {
			t.Error("a broadcast has done without its root")
		}
		var other *RankError
		if err := g.AllReduce(ctx, x, Sum); !errors.As(err, &other) || !strings.HasPrefix(other.Site, "dist/record_test.go:") {
			t.Errorf("rank %d gets %v, with the site %q", g.Rank(), err, other.Site)
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "out of paper") {
		t.Errorf("Spawn gave %v", err)
	}
	dumps, err := flightlog.Load(dir)
	if err != nil || len(dumps) != 3 {
		t.Fatalf("there are %d dumps, want 3: %v", len(dumps), err)
	}
	text := strings.Join(flightlog.Merge(dumps).Lines(), "\n")
	for _, want := range []string{
		`(?m)^group "sub": broadcast 2 waited for rank 1 of 3, .* \(dist/record_test\.go:\d+ `,
		`(?m)^  rank 1: has not called it; its last was new_group 1, ended .*; failed: out of paper$`,
		`(?m)^  told to rank.*: dist: broadcast 2 of group "sub" \(record_test\.go:\d+\): rank 2 .*failed: out of paper$`,
		`(?m)^group "world": all_reduce 2 waited for rank 1 of 3`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the report has no line %s:\n%s", want, text)
		}
	}
}

// TestDumpOnRequest asks ranks that wait for each other, as an agent does.
func TestDumpOnRequest(t *testing.T) {
	dir := t.TempDir()
	ps := startRanks(t, 3, "wait", envvar.RecorderDir.Assign(dir), envvar.Transport.Assign("tcp"))
	for r, p := range ps {
		select {
		case <-p.line:
		case <-time.After(20 * time.Second):
			t.Fatalf("rank %d is not ready: it is at:\n%s", r, p.stacks())
		}
		if err := p.agent.Send(agentpipe.Event{Kind: agentpipe.KindDump, Request: 7}); err != nil {
			t.Fatal(err)
		}
	}
	var dumps []*flightlog.Dump
	for deadline := time.Now().Add(10 * time.Second); len(dumps) < 3; time.Sleep(5 * time.Millisecond) {
		if dumps, _ = flightlog.Load(dir); time.Now().After(deadline) {
			t.Fatalf("%d of 3 ranks have answered", len(dumps))
		}
	}
	for _, d := range dumps {
		if d.Asked != 7 || d.Reason != "asked" || d.PID != ps[d.Rank].cmd.Process.Pid || d.Groups[0].Transport != "tcp" {
			t.Errorf("rank %d has answered request %d (%s) as process %d over %s", d.Rank, d.Asked, d.Reason, d.PID, d.Groups[0].Transport)
		}
	}
	line := flightlog.Merge(dumps).Lines()[0]
	// Ranks 0 and 1 may not have come to it at that moment, rank 2 never does.
	if want := regexp.MustCompile(`^group "world": all_reduce \d waits for .*2 of 3, .*process_test\.go:\d+ dist\.waitForever\)$`); !want.MatchString(line) &&
		!strings.Contains(line, "nobody waits") {
		t.Errorf("the report begins with %q, want %s", line, want)
	}
}

// TestDumpSignal: a process that asks for it writes its dump on a signal, until
// it closes the group.
func TestDumpSignal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(string(envvar.RecorderDir), dir)
	g, err := Init(t.Context(), WithRank(0, 1), WithDumpSignal(syscall.SIGUSR1))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if dumps, err := flightlog.Load(dir); err == nil && len(dumps) == 1 {
			if e := dumps[0].Entries; len(e) != 1 || e[0].Op != "barrier" || e[0].State != flightlog.Ended {
				t.Errorf("the dump has the calls %+v", e)
			}
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("no dump: %v", err)
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := g.NewGroup(t.Context(), []int{0}, WithDumpSignal(syscall.SIGUSR1)); err == nil {
		t.Error("a group of some ranks takes the option")
	}
	if _, err := Init(t.Context(), WithRank(0, 1), WithDumpSignal(nil)); err == nil {
		t.Error("no signal is taken for one")
	}
}

// TestDumpOfMessages: messages get the peer and the number that they turn out
// to have.
func TestDumpOfMessages(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		x := tensor.Zeros(3)
		if g.Rank() == 1 {
			return errors.Join(g.Send(ctx, x, 0), g.Send(ctx, x, 0), g.Send(ctx, x, 0))
		}
		if _, err := g.RecvAny(ctx, x); err != nil {
			return err
		}
		anyone, held := g.RecvAnyAsync(ctx, x), g.RecvAsync(ctx, tensor.Zeros(3), 1)
		if err := errors.Join(anyone.Wait(ctx), held.Wait(ctx)); err != nil {
			return err
		}
		d := dumpOf(t, g)
		if len(d.Entries) != 3 {
			t.Fatalf("%d calls are remembered, want 3", len(d.Entries))
		}
		for i, e := range d.Entries {
			if e.Op != "recv" || e.Peer == nil || *e.Peer != 1 || e.Seq != uint64(i+1) || e.State != flightlog.Ended || e.Count != 3 ||
				!strings.HasPrefix(d.Sites[e.Site], "dist/record_test.go:") {
				t.Errorf("receive %d is %+v, from %q", i, e, d.Sites[e.Site])
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
