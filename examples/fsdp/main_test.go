// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestGoesOn is `go run ./examples/fsdp`, which goes on from 2 copies of 2 shards to 3
// shards, and leaves a checkpoint that one rank can load.
func TestGoesOn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	first := lossOf(t, exampletest.Run(t, []string{
		"[rank0] replicate 0       0* 1\n", "HSDP, 2 replicas over 2 ranks each in 5 units: a rank holds 87328 of 174592 parameters", "saved " + checkpoint.Path(out, 101),
	}, "-out", out, "-steps", "101"), 0, 50, 100)
	last := lossOf(t, exampletest.Run(t, []string{
		"FSDP over 3 ranks in 5 units", "saved " + checkpoint.Path(out, 151),
	}, "-out", out, "-steps", "151", "-ranks", "3", "-replicate", "1"), 150)
	if first < 0.1 || first > 0.7 || last > first {
		t.Errorf("the loss is %v after 101 steps and %v after 151", first, last)
	}
	exampletest.Run(t, nil, "-out", out, "-steps", "151") // has nothing to do

	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(out))
	if err != nil {
		t.Fatal(err)
	}
	llama := models.NewLlama(&nn.Build{}, config)
	if err := ck.LoadTensors(checkpoint.Model, nn.StateDict(llama).All()); err != nil {
		t.Fatal(err)
	}
	inputs, targets := sequences(tensor.NewGenerator(1 << 40))
	c := nn.Evaluation(t.Context())
	defer c.Close()
	if loss := tensor.CrossEntropy(c.Call(llama, inputs), targets).Item(); loss > first {
		t.Errorf("the saved model has the loss %v on new sequences", loss)
	}
}

// lossOf returns the loss of the last of steps, all of which the output has.
func lossOf(t *testing.T, out string, steps ...int) (loss float64) {
	t.Helper()
	for _, step := range steps {
		_, line, ok := strings.Cut(out, fmt.Sprintf("step %3d  loss ", step))
		if _, err := fmt.Sscan(line, &loss); !ok || err != nil {
			t.Fatalf("no loss of step %d in\n%s", step, out)
		}
	}
	return loss
}
