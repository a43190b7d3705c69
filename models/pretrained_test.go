// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// expected is a file of what PyTorch computed.
type expected struct{ *safetensors.File }

func openExpected(t *testing.T, path string) expected {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return expected{f}
}

// read returns a tensor of the file, nil if it has none of that name.
func (e expected) read(t *testing.T, name string) *tensor.Tensor {
	t.Helper()
	entry, ok := e.Lookup(name)
	if !ok {
		return nil
	}
	dtype := tensor.Float32
	if entry.DType == safetensors.I64 {
		dtype = tensor.Int64
	}
	x := tensor.New(tensor.CPU(), dtype, entry.Shape...)
	if err := e.ReadTensor(name, x.Buffer().Data); err != nil {
		t.Fatal(err)
	}
	return x
}

// compareTraining holds a model against PyTorch: the loss of the first pass to
// 1e-5, every gradient to 1e-4 of its largest element, and the losses of twenty
// steps to 1e-3. loss runs the model.
func (e expected) compareTraining(t *testing.T, model any, opt optim.Optimizer, loss func(c *nn.Ctx) *tensor.Tensor) {
	t.Helper()
	step := func() (value float64, err error) {
		c := nn.Training(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		opt.ZeroGrad()
		l := loss(c)
		if err := l.Backward(t.Context()); err != nil {
			return 0, err
		}
		return l.Item(), nil
	}
	for i, want := range e.read(t, "losses").Float32s() {
		got, err := step()
		if err != nil {
			t.Fatal(err)
		}
		tolerance := 1e-3
		if i == 0 {
			tolerance = 1e-5
			e.compareGradients(t, model)
		}
		if diff := math.Abs(got-float64(want)) / float64(want); !(diff <= tolerance) {
			t.Fatalf("the loss of step %d is %v, PyTorch's %v: relative difference %.1e", i, got, want, diff)
		}
		opt.Step(nil)
	}
}

func (e expected) compareGradients(t *testing.T, model any) {
	t.Helper()
	// Some gradients are zero but for rounding: a key's bias moves all scores of
	// a query alike. They are measured against the largest of the model.
	largest := 0.0
	for _, info := range e.Infos() {
		if strings.HasPrefix(info.Name, "grad.") {
			for _, g := range e.read(t, info.Name).Float32s() {
				largest = max(largest, math.Abs(float64(g)))
			}
		}
	}
	for _, p := range nn.Parameters(model) {
		if p.Frozen {
			continue
		}
		want := e.read(t, "grad."+p.Name())
		if want == nil {
			t.Errorf("PyTorch has no gradient of %s", p.Name())
			continue
		}
		g := p.Grad()
		if g == nil && p.RowGrad() != nil {
			g = p.RowGrad().Dense()
		}
		if g == nil {
			t.Errorf("%s has no gradient", p.Name())
			continue
		}
		if d := maxDiff(g.Float32s(), want.Float32s(), 1e-3*largest); !(d <= 1e-4) {
			t.Errorf("the gradient of %s differs by %.1e of its largest element", p.Name(), d)
		}
	}
}

// maxDiff returns the largest difference relative to the largest of want, or to
// scale if that is larger.
func maxDiff(got, want []float32, scale float64) float64 {
	most := 0.0
	for i, w := range want {
		scale = max(scale, math.Abs(float64(w)))
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return d
		}
		most = max(most, d)
	}
	return most / scale
}

// Models that transformers saved give its logits, losses and gradients.
func TestHuggingFaceModels(t *testing.T) {
	for _, name := range []string{"gpt2", "llama", "llama3", "bert"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", "golden", name)
			want := openExpected(t, filepath.Join(dir, "expected.safetensors"))
			m, err := LoadHuggingFace(dir)
			if err != nil {
				t.Fatal(err)
			}
			if b, ok := m.(*BERT); ok {
				b.setDropout(0) // as transformers evaluates
			}
			ids, labels := want.read(t, "ids"), want.read(t, "labels")
			logits := func(c *nn.Ctx) *tensor.Tensor {
				b, ok := m.(*BERT)
				if !ok {
					return c.Call(m, ids)
				}
				mask := want.read(t, "attention_mask").To(tensor.Bool)
				return c.CallN(b, ids, want.read(t, "token_type_ids"), mask)[0]
			}
			c := nn.Evaluation(t.Context())
			if d := maxDiff(logits(c).Float32s(), want.read(t, "logits").Float32s(), 0); !(d <= 1e-5) {
				t.Errorf("the logits differ by %.1e of the largest", d)
			}
			c.Close()
			opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.01})
			want.compareTraining(t, m, opt, func(c *nn.Ctx) *tensor.Tensor { return tensor.CrossEntropy(logits(c), labels) })
		})
	}
}

