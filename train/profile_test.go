// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/monitor/trace"
	"github.com/cohort-ml/cohort/monitor/trace/tracetest"
)

// TestProfile: a run of two replicas writes one trace of both, by the rules of the format, with modules,
// operations, phases, collectives and their arrows. Products of the backward pass are twice those of the
// forward pass, and the table of costs is told.
func TestProfile(t *testing.T) {
	t.Setenv(string(envvar.Cache), t.TempDir())
	c, ranks := onMesh(t, layered(t, writeText(t, 40_000)), "replicate2")
	c.Out, c.Steps, c.EvalEvery, c.SaveEvery, c.Profile = filepath.Join(t.TempDir(), "out"), 4, 0, 0, "2-3"
	l := newLog()
	if err := runWith(t, ranks, c, l); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(c.Out, "profile-2-3.json"))
	if err != nil {
		t.Fatal(err)
	}
	events, err := tracetest.Check(text)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, e := range events {
		seen[e.Phase+" "+e.Name]++
		if module, _ := e.Args["module"].(string); e.Phase == "X" && module != "" {
			seen["op of "+module]++
		}
	}
	for _, want := range []string{"X step 2", "X step 3", "X forward", "X backward", "X matmul", "X attention", "X all_reduce", "X transformer.h.0.mlp", "op of transformer.h.3.attn.attention", "C memory", "s all_reduce", "f all_reduce"} {
		if n := seen[want]; n < ranks && !strings.HasPrefix(want, "s ") && !strings.HasPrefix(want, "f ") || n == 0 {
			t.Errorf("the trace has %q %d times", want, n)
		}
	}
	if t.Failed() {
		t.Log(seen)
	}
	var costs struct{ Costs []trace.Cost }
	if text, err = os.ReadFile(filepath.Join(c.Out, "profile-2-3.costs.json")); err == nil {
		err = json.Unmarshal(text, &costs)
	}
	if err != nil {
		t.Fatal(err)
	}
	var ways [2]int64
	for _, cost := range costs.Costs {
		if cost.Op == "matmul" {
			way := 0
			if cost.Backward {
				way = 1
			}
			ways[way] += cost.FLOPs
		}
	}
	if ways[0] <= 0 || ways[1] != 2*ways[0] {
		t.Errorf("%d operations forward and %d backward, want twice as many", ways[0], ways[1])
	}
	if !slices.ContainsFunc(l.notices, func(s string) bool {
		return strings.Contains(s, "profile-2-3.json has the trace") && strings.Contains(s, "matmul of ")
	}) {
		t.Errorf("told: %q", l.notices)
	}
	c.Profile = "3-2"
	if err := runWith(t, ranks, c, newLog()); err == nil || !strings.Contains(err.Error(), "--profile") {
		t.Errorf("steps 3-2 are taken: %v", err)
	}
}
