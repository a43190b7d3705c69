// SPDX-License-Identifier: Apache-2.0

package train

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// expertFolders writes a small published folder of each family with experts, with the tokenizer
// of the golden runs.
func expertFolders(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(tuned("llama", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	size := models.MoEConfig{
		LlamaConfig: models.LlamaConfig{Vocab: 320, Context: 64, Width: 32, Hidden: 12, Heads: 4, KeyHeads: 2, Layers: 2}, Experts: 4, Active: 2,
	}
	b := func() *nn.Build { return &nn.Build{Generator: tensor.NewGenerator(8)} }
	mixtral := models.NewMixtral(b(), models.MixtralConfig{MoEConfig: size})
	third := models.NewQwen3MoE(b(), models.QwenMoEConfig{MoEConfig: size, Dense: []bool{true, false}, DenseHidden: 24})
	size.SharedHidden, size.SharedGate, size.Router.Unnormalized = 16, true, true
	second := models.NewQwen2MoE(b(), models.QwenMoEConfig{MoEConfig: size, DenseHidden: 24, InputBias: true})
	folders := make(map[string]string)
	for _, m := range []models.CausalLM{mixtral, second, third} {
		for _, p := range nn.Parameters(m) { // so that no two experts are close
			if strings.HasSuffix(p.Name(), ".gate.weight") {
				p.Data().Scale(50)
			}
		}
		dir := filepath.Join(t.TempDir(), m.Kind())
		if err := models.SaveHuggingFace(dir, m, 0, map[string][]byte{"tokenizer.json": text}); err != nil {
			t.Fatal(err)
		}
		folders[m.Kind()] = dir
	}
	return folders
}

// TestTuneExperts: published mixtures of experts are fine-tuned on meshes as on one rank, go on
// on another mesh, and their checkpoints are folders of their family.
//
//	go test ./train -run TestTuneExperts -python /path/to/python
func TestTuneExperts(t *testing.T) {
	text := writeText(t, 20_000)
	meshes := map[string][]string{"mixtral": {"ep2", "fsdp2", "pp2"}, "qwen2_moe": {"ep2.tp2"}, "qwen3_moe": {"fsdp2.ep2", "tp2"}}
	for kind, dir := range expertFolders(t) {
		c := tiny(t, text)
		c.InitFrom, c.Steps, c.SaveEvery, c.EvalEvery, c.Batch, c.LR, c.SampleTokens = dir, 4, 2, 4, 8, 1e-3, 0
		c.Vocab, c.Width, c.Heads, c.Layers, c.Warmup, c.LRFloor = 0, 0, 0, 0, 0, 1 // one rate, however many steps there are
		given := []string{"init-from", "out", "steps", "batch", "context", "lr", "save-every", "eval-every", "eval-tokens", "sample-tokens", "warmup", "lr-floor"}
		one, err := run(t, 1, c, given...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range meshes[kind] {
			t.Run(kind+" "+name, func(t *testing.T) {
				d, ranks := onMesh(t, c, name)
				d.Out, d.Steps = c.Out+name, 2
				l, err := run(t, ranks, d, given...)
				if err != nil {
					t.Fatal(err)
				}
				closeTo(t, "losses", l.losses, one.losses, 1e-5)
				d.MeshConfig, d.Batch, d.Steps = MeshConfig{}, c.Batch, 4 // goes on alone
				if l, err = run(t, 1, d, given...); err != nil {
					t.Fatal(err)
				}
				closeTo(t, "losses of the rest", l.losses, one.losses, 1e-5)
				checkExpertFolder(t, checkpoint.Path(d.Out, 4), kind)
			})
		}
		c.Out, c.LoRA, c.LoRATargets = c.Out+"-lora", 2, []string{allTargets}
		if l, err := run(t, 1, c, append(slices.Clone(given), "lora", "lora-targets")...); err != nil {
			t.Errorf("%s: LoRA: %v", kind, err)
		} else if strings.Contains(l.start.About.Model, " gate,") { // PEFT adapts no router
			t.Errorf("%s: %s", kind, l.start.About.Model)
		}
	}
}

// checkExpertFolder opens a checkpoint as a published folder, here and in Python.
func checkExpertFolder(t *testing.T, dir, kind string) {
	t.Helper()
	m, err := models.LoadCausalLM(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind() != kind {
		t.Errorf("the checkpoint holds a %s, want a %s", m.Kind(), kind)
	}
	ck, err := checkpoint.Open(t.Context(), storage.Dir(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	src, err := ck.Source(checkpoint.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	pieces := 0
	for _, info := range src.Infos() {
		if strings.Contains(info.Name, ".experts.3.") {
			pieces++
		}
	}
	if want := map[string]int{"mixtral": 6, "qwen2_moe": 6, "qwen3_moe": 3}[kind]; pieces != want {
		t.Errorf("the checkpoint has %d tensors of the last expert, want %d", pieces, want)
	}
	if *python == "" {
		return
	}
	out, err := exec.CommandContext(t.Context(), *python, tuned("finetune.py"), "open", dir).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []float32
	for _, field := range strings.Fields(string(out)) {
		v, err := strconv.ParseFloat(field, 32)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, float32(v))
	}
	if d := furthest(got, logitsOf(t, m)); !(d <= 1e-5) {
		t.Errorf("the logits in transformers differ by %.1e of the largest", d)
	}
}
