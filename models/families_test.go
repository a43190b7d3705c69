// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// familyFolders returns the tiny models of golden/families.py.
func familyFolders(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(golden("families") + "/*/config.json")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("%d folders, %v", len(dirs), err)
	}
	for i, d := range dirs {
		dirs[i] = filepath.Dir(d)
	}
	return dirs
}

// Decoders that transformers saved give its logits, gradients, losses and tokens.
func TestFamiliesAreTransformers(t *testing.T) {
	for _, dir := range familyFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			want := openExpected(t, filepath.Join(dir, "expected.safetensors"))
			m, err := LoadCausalLM(dir, WithNotice(func(text string) { t.Error(text) }))
			if err != nil {
				t.Fatal(err)
			}
			ids, labels := want.read(t, "ids"), want.read(t, "labels")
			c := nn.Evaluation(t.Context())
			if d := maxDiff(c.Call(m, ids).Float32s(), want.read(t, "logits").Float32s(), 0); !(d <= 1e-5) {
				t.Errorf("the logits differ by %.1e of the largest", d)
			}
			c.Close()
			checkGreedy(t, m, want.read(t, "generated"))
			opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.01})
			want.compareTraining(t, m, opt, func(c *nn.Ctx) *tensor.Tensor {
				return tensor.CrossEntropy(c.Call(m, ids), labels)
			})
		})
	}
}

// checkGreedy continues the first three tokens by the likeliest, with a cache, as transformers
// did.
func checkGreedy(t *testing.T, m CausalLM, want *tensor.Tensor) {
	t.Helper()
	all := want.Int64s()
	cache := nn.NewKVCache(len(all))
	next := slices.Clone(all[:3])
	got := slices.Clone(next)
	for len(got) < len(all) {
		c := nn.Evaluation(t.Context(), nn.WithKVCache(cache))
		logits := c.Call(m, tensor.FromInt64(next, 1, len(next)))
		next = []int64{logits.Select(1, len(next)-1).ArgMax(-1).Int64s()[0]}
		c.Close()
		got = append(got, next[0])
	}
	if !slices.Equal(got, all) {
		t.Errorf("generated %v, transformers %v", got, all)
	}
}

// What is saved here is the same model, here and to transformers.
func TestFamiliesRoundTrip(t *testing.T) {
	saved := t.TempDir()
	var folders []string
	for _, dir := range familyFolders(t) {
		m, err := LoadHuggingFace(dir)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(saved, filepath.Base(dir))
		if err := SaveHuggingFace(to, m, 0, nil); err != nil {
			t.Fatal(err)
		}
		again, err := LoadHuggingFace(to, WithNotice(func(text string) { t.Error(text) }))
		if err != nil {
			t.Fatal(err)
		}
		a, errA := m.HuggingFaceConfig()
		b, errB := again.HuggingFaceConfig()
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%s: the configuration changes:\n%s\n%s", dir, a, b)
		}
		for i, s := range nn.StateDict(again) {
			if w := nn.StateDict(m)[i]; s.Name != w.Name || !slices.Equal(s.Tensor.Float32s(), w.Tensor.Float32s()) {
				t.Errorf("%s: %s differs", dir, s.Name)
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, "expected.safetensors"))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, "expected.safetensors"), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		folders = append(folders, to)
	}
	if *python == "" {
		return
	}
	out, err := exec.CommandContext(t.Context(), *python, append([]string{golden("families.py"), "check"}, folders...)...).CombinedOutput()
	if err != nil {
		t.Errorf("what is saved here is something else to Python: %v: %s", err, out)
	}
}

// Rotations of every type turn as in transformers, below and beyond the first training's length.
func TestRotationsAreTransformers(t *testing.T) {
	text, err := os.ReadFile(golden("families") + "/rope.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name        string
		Config      json.RawMessage
		Length      int
		Frequencies []float64
		Amplitude   float64
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 20 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		g, err := ParseLlamaConfig(c.Config)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for i, f := range g.RoPE.frequencies(16, c.Length) {
			if !(math.Abs(f-c.Frequencies[i]) <= 1e-6*c.Frequencies[i]) {
				t.Errorf("%s of %d tokens: frequency %d is %v, want %v", c.Name, c.Length, i, f, c.Frequencies[i])
				break
			}
		}
		if a := g.RoPE.amplitude(); !(math.Abs(a-c.Amplitude) <= 1e-6) {
			t.Errorf("%s: the amplitude is %v, want %v", c.Name, a, c.Amplitude)
		}
		// What is saved says the same.
		said, err := json.Marshal(huggingFaceOf("", "llama", g, 1e-5))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseLlamaConfig(said); err != nil || !reflect.DeepEqual(again.RoPE, g.RoPE) {
			t.Errorf("%s: saved as %s, which is %+v, %v", c.Name, said, again.RoPE, err)
		}
	}
}

// A family that is not known is named, with the nearest that is, and what it lacks.
func TestUnknownFamiliesAreExplained(t *testing.T) {
	text, err := os.ReadFile(golden("families") + "/qwen3/config.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, more, says string }{
		{"qwen3_next", `"linear_conv_kernel_dim":4,"full_attention_interval":4,`, "the nearest is qwen3, which has no full_attention_interval, linear_conv_kernel_dim"},
		{"orpheus", `"codes":4,`, "which has no codes"},
		{"qwen3_vl", `"text_config":{},`, "text_config"},
		{"", ``, "no model_type"},
	} {
		config := strings.Replace(strings.Replace(string(text), `"qwen3"`, `"`+c.kind+`"`, 1), "{", "{"+c.more, 1)
		config = strings.Replace(config, `"Qwen3ForCausalLM"`, `"Other"`, 1)
		if _, err := parsePretrained([]byte(config)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.kind, err, c.says)
		}
	}
}
