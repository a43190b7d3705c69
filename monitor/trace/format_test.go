// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	ops "github.com/cohort-ml/cohort/internal/trace"
	"github.com/cohort-ml/cohort/monitor/trace/tracetest"
)

// twoParts are ranks of two hosts: rank 1 came last to the first collective, rank 0 to the second one. The
// clock of rank 1 is 90 s ahead.
func twoParts() []part {
	ms := time.Millisecond
	span := func(from, to int) event.Span {
		return event.Span{Called: time.Duration(from) * ms, Begun: time.Duration(from) * ms, Ended: time.Duration(to) * ms}
	}
	sum := func(seq uint64, from, to int) call {
		return call{Name: "all_reduce", Group: "world", Key: 7, Seq: seq, Peer: -1, Bytes: 64, Span: span(from, to)}
	}
	return []part{{
		Rank: 0, Host: "a", Start: 1e18, FLOPs: 1e9, Bytes: 1e9, Steps: []stepSpan{{3, 0, 40 * ms}}, Phases: []phase{{"forward", 0, 10 * ms}},
		Modules: []ops.Module{{Path: "", Begun: 0, Ended: 10 * ms}, {Path: "head", Begun: 2 * ms, Ended: 9 * ms}},
		Ops:     []ops.Op{{Name: "matmul", Module: "head", Begun: 3 * ms, Ended: 7 * ms, FLOPs: 2e6, Bytes: 1e6}},
		Memory:  []ops.Memory{{At: 7 * ms, Bytes: 100}}, Calls: []call{sum(1, 10, 21), sum(2, 30, 31), {Name: "send", Key: 7, Seq: 1, Peer: 1, Span: span(12, 40)}},
	}, {
		Rank: 1, Host: "b", Start: 1e18 + 90e9, Offset: -90e9, FLOPs: 1e9, Bytes: 1e9, Steps: []stepSpan{{3, 0, 40 * ms}},
		Ops:   []ops.Op{{Name: "matmul", Module: "head", Begun: 3 * ms, Ended: 9 * ms, FLOPs: 2e6, Bytes: 1e6}},
		Calls: []call{sum(1, 20, 21), sum(2, 25, 32)},
	}}
}

// TestChromeFormat: the file keeps the rules of the format, and has what the parts have; arrows go from
// the rank that came last.
func TestChromeFormat(t *testing.T) {
	var b bytes.Buffer
	if err := writeChrome(&b, twoParts()); err != nil {
		t.Fatal(err)
	}
	events, err := tracetest.Check(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var arrows []string
	slices := map[string]int{}
	for _, e := range events {
		switch e.Phase {
		case "s":
			arrows = append(arrows, fmt.Sprintf("%d at %v", e.PID, e.TS))
		case "X":
			slices[e.Name]++
		}
	}
	if got, want := strings.Join(arrows, ", "), "1 at 20000, 0 at 30000"; got != want {
		t.Errorf("arrows begin at %s, want %s", got, want)
	}
	for name, n := range map[string]int{"all_reduce": 4, "send": 1, "matmul": 2, "head": 1, "model": 1, "forward": 1, "step 3": 2} {
		if slices[name] != n {
			t.Errorf("%d slices %q, want %d", slices[name], name, n)
		}
	}
}

// TestCosts: both ranks' products took 10 ms of 80 ms, and 2 ms each at best.
func TestCosts(t *testing.T) {
	tr := &Trace{Costs: costsOf(twoParts())}
	want := Cost{Module: "head", Op: "matmul", Calls: 2, Seconds: 0.01, Share: 0.125, FLOPs: 4e6, Bytes: 2e6, Roofline: 0.4}
	if len(tr.Costs) != 1 || tr.Costs[0] != want {
		t.Errorf("got %+v, want %+v", tr.Costs, want)
	}
	if text := tr.Table(5); !strings.HasSuffix(text, "12.5 %       10ms        2          0.4        0.2      40 %  matmul of head") {
		t.Errorf("the table is\n%s", text)
	}
}

// TestClocks: a rank whose clock is 90 s behind is told so, to the time that a message takes, and one with
// the same clock is left.
func TestClocks(t *testing.T) {
	defer func(was func(int) int64) { now = was }(now)
	clock := now
	now = func(rank int) int64 { return clock(rank) - []int64{0, 90e9, 0}[rank] }
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		if g.Rank() > 0 {
			return answer(ctx, g)
		}
		begin := time.Now()
		one, err := compare(ctx, g, 1)
		two, failed := compare(ctx, g, 2)
		if slack := time.Since(begin); (one-90*time.Second).Abs() > slack || two != 0 {
			t.Errorf("offsets %v and %v, want 90s within %v, and 0", one, two, slack)
		}
		return errors.Join(err, failed)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestParseSteps(t *testing.T) {
	for text, want := range map[string][2]int{"100-105": {100, 105}, "7": {7, 7}} {
		if from, to, err := ParseSteps(text); err != nil || from != want[0] || to != want[1] {
			t.Errorf("%q: %d, %d, %v", text, from, to, err)
		}
	}
	for _, text := range []string{"", "0-3", "5-4", "a", "1-", "-3", "1-1001", "1-2-3"} {
		if _, _, err := ParseSteps(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestUnwritten: a directory that is not there is an error of its own kind, with which ranks can go on.
func TestUnwritten(t *testing.T) {
	p := New(nil, Options{From: 1, To: 1, Dir: filepath.Join(t.TempDir(), "none")})
	_, err := p.write(twoParts())
	if unwritten := (*WriteError)(nil); !errors.As(err, &unwritten) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
