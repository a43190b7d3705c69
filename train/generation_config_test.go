// SPDX-License-Identifier: Apache-2.0

package train

import (
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/tensor"
)

// What ends a text is read where the Hugging Face libraries read it: in
// generation_config.json if there is one, else in config.json.
func TestGenerationOfAFolder(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	m, tok, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	saved, err := findModel(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(saved.path, tokenizerFile))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "gpt2")
	if err := models.SaveHuggingFace(dir, m.(*models.GPT), 0, map[string][]byte{tokenizerFile: text}); err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		t.Fatal(err)
	}
	write := func(config, generation string) (string, []string, error) {
		for name, text := range map[string]string{configFile: strings.Replace(string(plain), `"eos_token_id": null`, `"eos_token_id": `+config, 1), generationFile: generation} {
			path := filepath.Join(dir, name)
			if err := os.Remove(path); text == "" && err == nil {
				continue
			}
			if text != "" {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		m, tok, err := LoadLM(t.Context(), storage.Dir(dir), noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		g, err := generationOf(dir)
		if err != nil {
			return "", nil, err
		}
		o := GenerateOptions{NumTokens: 12, Temperature: 1, Seed: 1}
		o.Fill(g, func(name string) bool { return name == "temperature" })
		var b strings.Builder
		err = Generate(t.Context(), m, tok, "func", o, func(piece []byte) error { b.Write(piece); return nil })
		return b.String(), g.Ignored, err
	}
	// All twelve tokens, and where each of them is first.
	var ids []int64
	err = Generate(t.Context(), m, tok, "func", GenerateOptions{NumTokens: 12, Temperature: 1, Seed: 1}, func(piece []byte) error {
		for id := range int64(tok.Size()) {
			if string(tok.Token(id)) == string(piece) {
				ids = append(ids, id)
				break
			}
		}
		return nil
	})
	if err != nil || len(ids) != 12 {
		t.Fatal(ids, err)
	}
	at := func(n int) string { b, _ := tok.Decode(ids[:n]); return string(b) }
	first := func(id int64) int { return slices.Index(ids, id) }
	late := ids[0]
	for _, id := range ids {
		if first(id) > first(late) {
			late = id
		}
	}
	if first(late) < 2 {
		t.Fatalf("%d says too little", ids)
	}
	for _, f := range []struct {
		config, generation, want string
	}{
		{"null", "", at(12)},
		{jsonID(late), "", at(first(late))},
		{"[" + jsonID(late) + ", " + jsonID(ids[1]) + "]", "", at(min(first(late), first(ids[1])))},
		{jsonID(ids[1]), `{"eos_token_id": ` + jsonID(late) + `}`, at(first(late))},
		{jsonID(ids[1]), `{"eos_token_id": [` + jsonID(late) + `]}`, at(first(late))},
		{jsonID(ids[1]), `{}`, at(12)},
		{"null", `{"max_new_tokens": 3, "max_length": 5}`, at(3)},
		{"null", `{"eos_token_id": ` + jsonID(late) + `, "do_sample": true, "temperature": 0.6, "pad_token_id": 0, "transformers_version": "5"}`, at(first(late))},
	} {
		got, notes, err := write(f.config, f.generation)
		if err != nil || got != f.want || notes != nil {
			t.Errorf("config.json %s, generation_config.json %s: %q, want %q (%v, %q)", f.config, f.generation, got, f.want, err, notes)
		}
	}
	if got, _, err := write("null", `{"eos_token_id": `+jsonID(ids[0])+`, "min_new_tokens": 4}`); err != nil || got == "" {
		t.Errorf("with at least 4 tokens: %q (%v)", got, err)
	}
	for _, bos := range []int64{-1, int64(m.Vocab())} {
		err := Generate(t.Context(), m, tok, "", GenerateOptions{NumTokens: 1, BOS: []int64{bos}}, func([]byte) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "bos_token_id is "+jsonID(bos)) {
			t.Errorf("a first token %d: %v", bos, err)
		}
	}
	if got, _, err := write("null", `{"max_length": 1}`); err != nil || got != "" {
		t.Errorf("with at most one token, which the prompt has: %q (%v)", got, err)
	}
	if got, _, err := write("null", `{"repetition_penalty": 5.0}`); err != nil || got == at(12) {
		t.Errorf("with a penalty the text is the same: %q (%v)", got, err)
	}
	_, notes, err := write("null", `{"num_beams": 4, "typical_p": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": [[3]], "output_scores": true}`)
	if err != nil || !slices.Equal(notes, []string{"bad_words_ids [[3]]", "num_beams 4"}) {
		t.Errorf("what is not done: %q (%v)", notes, err)
	}
	for _, bad := range []string{`{"eos_token_id": "</s>"}`, `{"eos_token_id": [1.5]}`, `{"temperature": -1}`, `{"top_p": 2}`, `{"top_k": "all"}`, `[]`} {
		if _, _, err := write("null", bad); err == nil || !strings.Contains(err.Error(), generationFile) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func jsonID(id int64) string { return strconv.FormatInt(id, 10) }

func TestFillGeneration(t *testing.T) {
	parse := func(text string) Generation {
		g, err := parseGeneration(map[string][]byte{generationFile: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	was := GenerateOptions{NumTokens: 200, Temperature: 0.8, TopK: 50}
	o := was
	o.Fill(parse(`{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "bos_token_id": 7}`), func(string) bool { return false })
	if o.Temperature != 0.6 || o.TopP != 0.9 || o.TopK != 20 || o.NumTokens != 200 || !slices.Equal(o.BOS, []int64{7}) {
		t.Errorf("%+v", o)
	}
	o = was
	o.Fill(parse(`{"do_sample": false, "temperature": 0.6}`), func(string) bool { return false })
	if o.Temperature != 0 {
		t.Errorf("no draws at a temperature of %v", o.Temperature)
	}
	o = was
	o.Fill(parse(`{"do_sample": false, "temperature": 0.6, "top_k": 3, "max_new_tokens": 9}`), func(string) bool { return true })
	if o.Temperature != 0.8 || o.TopK != 50 || o.NumTokens != 200 {
		t.Errorf("what was given became %+v", o)
	}
}

func TestDrawTopP(t *testing.T) {
	logits := []float32{0, 3, 1, 2.5, -1} // 0.55, 0.34 and 0.07 of the probability, and less
	g := tensor.NewGenerator(1)
	for p, most := range map[float64]int{0.5: 1, 0.56: 2, 0.9: 3, 1: 5, 1e-9: 1} {
		drawn := map[int64]bool{}
		for range 3000 {
			drawn[draw(logits, GenerateOptions{Temperature: 1, TopP: p}, g)] = true
		}
		if len(drawn) != most {
			t.Errorf("of a share of %v, %d tokens were drawn, want %d", p, len(drawn), most)
		}
	}
}