func TestDLRMIsPyTorchs(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		want := openExpected(t, filepath.Join("testdata", "golden", "dlrm.safetensors"))
		m := NewDLRM(&nn.Build{}, DLRMConfig{Tables: []int{11, 7, 30}, Width: 8, Bottom: []int{5, 16, 8}, Top: []int{12, 1}, Sparse: sparse})
		for _, s := range nn.StateDict(m) {
			s.Tensor.CopyFrom(want.read(t, "weight."+s.Name))
		}
		in := []*tensor.Tensor{want.read(t, "dense")}
		for _, i := range []string{"0", "1", "2"} {
			in = append(in, want.read(t, "ids"+i), want.read(t, "offsets"+i))
		}
		opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.02})
		want.compareTraining(t, m, opt, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.BCEWithLogits(c.CallN(m, in...)[0], want.read(t, "labels"))
		})
	}
}

// What is saved loads again, whole and in shards, and is the same model.
func TestHuggingFaceFoldersRoundTrip(t *testing.T) {
	for _, name := range []string{"gpt2", "llama", "llama3", "bert"} {
		m, err := LoadHuggingFace(filepath.Join("testdata", "golden", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, shard := range []int64{0, 20_000} {
			dir := filepath.Join(t.TempDir(), name)
			if err := SaveHuggingFace(dir, m, shard, map[string][]byte{"note.txt": []byte("n")}); err != nil {
				t.Fatal(err)
			}
			again, err := LoadHuggingFace(dir)
			if err != nil {
				t.Fatal(err)
			}
			want := nn.StateDict(m)
			for i, s := range nn.StateDict(again) {
				if s.Name != want[i].Name || !slices.Equal(s.Tensor.Float32s(), want[i].Tensor.Float32s()) {
					t.Errorf("%s in shards of %d: %s differs", name, shard, s.Name)
				}
			}
			a, errA := m.HuggingFaceConfig()
			b, errB := again.HuggingFaceConfig()
			if errA != nil || errB != nil || string(a) != string(b) {
				t.Errorf("%s: the configuration changes:\n%s\n%s", name, a, b)
			}
		}
	}
}

// Everything that does not fit is named at once.
func TestModelsThatDoNotFitAreExplained(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "llama")
	m, err := LoadHuggingFace(filepath.Join("testdata", "golden", "llama"))
	if err != nil {
		t.Fatal(err)
	}
	if err := SaveHuggingFace(dir, m, 0, nil); err != nil {
		t.Fatal(err)
	}
	edit := func(change func(config map[string]any)) {
		path := filepath.Join(dir, "config.json")
		text, err := m.HuggingFaceConfig()
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		change(config)
		if text, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	edit(func(config map[string]any) { config["num_hidden_layers"] = 3; config["intermediate_size"] = 40 })
	_, err = LoadHuggingFace(dir)
	var mismatch *checkpoint.StateDictError
	if !errors.As(err, &mismatch) || len(mismatch.Missing) != 9 || len(mismatch.Misshapen) != 6 {
		t.Errorf("a Llama of another size: %v", err)
	}
	for _, c := range []struct {
		key   string
		value any
		says  string
	}{
		{"model_type", "mamba", "mamba"},
		{"hidden_act", "xielu", "xielu"},
		{"attention_bias", true, "missing    model.layers.1.self_attn.o_proj.bias"},
		{"num_key_value_heads", 3, "key heads"},
		{"hidden_size", -1, "width"},
		{"vocab_size", "many", "config.json"},
		{"rms_norm_eps", 0, "rms_norm_eps"},
		{"rope_scaling", map[string]any{"rope_type": "yarn"}, "yarn"},
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 0.5}, "factor"},
	} {
		edit(func(config map[string]any) { config[c.key] = c.value })
		if _, err := LoadHuggingFace(dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: %v", c.key, c.value, err)
		}
	}
}

