// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// small are the flags of a little language model, without its ranks and its batch.
const small = "train lm --json --vocab 300 --context 32 --width 32 --heads 2 --layers 2 --eval-tokens 256 --sample-tokens 4 --warmup 0 --lr-floor 1 --eval-every 3"

// lossesOf runs a command of these flags to its end, and returns its losses.
func lossesOf(t *testing.T, flags ...string) map[int]float64 {
	t.Helper()
	return whole(t, strings.Fields(strings.Join(flags, " ")))
}

// near compares the losses of two runs that add up in another order.
func near(t *testing.T, what string, got, want map[int]float64, tolerance float64) {
	t.Helper()
	if len(got) == 0 {
		t.Errorf("%s: no losses", what)
	}
	for step, loss := range got {
		if w, ok := want[step]; !ok || !(math.Abs(loss-w) <= tolerance*w) {
			t.Errorf("%s: step %d has the loss %v, want %v", what, step, loss, w)
		}
	}
}

// sameTensors compares the tensors of two checkpoints, whatever files they are in.
func sameTensors(t *testing.T, a, b string) {
	t.Helper()
	for _, section := range []string{checkpoint.Model, checkpoint.Optimizer} {
		var texts []string
		for _, dir := range []string{a, b} {
			ck, err := checkpoint.Open(t.Context(), storage.Dir(dir), "")
			if err != nil {
				t.Fatal(err)
			}
			src, err := ck.Source(section)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			var text strings.Builder
			for _, info := range src.Infos() {
				data := make([]byte, info.NumBytes())
				if err := src.ReadTensor(info.Name, data); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&text, "%v %x\n", info, data)
			}
			texts = append(texts, text.String())
		}
		if texts[0] != texts[1] {
			t.Errorf("%s of %s and of %s differ", section, a, b)
		}
	}
}

// TestTrainSharded: sharded runs have the losses of one rank, and a run goes on from 2
// shards to 4, to one rank and to 2 replicas of 2 shards, as if nothing had changed.
func TestTrainSharded(t *testing.T) {
	text, dir := writeText(t), t.TempDir()
	at := func(name string) string { return "--out " + filepath.Join(dir, name) + " --data " + text }
	const steps = " --steps 12 --save-every 3 --clip 0.5"
	one := lossesOf(t, small, steps, "--ranks 1 --batch 8", at("one"))
	for _, flags := range []string{"--fsdp 2 --batch 4 --recompute", "--fsdp 2 --replicate 2 --batch 2", "--fsdp 2 --batch 2 --accumulate 2"} {
		near(t, flags, lossesOf(t, small, steps, flags, at(strings.ReplaceAll(flags, " ", ""))), one, 1e-5)
	}
	for i, flags := range []string{"--fsdp 2 --batch 4", "--fsdp 4 --batch 2", "--ranks 1 --batch 8", "--replicate 2 --fsdp 2 --batch 2"} {
		losses := lossesOf(t, small, fmt.Sprintf("--steps %d --save-every 3 --clip 0.5", 3*(i+1)), flags, at("parts"))
		if len(losses) != 3 {
			t.Errorf("%s: did the steps %v", flags, losses)
		}
		near(t, "in parts, "+flags, losses, one, 1e-5)
	}
	// Without clipping, whose norm is added up in another order, shards have the bits of
	// replicas, also in bfloat16 and in the files.
	for _, dtype := range []string{"float32", "bfloat16"} {
		flags := "--steps 4 --clip 0 --batch 4 --dtype " + dtype
		want := lossesOf(t, small, flags, "--replicate 3", at("ddp-"+dtype))
		if got := lossesOf(t, small, flags, "--fsdp 3", at("fsdp-"+dtype)); !maps.Equal(got, want) {
			t.Errorf("%s: losses %v, of replicas %v", dtype, got, want)
		}
		sameTensors(t, checkpoint.Path(filepath.Join(dir, "fsdp-"+dtype), 4), checkpoint.Path(filepath.Join(dir, "ddp-"+dtype), 4))
	}
	for _, command := range []string{"eval --json --from ", "generate --tokens 4 --prompt abc --from "} {
		if code, out, errs := cohort(strings.Fields(command + filepath.Join(dir, "parts"))...); code != 0 || out == "" {
			t.Errorf("%s: code %d, %q, %q", command, code, out, errs)
		}
	}
}

