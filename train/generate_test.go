// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
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
	m, tok, err := LoadLM(t.Context(), c.Out, noNotice(t))
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
	if _, _, err := LoadLM(t.Context(), checkpoint.Path(c.Out, 10), noNotice(t)); err != nil {
		t.Error(err)
	}

	// An older model than the newest one is not taken without a word.
	damaged := filepath.Join(checkpoint.Path(c.Out, 12), checkpoint.ModelFile)
	if err := os.Truncate(damaged, 100); err != nil {
		t.Fatal(err)
	}
	var notices []string
	_, _, err = LoadLM(t.Context(), c.Out, func(text string) { notices = append(notices, text) })
	if err != nil || len(notices) != 1 || !strings.Contains(notices[0], checkpoint.Path(c.Out, 12)+" is damaged") {
		t.Errorf("with a truncated newest model: %v, notices %q", err, notices)
	}
}

// noNotice fails the test when it is called.
func noNotice(t *testing.T) func(string) {
	return func(text string) { t.Errorf("a notice without a reason: %s", text) }
}

func TestLoadLMErrors(t *testing.T) {
	dir := t.TempDir()
	weights := filepath.Join("..", "models", "testdata", "golden", "gpt2")
	if _, _, err := LoadLM(t.Context(), weights, noNotice(t)); err == nil || !strings.Contains(err.Error(), "LoadHuggingFace") {
		t.Errorf("a folder of weights: %v", err)
	}
	if _, _, err := LoadLM(t.Context(), filepath.Join(dir, "no"), noNotice(t)); !errors.Is(err, checkpoint.ErrNone) || !strings.Contains(err.Error(), dir) {
		t.Errorf("no directory: %v", err)
	}
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	tamper := func(step int, files map[string]string) error {
		err := checkpoint.Save(t.Context(), dir, step, func(w *checkpoint.Writer) error {
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
		}, 100)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = LoadLM(t.Context(), dir, noNotice(t))
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
		{configFile, `{"model_type":"llama"}`, []string{`"llama"`, "gpt2"}},
		{configFile, config("31", "300", "1"), []string{"31 % 2 = 1"}},
		{configFile, config("32", "301", "1"), []string{tokenizerFile, "300", "301"}},
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
	saved, err := FindRun(t.Context(), "lm", c.Out, noNotice(t))
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
	if r.tokenizer, err = readTokenizer(saved.Checkpoint); err != nil {
		t.Fatal(err)
	}
	if err := r.buildModel(saved); !errors.As(err, new(*checkpoint.StateDictError)) {
		t.Errorf("the error is %.200v", err)
	}
}
