// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

func TestDraw(t *testing.T) {
	logits := []float32{0, 3, 1, 2.5, -1}
	g := tensor.NewGenerator(1)
	if id := draw(logits, GenerateOptions{}, g); id != 1 {
		t.Errorf("without temperature %d was drawn, the likeliest is 1", id)
	}
	var counts [5]int
	for range 2000 {
		counts[draw(logits, GenerateOptions{Temperature: 1, TopK: 2}, g)]++
	}
	// e³ : e^2.5 is 0.62 : 0.38
	if counts[1]+counts[3] != 2000 || counts[1] < 1150 || counts[1] > 1330 {
		t.Errorf("of the two likeliest of 5, drawn %v", counts)
	}
	counts = [5]int{}
	for range 2000 {
		counts[draw(logits, GenerateOptions{Temperature: 100}, g)]++
	}
	for id, n := range counts {
		if n < 300 {
			t.Errorf("at a high temperature, %d was drawn %d times of 2000", id, n)
		}
	}
}

func TestGenerate(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	l, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	m, tok, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	text := func(prompt string, o GenerateOptions) string {
		var b strings.Builder
		err := Generate(t.Context(), m, tok, prompt, o, func(piece []byte) error { b.Write(piece); return nil })
		if err != nil {
			t.Errorf("prompt %q: %v", prompt, err)
		}
		return b.String()
	}
	// The sample at the end of the run, from the same settings.
	o := GenerateOptions{NumTokens: c.SampleTokens, Temperature: 0.8, TopK: 50, Seed: c.Seed}
	_, quotedPrompt, _ := strings.Cut(l.finish.Next, " --prompt '")
	prompt := strings.TrimSuffix(quotedPrompt, "'")
	if got := prompt + text(prompt, o); got != l.finish.Text || prompt == "" {
		t.Errorf("%q, the run had printed %q", got, l.finish.Text)
	}
	o.Seed++
	o.NumTokens = 30
	if a, b := text("abc", o), text("abc", o); a != b || a == "" {
		t.Errorf("one seed gives %q and %q", a, b)
	}
	if text("", o) == "" || text(strings.Repeat("a long prompt ", 50), o) == "" || text("\xff\x00", o) == "" {
		t.Error("an odd prompt gives nothing")
	}
	o.NumTokens = 0
	if got := text("abc", o); got != "" {
		t.Errorf("no tokens give %q", got)
	}

	o.NumTokens = 5
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	n := 0
	err = Generate(ctx, m, tok, "a", o, func([]byte) error { n++; cancel(why); return nil })
	if !errors.Is(err, why) || n != 1 {
		t.Errorf("after the end of the context: %v, %d pieces", err, n)
	}
	full := errors.New("disk full")
	if err := Generate(t.Context(), m, tok, "a", o, func([]byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("the error of the writer comes back as %v", err)
	}
	for _, bad := range []GenerateOptions{{NumTokens: -1}, {NumTokens: 1, TopK: -1}, {NumTokens: 1, Temperature: -1}, {NumTokens: 1, Temperature: math.NaN()}} {
		if err := Generate(t.Context(), m, tok, "a", bad, func([]byte) error { return nil }); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	// A model that is not finite says so, not some token.
	nn.StateDict(m)[0].Tensor.Fill(math.NaN())
	if err := Generate(t.Context(), m, tok, "a", o, func([]byte) error { return nil }); err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("weights of NaN: %v", err)
	}

	// A checkpoint's own directory does as well.
	if _, _, err := LoadLM(t.Context(), storage.Dir(checkpoint.Path(c.Out, 10)), noNotice(t)); err != nil {
		t.Error(err)
	}

	// An older model than the newest one is not taken without a word.
	damaged := filepath.Join(checkpoint.Path(c.Out, 12), checkpoint.ModelFile)
	if err := os.Truncate(damaged, 100); err != nil {
		t.Fatal(err)
	}
	var notices []string
	_, _, err = LoadLM(t.Context(), storage.Dir(c.Out), func(text string) { notices = append(notices, text) })
	if err != nil || len(notices) != 1 || !strings.Contains(notices[0], checkpoint.Path(c.Out, 12)+" is damaged") {
		t.Errorf("with a truncated newest model: %v, notices %q", err, notices)
	}
}

// TestFoldersOfModelsAreOpened: a GPT-2 and a Llama as Hugging Face's tools lay
// them out, and an adapter with its base, generate without a run.
func TestFoldersOfModelsAreOpened(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	gpt, tok, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(checkpoint.Path(c.Out, 12), tokenizerFile))
	if err != nil {
		t.Fatal(err)
	}
	tokenizer := map[string][]byte{tokenizerFile: text}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	// Twenty rows more than tokens, which are never drawn.
	llama := models.NewLlama(&nn.Build{}, models.LlamaConfig{Vocab: tok.Size() + 20, Context: 16, Width: 16, Hidden: 24, Heads: 2, KeyHeads: 1, Layers: 1})
	lora, err := nn.NewLoRA(&nn.Build{}, llama, nn.LoRAOptions{Rank: 2, Targets: llama.LoRATargets()})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range lora.Added {
		p.Parameter.Data().Fill(0.1)
	}
	for _, err := range []error{
		models.SaveHuggingFace(at("gpt2"), gpt, 0, tokenizer),
		models.SaveHuggingFace(at("llama"), llama, 2000, tokenizer),
		models.SaveAdapter(at("adapter"), lora, at("llama"), nil), // its base has the tokenizer
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(dir string) string {
		m, tok, err := LoadLM(t.Context(), storage.Dir(dir), noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		o := GenerateOptions{NumTokens: 40, Temperature: 1, Seed: 3} // beyond the context
		if err := Generate(t.Context(), m, tok, "a", o, func(piece []byte) error { b.Write(piece); return nil }); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if a, b := write(c.Out), write(at("gpt2")); a != b || a == "" {
		t.Errorf("the run writes %q, its weights in a folder %q", a, b)
	}
	if a, b := write(at("llama")), write(at("adapter")); a == b || a == "" || b == "" {
		t.Errorf("a Llama writes %q, with an adapter %q", a, b)
	}

	// A tokenizer of another model.
	small := models.NewLlama(&nn.Build{}, models.LlamaConfig{Vocab: tok.Size() - 1, Context: 16, Width: 16, Hidden: 24, Heads: 2, KeyHeads: 1, Layers: 1})
	if err := models.SaveHuggingFace(at("small"), small, 0, tokenizer); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadLM(t.Context(), storage.Dir(at("small")), noNotice(t)); err == nil || !strings.Contains(err.Error(), "has 300 tokens, the model knows 299") {
		t.Errorf("a vocabulary that does not fit: %v", err)
	}
	if err := os.RemoveAll(at("llama")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadLM(t.Context(), storage.Dir(at("adapter")), noNotice(t)); err == nil || !strings.Contains(err.Error(), "no folder on this machine") {
		t.Errorf("an adapter without its base: %v", err)
	}
}

// TestGreedyTextIsTransformers: the likeliest tokens, from prompts with and
// without special tokens, words that the model knows and bytes that it does not,
// are those that transformers writes.
func TestGreedyTextIsTransformers(t *testing.T) {
	text, err := os.ReadFile(tuned("generate.json"))
	if err != nil {
		t.Fatal(err)
	}
	var models map[string]map[string]string
	if err := json.Unmarshal(text, &models); err != nil {
		t.Fatal(err)
	}
	for name, texts := range models {
		m, tok, err := LoadLM(t.Context(), storage.Dir(tuned(name)), noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		for prompt, want := range texts {
			var got strings.Builder
			err := Generate(t.Context(), m, tok, prompt, GenerateOptions{NumTokens: 20}, func(piece []byte) error {
				got.Write(piece)
				return nil
			})
			// Where bytes are no text, Python has a sign for it.
			if err != nil || strings.ToValidUTF8(got.String(), "\ufffd") != want {
				t.Errorf("%s goes on from %q with %q (%v), by transformers %q", name, prompt, got.String(), err, want)
			}
		}
	}
}

// noNotice fails the test when it is called.
func noNotice(t *testing.T) func(string) {
	return func(text string) { t.Errorf("a notice without a reason: %s", text) }
}

func TestLoadLMErrors(t *testing.T) {
	dir := t.TempDir()
	weights := filepath.Join("..", "models", "testdata", "golden", "gpt2")
	if _, _, err := LoadLM(t.Context(), storage.Dir(weights), noNotice(t)); err == nil || !strings.Contains(err.Error(), tokenizerFile) {
		t.Errorf("a folder without a tokenizer: %v", err)
	}
	if _, _, err := LoadLM(t.Context(), storage.Dir(dir), noNotice(t)); !errors.Is(err, checkpoint.ErrNone) || !strings.Contains(err.Error(), "neither the directory of a run") {
		t.Errorf("an empty directory: %v", err)
	}
	if _, _, err := LoadLM(t.Context(), storage.Dir(filepath.Join(dir, "no")), noNotice(t)); !errors.Is(err, checkpoint.ErrNone) || !strings.Contains(err.Error(), dir) {
		t.Errorf("no directory: %v", err)
	}
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	tamper := func(step int, files map[string]string) error {
		err := checkpoint.Save(t.Context(), nil, storage.Dir(dir), step, checkpoint.State{Files: func(w *checkpoint.Writer) error {
			for _, name := range []string{configFile, tokenizerFile, checkpoint.ModelFile} {
				b, err := os.ReadFile(filepath.Join(checkpoint.Path(c.Out, 12), name))
				if err != nil {
					return err
				}
				if text, ok := files[name]; ok {
					b = []byte(text)
				}
				if err := w.WriteFile(name, b); err != nil {
					return err
				}
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = LoadLM(t.Context(), storage.Dir(dir), noNotice(t))
		return err
	}
	if err := tamper(1, nil); err != nil {
		t.Fatal(err)
	}
	config := func(width, vocab, layers string) string {
		return `{"model_type":"gpt2","vocab_size":` + vocab + `,"n_positions":16,"n_embd":` + width + `,"n_layer":` + layers + `,"n_head":2,"layer_norm_epsilon":1e-5}`
	}
	for i, f := range []struct {
		file, text string
		want       []string
	}{
		{configFile, "{", []string{"config.json"}},
		{configFile, `{"model_type":"llama","vocab_size":0}`, []string{"vocabulary of a Llama"}},
		{configFile, `{"model_type":"mamba"}`, []string{`"mamba"`, "gpt2"}},
		{configFile, config("31", "300", "1"), []string{"31 % 2 = 1"}},
		{configFile, config("32", "299", "1"), []string{"transformer.wte.weight", "299"}},
		{configFile, config("64", "300", "1"), []string{"transformer.wte.weight", "transformer.ln_f.bias"}},
		{configFile, config("1000000000000", "300", "1000000000000"), []string{"config.json"}},
		{configFile, config("32", "300", "9223372036854775807"), []string{"config.json"}},
		{tokenizerFile, "[]", []string{tokenizerFile}},
		{checkpoint.ModelFile, "no safetensors", []string{checkpoint.ModelFile}},
	} {
		err := tamper(2+i, map[string]string{f.file: f.text})
		if err == nil {
			t.Errorf("%s %q was taken", f.file, f.text)
			continue
		}
		for _, part := range append(f.want, dir) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s %q: the error lacks %q: %v", f.file, f.text, part, err)
			}
		}
	}
}

// A checkpoint whose recipe asks for petabytes is compared with its weights
// before anything is allocated.
func TestHugeRecipeAllocatesNothing(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	saved, err := FindRun(t.Context(), "lm", storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	recipe, err := savedRecipe(saved)
	if err != nil {
		t.Fatal(err)
	}
	recipe.Width, recipe.Layers = recipe.Heads<<16, 1<<10
	if err := recipe.model().Validate(); err != nil {
		t.Fatal(err)
	}
	r := &lmRun{cfg: recipe, report: Discard}
	if r.tokenizer, err = readTokenizer(saved.Checkpoint.Path); err != nil {
		t.Fatal(err)
	}
	if err := r.buildModel(saved); !errors.As(err, new(*checkpoint.StateDictError)) {
		t.Errorf("the error is %.200v", err)
	}
}
