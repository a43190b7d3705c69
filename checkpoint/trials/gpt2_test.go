// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/internal/torchtest"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchstate"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// gpt2 is the model of gpt2.py and its optimizer.
type gpt2 struct {
	model *models.GPT
	opt   *optim.AdamW
}

func newGPT2() *gpt2 {
	m := models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(7)}, models.GPTConfig{Vocab: 61, Context: 8, Width: 24, Heads: 2, Layers: 2, Tanh: true})
	return &gpt2{m, optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 0.01, Beta1: 0.9, Beta2: 0.95, WeightDecay: 0.1})}
}

// losses trains on the tokens of gpt2.py, and returns the loss of each step.
func (g *gpt2) losses(t *testing.T, from, to int) (losses []float64) {
	t.Helper()
	const rows, time, vocab = 4, 8, 61
	for n := from; n < to; n++ {
		var inputs, targets []int64
		for i := range rows * (time + 1) {
			id := int64(uint64(i+1+1000*n) * 2654435761 % (1 << 32) >> 8 % vocab)
			if i%(time+1) < time {
				inputs = append(inputs, id)
			}
			if i%(time+1) > 0 {
				targets = append(targets, id)
			}
		}
		c := nn.Training(t.Context())
		g.opt.ZeroGrad()
		loss := tensor.CrossEntropy(c.Call(g.model, tensor.FromInt64(inputs, rows, time)), tensor.FromInt64(targets, rows, time))
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss.Item())
		g.opt.Step(nil)
		c.Close()
	}
	return losses
}

// TestGPT2GoesOn: a Cohort job goes on from an FSDP2 job of PyTorch with a GPT-2 of transformers, and
// that job from a checkpoint of Cohort: the optimizer too, with the same next losses.
func TestGPT2GoesOn(t *testing.T) {
	python := torchtest.Python(t, os.Getenv("COHORT_TEST_PYTHONS"),
		"import transformers, torch.distributed.checkpoint.state_dict; from torch.distributed.fsdp import fully_shard")
	torch := func(command string) (losses []float64) {
		if err := json.Unmarshal([]byte(torchtest.Run(t, python, "gpt2.py", command)), &losses); err != nil {
			t.Fatal(err)
		}
		return losses
	}
	near := func(what string, got, want []float64) {
		t.Logf("%s: %v, PyTorch %v", what, got, want)
		for i := range want {
			if len(got) != len(want) || !(math.Abs(got[i]-want[i]) <= 1e-5*math.Abs(want[i])) {
				t.Errorf("%s: the losses are %v, PyTorch's %v", what, got, want)
				break
			}
		}
	}
	dir := t.TempDir()
	want := torch("save=" + filepath.Join(dir, "torch"))
	c, err := dcp.Open(t.Context(), storage.Dir(filepath.Join(dir, "torch")), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := torchstate.FromDCP(c)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := checkpoint.Rename(s.Model, func(name string) string {
		return strings.TrimPrefix(name, "lm_head.weight") // again what transformer.wte.weight is
	})
	if err != nil {
		t.Fatal(err)
	}
	g := newGPT2()
	if err := checkpoint.LoadTensors(weights, nn.StateDict(g.model).All()); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.LoadTensors(s.Optimizer, g.opt.State().All()); err != nil {
		t.Fatal(err)
	}
	near("Cohort from PyTorch", g.losses(t, 3, 6), want)

	g = newGPT2()
	g.losses(t, 0, 3)
	state := checkpoint.State{Sections: map[string][]checkpoint.Part{
		checkpoint.Model: checkpoint.Whole(nn.StateDict(g.model).All()), checkpoint.Optimizer: checkpoint.Whole(g.opt.State().All()),
	}}
	if err := checkpoint.Save(t.Context(), nil, storage.Dir(filepath.Join(dir, "cohort")), 3, state); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(t.Context(), storage.Dir(filepath.Join(dir, "cohort")), "")
	if err != nil {
		t.Fatal(err)
	}
	model, err := ck.Source(checkpoint.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	opt, err := ck.Source(checkpoint.Optimizer)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Close()
	items, err := torchstate.Items(model, opt, optim.ParamGroups(g.opt))
	if err != nil {
		t.Fatal(err)
	}
	if err := dcp.Write(t.Context(), storage.Dir(filepath.Join(dir, "dcp")), "", items); err != nil {
		t.Fatal(err)
	}
	near("PyTorch from Cohort", g.losses(t, 3, 6), torch("load="+filepath.Join(dir, "dcp")))
}
