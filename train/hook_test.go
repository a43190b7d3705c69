// SPDX-License-Identifier: Apache-2.0

package train

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
)

// TestHook: a run with a hook learns as one without it, and says that it has one.
func TestHook(t *testing.T) {
	c := layered(t, writeText(t, 40_000))
	c.Batch, c.Steps, c.Warmup, c.LRFloor = 24, 8, 0, 1
	plain := replicas(t, c, 2, false)
	plain.Out += "-plain"
	ddp, err := run(t, 2, plain)
	if err != nil {
		t.Fatal(err)
	}
	for hook, name := range map[string]string{"bf16": "bf16", "powersgd:2": "powersgd: {Rank:2"} {
		d := replicas(t, c, 2, false)
		d.Out, d.Hook = c.Out+"-"+strings.ReplaceAll(hook, ":", "-"), hook
		l, err := run(t, 2, d)
		if err != nil {
			t.Fatalf("%s: %v", hook, err)
		}
		if !strings.HasPrefix(l.start.Strategy, "DDP over 2 ranks, hook "+name) {
			t.Errorf("the run is spread as %q", l.start.Strategy)
		}
		last := c.Steps
		if off := math.Abs(l.losses[last] - ddp.losses[last]); !(off < 0.02) || hook == "bf16" && off == 0 {
			t.Errorf("%s: the loss of step %d is %v, without the hook %v", hook, last, l.losses[last], ddp.losses[last])
		}
	}
}

// TestHookRefuses: settings that no hook can follow are refused by name.
func TestHookRefuses(t *testing.T) {
	c := layered(t, writeText(t, 40_000))
	for _, name := range []string{"fsdp2", "tp2", "pp2"} {
		d, ranks := onMesh(t, c, name)
		d.Hook = "bf16"
		if _, err := run(t, ranks, d); err == nil || !strings.Contains(err.Error(), "--hook bf16 averages the gradients of replicas of the whole model, and --"+name[:len(name)-1]+" is 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	joined := replicas(t, c, 2, false)
	joined.Join = true
	if _, err := run(t, 2, joined); err == nil || !strings.Contains(err.Error(), "--join is for ranks whose data end at different steps") {
		t.Errorf("--join: %v", err)
	}
	for _, hook := range []string{"bf17", "powersgd", "powersgd:0", "powersgd:x", "powersgd:4:", "powersgd:4:0", "powersgd:4:x"} {
		d := replicas(t, c, 2, false)
		d.Hook = hook
		if _, err := run(t, 2, d); err == nil || !strings.Contains(err.Error(), "want bf16, fp16 or powersgd:RANK") {
			t.Errorf("%s: %v", hook, err)
		}
	}
}

// TestHookResumes: a run with PowerSGD that is stopped and goes on has the losses and the weights of one
// that was not stopped, bit for bit. On another number of ranks, or with another hook, it says
// that the hook begins anew.
func TestHookResumes(t *testing.T) {
	c := layered(t, writeText(t, 40_000))
	c.Batch, c.Steps, c.Warmup, c.LRFloor, c.SaveEvery, c.EvalEvery = 12, 20, 0, 1, 10, 0
	with := func(out, hook string, ranks, steps int) *log {
		t.Helper()
		d := replicas(t, c, ranks, false)
		d.Out, d.Hook, d.Steps = c.Out+out, hook, steps
		l, err := run(t, ranks, d, "steps", "hook")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	const hook = "powersgd:1:5"
	straight := with("-straight", hook, 2, 20)
	with("-stopped", hook, 2, 10)
	resumed := with("-stopped", hook, 2, 20)
	for step := 11; step <= 20; step++ {
		if a, b := straight.losses[step], resumed.losses[step]; a != b || a == 0 {
			t.Errorf("step %d has the loss %v, and %v in a run that was stopped", step, a, b)
		}
	}
	if modelFile(t, c.Out+"-straight", 20) != modelFile(t, c.Out+"-stopped", 20) {
		t.Error("the weights are not those of a run that was not stopped")
	}
	const anew = "begins anew, with whole gradients first: the checkpoint of step "
	if said := strings.Join(resumed.notices, "\n"); strings.Contains(said, anew) {
		t.Errorf("it says %q", said)
	}
	for i, other := range []struct {
		hook  string
		ranks int
		says  string
	}{
		{hook, 3, "20 has what 2 ranks have not sent yet, and this run has 3"},
		{"powersgd:2:5", 3, "21 has the state of another hook"},
		{"bf16", 3, ""},
		{hook, 2, "23 has no state of the hook"},
	} {
		l := with("-stopped", other.hook, other.ranks, 21+i)
		said := strings.Join(l.notices, "\n")
		if n := strings.Count(said, anew+other.says); other.says != "" && n != 1 || other.says == "" && strings.Contains(said, anew) {
			t.Errorf("%+v: it says %q", other, said)
		}
	}
}

// TestHookOfOlderCheckpoint: the newest checkpoint is damaged in a way that only its reader sees, and
// the one before it is of another hook, or of none. The run goes on from that one, and says that its
// hook begins anew.
func TestHookOfOlderCheckpoint(t *testing.T) {
	c := layered(t, writeText(t, 40_000))
	c.Batch, c.Warmup, c.LRFloor, c.SaveEvery, c.EvalEvery, c.Keep = 12, 0, 1, 2, 0, 4
	for _, before := range []string{"powersgd:2:1", ""} {
		var l *log
		for i, hook := range []string{before, "powersgd:1:1", "powersgd:1:1"} {
			d := replicas(t, c, 2, false)
			d.Out, d.Hook, d.Steps = c.Out+"-older"+strings.ReplaceAll(before, ":", "-"), hook, 2*(i+1)
			if i == 2 {
				damageLast(t, checkpoint.Path(d.Out, 4))
			}
			var err error
			if l, err = run(t, 2, d, "steps", "hook"); err != nil {
				t.Fatalf("after %q: %v", before, err)
			}
		}
		said := strings.Join(l.notices, "\n")
		if n := strings.Count(said, "begins anew, with whole gradients first: the checkpoint of step 2 is older"); n != 1 || l.start.FirstStep != 2 {
			t.Errorf("after %q: it goes on from step %d and says %q", before, l.start.FirstStep, said)
		}
	}
}

// damageLast changes the last byte of the weights of a checkpoint.
func damageLast(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "model*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, files, err)
	}
	path := files[len(files)-1]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}
