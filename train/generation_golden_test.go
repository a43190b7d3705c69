// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
)

// TestGenerationOfTransformers holds greedy texts with penalties token by token, of two texts at
// once and of one alone, and the probabilities after top-k, top-p and min-p against transformers.
func TestGenerationOfTransformers(t *testing.T) {
	var golden struct {
		Texts []struct {
			Name     string
			Settings struct {
				Repetition float64 `json:"repetition_penalty"`
				Ngram      int     `json:"no_repeat_ngram_size"`
				Presence   float64
				Frequency  float64
			}
			Prompts, Tokens [][]int64
		}
		Draws []struct {
			Temperature   float64
			TopK          int     `json:"top_k"`
			TopP          float64 `json:"top_p"`
			MinP          float64 `json:"min_p"`
			Logits        []float32
			Probabilities map[int64]float64
		}
	}
	text, err := os.ReadFile(filepath.Join("testdata", "generation.json"))
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.LoadCausalLM(filepath.Join("..", "models", "testdata", "golden", "llama"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Train(t.Context(), []byte(strings.Repeat("one two three four five six seven eight nine ten eleven twelve thirteen. ", 40)), max(260, m.Vocab()))
	if err != nil {
		t.Fatal(err)
	}
	if tok.Size() < m.Vocab() {
		t.Fatalf("%d tokens for a model of %d", tok.Size(), m.Vocab())
	}
	drawn := func(prompts [][]int64, o GenerateOptions) [][]int64 {
		t.Helper()
		got, err := GenerateAfter(t.Context(), m, tok, prompts, o, func(int, []byte) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		var out [][]int64
		for _, g := range got {
			out = append(out, g.Tokens)
		}
		return out
	}
	const end = 2 // eos_token_id of the folder
	for _, c := range golden.Texts {
		o := GenerateOptions{
			NumTokens: 20, RepetitionPenalty: c.Settings.Repetition, NoRepeatNgram: c.Settings.Ngram, PresencePenalty: c.Settings.Presence,
			FrequencyPenalty: c.Settings.Frequency, EOS: []int64{end},
		}
		for i, want := range c.Tokens { // what follows the end is padding
			if at := slices.Index(want, end); at >= 0 {
				c.Tokens[i] = want[:at+1]
			}
		}
		both := drawn(c.Prompts, o)
		for i, want := range c.Tokens {
			if !slices.Equal(both[i], want) {
				t.Errorf("%s: text %d is %v, want %v", c.Name, i, both[i], want)
			}
			if alone := drawn(c.Prompts[i:i+1], o)[0]; !slices.Equal(alone, want) {
				t.Errorf("%s: text %d alone is %v, want %v", c.Name, i, alone, want)
			}
		}
	}
	for _, c := range golden.Draws {
		o := GenerateOptions{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinP: c.MinP}
		ids, weights, sum := o.distribution(c.Logits)
		if len(ids) != len(c.Probabilities) {
			t.Errorf("temperature %v, top-k %d, top-p %v, min-p %v: %d tokens are left, want %d", c.Temperature, c.TopK, c.TopP, c.MinP, len(ids), len(c.Probabilities))
		}
		for i, id := range ids {
			if want := c.Probabilities[id]; math.Abs(weights[i]/sum-want) > 1e-5 {
				t.Errorf("temperature %v, top-k %d, top-p %v, min-p %v: token %d has %v, want %v", c.Temperature, c.TopK, c.TopP, c.MinP, id, weights[i]/sum, want)
			}
		}
	}
}

// TestStops: a text ends before the first text to stop at, wherever the pieces end, and loses
// nothing of what only begins as one.
func TestStops(t *testing.T) {
	for _, c := range []struct {
		stops        []string
		pieces, want string // pieces with | between them
		stopped      bool
	}{
		{[]string{"END"}, "a|b E|ND c", "ab ", true},
		{[]string{"END"}, "a E|N", "a EN", false},
		{[]string{"xy", "aab"}, "aaa|b", "a", true},
		{[]string{"\n\n"}, "one\n|two\n|\nthree", "one\ntwo", true},
		{[]string{"ü"}, "a\xc3|\xa4b\xc3|\xbc", "aäb", true},
		{nil, "a|b", "ab", false},
	} {
		s := stopper{texts: c.stops}
		var out []byte
		stopped := false
		for piece := range strings.SplitSeq(c.pieces, "|") {
			var some []byte
			some, stopped = s.add([]byte(piece))
			if out = append(out, some...); stopped {
				break
			}
		}
		if !stopped {
			out = append(out, s.held...)
		}
		if string(out) != c.want || stopped != c.stopped {
			t.Errorf("%q with the stops %q: %q, %v; want %q, %v", c.pieces, c.stops, out, stopped, c.want, c.stopped)
		}
	}
}
