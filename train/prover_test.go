// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/train/proof"
)

// TestProveBeside: a run proves its checkpoints while it goes on, and tells of each. The last
// checkpoint has no next step.
func TestProveBeside(t *testing.T) {
	c := tiny(t, writeText(t, 40_000))
	c.Ranks, c.Steps, c.SaveEvery, c.Keep, c.Prove = 2, 10, 2, 9, true
	c.Prover = func(ctx context.Context, step int) (*Comparison, error) {
		return Prove(ctx, storage.Dir(checkpoint.Path(c.Out, step)), ProveOptions{})
	}
	l, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	proved := 0
	for _, n := range l.notices {
		switch {
		case strings.Contains(n, "is proved in") && strings.HasSuffix(n, "tensors compared, all bits are equal"):
			proved++
		case strings.Contains(n, "proved"):
			t.Error(n)
		}
	}
	if last := "the checkpoint of step 8 is proved"; proved == 0 || !strings.Contains(strings.Join(l.notices, "\n"), last) {
		t.Errorf("%d checkpoints are proved, want that of step 8 among them: %q", proved, l.notices)
	}
}

// TestUnproved: a difference is a warning, or ends the run on all ranks.
func TestUnproved(t *testing.T) {
	text := writeText(t, 40_000)
	for _, unproved := range []string{unprovedWarn, unprovedStop} {
		c := tiny(t, text)
		c.Ranks, c.Steps, c.SaveEvery, c.Prove, c.Unproved = 2, 8, 2, true, unproved
		c.Prover = func(context.Context, int) (*Comparison, error) {
			return &Comparison{Step: 2, Differences: []proof.Difference{{Kind: proof.LoadedOptimizer, Name: "exp_avg.w", Was: "norm 1", Is: "norm 0"}}}, nil
		}
		l, err := run(t, 2, c)
		const want = "the checkpoint of step 2 does not continue its run: loaded optimizer state exp_avg.w: norm 0, was norm 1"
		switch told := strings.Contains(strings.Join(l.notices, "\n"), "WARNING: "+want); {
		case unproved == unprovedWarn && (err != nil || !told):
			t.Errorf("%v, and the notices are %q", err, l.notices)
		case unproved == unprovedStop && (!errors.As(err, new(*proof.DifferenceError)) || !strings.Contains(err.Error(), want)):
			t.Errorf("the run ended with %v", err)
		}
	}
}

// TestProvers: one proof is under way at a time, the newest checkpoint waits for it, and what
// cannot be proved is told.
func TestProvers(t *testing.T) {
	var steps []int
	var notices []string
	started, end := make(chan int), make(chan error)
	p := &provers{
		prove: func(_ context.Context, step int) (*Comparison, error) {
			started <- step
			return &Comparison{Exact: true}, <-end
		},
		notice: func(text string) { notices = append(notices, text) },
	}
	p.begin(t.Context(), 1)
	steps = append(steps, <-started)
	p.begin(t.Context(), 2)
	p.begin(t.Context(), 3)
	if err := p.poll(t.Context()); err != nil || len(notices) > 0 {
		t.Fatal(err, notices)
	}
	go func() {
		end <- errors.New("no memory")
		steps = append(steps, <-started)
		end <- nil
	}()
	if err := p.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.close()
	if !slices.Equal(steps, []int{1, 3}) || len(notices) != 2 || notices[0] != "the checkpoint of step 1 could not be proved: no memory" ||
		!strings.HasPrefix(notices[1], "the checkpoint of step 3 is proved in ") {
		t.Errorf("proved %v, told %q", steps, notices)
	}
	(&provers{}).begin(t.Context(), 1) // nothing proves
}

// TestProofWriter: a proof is written once its checkpoint is complete, and not beside one that
// never comes.
func TestProofWriter(t *testing.T) {
	dir := t.TempDir()
	to, text := storage.Dir(dir), []byte("proof")
	var w proofWriter
	w.begin(t.Context(), to, 2, text)
	if _, ended, err := w.poll(); ended {
		t.Fatalf("ended without a checkpoint (%v)", err)
	}
	if err := storage.WriteFile(t.Context(), to, "step-00000002/"+storage.ManifestName, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if step, ended, err := w.end(); step != 2 || !ended || err != nil {
		t.Fatalf("step %d, ended %v, %v", step, ended, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "step-00000002", proof.FileName)); err != nil || string(got) != "proof" {
		t.Errorf("%q, %v", got, err)
	}
	w.begin(t.Context(), to, 4, text)
	if _, ended, err := w.end(); !ended || !errors.Is(err, checkpoint.ErrNone) {
		t.Errorf("of a checkpoint that does not come: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "step-00000004")); err == nil {
		t.Error("a folder was made for it")
	}
	if _, ended, _ := w.end(); ended {
		t.Error("it ends twice")
	}
}
