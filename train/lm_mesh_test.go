// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data"
)

// onMesh returns a run on a mesh such as "fsdp2.tp2", with the samples of a step of the run on
// one rank, and its number of ranks. Words behind a colon are settings: "pp2:zbv".
func onMesh(t *testing.T, c LMConfig, name string) (LMConfig, int) {
	t.Helper()
	axes, setting, _ := strings.Cut(name, ":")
	c.MeshConfig = MeshConfig{}
	ranks, samplers := 1, 1
	for axis := range strings.SplitSeq(axes, ".") {
		at := strings.IndexAny(axis, "0123456789")
		n := 0
		if _, err := fmt.Sscan(axis[at:], &n); err != nil {
			t.Fatal(name, err)
		}
		*c.MeshConfig.size(axis[:at]) = n
		ranks *= n
		if kind := axis[:at]; kind == axisReplicate || kind == axisFSDP || kind == axisEP {
			samplers *= n
		}
	}
	switch {
	case setting == "":
	case c.CP > 1:
		c.CPMethod = setting
	default:
		c.Schedule = setting
	}
	c.Batch /= samplers
	return c, ranks
}

// layered is a run of a model that meshes can split: 4 layers, 4 heads.
func layered(t *testing.T, text string) LMConfig {
	c := tiny(t, text)
	c.Layers, c.Heads, c.Batch, c.Steps, c.SaveEvery, c.EvalEvery, c.Clip, c.Keep, c.LR = 4, 4, 8, 6, 2, 3, 0.5, 9, 1e-3
	return c
}

// meshCases are meshes, and for each kind of model what is split over them.
var meshCases = map[string][]string{
	"gpt2": {
		"tp2", "pp2", "cp2", "fsdp2.tp2", "pp2.replicate2", "cp2.tp2", "pp2.fsdp2.tp2", "pp2:gpipe", "pp2:interleaved", "pp2:zbv", "cp2:heads", "pp2.cp2",
	},
	"llama": {"tp2", "pp2.tp2", "fsdp2.cp2"},
	"moe":   {"ep2", "fsdp2.ep2", "ep2.tp2", "pp2.ep2", "ep2.cp2"},
}

func kindOn(t *testing.T, kind, text string) LMConfig {
	c := layered(t, text)
	if kind == "moe" {
		c.Experts, c.SharedExperts, c.Balance = 4, 1, 0
	} else {
		c.Model = kind
	}
	return c
}

// TestMeshes: runs on composed meshes have the losses, the evaluations and the sample of one
// rank.
func TestMeshes(t *testing.T) {
	text := writeText(t, 40_000)
	for kind, meshes := range meshCases {
		c := kindOn(t, kind, text)
		one, err := run(t, 1, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range meshes {
			t.Run(kind+" "+name, func(t *testing.T) {
				d, ranks := onMesh(t, c, name)
				d.Out += name
				l, err := run(t, ranks, d)
				if err != nil {
					t.Fatal(err)
				}
				closeTo(t, "losses", l.losses, one.losses, 1e-5)
				closeTo(t, "evaluations", l.evaluations, one.evaluations, 1e-5)
				if len(l.losses) != 6 || len(l.evaluations) != 2 || l.finish == nil || l.finish.Text != one.finish.Text {
					t.Errorf("%d losses, %d evaluations, %+v", len(l.losses), len(l.evaluations), l.finish)
				}
				if l.start.NumParams != one.start.NumParams {
					t.Errorf("%d parameters, alone %d", l.start.NumParams, one.start.NumParams)
				}
				order, err := data.CheckOrder(filepath.Join(d.Out, data.OrderDir), data.CheckOptions{Steps: 6})
				if err != nil || order.Err() != nil {
					t.Errorf("the order of the samples: %v, %v", err, order.Err())
				}
				predicted, held := "predicted for the tensors of a rank", " of parameters, gradients and optimizer state a rank holds "
				if d.PP > 1 {
					predicted, held = "is not predicted: several passes of a pipeline are under way", " of parameters, gradients and optimizer state rank 0 holds "
				}
				if !strings.Contains(l.start.Memory, predicted) || !strings.Contains(l.start.Sharding, held) {
					t.Errorf("memory: %q, sharding: %q", l.start.Memory, l.start.Sharding)
				}
				t.Log(l.start.Strategy, "|", l.start.Sharding, "|", l.start.Memory)
			})
		}
	}
}

// TestRunsMoveBetweenMeshes: a run goes on with the same losses on any other mesh, and ends with
// the weights of the run on one rank.
func TestRunsMoveBetweenMeshes(t *testing.T) {
	text := writeText(t, 40_000)
	for kind, path := range map[string][]string{
		"gpt2": {"tp2", "pp2", "cp2", "fsdp2.tp2", "replicate1", "pp2.fsdp2.tp2", "tp4", "pp2.replicate2", "fsdp3"},
		"moe":  {"ep2", "fsdp2.ep2", "replicate1", "pp2.ep2", "ep2.tp2", "cp2"},
	} {
		t.Run(kind, func(t *testing.T) {
			c := kindOn(t, kind, text)
			c.Batch, c.Steps, c.SaveEvery, c.EvalEvery, c.Warmup, c.LRFloor = 24, 2*len(path), 2, 4, 0, 1
			one, err := run(t, 1, c)
			if err != nil {
				t.Fatal(err)
			}
			for i, name := range path {
				d, ranks := onMesh(t, c, name)
				d.Out, d.Steps = c.Out+"-moved", 2*(i+1)
				d.Schedule = ""
				l, err := run(t, ranks, d, "steps")
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if len(l.losses) != 2 {
					t.Errorf("%s: losses %v", name, l.losses)
				}
				closeTo(t, name, l.losses, one.losses, 1e-4)
				if want, ok := one.evaluations[d.Steps]; ok {
					closeTo(t, name+", evaluation", map[int]float64{d.Steps: l.evaluations[d.Steps]}, map[int]float64{d.Steps: want}, 1e-4)
				}
			}
		})
	}
}
