// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

var python = flag.String("python", "", "a Python with torch, transformers and peft, for TestPythonOpensWhatIsSaved")

func golden(name string) string { return filepath.Join("testdata", "golden", name) }

// openCausal opens a golden model.
func openCausal(t *testing.T, name string) CausalLM {
	t.Helper()
	m, err := LoadHuggingFace(golden(name))
	if err != nil {
		t.Fatal(err)
	}
	return m.(CausalLM)
}

// openAdapted opens a golden adapter and its base.
func openAdapted(t *testing.T, name string) (CausalLM, *nn.LoRA) {
	t.Helper()
	m := openCausal(t, strings.TrimSuffix(name, "-lora"))
	l, err := LoadAdapter(golden(name), m)
	if err != nil {
		t.Fatal(err)
	}
	return m, l
}

// logits of a model for the tokens 0 to 15, which testdata/golden/lora.py prints.
func logitsOf(t *testing.T, m nn.Module) []float32 {
	c := nn.Evaluation(t.Context())
	defer c.Close()
	return c.Call(m, tensor.Arange(tensor.CPU(), 16).Reshape(1, 16)).Keep().Float32s()
}

// Adapters that PEFT saved give its logits, losses and gradients, and merged
// its logits still.
func TestPEFTAdapters(t *testing.T) {
	for _, name := range []string{"gpt2-lora", "llama-lora"} {
		t.Run(name, func(t *testing.T) {
			want := openExpected(t, filepath.Join(golden(name), "expected.safetensors"))
			ids, labels := want.read(t, "ids"), want.read(t, "labels")
			compare := func(what string, m nn.Module) {
				c := nn.Evaluation(t.Context())
				defer c.Close()
				if d := maxDiff(c.Call(m, ids).Float32s(), want.read(t, "logits").Float32s(), 0); !(d <= 1e-5) {
					t.Errorf("%s: the logits differ by %.1e of the largest", what, d)
				}
			}
			_, l := openAdapted(t, name)
			compare("adapted", l)
			added := &struct {
				Added nn.NamedParameters `name:""`
			}{l.Added}
			opt := optim.NewAdamW(nn.Parameters(added), optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.01})
			want.compareTraining(t, added, opt, func(c *nn.Ctx) *tensor.Tensor { return tensor.CrossEntropy(c.Call(l, ids), labels) })
			merged, err := LoadCausalLM(golden(name))
			if err != nil {
				t.Fatal(err)
			}
			compare("merged", merged)
		})
	}
}

// What is saved of an adapter is what PEFT saved, and opens again.
func TestAdaptersRoundTrip(t *testing.T) {
	for _, name := range []string{"gpt2-lora", "llama-lora"} {
		m, l := openAdapted(t, name)
		dir := filepath.Join(t.TempDir(), "adapter")
		if err := SaveAdapter(dir, l, golden(strings.TrimSuffix(name, "-lora")), nil); err != nil {
			t.Fatal(err)
		}
		var theirs, ours map[string]any
		for path, into := range map[string]*map[string]any{golden(name): &theirs, dir: &ours} {
			text, err := os.ReadFile(filepath.Join(path, adapterConfigFile))
			if err == nil {
				err = json.Unmarshal(text, into)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for key, got := range ours {
			if key == "target_modules" || key == "base_model_name_or_path" {
				continue // other names of the same
			}
			a, _ := json.Marshal(got)
			b, _ := json.Marshal(theirs[key])
			if !bytes.Equal(a, b) {
				t.Errorf("%s: %s is %s, PEFT has %s", name, key, a, b)
			}
		}
		again, err := LoadAdapter(dir, openCausal(t, strings.TrimSuffix(name, "-lora")))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(logitsOf(t, again), logitsOf(t, l)) {
			t.Errorf("%s: another model was saved", name)
		}
		if base, err := AdapterBase(dir); err != nil || base != golden(strings.TrimSuffix(name, "-lora")) {
			t.Errorf("%s: the base is %q, %v", name, base, err)
		}
		if err := SaveAdapter(dir, l, "", nil); err == nil {
			t.Error("an adapter was saved over another")
		}
		for _, p := range nn.Parameters(m) {
			if !p.Frozen {
				t.Errorf("%s: %s is trained", name, p.Name())
			}
		}
	}
}

// Python opens what is saved here with equal logits: adapters with PEFT, merged
// models with transformers.
//
//	go test ./models -run TestPythonOpensWhatIsSaved -python /path/to/python
func TestPythonOpensWhatIsSaved(t *testing.T) {
	if *python == "" {
		t.Skip("needs -python")
	}
	for _, name := range []string{"gpt2", "llama", "llama3"} {
		m := openCausal(t, name)
		g := tensor.NewGenerator(5)
		l, err := nn.NewLoRA(&nn.Build{Generator: g}, m, nn.LoRAOptions{Rank: 3, Alpha: 5, Targets: m.LoRATargets()})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range l.Added {
			g.Normal(p.Parameter.Data(), 0, 0.3)
		}
		want := logitsOf(t, l)
		dir := t.TempDir()
		if err := SaveAdapter(filepath.Join(dir, "adapter"), l, golden(name), nil); err != nil {
			t.Fatal(err)
		}
		l.Merge()
		if err := SaveHuggingFace(filepath.Join(dir, "merged"), m, 0, nil); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{golden(name), filepath.Join(dir, "adapter")}, {filepath.Join(dir, "merged")}} {
			out, err := exec.CommandContext(t.Context(), *python, append([]string{golden("lora.py"), "open"}, args...)...).Output()
			if err != nil {
				t.Fatalf("%s: %v: %s", args, err, out)
			}
			var got []float32
			for line := range strings.Lines(string(out)) {
				v, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, float32(v))
			}
			if len(got) != len(want) {
				t.Fatalf("%s has %d logits, want %d", args, len(got), len(want))
			}
			if d := maxDiff(got, want, 0); !(d <= 1e-5) {
				t.Errorf("%s: the logits differ by %.1e of the largest", args, d)
			}
		}
	}
}

