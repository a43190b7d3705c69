// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

var slowHook = flag.Int("slow-hook", 0, "steps of DDP over a link of 100 Mbit/s with each hook (TestHookOverSlowLink; root); 0: none")

// shape gives every machine a link of some Mbit/s each way.
func (m *machines) shape(megabits int) {
	m.t.Helper()
	for i, name := range m.names {
		for _, end := range [][]string{{name, "eth0"}, {m.hub, fmt.Sprintf("port%d", i)}} {
			if out, err := exec.Command("tc", "-n", end[0], "qdisc", "add", "dev", end[1], "root", "tbf",
				"rate", fmt.Sprintf("%dmbit", megabits), "burst", "32k", "latency", "400ms").CombinedOutput(); err != nil {
				m.t.Skipf("links cannot be shaped here: %v: %s", err, out)
			}
		}
	}
}

// TestHookOverSlowLink trains with DDP on two machines that a link of 100 Mbit/s joins. BF16Hook
// sends half the bytes, and a step is faster by what the bytes say.
func TestHookOverSlowLink(t *testing.T) {
	if *slowHook == 0 {
		t.Skip("half a minute long: give -slow-hook 20")
	}
	const megabits = 100
	m := newMachines(t, 2)
	m.shape(megabits)
	token := transport.NewToken().Text()
	agents := make([]*job, 2)
	for i, name := range m.names {
		m.in(name, func() {
			agents[i] = start(t, []string{envvar.Token.Assign(token), envvar.NumThreads.Assign("1")},
				"run", "--nnodes", "2", "--rdzv-id", "hook", "--rdzv-backend", "c10d", "--rdzv-endpoint", m.addr(0)+":29400",
				os.Args[0], hookRank, fmt.Sprint(*slowHook))
		})
	}
	var costs []hookCost
	for i, j := range agents {
		code := j.waitFor(t, 4*time.Minute)
		stdout, stderr := j.output()
		if code != 0 {
			t.Fatalf("machine %d: code %d\n%s", i, code, stderr)
		}
		for line := range strings.Lines(stdout) {
			_, text, ok := strings.Cut(line, "{")
			var c hookCost
			if ok && json.NewDecoder(bytes.NewBufferString("{"+text)).Decode(&c) == nil {
				costs = append(costs, c)
			}
		}
	}
	if len(costs) != 2 {
		t.Fatalf("%d results, want 2: %+v", len(costs), costs)
	}
	predicted := func(c hookCost) time.Duration {
		return time.Duration(8 * c.WireBytes / (megabits * 1e6) * float64(time.Second))
	}
	for _, c := range costs {
		t.Logf("hook %-4s: %.0f bytes sent, %.0f bytes on the wire, step %v; the wire alone needs %v, the pass alone %v",
			c.Hook, c.SentBytes, c.WireBytes, c.Step.Round(100*time.Microsecond), predicted(c).Round(100*time.Microsecond), c.Alone.Round(100*time.Microsecond))
	}
	none, bf16 := costs[0], costs[1]
	share := bf16.SentBytes / none.SentBytes
	took, want := float64(bf16.Step)/float64(none.Step), float64(predicted(bf16))/float64(predicted(none))
	t.Logf("bf16 against none: bytes %.3f, on the wire %.3f; step %.3f, and the wire says %.3f", share, bf16.WireBytes/none.WireBytes, took, want)
	if share < 0.499 || share > 0.501 {
		t.Errorf("the hook sends %.4f of the bytes, want half", share)
	}
	if took > 1.1*want {
		t.Errorf("a step with the hook takes %.3f of one without it, and the bytes say %.3f", took, want)
	}
	for _, c := range costs {
		if c.Step < predicted(c)*95/100 {
			t.Errorf("hook %s: a step takes %v, and the link needs %v: the link is not slow", c.Hook, c.Step, predicted(c))
		}
	}
}