// What a configuration asks for and the model does not compute is refused, for
// it would give wrong numbers without a word.
func TestOtherWaysToComputeAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, key string
		value     any
	}{
		{"gpt2", "add_cross_attention", true},
		{"gpt2", "layer_norm_epsilon", -1e-3},
		{"bert", "is_decoder", true},
		{"llama3", "rope_parameters", map[string]any{"rope_type": "llama3", "factor": 4}},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", "golden", c.name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		if _, err := parsePretrained(text); err != nil {
			t.Error(err)
		}
		config[c.key] = c.value
		if text, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		if _, err := parsePretrained(text); err == nil {
			t.Errorf("%s with %s %v is accepted", c.name, c.key, c.value)
		}
	}
}

// A configuration that promises more than the weights hold, here petabytes, is
// compared with them before anything is allocated for it.
func TestHugeConfigurationsAllocateNothing(t *testing.T) {
	for name, sizes := range map[string]map[string]any{
		"gpt2":  {"n_embd": 1 << 20, "n_layer": 1 << 10, "vocab_size": 1 << 24},
		"llama": {"hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 1 << 10, "head_dim": 1 << 10},
		"bert":  {"hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 1 << 10},
	} {
		from, dir := filepath.Join("testdata", "golden", name), filepath.Join(t.TempDir(), name)
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "config.json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		maps.Copy(config, sizes)
		if text, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
		m, err := LoadHuggingFace(dir)
		var mismatch *checkpoint.StateDictError
		if !errors.As(err, &mismatch) || m != nil {
			t.Errorf("%s: a model %v and the error %.200v", name, m, err)
		}
	}
}

// Configurations come from files: whatever they say is a model or an error.
func FuzzPretrainedConfig(f *testing.F) {
	for _, name := range []string{"gpt2", "llama", "llama3", "bert"} {
		text, err := os.ReadFile(filepath.Join("testdata", "golden", name, "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, name := range []string{"smollm3", "qwen2", "qwen3-window", "gemma2", "gemma3", "mixtral", "qwen2-moe", "qwen3-moe"} {
		text, err := os.ReadFile(filepath.Join("testdata", "golden", "families", name, "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := parsePretrained(text); err == nil && p.build == nil {
			t.Error("a model that cannot be built was accepted")
		}
		if g, err := ParseGPTConfig(text); err == nil && g.Validate() != nil {
			t.Error("an invalid GPT was accepted")
		}
		if g, err := ParseLlamaConfig(text); err == nil && g.Validate() != nil {
			t.Error("an invalid Llama was accepted")
		}
		if g, err := ParseBERTConfig(text); err == nil && g.Validate() != nil {
			t.Error("an invalid BERT was accepted")
		}
	})
}

// setDropout changes the share that is dropped while training.
func (m *BERT) setDropout(p float64) {
	m.Config.Dropout = p
	m.Encoder.Embeddings.Dropout.P = p
	for _, l := range m.Encoder.Layers.Layer {
		l.Attention.Self.Attention.Dropout, l.Attention.Output.Dropout.P, l.Output.Dropout.P = p, p, p
	}
}

// A pass over new positions with a cache gives what a pass over all gives.
func TestCachedPositionsGiveTheSameLogits(t *testing.T) {
	// The last has a window of three tokens.
	for _, name := range []string{"gpt2", "llama", "llama3", filepath.Join("drawn", "3-00011")} {
		m, err := LoadHuggingFace(filepath.Join("testdata", "golden", name))
		if err != nil {
			t.Fatal(err)
		}
		ids := openExpected(t, filepath.Join("testdata", "golden", name, "expected.safetensors")).read(t, "ids")
		run := func(ids *tensor.Tensor, opts ...nn.CtxOption) *tensor.Tensor {
			c := nn.Evaluation(t.Context(), opts...)
			defer c.Close()
			return c.Call(m, ids).Keep()
		}
		want := run(ids)
		cache := nn.NewKVCache(ids.Dim(1))
		for at, n := 0, 0; at < ids.Dim(1); at += n {
			n = min(1+at, ids.Dim(1)-at) // pieces of several lengths
			got := run(ids.Narrow(1, at, n), nn.WithKVCache(cache))
			if d := maxDiff(got.Float32s(), want.Narrow(1, at, n).Float32s(), 0); !(d <= 1e-5) {
				t.Errorf("%s: the logits of positions %d to %d differ by %.1e of the largest", name, at, at+n-1, d)
			}
		}
	}
}