// An adapter that computes what we do not, or that is for another model, is an
// error that says why.
func TestAdaptersThatDoNotFitAreExplained(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(golden("gpt2-lora"), adapterConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key   string
		value any
		says  string
	}{
		{"peft_type", "PREFIX_TUNING", "PREFIX_TUNING"},
		{"use_dora", true, "use_dora"},
		{"bias", "all", "biases"},
		{"modules_to_save", []string{"lm_head"}, "modules_to_save"},
		{"alpha_pattern", map[string]any{"c_attn": 0}, "alpha_pattern"},
		{"alpha_pattern", map[string]any{"c_attn": "x"}, "alpha_pattern"},
		{"rank_pattern", map[string]any{"c_attn": 2}, "says rank 2"},
		{"rank_pattern", map[string]any{"c_attn": 2.5}, "rank_pattern"},
		{"rank_pattern", map[string]any{"c_attn": -2}, "says rank -2"},
		{"rank_pattern", map[string]any{"(?=c)attn": 2}, "rank_pattern"},
		{"target_modules", []string{"c_attn"}, "transformer.h.0.mlp.c_proj, which target_modules"},
		{"target_modules", ".*c_attn", "transformer.h.0.mlp.c_proj, which target_modules"},
		{"target_modules", "(", "target_modules"},
		{"exclude_modules", []string{"c_proj"}, "transformer.h.0.mlp.c_proj, which target_modules"},
		{"exclude_modules", "transformer.h.1.*", "transformer.h.1.attn.c_attn, which target_modules"},
		{"layers_to_transform", 1, "transformer.h.0.attn.c_attn, which target_modules"},
		{"layers_to_transform", []int{0}, "transformer.h.1.attn.c_attn, which target_modules"},
		{"layers_pattern", 3, "layers_pattern"},
		{"lora_bias", true, "lora_bias"},
		{"megatron_config", map[string]any{"a": 1}, "megatron_config"},
		{"trainable_token_indices", []int{1}, "trainable_token_indices"},
		{"use_frobnication", true, "use_frobnication"},
		{"init_lora_weights", "pissa", "pissa"},
		{"alora_invocation_tokens", 3, "alora_invocation_tokens"},
		{"r", 5, "says rank 5"},
		{"r", -1, "rank of a LoRA is -1"},
		{"r", "four", "cannot unmarshal"},
		{"lora_alpha", 0, "adds nothing"},
		{"lora_dropout", 1, "dropout"},
		{"base_model_name_or_path", "openai-community/gpt2", "no folder on this machine"},
		{"base_model_name_or_path", nil, "does not name the model"},
		{"base_model_name_or_path", golden("llama"), "no projection of the model is called"},
		{"base_model_name_or_path", golden("bert"), "does not name the next token"},
	} {
		dir := t.TempDir()
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		config[c.key] = c.value
		changed, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(golden("gpt2-lora"))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, adapterConfigFile), changed, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadCausalLM(dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: %v, want %q", c.key, c.value, err, c.says)
		}
	}

	// Of a wider model, of one with more layers, and damaged files.
	wide := NewGPT(&nn.Build{}, GPTConfig{Vocab: 61, Context: 24, Width: 40, Heads: 4, Layers: 2})
	var mismatch *checkpoint.StateDictError
	if _, err := LoadAdapter(golden("gpt2-lora"), wide); !errors.As(err, &mismatch) || len(mismatch.Misshapen) != 8 {
		t.Errorf("an adapter of a narrower model: %v", err)
	}
	files := func(change func(dir string) error) error {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(golden("gpt2-lora"))); err != nil {
			t.Fatal(err)
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		_, err := LoadCausalLM(dir)
		return err
	}
	for says, change := range map[string]func(dir string) error{
		"saved without safetensors": func(dir string) error { return os.Remove(filepath.Join(dir, AdapterFile)) },
		"has":                       func(dir string) error { return os.Truncate(filepath.Join(dir, AdapterFile), 900) },
		"unexpected end":            func(dir string) error { return os.Truncate(filepath.Join(dir, adapterConfigFile), 9) },
		"lora_A.weight and": func(dir string) error { // a whole model in its place
			text, err := os.ReadFile(filepath.Join(golden("gpt2"), "model.safetensors"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, AdapterFile), text, 0o666)
		},
	} {
		if err := files(change); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// Every key of PEFT's configuration is read, changes nothing, or is refused by
// name; what asks for nothing is taken from each.
func TestEverySettingOfAnAdapter(t *testing.T) {
	text, err := os.ReadFile(golden("keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	var theirs struct {
		Adapter []string `json:"adapter"`
	}
	if err := json.Unmarshal(text, &theirs); err != nil {
		t.Fatal(err)
	}
	for _, key := range theirs.Adapter {
		if slices.Contains(adapterSettings.honoured, key) {
			continue
		}
		for _, value := range []string{"true", `"something"`, `{"a":1}`, "7"} {
			_, err := parseAdapterConfig([]byte(`{"peft_type":"LORA","` + key + `":` + value + `}`))
			if slices.Contains(adapterSettings.harmless, key) != (err == nil) || err != nil && !strings.Contains(err.Error(), key) {
				t.Errorf("%s %s: %v", key, value, err)
			}
		}
		for _, value := range []string{"null", "false", "{}", "[]"} {
			if _, err := parseAdapterConfig([]byte(`{"peft_type":"LORA","` + key + `":` + value + `}`)); err != nil {
				t.Errorf("%s %s: %v", key, value, err)
			}
		}
	}
}

// Each pattern is tried at each module: a file may not have any number of them.
func TestPatternsOfAnAdapterAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range maxPatterns + 1 {
		fmt.Fprintf(&b, `,"%d":1`, i)
	}
	for _, key := range []string{"rank_pattern", "alpha_pattern"} {
		_, err := parseAdapterConfig([]byte(`{"peft_type":"LORA","` + key + `":{` + b.String()[1:] + `}}`))
		if err == nil || !strings.Contains(err.Error(), "more than the 8192 allowed") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// Configurations come from files: whatever they say is an adapter or an error.
func FuzzAdapterConfig(f *testing.F) {
	for _, name := range []string{"gpt2-lora", "llama-lora"} {
		text, err := os.ReadFile(filepath.Join(golden(name), adapterConfigFile))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parseAdapterConfig(text)
		if err != nil {
			return
		}
		if o := (nn.LoRAOptions{Rank: a.Rank, Alpha: a.Alpha, Dropout: a.Dropout, Targets: []string{"x"}}); o.Validate() != nil {
			t.Error("an adapter was accepted that makes no LoRA")
		}
		var all map[string]any
		if json.Unmarshal(text, &all) != nil || !slices.Contains(slices.Collect(maps.Keys(all)), "peft_type") {
			t.Error("what is no adapter was accepted")
		}
	})
}

// An adapter says the alpha that was asked for: a half-way division and
// multiplication by the rank would make 0.9999999999999999 of 1.
func TestAdapterAlpha(t *testing.T) {
	for alpha, want := range map[float64]float64{0: 98, 1: 1, 0.5: 0.5} {
		l, err := nn.NewLoRA(&nn.Build{Device: tensor.Meta}, openCausal(t, "gpt2"), nn.LoRAOptions{Rank: 49, Alpha: alpha, Targets: []string{"c_attn"}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := AdapterConfig(l, "base")
		if err != nil {
			t.Fatal(err)
		}
		if a, err := parseAdapterConfig(text); err != nil || a.Alpha != want {
			t.Errorf("alpha %v is saved as %v, want %v (%v)", alpha, a.Alpha, want, err)
		}
	}
}
