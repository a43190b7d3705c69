// SPDX-License-Identifier: Apache-2.0

package torchstate

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/internal/torchtest"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/train"
)

// imports are what the tests need of PyTorch.
const imports = "import safetensors, torch.distributed.checkpoint.state_dict; from torch.distributed.checkpoint import HuggingFaceStorageReader; from torch.distributed.fsdp import fully_shard"

// nextLosses are what PyTorch's job of dcp/testdata/mlp.tar.gz had next: mlp.py printed them.
var nextLosses = []float64{0.08547745645046234, 0.08042135089635849, 0.08623076230287552}

// unpack puts the checkpoint of that job into a directory, and returns where it lies.
func unpack(t *testing.T) string {
	t.Helper()
	f, err := os.Open("../dcp/testdata/mlp.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir, r := t.TempDir(), tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(r)
		}
		name, isPart := strings.CutPrefix(h.Name, "mlp/")
		if err == nil && isPart {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shard spreads the job over the ranks of a group. The optimizer is made again, of the shards.
func (j *job) shard(ctx context.Context, g *dist.Group) error {
	m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp"})
	if err != nil {
		return err
	}
	if j.spread, err = parallel.FullyShard(ctx, j.model, m); err != nil {
		return err
	}
	j.optimize()
	return nil
}

// A job of PyTorch on 4 ranks goes on as a job of Cohort on 2 and 3 ranks, each of which reads its
// part alone. Their checkpoint, written as one of PyTorch in the ranks' boxes, goes on again. No
// PyTorch is needed: its losses are those of the script.
func TestRanksGoOn(t *testing.T) {
	at := unpack(t)
	for _, n := range []int{2, 3} {
		dir := t.TempDir()
		err := dist.Spawn(t.Context(), n, func(ctx context.Context, g *dist.Group) error {
			c, err := dcp.Open(ctx, storage.Dir(at), "")
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := FromDCP(c)
			if err != nil {
				return err
			}
			j := newJob()
			if err := j.shard(ctx, g); err != nil {
				return err
			}
			model, opt := train.ModelParts(j.spread), train.OptimizerParts(j.spread, j.opt)
			if err := errors.Join(checkpoint.LoadParts(s.Model, model), checkpoint.LoadParts(s.Optimizer, opt)); err != nil {
				return err
			}
			state := checkpoint.State{
				Sections: map[string][]checkpoint.Part{checkpoint.Model: model, checkpoint.Optimizer: opt},
				Values:   map[string]any{"param_groups": optim.ParamGroups(j.opt)},
			}
			if err := checkpoint.Save(ctx, g, storage.Dir(dir), 3, state); err != nil {
				return err
			}
			got, err := j.train(ctx, 3, 6)
			if err != nil {
				return err
			}
			return isNear(got, nextLosses)
		})
		if err != nil {
			t.Fatalf("%d ranks: %v", n, err)
		}
		again := t.TempDir()
		boxes := export(t, dir, again)
		if boxes < 2 {
			t.Errorf("%d ranks: a weight has %d boxes", n, boxes)
		}
		j := newJob()
		s := fromDCP(t, again)
		j.load(t, s)
		checkGroups(t, s.Groups, optim.ParamGroups(j.opt))
		if err := isNear(j.losses(t, 3, 6), nextLosses); err != nil {
			t.Errorf("%d ranks, written for PyTorch: %v", n, err)
		}
	}
}

// export writes the checkpoint of a run as one of PyTorch, and returns how many boxes its first
// weight has.
func export(t *testing.T, run, to string) int {
	t.Helper()
	ck, err := checkpoint.Open(t.Context(), storage.Dir(run), "")
	if err != nil {
		t.Fatal(err)
	}
	model, err := ck.Source(checkpoint.Model)
	if err != nil {
		t.Fatal(err)
	}
	opt, err := ck.Source(checkpoint.Optimizer)
	if err != nil {
		t.Fatal(err)
	}
	var groups []optim.ParamGroup
	if err := ck.Value("param_groups", &groups); err != nil {
		t.Fatal(err)
	}
	items, err := Items(model, opt, groups)
	if err != nil {
		t.Fatal(err)
	}
	if err := dcp.Write(t.Context(), storage.Dir(to), "", items); err != nil {
		t.Fatal(err)
	}
	return len(model.Boxes("0.weight"))
}

func isNear(got, want []float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d losses, want %d", len(got), len(want))
	}
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-5*math.Abs(want[i]) {
			return fmt.Errorf("the losses are %v, PyTorch's %v", got, want)
		}
	}
	return nil
}

// PyTorch's reader of Hugging Face's files opens a checkpoint of Cohort as it is, whatever ranks
// have saved it.
func TestPyTorchReadsCohort(t *testing.T) {
	python := torchtest.Python(t, os.Getenv("COHORT_TEST_PYTHONS"), imports)
	dir := t.TempDir()
	for _, n := range []int{1, 3} {
		run := filepath.Join(dir, fmt.Sprint("ranks-", n))
		err := dist.Spawn(t.Context(), n, func(ctx context.Context, g *dist.Group) error {
			j := newJob()
			if err := j.shard(ctx, g); err != nil {
				return err
			}
			if _, err := j.train(ctx, 0, 2); err != nil {
				return err
			}
			return checkpoint.Save(ctx, g, storage.Dir(run), 2, checkpoint.State{Sections: map[string][]checkpoint.Part{
				checkpoint.Model: train.ModelParts(j.spread), checkpoint.Optimizer: train.OptimizerParts(j.spread, j.opt),
			}})
		})
		if err != nil {
			t.Fatal(err)
		}
		ck, err := checkpoint.Open(t.Context(), storage.Dir(run), "")
		if err != nil {
			t.Fatal(err)
		}
		tensors := &pickle.Dict{}
		for _, section := range []string{checkpoint.Model, checkpoint.Optimizer} {
			src, err := ck.Source(section)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			tensors.Entries = append(tensors.Entries, torchsave.FromSource(src).Entries...)
		}
		file := filepath.Join(dir, "whole.pt")
		if err := torchsave.Save(file, tensors); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(torchtest.Run(t, python, "huggingface.py", filepath.Join(run, checkpoint.StepName(2)), file)); got != "24" {
			t.Errorf("%d ranks: PyTorch has compared %s tensors, want 24", n, got)
		}
	}
}