// TestTrainOnMeshes: ranks that are processes train on meshes of several axes as one rank does, a
// run goes on from one mesh to the next, and eval and generate open what it saves.
func TestTrainOnMeshes(t *testing.T) {
	text, dir := writeText(t), t.TempDir()
	at := func(name string) string { return "--out " + filepath.Join(dir, name) + " --data " + text }
	for model, meshes := range map[string][]string{
		"":                        {"--tp 2 --pp 2 --batch 8", "--cp 2 --fsdp 2 --batch 4", "--pp 2 --schedule gpipe --accumulate 4 --batch 2"},
		"--experts 4 --balance 0": {"--ep 2 --tp 2 --batch 4", "--ep 2 --pp 2 --batch 4"},
	} {
		name := fmt.Sprintf("of%d", len(meshes))
		one := lossesOf(t, small, model, fmt.Sprintf("--steps %d --save-every 3 --clip 0.5 --ranks 1 --batch 8", 3*len(meshes)), at(name))
		for i, flags := range meshes {
			losses := lossesOf(t, small, model, fmt.Sprintf("--steps %d --save-every 3 --clip 0.5", 3*(i+1)), flags, at(name+"-parts"))
			if len(losses) != 3 {
				t.Errorf("%s: did the steps %v", flags, losses)
			}
			near(t, flags, losses, one, 1e-5)
		}
		for _, command := range []string{"eval --json --from ", "generate --tokens 4 --prompt abc --from "} {
			if code, out, errs := cohort(strings.Fields(command + filepath.Join(dir, name+"-parts"))...); code != 0 || out == "" {
				t.Errorf("%s: code %d, %q, %q", command, code, out, errs)
			}
		}
	}
}

// TestTuneSharded: a Hugging Face folder is fine-tuned in shards, whole and by a LoRA, and
// both go on from 2 ranks to 1.
func TestTuneSharded(t *testing.T) {
	text, dir := writeText(t), t.TempDir()
	at := func(name string) string { return "--out " + filepath.Join(dir, name) + " --data " + text }
	for _, model := range []string{"gpt2", "llama"} {
		lossesOf(t, small, "--steps 2 --ranks 1 --batch 4 --model "+model, at(model))
		for _, how := range []string{"", "--lora 2", "--lora 2 --recompute --dtype bfloat16"} {
			flags := "train lm --json --eval-tokens 256 --sample-tokens 4 --context 32 --eval-every 2 --lr-floor 1 --init-from " + checkpoint.Path(filepath.Join(dir, model), 2) + " " + how
			name := "tuned-" + strings.ReplaceAll(model+how, " ", "")
			want := lossesOf(t, flags, "--steps 4 --ranks 1 --batch 4", at(name+"-one"))
			tolerance := 1e-5
			if strings.Contains(how, "bfloat16") {
				tolerance = 1e-3
			}
			near(t, name, lossesOf(t, flags, "--steps 2 --fsdp 2 --batch 2", at(name)), want, tolerance)
			near(t, name+" going on", lossesOf(t, flags, "--steps 4 --ranks 1 --batch 4", at(name)), want, tolerance)
		}
	}
}

// TestTablesSharded: the tables of a recommender, whose gradients come by rows, stay whole
// beside shards, and a classifier with running statistics is trained as by replicas.
func TestTablesSharded(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return "--json --epochs 1 --out " + filepath.Join(dir, name) }
	for _, model := range []string{"dlrm", "mf"} {
		flags := "train rec --rows 2000 --model " + model
		near(t, model, lossesOf(t, flags, "--fsdp 2 --batch 64", at(model)), lossesOf(t, flags, "--ranks 1 --batch 128", at(model+"-one")), 1e-5)
	}
	flags := "train vision --data digits --model cnn --epochs 0.2 --batch 30 --eval-every 3"
	want := lossesOf(t, flags, "--ranks 2", at("cnn")+" --epochs 0.2")
	if got := lossesOf(t, flags, "--fsdp 2", at("cnn-sharded")+" --epochs 0.2"); !maps.Equal(got, want) {
		t.Errorf("cnn: losses %v, of replicas %v", got, want)
	}
}

// TestSaysSharding: a run says what is sharded over what and what a rank holds. In a job of
// `cohort run`, the axes follow from its ranks.
func TestSaysSharding(t *testing.T) {
	text := writeText(t)
	flags := strings.Fields(strings.ReplaceAll(small, "--json", "") + " --steps 1 --fsdp 2 --batch 2 --data " + text)
	j := start(t, nil, append([]string{"run", "--nproc-per-node", "4", os.Args[0]}, append(flags, "--out", filepath.Join(t.TempDir(), "run"))...)...)
	code := j.wait(t)
	stdout, stderr := j.output()
	if want := "sharded HSDP, 2 replicas over 2 ranks each"; code != 0 || !strings.Contains(stdout, want) || !strings.Contains(stdout, "a rank holds ") {
		t.Errorf("code %d, no %q in\n%s%s", code, want, stdout, stderr)
	}
	j = start(t, nil, append([]string{"run", "--nproc-per-node", "3", os.Args[0]}, append(flags, "--out", filepath.Join(t.TempDir(), "run"))...)...)
	code = j.wait(t)
	_, stderr = j.output()
	if want := "this job was started with 3 ranks, and --replicate ? × --fsdp 2 = ranks 3: 3 is no multiple of 2"; code == 0 || !strings.Contains(stderr, want) {
		t.Errorf("code %d, no %q in\n%s", code, want, stderr)
	}
}
