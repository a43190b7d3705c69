// SPDX-License-Identifier: Apache-2.0

package train_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
)

// TestSavedForHuggingFace: a checkpoint has the files by which transformers
// knows the model and its tokenizer, and says in them what is true.
func TestSavedForHuggingFace(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&text, "line %d of a text about the number %d\n", i, i*i)
	}
	cfg := train.DefaultLM()
	cfg.Data, cfg.Out = filepath.Join(dir, "text"), filepath.Join(dir, "out")
	if err := os.WriteFile(cfg.Data, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Steps, cfg.Batch, cfg.Vocab, cfg.Context, cfg.Width, cfg.Heads, cfg.Layers = 2, 2, 300, 16, 24, 3, 1
	cfg.EvalTokens, cfg.SampleTokens = 64, 4
	group, err := dist.Init(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	if err := train.LM(t.Context(), group, cfg, nil, train.Discard); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file string
		want map[string]any
	}{
		{"config.json", map[string]any{"model_type": "gpt2", "n_positions": 16., "n_embd": 24., "n_head": 3., "n_layer": 1.}},
		{"tokenizer_config.json", map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16.}},
		{"tokenizer.json", map[string]any{"version": "1.0"}},
	} {
		text, err := os.ReadFile(filepath.Join(checkpoint.Path(cfg.Out, 2), c.file))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%s: %v", c.file, err)
		}
		for key, want := range c.want {
			if got[key] != want {
				t.Errorf("%s: %s is %v, want %v", c.file, key, got[key], want)
			}
		}
	}
}
