// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// refolder writes a golden model again, with its config.json and its tensors
// changed.
func refolder(t *testing.T, name string, change func(config map[string]any, state map[string]*tensor.Tensor)) string {
	t.Helper()
	f, err := huggingface.Open(golden(name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := f.Config()
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	state := make(map[string]*tensor.Tensor)
	for _, info := range f.Infos() {
		x := tensor.New(tensor.CPU(), tensor.Float32, info.Shape...)
		if err := f.ReadTensor(info.Name, x.Buffer().Data); err != nil {
			t.Fatal(err)
		}
		state[info.Name] = x
	}
	change(config, state)
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), name)
	if err := huggingface.Save(dir, maps.All(state), huggingface.SaveOptions{Files: map[string][]byte{"config.json": text}}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A model that is said to be tied is so where its weights do not say otherwise:
// what is stored is never dropped but where it is there twice.
func TestTiedModelsThatStoreAnOutputLayer(t *testing.T) {
	for _, c := range []struct{ name, table, output string }{
		{"gpt2", "transformer.wte.weight", "lm_head.weight"},
		{"llama3", "model.embed_tokens.weight", "lm_head.weight"},
		{"bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
	} {
		open := func(dir string) (m Pretrained, logits []float32) {
			m, err := LoadHuggingFace(dir)
			if err != nil {
				t.Fatal(err)
			}
			outline, err := Outline(dir)
			if err != nil || len(nn.Parameters(outline)) != len(nn.Parameters(m)) {
				t.Errorf("%s: the outline has %d parameters, the model %d: %v", dir, len(nn.Parameters(outline)), len(nn.Parameters(m)), err)
			}
			return m, logitsOf(t, m)
		}
		plain, want := open(golden(c.name))
		same := func(how string, change func(config map[string]any, state map[string]*tensor.Tensor)) {
			m, got := open(refolder(t, c.name, change))
			if !slices.Equal(got, want) || len(nn.Parameters(m)) != len(nn.Parameters(plain)) {
				t.Errorf("%s with %s is another model", c.name, how)
			}
		}
		same("a copy of the table", func(_ map[string]any, state map[string]*tensor.Tensor) { state[c.output] = state[c.table] })
		same("the table under the output layer's name", func(_ map[string]any, state map[string]*tensor.Tensor) {
			state[c.output] = state[c.table]
			delete(state, c.table)
		})
		other := func(tied bool) []float32 {
			dir := refolder(t, c.name, func(config map[string]any, state map[string]*tensor.Tensor) {
				config["tie_word_embeddings"] = tied
				x := state[c.table].Clone()
				x.Narrow(0, 7, 1).Fill(3)
				state[c.output] = x
			})
			m, logits := open(dir)
			again := filepath.Join(t.TempDir(), "again")
			if err := SaveHuggingFace(again, m, 0, nil); err != nil {
				t.Fatal(err)
			}
			if _, got := open(again); !slices.Equal(got, logits) {
				t.Errorf("%s with an output layer of its own (said to be tied: %t) is another one once it is saved", c.name, tied)
			}
			return logits
		}
		if said, unsaid := other(true), other(false); !slices.Equal(said, unsaid) || slices.Equal(said, want) {
			t.Errorf("%s: an output layer of its own is dropped where the model is said to be tied", c.name)
		}
		// Nothing is made up: one that is untied must have its output layer.
		_, err := LoadHuggingFace(refolder(t, c.name, func(config map[string]any, _ map[string]*tensor.Tensor) { config["tie_word_embeddings"] = false }))
		var mismatch *checkpoint.StateDictError
		if !errors.As(err, &mismatch) || !slices.Contains(mismatch.Missing, c.output) {
			t.Errorf("%s untied without its output layer: %v", c.name, err)
		}
	}
}

// What has no use is named as its file names it, and a missing part of a BERT is
// missing where config.json promises it.
func TestFoldersOfOtherHeads(t *testing.T) {
	bare := func(architecture string, more ...string) error {
		_, err := LoadHuggingFace(refolder(t, "bert", func(config map[string]any, state map[string]*tensor.Tensor) {
			config["architectures"] = []string{architecture}
			maps.DeleteFunc(state, func(name string, _ *tensor.Tensor) bool { return strings.HasPrefix(name, "cls.") })
			for _, name := range more {
				state[name] = tensor.New(tensor.CPU(), tensor.Float32, 2, 32)
			}
		}))
		return err
	}
	if err := bare("BertModel"); err != nil { // without a pooler, as add_pooling_layer=False saves it
		t.Error(err)
	}
	if err := bare("BertModel", "pooler.dense.weight"); err == nil || !strings.Contains(err.Error(), "missing    bert.pooler.dense.bias") {
		t.Errorf("a BERT with half a pooler: %v", err)
	}
	if err := bare("BertForMaskedLM"); err == nil || !strings.Contains(err.Error(), "missing    cls.predictions.bias") {
		t.Errorf("a BERT that should have a head: %v", err)
	}
	if err := bare("BertForSequenceClassification", "classifier.weight"); err == nil || !strings.Contains(err.Error(), "missing    classifier.bias") {
		t.Errorf("a BERT with half a classifier: %v", err)
	}
	_, err := LoadHuggingFace(refolder(t, "llama", func(_ map[string]any, state map[string]*tensor.Tensor) {
		state["score.weight"] = tensor.New(tensor.CPU(), tensor.Float32, 2, 32)
	}))
	if err == nil || !strings.Contains(err.Error(), "extra      score.weight") {
		t.Errorf("a Llama with another head: %v", err)
	}
}

// TestCountedLogits: a pass that counts some tokens computes the same logits there, and no
// others; so do the gradients of the table that is the output layer again.
func TestCountedLogits(t *testing.T) {
	build := &nn.Build{Generator: tensor.NewGenerator(1)}
	for name, m := range map[string]CausalLM{
		"gpt":   NewGPT(build, GPTConfig{Vocab: 11, Context: 8, Width: 8, Heads: 2, Layers: 1}),
		"llama": NewLlama(build, LlamaConfig{Vocab: 11, Context: 8, Width: 8, Hidden: 12, Heads: 2, KeyHeads: 1, Layers: 1, Tied: true}),
	} {
		ids, places := tensor.FromInt64([]int64{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4), tensor.FromInt64([]int64{1, 2, 7})
		run := func(sparse bool) (logits []float32, grads map[string][]float32) {
			_, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
				if sparse {
					c = c.WithCounted(places)
				}
				y := c.Call(m, ids)
				if !sparse {
					y = y.Reshape(8, 11).IndexSelect(0, places)
				}
				logits = slices.Clone(y.Float32s())
				return y.Mul(y).Sum()
			})
			if err != nil {
				t.Fatal(err)
			}
			grads = make(map[string][]float32)
			for i, p := range nn.Parameters(m) {
				grads[strconv.Itoa(i)] = slices.Clone(p.Grad().Float32s())
				p.ZeroGrad()
			}
			return logits, grads
		}
		dense, of := run(false)
		sparse, got := run(true)
		if len(sparse) != 3*11 || !nearly(sparse, dense) {
			t.Errorf("%s: logits %v, want %v", name, sparse, dense)
		}
		for p, want := range of {
			if !nearly(got[p], want) {
				t.Errorf("%s: the gradient of parameter %s is %v, want %v", name, p, got[p], want)
			}
		}
	}
}

// nearly compares numbers to the last bits.
func nearly(got, want []float32) bool {
	return slices.EqualFunc(got, want, func(a, b float32) bool { return math.Abs(float64(a-b)) <= 1e-5*(1+math.Abs(float64(b))) })
}
