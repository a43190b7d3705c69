// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// saveAlone has ranks of a job write their parts of a tensor that is cut along dim 0.
func saveAlone(t *testing.T, run string, step, size int, ranks ...int) {
	t.Helper()
	err := dist.Spawn(t.Context(), size, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp", Size: size})
		if err != nil {
			return err
		}
		defer m.Close()
		part, err := mesh.Cut(tensor.Full(1, 2*size, 3), m, mesh.Shard(0))
		if err != nil || !slices.Contains(ranks, g.Rank()) {
			return err
		}
		return checkpoint.SavePart(ctx, g.Rank(), size, storage.Dir(run), step, checkpoint.State{
			Sections: map[string][]checkpoint.Part{checkpoint.Model: {{Name: "w", Tensor: part}}},
			Values:   map[string]any{"seen": 5},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCkptParts: what ranks have saved alone is listed with the ranks that are missing, and merge
// makes a checkpoint of it once all tensors are there.
func TestCkptParts(t *testing.T) {
	dir := t.TempDir()
	run, old := filepath.Join(dir, "run"), filepath.Join(dir, "old")
	writeWeights(t, old, layered(1), func(string, int) float32 { return 1 })
	must(t, "convert", old, run, "--to", "cohort", "--step", "3")
	if _, errs, code := ckpt("merge", run); code != exitFailed || !strings.Contains(errs, "has no parts that ranks have saved alone") {
		t.Errorf("merge without parts: exit code %d, %s", code, errs)
	}
	saveAlone(t, run, 5, 3, 0, 2)
	list := func() []ckptListed {
		t.Helper()
		var list []ckptListed
		if err := json.Unmarshal([]byte(must(t, "ls", "--json", run)), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	if l := list(); len(l) != 2 || *l[0].Step != 5 || l[0].State != "parts" || l[0].Whole || !slices.Equal(l[0].Missing, []int{1}) || l[0].Ranks != 3 || l[1].State != "good" {
		t.Errorf("ls --json has %+v", l)
	}
	if out := must(t, "ls", run); !strings.Contains(out, "fsdp 3") || !sameWords(strings.ReplaceAll(out[strings.Index(out, ".tmp-"):], "\n", " "),
		`.tmp-emergency: not whole: the tensor "w" of model is of 72 bytes, and its boxes have 48; nothing is there of rank 1 `) {
		t.Errorf("ls prints\n%s", out)
	}
	if _, errs, code := ckpt("merge", run); code != exitFailed || !strings.Contains(errs, "cannot be completed: ") || !strings.Contains(errs, "nothing is there of rank 1") {
		t.Errorf("merge of 2 parts of 3: exit code %d, %s", code, errs)
	}
	stage := filepath.Join(run, "step-00000005.tmp-emergency")
	for _, args := range [][]string{{"show", stage}, {"verify", stage}, {"convert", stage, filepath.Join(dir, "x"), "--to", "torch"}} {
		if _, errs, code := ckpt(args...); code != exitFailed || !strings.Contains(errs, "no checkpoint: give the run") {
			t.Errorf("%s: exit code %d, %s", args, code, errs)
		}
	}
	saveAlone(t, run, 5, 3, 1)
	if l := list(); len(l) != 2 || !l[0].Whole || len(l[0].Missing) != 0 || !strings.Contains(l[0].Problem, "cohort ckpt merge") {
		t.Errorf("ls --json has %+v", l)
	}
	if out := must(t, "merge", run); !strings.Contains(out, "made step-00000005 of the parts") {
		t.Errorf("merge prints %s", out)
	}
	if _, err := os.Stat(stage); !os.IsNotExist(err) {
		t.Errorf("the parts are still there: %v", err)
	}
	if l := list(); len(l) != 2 || l[0].State != "good" || *l[0].Step != 5 {
		t.Errorf("ls --json has %+v", l)
	}
	must(t, "verify", run)
	if _, errs, code := ckpt("merge", run, "--max-shard", "1MB"); code != exitUsage || !strings.Contains(errs, "--max-shard") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if _, _, code := ckpt("merge"); code != exitUsage {
		t.Errorf("merge without arguments: exit code %d", code)
	}
}
