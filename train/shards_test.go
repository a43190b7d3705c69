// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

// writeShards encodes a text with a new tokenizer of its own.
func writeShards(t *testing.T, text string, vocab int) string {
	t.Helper()
	corpus, err := data.OpenCorpus(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	sample, err := corpus.Train.Sample(1<<20, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.TrainSplit(t.Context(), sample, vocab-1, tokenizer.SplitGPT2)
	if err != nil {
		t.Fatal(err)
	}
	if tok, err = tok.WithSpecial("<|endoftext|>"); err != nil {
		t.Fatal(err)
	}
	return encodeShards(t, corpus, tok, int64(vocab-1))
}

func encodeShards(t *testing.T, corpus *data.Corpus, tok *tokenizer.Tokenizer, end int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tokens")
	if _, err := data.EncodeShards(t.Context(), corpus, tok, dir, data.EncodeConfig{EndOfText: end, ShardTokens: 5000}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTuneOnShards: a model is fine-tuned on tokens of its own tokenizer, and
// on no others.
func TestTuneOnShards(t *testing.T) {
	text := writeText(t, 60_000)
	c, given := tuneCases[0].config(t)
	c.Data, c.Steps = writeShards(t, text, 320), 3
	_, check := CheckLM(t.Context(), c, given)
	for what, err := range map[string]error{"check": check, "run": runGiven(t, 1, c, newLog(), given)} {
		if err == nil || !strings.Contains(err.Error(), "of another vocabulary (320 tokens) than the model's") || !strings.Contains(err.Error(), c.InitFrom) {
			t.Errorf("%s: %v", what, err)
		}
	}
	corpus, err := data.OpenCorpus(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(c.InitFrom)
	if err != nil {
		t.Fatal(err)
	}
	c.Data = encodeShards(t, corpus, tok, -1)
	if _, err := CheckLM(t.Context(), c, given); err != nil {
		t.Error(err)
	}
	l := newLog()
	if err := runGiven(t, 1, c, l, given); err != nil || len(l.losses) != 3 {
		t.Errorf("%d steps: %v", len(l.losses), err)
	}
}

// TestTrainOnShards: a run on tokens stops and goes on like one on text, and
// its checkpoint has the tokenizer of the tokens.
func TestTrainOnShards(t *testing.T) {
	shards := writeShards(t, writeText(t, 60_000), 320)
	whole := tiny(t, shards)
	whole.Keep = 10
	l, err := run(t, 2, whole)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.losses) != 12 || !strings.Contains(l.start.Data, "tokens of") {
		t.Errorf("%d steps on %s", len(l.losses), l.start.Data)
	}
	for _, step := range []int{10, 12} {
		if err := os.RemoveAll(checkpoint.Path(whole.Out, step)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := run(t, 1, whole)
	if err != nil {
		t.Fatal(err)
	}
	if d := again.losses[12] - l.losses[12]; d > 1e-4 || d < -1e-4 || again.start.FirstStep != 5 {
		t.Errorf("resumed at %d, the loss of step 12 is %v, want %v", again.start.FirstStep, again.losses[12], l.losses[12])
	}
	tok, err := tokenizer.Load(checkpoint.Path(whole.Out, 12))
	if err != nil {
		t.Fatal(err)
	}
	s, err := data.OpenShards(shards)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if tok.Fingerprint() != s.Tokenizer.Fingerprint() || tok.Size() != 320 {
		t.Errorf("the checkpoint's tokenizer has %d tokens and is another", tok.Size())
	}
	r, err := Eval(t.Context(), storage.Dir(whole.Out), EvalOptions{Tokens: whole.EvalTokens}, noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Metrics[2].Value, l.evaluations[12]; got-want > 1e-5 || want-got > 1e-5 || !strings.Contains(r.Data, shards) {
		t.Errorf("%v bits per byte on %s, the run printed %v", got, r.Data, want)
	}
	if _, err := Eval(t.Context(), storage.Dir(whole.Out), EvalOptions{All: true}, noNotice(t)); err == nil || !strings.Contains(err.Error(), "--all") {
		t.Errorf("all of the tokens: %v", err)
	}
}

// TestTrainOnWrongShards: what cannot be trained on is told before a rank
// starts.
func TestTrainOnWrongShards(t *testing.T) {
	text := writeText(t, 60_000)
	shards, other := writeShards(t, text, 320), writeShards(t, text, 310)
	c := tiny(t, shards)
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	check := func(what, want string, c LMConfig, given ...string) {
		t.Helper()
		settings := make(map[string]string)
		for _, name := range given {
			settings[name] = "flag"
		}
		if _, err := CheckLM(t.Context(), c, settings); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	fresh := c
	fresh.Out = filepath.Join(t.TempDir(), "fresh")
	check("another vocabulary", "--vocab is 300, but the tokens", fresh, "vocab")
	fresh.Context = 1 << 16
	fresh.EvalTokens = 1 << 16
	check("few tokens", "is too small", fresh)

	// The same place, other tokens.
	if err := os.RemoveAll(shards); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, shards); err != nil {
		t.Fatal(err)
	}
	check("a run of other tokens", "of another vocabulary (310 tokens) than the model's", c)
	if _, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{}, noNotice(t)); err == nil || !strings.Contains(err.Error(), "of another vocabulary") {
		t.Errorf("evaluation on other tokens: %v", err)
	}
	fresh = tiny(t, shards)
	path := filepath.Join(shards, "train-00000.tokens")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	check("a shard that is cut", path+": cut off", fresh)
	// Damage that only reading tells: the run ends with an error that names it.
	damaged := bytes.Clone(b)
	damaged[1000] ^= 1
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	fresh.Steps = 2000
	if _, err := run(t, 2, fresh); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged shard: %v", err)
	}
}
