// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/train"
)

// TestCkptProve: a run proves its checkpoints in processes beside it; the command proves them
// again, and names what was lost.
func TestCkptProve(t *testing.T) {
	dir := t.TempDir()
	text, out := filepath.Join(dir, "notes.txt"), filepath.Join(dir, "run")
	var notes strings.Builder
	for i := range 3000 {
		notes.WriteString(strings.Repeat("note "+string(rune('a'+i%26)), 1+i%3) + "\n")
	}
	if err := os.WriteFile(text, []byte(notes.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), os.Args[0], strings.Fields("train lm --prove --ranks 2 --steps 6 --save-every 2 --batch 2 --vocab 300 --context 16 --width 24 --heads 2 --layers 1 --eval-tokens 64 --sample-tokens 2 --data "+text+" --out "+out)...)
	run.Env = append(os.Environ(), cliMain+"=1")
	if printed, err := run.CombinedOutput(); err != nil || !strings.Contains(string(printed), "the checkpoint of step 4 is proved in ") {
		t.Errorf("the run does not say that the checkpoint of step 4 is proved (%v):\n%s", err, printed)
	}
	saved := filepath.Join(out, "step-00000004")
	code, stdout, stderr := cohort("ckpt", "prove", saved)
	if code != 0 || !strings.HasPrefix(stdout, "step 5, done again from the checkpoint of step 4: ") || stderr != "" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}

	// The proof of a run whose loss was another.
	file := filepath.Join(saved, "proof.json")
	proof, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(proof), `"loss": `) + len(`"loss": `)
	if err := os.WriteFile(file, slices.Concat(proof[:at], []byte("1"), proof[at:]), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = cohort("ckpt", "prove", "--json", "--replicate", "1", saved)
	var c train.Comparison
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || code != exitDiffers || c.Exact || len(c.Differences) != 1 || c.Differences[0].Kind != "loss" {
		t.Errorf("exit code %d, %q (%v)", code, stdout, err)
	}
	if !strings.HasPrefix(stderr, "cohort: the checkpoint of step 4 does not continue its run: loss: ") {
		t.Errorf("%q", stderr)
	}
	if code, _, stderr = cohort("ckpt", "prove", filepath.Join(out, "step-00000006")); code != exitFailed || !strings.Contains(stderr, "step-00000006 has no proof") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
