// SPDX-License-Identifier: Apache-2.0

package models

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Folders of sentence-transformers give its vectors, as they are and saved again.
func TestSentenceEncoders(t *testing.T) {
	var saved []string
	for name, g := range map[string]SentenceConfig{
		"mean": {Pooling: []string{"mean"}, Steps: []SentenceStep{{Normalize: true}}, MaxTokens: 12, Prompts: map[string]string{"query": "a b ", "document": ""}, DefaultPrompt: "query", Similarity: "cosine"},
		"all": {Pooling: poolings, Steps: []SentenceStep{
			{Dense: &SentenceLayer{In: 48, Out: 7, Activation: "tanh"}}, {Normalize: true}, {Dense: &SentenceLayer{In: 7, Out: 5, NoBias: true, Activation: "linear"}},
		}, MaxTokens: 12, Prompts: map[string]string{"query": "", "document": ""}, Similarity: "dot"},
	} {
		dir := filepath.Join(golden("sentences"), name)
		want := openExpected(t, filepath.Join(dir, "expected.safetensors"))
		vectors := func(dir string) *SentenceEncoder {
			m, err := LoadSentenceEncoder(dir)
			if err != nil {
				t.Fatal(err)
			}
			c := nn.Evaluation(t.Context())
			defer c.Close()
			ids, mask := want.read(t, "ids"), want.read(t, "mask").To(tensor.Bool)
			for _, got := range c.CallN(m, ids, nil, mask, ids, nil, mask) {
				if d := maxDiff(got.Float32s(), want.read(t, "vectors").Float32s(), 0); !(d <= 1e-5) {
					t.Errorf("%s: the vectors differ by %.1e of the largest", dir, d)
				}
				if got.Dim(1) != m.Width() {
					t.Errorf("%s: vectors of %d numbers, want %d", dir, got.Dim(1), m.Width())
				}
			}
			return m
		}
		m := vectors(dir)
		if !reflect.DeepEqual(m.Config, g) {
			t.Errorf("%s says %+v, want %+v", name, m.Config, g)
		}
		again := filepath.Join(t.TempDir(), name)
		files := make(map[string][]byte)
		for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			files[file] = text
		}
		if err := SaveSentenceEncoder(again, m, files); err != nil {
			t.Fatal(err)
		}
		if got := vectors(again); !reflect.DeepEqual(got.Config, g) {
			t.Errorf("%s, saved here, says %+v, want %+v", name, got.Config, g)
		}
		text, err := os.ReadFile(filepath.Join(dir, "expected.safetensors"))
		if err == nil {
			err = os.WriteFile(filepath.Join(again, "expected.safetensors"), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		saved = append(saved, again)
	}
	if *python == "" {
		return
	}
	if out, err := exec.CommandContext(t.Context(), *python, append([]string{golden("sentences.py"), "check"}, saved...)...).CombinedOutput(); err != nil {
		t.Errorf("what is saved here is something else to sentence-transformers: %v: %s", err, out)
	}
}

// What a folder asks for and the encoder does not compute is refused by name.
func TestSentenceFoldersThatAreRefused(t *testing.T) {
	for _, c := range []struct{ file, from, to, says string }{
		{"modules.json", "modules.normalize.Normalize", "modules.dropout.Dropout", "module 2 is a sentence_transformers.base.modules.dropout.Dropout"},
		{"modules.json", "sentence_transformers.base.modules.normalize.Normalize", "my_code.Layer", "only Python can run"},
		{"modules.json", `"1_Pooling"`, `"../1_Pooling"`, "leads out of the folder"},
		{"1_Pooling/config.json", `"mean"`, `"median"`, `no pooling "median"`},
		{"1_Pooling/config.json", `"include_prompt": true`, `"include_prompt": false`, "include_prompt"},
		{"1_Pooling/config.json", `"include_prompt": true`, `"skip_first": 3`, "skip_first 3"},
		{"sentence_bert_config.json", `"feature-extraction"`, `"text-generation"`, "transformer_task"},
		{"sentence_bert_config.json", `"last_hidden_state"`, `"pooler_output"`, "modality"},
		{"config_sentence_transformers.json", `"cosine"`, `"jaccard"`, `no similarity "jaccard"`},
		{"config_sentence_transformers.json", `"default_prompt_name": "query"`, `"default_prompt_name": "title"`, `default prompt "title"`},
		{"config_sentence_transformers.json", `"prompts"`, `"truncate_dim": 3, "prompts"`, "truncate_dim 3"},
		{"modules.json", "[", "{", "modules.json"},
	} {
		dir := filepath.Join(t.TempDir(), "mean")
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(golden("sentences"), "mean"))); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, c.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), c.from, c.to, 1)
		if changed == string(text) {
			t.Fatalf("%s has no %s:\n%s", c.file, c.from, text)
		}
		if err := os.WriteFile(path, []byte(changed), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSentenceEncoder(dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %s: %v, want %q", c.file, c.to, err, c.says)
		}
	}
}

// The losses have the values and gradients of sentence-transformers'.
func TestSentenceLosses(t *testing.T) {
	want := openExpected(t, filepath.Join(golden("sentences"), "losses.safetensors"))
	triplet := func(distance string, margin float64) func(x []*tensor.Tensor) *tensor.Tensor {
		return func(x []*tensor.Tensor) *tensor.Tensor {
			loss, err := TripletLoss(x[0], x[1], x[2], distance, margin)
			if err != nil {
				t.Fatal(err)
			}
			return loss
		}
	}
	for name, loss := range map[string]func(x []*tensor.Tensor) *tensor.Tensor{
		"ranking":           func(x []*tensor.Tensor) *tensor.Tensor { return RankingLoss(x[0], x[1], 0, 20) },
		"ranking-negatives": func(x []*tensor.Tensor) *tensor.Tensor { return RankingLoss(x[0], tensor.Cat(0, x[1], x[2]), 0, 10) },
		"triplet":           triplet(Euclidean, 5), "triplet-cosine": triplet(Cosine, 0.5), "triplet-manhattan": triplet(Manhattan, 4),
		"cosine": func(x []*tensor.Tensor) *tensor.Tensor { return CosineLoss(x[0], x[1], want.read(t, "scores")) },
	} {
		tape := tensor.NewTape(true)
		var x []*tensor.Tensor
		names := []string{"anchor", "positive", "negative"}
		for _, n := range names {
			x = append(x, tape.Leaf(want.read(t, n)))
		}
		l := loss(x)
		if d := maxDiff(l.Float32s(), want.read(t, name+".loss").Float32s(), 0); !(d <= 1e-6) {
			t.Errorf("%s is %v, which is %.1e off", name, l.Item(), d)
		}
		for i, n := range names {
			g := want.read(t, name+".grad."+n)
			if g == nil {
				continue
			}
			grads, err := loss(x).Grad(t.Context(), nil, x[i:i+1])
			if err != nil {
				t.Fatal(err)
			}
			if d := maxDiff(grads[0].Float32s(), g.Float32s(), 0); !(d <= 1e-4) {
				t.Errorf("the gradient of %s for the %s is %.1e off", name, n, d)
			}
		}
		tape.Close()
	}
	if _, err := TripletLoss(nil, nil, nil, "hamming", 1); err == nil {
		t.Error("a distance that there is not is accepted")
	}
}
