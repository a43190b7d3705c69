// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// smallEmbed is a run of a second.
func smallEmbed(t *testing.T) EmbedConfig {
	c := DefaultEmbed()
	c.Out, c.Data, c.InitFrom = filepath.Join(t.TempDir(), "run"), filepath.Join("testdata", "pairs.jsonl"), filepath.Join("testdata", "encoder")
	c.Epochs, c.Batch, c.LR, c.EvalEvery, c.SaveEvery, c.Workers = 2, 12, 2e-3, 0, 100, 0
	return c
}

func smallClassify(t *testing.T) ClassifyConfig {
	c := DefaultClassify()
	c.Out, c.Data, c.InitFrom = filepath.Join(t.TempDir(), "run"), filepath.Join("testdata", "reviews.csv"), filepath.Join("testdata", "encoder")
	c.Epochs, c.Batch, c.LR, c.EvalEvery, c.SaveEvery, c.Workers = 4, 8, 3e-3, 0, 100, 0
	return c
}

func trainEmbed(ctx context.Context, cfg EmbedConfig, numRanks int, l *log) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return dist.Spawn(ctx, numRanks, func(ctx context.Context, group *dist.Group) error { return Embed(ctx, group, cfg, nil, l) })
}

func trainClassify(ctx context.Context, cfg ClassifyConfig, numRanks int, l *log) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return dist.Spawn(ctx, numRanks, func(ctx context.Context, group *dist.Group) error { return Classify(ctx, group, cfg, nil, l) })
}

// withoutDropout copies the tiny encoder, which then computes the same for any split.
func withoutDropout(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "encoder")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "encoder"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["hidden_dropout_prob"], config["attention_probs_dropout_prob"] = 0, 0
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), text, 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lastWeights returns those of the last checkpoint of a run.
func lastWeights(t *testing.T, out string) map[string][]float32 {
	t.Helper()
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(out))
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.LoadEncoder(ck.Path)
	if err != nil {
		t.Fatal(err)
	}
	weights := make(map[string][]float32)
	for _, s := range nn.StateDict(m) {
		weights[s.Name] = s.Tensor.Float32s()
	}
	return weights
}

// farthest is the largest difference between weights.
func farthest(t *testing.T, a, b map[string][]float32) float64 {
	t.Helper()
	most := 0.0
	for name, x := range a {
		if len(b[name]) != len(x) {
			t.Fatalf("%s has %d and %d elements", name, len(x), len(b[name]))
		}
		for i, v := range x {
			most = max(most, math.Abs(float64(v)-float64(b[name][i])))
		}
	}
	return most
}

// TestEmbedRanksDoNotMatter: the negatives of all ranks, gathered with their gradients,
// train the model that one rank trains with the same step, as replicas and as shards; with
// those of each rank alone the model is another.
func TestEmbedRanksDoNotMatter(t *testing.T) {
	from := withoutDropout(t)
	run := func(numRanks int, change func(c *EmbedConfig)) map[string][]float32 {
		c := smallEmbed(t)
		c.InitFrom, c.Epochs, c.Best, c.Validation = from, 0.6, false, 0
		c.LR = 1e-4
		c.Ranks, c.Batch = numRanks, 24/numRanks
		if change != nil {
			change(&c)
		}
		if err := trainEmbed(t.Context(), c, numRanks, newLog()); err != nil {
			t.Fatal(err)
		}
		return lastWeights(t, c.Out)
	}
	one := run(1, nil)
	if d := farthest(t, one, run(2, func(c *EmbedConfig) { c.Local = true })); d < 1e-5 {
		t.Errorf("negatives of one rank train the same model, up to %.1e: nothing is gathered", d)
	}
	if d := farthest(t, one, run(3, nil)); d > 2e-6 {
		t.Errorf("three ranks train another model: weights differ by %.1e", d)
	}
	if d := farthest(t, one, run(2, func(c *EmbedConfig) { c.FSDP = 2 })); d > 2e-6 {
		t.Errorf("two ranks with shards train another model: weights differ by %.1e", d)
	}
}

