// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// encoderFolders are those of encoders.py.
func encoderFolders(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(golden("encoders"))
	if err != nil || len(entries) != 10 {
		t.Fatalf("%v, %d folders", err, len(entries))
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// inputs are what an encoder of a golden folder takes.
func (e expected) inputs(t *testing.T) []*tensor.Tensor {
	return []*tensor.Tensor{e.read(t, "ids"), e.read(t, "token_type_ids"), e.read(t, "attention_mask").To(tensor.Bool)}
}

// lossOf is the loss that transformers computes of what an encoder predicts.
func (e expected) lossOf(t *testing.T, m Encoder, out *tensor.Tensor) *tensor.Tensor {
	labels := e.read(t, "labels")
	h := m.Predicts()
	switch {
	case h.MaskedLM:
		return tensor.CrossEntropy(out, labels)
	case h.Classes == nil:
		return out.Mul(e.read(t, "attention_mask").To(tensor.Float32).Unsqueeze(2)).Square().Mean()
	case h.Classes.Kind() == Regression:
		return tensor.MSE(out, labels)
	case h.Classes.Kind() == MultiLabel:
		return tensor.BCEWithLogits(out, labels)
	}
	return tensor.CrossEntropy(out, labels)
}

// Encoders with each head that transformers saved give its logits, losses and gradients.
func TestEncoders(t *testing.T) {
	for _, name := range encoderFolders(t) {
		t.Run(name, func(t *testing.T) {
			want := openExpected(t, filepath.Join(golden("encoders"), name, "expected.safetensors"))
			m, err := LoadEncoder(filepath.Join(golden("encoders"), name))
			if err != nil {
				t.Fatal(err)
			}
			in := want.inputs(t)
			c := nn.Evaluation(t.Context())
			if d := diffOfTokens(c.CallN(m, in...)[0], want.read(t, "logits"), want.read(t, "attention_mask")); !(d <= 1e-5) {
				t.Errorf("the logits differ by %.1e of the largest", d)
			}
			c.Close()
			var params []*nn.Parameter
			for _, p := range nn.Parameters(m) {
				if !p.Frozen {
					params = append(params, p)
				}
			}
			opt := optim.NewAdamW(params, optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.01})
			want.compareTraining(t, m, opt, func(c *nn.Ctx) *tensor.Tensor { return want.lossOf(t, m, c.CallN(m, in...)[0]) })
		})
	}
}

// diffOfTokens compares what stands at tokens that are no padding; of a result without
// tokens, all.
func diffOfTokens(got, want, mask *tensor.Tensor) float64 {
	if got.NumDims() < 3 {
		return maxDiff(got.Float32s(), want.Float32s(), 0)
	}
	keep := mask.To(tensor.Float32).Unsqueeze(2)
	return maxDiff(got.Mul(keep).Float32s(), want.Mul(keep).Float32s(), 0)
}

// What is saved loads again and is the same model; transformers, where there is one,
// misses no tensor and computes the same.
func TestEncodersRoundTrip(t *testing.T) {
	var dirs []string
	for _, name := range encoderFolders(t) {
		m, err := LoadEncoder(filepath.Join(golden("encoders"), name))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), name)
		if err := SaveHuggingFace(dir, m, 0, nil); err != nil {
			t.Fatal(err)
		}
		again, err := LoadEncoder(dir)
		if err != nil {
			t.Fatal(err)
		}
		want := nn.StateDict(m)
		for i, s := range nn.StateDict(again) {
			if s.Name != want[i].Name || !slices.Equal(s.Tensor.Float32s(), want[i].Tensor.Float32s()) {
				t.Errorf("%s: %s differs", name, s.Name)
			}
		}
		a, errA := m.HuggingFaceConfig()
		b, errB := again.HuggingFaceConfig()
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%s: the configuration changes:\n%s\n%s", name, a, b)
		}
		text, err := os.ReadFile(filepath.Join(golden("encoders"), name, "expected.safetensors"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "expected.safetensors"), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	if *python == "" {
		return
	}
	if out, err := exec.CommandContext(t.Context(), *python, append([]string{golden("encoders.py"), "check"}, dirs...)...).CombinedOutput(); err != nil {
		t.Errorf("what is saved here is something else to transformers: %v: %s", err, out)
	}
}

// A folder opens with a head that it has not: the encoder is the folder's, the head new.
func TestEncodersTakeOtherHeads(t *testing.T) {
	classes := &Classes{Of: OfSequences, Names: []string{"no", "yes"}}
	for _, name := range encoderFolders(t) {
		dir := filepath.Join(golden("encoders"), name)
		own, err := LoadEncoder(dir)
		if err != nil {
			t.Fatal(err)
		}
		was := make(map[string][]float32)
		for _, s := range nn.StateDict(own) {
			was[s.Name] = s.Tensor.Float32s()
		}
		for what, head := range map[string]Head{"features": {}, "words": {MaskedLM: true}, "classes": {Classes: classes}, "tags": {Classes: &Classes{Of: OfTokens, Names: []string{"a", "b", "c", "d", "e"}}}} {
			m, err := LoadEncoder(dir, WithHead(head), WithBuild(&nn.Build{Generator: tensor.NewGenerator(3)}))
			if err != nil {
				t.Errorf("%s with a head for %s: %v", name, what, err)
				continue
			}
			if got := m.Predicts(); got.MaskedLM != head.MaskedLM || (got.Classes == nil) != (head.Classes == nil) {
				t.Errorf("%s with a head for %s predicts %+v", name, what, got)
			}
			same := 0
			for _, s := range nn.StateDict(m) {
				if v := was[s.Name]; v != nil && len(v) == s.Tensor.NumElems() && slices.Equal(v, s.Tensor.Float32s()) {
					same++
				} else if strings.Contains(s.Name, "layer.") || strings.Contains(s.Name, "embeddings") {
					t.Errorf("%s with a head for %s: %s is not the folder's", name, what, s.Name)
				}
			}
			if same == 0 {
				t.Errorf("%s with a head for %s keeps nothing", name, what)
			}
		}
		if again, err := LoadEncoder(dir, WithHead(own.Predicts())); err != nil {
			t.Error(err)
		} else {
			for _, s := range nn.StateDict(again) {
				if !slices.Equal(was[s.Name], s.Tensor.Float32s()) {
					t.Errorf("%s with its own head: %s differs", name, s.Name)
				}
			}
		}
	}
}

// Contradictions among the classes of a config.json are refused by name.
func TestClassesOfConfigurations(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(golden("encoders"), "bert-single", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key   string
		value any
		says  string // "" is accepted
	}{
		{"id2label", map[string]string{"0": "a", "1": "b"}, ""},
		{"id2label", map[string]string{"0": "a", "2": "b"}, "none has the number 1"},
		{"label2id", map[string]int{"anger": 1, "joy": 0}, `"anger" is class 1`},
		{"label2id", map[string]int{"LABEL_0": 1}, ""},
		{"num_labels", 7, "num_labels is 7"},
		{"num_labels", 3, ""},
		{"problem_type", "ranking", "problem_type"},
		{"problem_type", "regression", ""},
		{"classifier_dropout", 1.5, "dropout 1.5"},
		{"id2label", []string{"a"}, "id2label"},
	} {
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		config[c.key] = c.value
		changed, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = parsePretrained(changed)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: %v, want %q", c.key, c.value, err, c.says)
		}
	}
}