// TestEmbedLearns: held-out texts find their partners, and the folder for other tools has
// the best weights.
func TestEmbedLearns(t *testing.T) {
	c := smallEmbed(t)
	c.Epochs, c.EvalEvery = 12, 10
	l := newLog()
	if err := trainEmbed(t.Context(), c, 2, l); err != nil {
		t.Fatal(err)
	}
	best := l.finish.Metrics[0]
	if best.Name != "ndcg_at_10" || best.Value < 0.8 || best.Value > 1 {
		t.Errorf("held-out pairs: %v", l.finish.Metrics)
	}
	again, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Metrics[0].Value; math.Abs(got-best.Value) > 1e-6 || again.Unit != "records" {
		t.Errorf("eval says %+v, the run %v", again, best)
	}
	m, err := models.LoadSentenceEncoder(filepath.Join(c.Out, exportDir))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Config; !slices.Equal(got.Pooling, []string{models.PoolMean}) || got.MaxTokens != 32 {
		t.Errorf("the folder says %+v", got)
	}
	t.Logf("%v", l.finish.Metrics)
}

// TestEmbedResumes: a run that stops twice ends with the weights of one that does not.
func TestEmbedResumes(t *testing.T) {
	c := smallEmbed(t)
	c.Best, c.Validation, c.SaveEvery = false, 0, 3
	whole := c
	whole.Out += "-whole"
	if err := trainEmbed(t.Context(), whole, 2, newLog()); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{4, 7, 0} {
		l, ctx := newLog(), t.Context()
		if at > 0 {
			stopping, stop := context.WithCancel(ctx)
			ctx, l.onStep = stopping, func(step int) {
				if step == at {
					stop()
				}
			}
		}
		if err := trainEmbed(ctx, c, 2, l); (err != nil) != (at > 0) {
			t.Fatalf("stop at %d: %v", at, err)
		}
	}
	if d := farthest(t, lastWeights(t, whole.Out), lastWeights(t, c.Out)); d != 0 {
		t.Errorf("the weights differ by %.1e", d)
	}
}

// TestEmbedByScoresAndTriplets: the other losses learn too.
func TestEmbedByScoresAndTriplets(t *testing.T) {
	dir := t.TempDir()
	var scored, triplets strings.Builder
	for i := range 120 {
		a, b := []string{"tea", "bread", "milk", "soup"}[i%4], []string{"tea", "bread", "milk", "soup"}[(i/4)%4]
		fmt.Fprintf(&scored, "{\"sentence1\": \"%s in the market\", \"sentence2\": \"the market has %s %d\", \"score\": %v}\n", a, b, i, map[bool]float64{true: 1, false: 0.1}[a == b])
		fmt.Fprintf(&triplets, "%s at %d\tthere is %s\tthere is %s\n", a, i, a, []string{"bread", "milk", "soup", "tea"}[i%4])
	}
	for name, text := range map[string]string{"scored.jsonl": scored.String(), "triplets.tsv": "anchor\tpositive\tnegative\n" + triplets.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]struct {
		loss, metric string
		least        float64
	}{"scored.jsonl": {"", "spearman", 0.5}, "triplets.tsv": {"triplet", "ndcg_at_10", 0.5}} {
		c := smallEmbed(t)
		c.Data, c.Loss, c.Epochs = filepath.Join(dir, name), want.loss, 8
		l := newLog()
		if err := trainEmbed(t.Context(), c, 1, l); err != nil {
			t.Fatal(err)
		}
		if m := l.finish.Metrics[0]; m.Name != want.metric || !(m.Value >= want.least) {
			t.Errorf("%s: %v", name, l.finish.Metrics)
		}
	}
}

// TestClassifyLearns: texts of one class, of several, tags and numbers.
func TestClassifyLearns(t *testing.T) {
	dir := t.TempDir()
	var multi, tags strings.Builder
	for i := range 160 {
		things, labels := []string{"tea", "bread", "milk"}, []string{}
		var words []string
		for k, thing := range things {
			if (i>>k)&1 == 1 {
				words, labels = append(words, thing), append(labels, `"`+thing+`"`)
			}
		}
		fmt.Fprintf(&multi, "{\"text\": \"the market %d has %s\", \"labels\": [%s]}\n", i, strings.Join(words, " "), strings.Join(labels, ","))
		thing := things[i%3]
		fmt.Fprintf(&tags, "{\"tokens\": [\"in\", \"shop\", \"%d\", \"%s\", \"is\"], \"tags\": [\"O\", \"PLACE\", \"O\", \"THING\", \"O\"]}\n", i, thing)
	}
	for name, text := range map[string]string{"multi.jsonl": multi.String(), "tags.jsonl": tags.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct {
		data, kind, metric string
		classes            []string
		least              float64
	}{
		{filepath.Join("testdata", "reviews.csv"), kindSingle, "accuracy", []string{"bad", "good"}, 0.9},
		{filepath.Join(dir, "multi.jsonl"), kindMulti, "micro_f1", []string{"bread", "milk", "tea"}, 0.8},
		{filepath.Join(dir, "tags.jsonl"), kindTags, "accuracy", []string{"O", "PLACE", "THING"}, 0.9},
	} {
		c := smallClassify(t)
		if c.Data = want.data; want.kind == kindMulti {
			c.Epochs = 12
		}
		l := newLog()
		if err := trainClassify(t.Context(), c, 2, l); err != nil {
			t.Fatal(err)
		}
		if m := l.finish.Metrics[0]; m.Name != want.metric || !(m.Value >= want.least && m.Value <= 1) {
			t.Errorf("%s: %v", want.data, l.finish.Metrics)
		}
		again, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{}, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if got := again.Metrics[0].Value; again.Unit != "records" || got < want.least {
			t.Errorf("%s: eval says %+v", want.data, again)
		}
		ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(c.Out))
		if err != nil {
			t.Fatal(err)
		}
		m, err := models.LoadEncoder(ck.Path)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Predicts().Classes; got == nil || !slices.Equal(got.Names, want.classes) {
			t.Errorf("%s: the checkpoint has the classes %+v", want.data, got)
		}
	}
}

// TestClassifyRanksDoNotMatter: tags weigh the same on any number of ranks, though ranks
// have different numbers of words.
func TestClassifyRanksDoNotMatter(t *testing.T) {
	data := filepath.Join(t.TempDir(), "tags.jsonl")
	var text strings.Builder
	for i := range 48 {
		words, tags := []string{}, []string{}
		for k := range 1 + (i*7)%11 {
			words, tags = append(words, []string{`"tea"`, `"in"`, `"rice"`}[(i+k)%3]), append(tags, []string{`"T"`, `"O"`, `"R"`}[(i+k)%3])
		}
		fmt.Fprintf(&text, "{\"tokens\": [%s], \"tags\": [%s]}\n", strings.Join(words, ","), strings.Join(tags, ","))
	}
	if err := os.WriteFile(data, []byte(text.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	from := withoutDropout(t)
	var one map[string][]float32
	for _, numRanks := range []int{1, 3} {
		c := smallClassify(t)
		c.Data, c.InitFrom, c.Ranks, c.Batch, c.Epochs, c.LR, c.Validation, c.Best = data, from, numRanks, 12/numRanks, 2, 1e-4, 0, false
		if err := trainClassify(t.Context(), c, numRanks, newLog()); err != nil {
			t.Fatal(err)
		}
		weights := lastWeights(t, c.Out)
		if one == nil {
			one = weights
		} else if d := farthest(t, one, weights); d > 2e-6 {
			t.Errorf("%d ranks train another model: weights differ by %.1e", numRanks, d)
		}
	}
}

// TestTextRecordsThatAreRefused names the file, the line and the field.
func TestTextRecordsThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	good := `{"query": "a", "positive": "b"}` + "\n"
	for name, c := range map[string]struct{ text, says string }{
		"field.jsonl":  {good + `{"query": "a"}`, `field.jsonl:2: the record has no field "positive"; it has query`},
		"number.jsonl": {good + `{"query": 3, "positive": "b"}`, `number.jsonl:2: the field "query" is 3, want text`},
		"json.jsonl":   {good + `{"query": `, "json.jsonl:2: want one JSON object in a line"},
		"empty.jsonl":  {"\n\n", "has no records"},
		"other.jsonl":  {`{"x": "a", "y": "b"}`, "say with --columns"},
		"table.csv":    {"query,positive\na,b\nc\n", "table.csv"},
		"text.txt":     {"a", "ends in .jsonl"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o666); err != nil {
			t.Fatal(err)
		}
		cfg := smallEmbed(t)
		cfg.Data = path
		if _, err := CheckEmbed(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	cfg := smallEmbed(t)
	cfg.InitFrom = ""
	if _, err := CheckEmbed(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), "--init-from") {
		t.Errorf("no encoder: %v", err)
	}
}

// TestSpearman is scipy's.
func TestSpearman(t *testing.T) {
	// scipy.stats.spearmanr([1, 2, 2, 4, 0.5], [3, 1, 5, 6, 2]) and of equal values.
	if got := spearman([]float64{1, 2, 2, 4, 0.5}, []float64{3, 1, 5, 6, 2}); math.Abs(got-0.5642880936468347) > 1e-12 {
		t.Errorf("spearman: %v", got)
	}
	if got := spearman([]float64{1, 1}, []float64{1, 2}); got != 0 {
		t.Errorf("of equal values: %v", got)
	}
}
