// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// smallRec is a run of a second.
func smallRec(t *testing.T) RecConfig {
	c := DefaultRec()
	c.Out = filepath.Join(t.TempDir(), "run")
	c.Rows, c.Epochs, c.Batch, c.EvalEvery, c.SaveEvery = 20_000, 1, 128, 40, 30
	return c
}

// writeClicks puts a generated table into a file.
func writeClicks(t *testing.T, rows int) string {
	t.Helper()
	g := table.DefaultGenerated()
	g.Rows, g.Seed = rows, DefaultRec().Seed
	var text bytes.Buffer
	if err := g.WriteCSV(&text); err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "clicks.csv", text.String())
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// trainRec runs a job of goroutines and returns what rank 0 reported.
func trainRec(ctx context.Context, cfg RecConfig, given map[string]string, numRanks int, l *log) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return dist.Spawn(ctx, numRanks, func(ctx context.Context, group *dist.Group) error {
		return Rec(ctx, group, cfg, given, l)
	})
}

// TestRecNearsTheTruth: on clicks whose probabilities are known, models come near
// what anyone could reach, and not beyond it: they have not seen the rows that
// they are validated on.
func TestRecNearsTheTruth(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for some seconds")
	}
	for _, c := range []struct {
		model string
		rows  int
		near  float64
	}{
		{recDLRM, DefaultRec().Rows, 0.02},
		{recMF, 100_000, 0.1}, // it sees neither hour nor price
	} {
		cfg := smallRec(t)
		cfg.Model, cfg.Rows, cfg.Epochs, cfg.Batch, cfg.EvalEvery = c.model, c.rows, 3, 1024, 0
		_, validation, err := cfg.open(t.Context(), table.Share{})
		if err != nil {
			t.Fatal(err)
		}
		truth, _ := validation.Truth()
		best := recMetrics(truth, validation.Labels())
		l := newLog()
		if err := trainRec(t.Context(), cfg, nil, 1, l); err != nil {
			t.Fatal(err)
		}
		got := l.finish.Metrics
		t.Logf("%s: %v, the truth has %v", c.model, got, best)
		if !(got[0].Value < best[0].Value && got[0].Value > best[0].Value-c.near && got[1].Value > best[1].Value) {
			t.Errorf("%s has %v, want an AUC within %v below that of the truth, %v, and more loss", c.model, got, c.near, best)
		}
	}
}

// TestRecRanksDoNotMatter: the same rows a step on one rank, on two, and on four
// and then three, which share them out unevenly, train the same model, with
// gradients by rows.
func TestRecRanksDoNotMatter(t *testing.T) {
	for _, model := range recommenders {
		var alone *log
		for _, numRanks := range []int{1, 2, 4} {
			c := smallRec(t)
			c.Model, c.Batch = model, 256/numRanks
			l := newLog()
			if numRanks < 4 {
				if err := trainRec(t.Context(), c, nil, numRanks, l); err != nil {
					t.Fatal(err)
				}
			} else {
				ctx, cancel := context.WithCancel(t.Context())
				l.onStep = func(step int) {
					if step == 33 {
						cancel()
					}
				}
				if err := trainRec(ctx, c, nil, numRanks, l); !errors.Is(err, ErrStopped) {
					t.Fatalf("a run that is stopped returns %v", err)
				}
				l.onStep = nil
				c.Batch = DefaultRec().Batch // it takes the checkpoint's, for as many rows a step
				if err := trainRec(t.Context(), c, nil, 3, l); err != nil {
					t.Fatal(err)
				}
			}
			if alone == nil {
				alone = l
				continue
			}
			if len(l.losses) != len(alone.losses) || len(alone.losses) < 60 {
				t.Errorf("%s on %d ranks: %d steps, on one %d", model, numRanks, len(l.losses), len(alone.losses))
			}
			for step, loss := range alone.losses {
				if d := math.Abs(l.losses[step] - loss); !(d < 1e-4) {
					t.Errorf("%s on %d ranks: the loss of step %d is %v, on one %v", model, numRanks, step, l.losses[step], loss)
					break
				}
			}
			if d := math.Abs(l.finish.Metrics[0].Value - alone.finish.Metrics[0].Value); !(d < 1e-3) {
				t.Errorf("%s on %d ranks: %v, on one %v", model, numRanks, l.finish.Metrics, alone.finish.Metrics)
			}
		}
	}
}

// TestRecReadsItsTable: the rows of a file train the model that the same rows
// train in memory, and the checkpoint scores them as the run did.
func TestRecReadsItsTable(t *testing.T) {
	generated := smallRec(t)
	want := newLog()
	if err := trainRec(t.Context(), generated, nil, 1, want); err != nil {
		t.Fatal(err)
	}
	c := smallRec(t)
	c.Data = writeClicks(t, c.Rows)
	schema := table.DefaultGenerated().Schema()
	c.Numbers, c.Categories, c.Buckets = schema.Numbers, schema.Categories, schema.Buckets
	got := newLog()
	if err := trainRec(t.Context(), c, nil, 1, got); err != nil {
		t.Fatal(err)
	}
	if g, w := got.finish.Metrics[0], want.finish.Metrics[0]; g != w {
		t.Errorf("from a file %v, from memory %v", g, w)
	}

	// The checkpoint scores them as the run did, from memory as from the file.
	for _, from := range []struct {
		out  string
		o    EvalOptions
		rows int
	}{
		{c.Out, EvalOptions{}, 0},
		{generated.Out, EvalOptions{Batch: 77}, 0},
		{generated.Out, EvalOptions{Data: c.Data}, 0},
		{c.Out, EvalOptions{All: true}, c.Rows},
	} {
		r, err := Eval(t.Context(), storage.Dir(from.out), from.o, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		// In batches of other sizes, sums are rounded in another order.
		if d := math.Abs(r.Metrics[0].Value - got.finish.Metrics[0].Value); from.rows == 0 && !(d < 1e-6) || r.Task != "rec" || r.Unit != "rows" {
			t.Errorf("eval of %+v: %+v, the run had %v", from, r, got.finish.Metrics)
		}
		if from.rows > 0 && r.Samples != from.rows {
			t.Errorf("eval of %+v is of %d rows", from, r.Samples)
		}
	}
	for want, o := range map[string]EvalOptions{
		"about text":   {Tokens: 5},
		"no such file": {Data: "none.csv"},
		"one kind":     {Data: writeFile(t, "a.csv", "click,user_id,item_id,hour,device,age,price\n1,1,1,1,phone,1,1\n"), All: true},
		"none is left": {Data: writeFile(t, "a.csv", "click,user_id,item_id,hour,device,age,price\n1,1,1,1,phone,1,1\n")},
		"no column":    {Data: writeFile(t, "a.csv", "click,user_id\n1,1\n")},
	} {
		if r, err := Eval(t.Context(), storage.Dir(c.Out), o, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("eval of %+v: %+v, %v, want %q", o, r, err, want)
		}
	}

	// Columns that no flag names are inferred, and stay when the run goes on.
	c = smallRec(t)
	c.Data, c.Epochs = writeClicks(t, 3000), 2
	if err := trainRec(t.Context(), c, nil, 1, newLog()); err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile(filepath.Join(c.Out, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`label = "click"`, `categories = ["user_id", "item_id", "device"]`, `numbers = ["hour", "age", "price"]`} {
		if !strings.Contains(string(settings), line) {
			t.Errorf("config.toml has no line %s:\n%s", line, settings)
		}
	}
	more := c
	more.Epochs = 3
	if err := trainRec(t.Context(), more, map[string]string{"epochs": config.Flag}, 1, newLog()); err != nil {
		t.Errorf("going on: %v", err)
	}
	// Other rows are not those that the run was stopped among.
	if err := os.WriteFile(c.Data, []byte("click,user_id,item_id,hour,device,age,price\n"+strings.Repeat("1,1,1,1,phone,1,1\n0,1,1,1,phone,1,1\n", 1500)), 0o644); err != nil {
		t.Fatal(err)
	}
	more.Epochs = 4
	if err := trainRec(t.Context(), more, map[string]string{"epochs": config.Flag}, 1, newLog()); err == nil || !strings.Contains(err.Error(), "have changed since") {
		t.Errorf("going on with other rows: %v", err)
	}
}

// TestRecBadInput: what is wrong is said, before ranks are started where it can
// be.
func TestRecBadInput(t *testing.T) {
	clicks := writeClicks(t, 200)
	for _, c := range []struct {
		want   string
		given  map[string]string
		change func(c *RecConfig)
	}{
		{"--batch is 0", nil, func(c *RecConfig) { c.Batch = 0 }},
		{`--model is "fm", want dlrm or mf`, nil, func(c *RecConfig) { c.Model = "fm" }},
		{"--lr is NaN", nil, func(c *RecConfig) { c.LR = math.NaN() }},
		{"--validation is 1, want a share", nil, func(c *RecConfig) { c.Validation = 1 }},
		{`--separator is "ab"`, nil, func(c *RecConfig) { c.Separator = "ab" }},
		{`--top has a layer of "x"`, nil, func(c *RecConfig) { c.Top = []string{"64", "x"} }},
		{"--out must name", nil, func(c *RecConfig) { c.Out = " " }},
		{"--label is about a file, and there is none", flags([]string{"label"}), func(c *RecConfig) { c.Label = "click" }},
		{"--data is empty", flags([]string{"data"}), func(c *RecConfig) {}},
		{"no such file", nil, func(c *RecConfig) { c.Data = "none.csv" }},
		{`no column "clicked" among ["click" "user_id"`, nil, func(c *RecConfig) { c.Data, c.Label = clicks, "clicked" }},
		{`no column "user" among`, nil, func(c *RecConfig) { c.Data, c.Label, c.Categories = clicks, "click", []string{"user"} }},
		{`column "age" as a number and as`, nil, func(c *RecConfig) {
			c.Data, c.Label, c.Categories, c.Numbers = clicks, "click", []string{"age"}, []string{"age"}
		}},
		{"matrix factorization needs two categories", nil, func(c *RecConfig) {
			c.Data, c.Label, c.Categories, c.Model = clicks, "click", []string{"user_id"}, recMF
		}},
		{"needs at least one category", nil, func(c *RecConfig) { c.Data, c.Label, c.Numbers = clicks, "click", []string{"age"} }},
		{"is empty", nil, func(c *RecConfig) { c.Data = writeFile(t, "a.csv", "") }},
		{`no column "user" among`, nil, func(c *RecConfig) { c.Data, c.Categories = clicks, []string{"user"} }},
		{`than ',', by ";" (--separator`, nil, func(c *RecConfig) { c.Data = writeFile(t, "a.csv", "a;label\n1;0\n") }},
		{"neither a file nor a directory", nil, func(c *RecConfig) { c.Data = os.DevNull }},
	} {
		cfg := smallRec(t)
		c.change(&cfg)
		if _, err := CheckRec(t.Context(), cfg, c.given); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if _, err := os.Stat(cfg.Out); err == nil {
			t.Errorf("%s: the check has left %s", c.want, cfg.Out)
		}
	}
	// What only all rows tell ends all ranks, with the row named.
	for text, want := range map[string]string{
		"label,id\n" + strings.Repeat("1,a\n0,b\n", 20_000) + "2,c\n": `it counts as 1 (--label names the label, --positive`,
		"label,id\n" + strings.Repeat("1,a\n0,b\n", 10_000) + "2,c\n": `a.csv:20002:1: column "label": the label is "2", want 0 or 1`,
		"label,id,id\n1,a,b\n": `a.csv:1: there are several columns "id"`,
		"label,id\n" + strings.Repeat("1,a\n0,b\n", 20_000) + "1,c,d\n": "a.csv:40002:5: the row has 3 fields, the first line 2",
		"label,id\n1,a\n": "none is left for validation",
		"label,id\n" + strings.Repeat("1,a\n", 500): "have the label 1",
	} {
		cfg := smallRec(t)
		cfg.Data, cfg.Batch = writeFile(t, "a.csv", text), 4
		if err := trainRec(t.Context(), cfg, nil, 3, newLog()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		// A small file is looked at before any rank is started.
		if _, err := CheckRec(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("before the ranks start: %v, want %q", err, want)
		}
	}
	few := smallRec(t)
	few.Data, few.Ranks = writeFile(t, "a.csv", "label,id\n"+strings.Repeat("1,a\n0,b\n", 20)), 50
	if _, err := CheckRec(t.Context(), few, nil); err == nil || !strings.Contains(err.Error(), "samples to train on for 50 ranks: fewer samples than ranks") {
		t.Errorf("few rows: %v", err)
	}
}

// TestRecDoubtsAndChanges: what is odd in the first rows is a notice, and rows
// that have changed are told before the ranks start.
func TestRecDoubtsAndChanges(t *testing.T) {
	c := smallRec(t)
	text := "label,id,price\n" + strings.Repeat("1,a,2.5\n0,b,3\n", 500) + "1,b,inf\n"
	c.Data, c.Batch = writeFile(t, "a.csv", text), 64
	l := newLog()
	if err := trainRec(t.Context(), c, nil, 2, l); err != nil {
		t.Fatal(err)
	}
	want := `column "price" is taken for a category, though it is a number in 1000 of the first 1001 rows that have it; line 1002: "inf" is no finite number of 32 bits (--no-header, --numbers and`
	if len(l.notices) != 1 || !strings.Contains(l.notices[0], want) {
		t.Errorf("notices %q, want %q", l.notices, want)
	}
	for data, want := range map[string]string{writeFile(t, "b.csv", text): "", writeFile(t, "c.csv", text+"1,c,4\n"): "are not those which"} {
		other := c
		other.Data = data
		if _, err := CheckRec(t.Context(), other, flags([]string{"data"})); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("with rows elsewhere: %v, want %q", err, want)
		}
	}
	if err := os.WriteFile(c.Data, []byte(text+"1,c,4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckRec(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "a.csv have changed since") {
		t.Errorf("other rows: %v", err)
	}
}

// TestOpenRecommender: a checkpoint whose description does not fit its weights,
// or is none, is an error.
func TestOpenRecommender(t *testing.T) {
	c := smallRec(t)
	c.Rows = 2000
	if err := trainRec(t.Context(), c, nil, 1, newLog()); err != nil {
		t.Fatal(err)
	}
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(c.Out))
	if err != nil {
		t.Fatal(err)
	}
	model, err := OpenRecommender(ck)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *RecommenderConfig){
		"no recommender":   func(c *RecommenderConfig) { c.ModelType = "gpt2" },
		"want 1 to":        func(c *RecommenderConfig) { c.Width = -1 },
		"buckets":          func(c *RecommenderConfig) { c.Schema.Buckets = 0 },
		"a scale of 0":     func(c *RecommenderConfig) { c.Scale = table.Scale{} },
		"width 0":          func(c *RecommenderConfig) { c.Scale.Width = []float64{0, 1} },
		"emb_l.0.weight":   func(c *RecommenderConfig) { c.Schema.Buckets = 1 << 30 },
		"at least one cat": func(c *RecommenderConfig) { c.Schema.Categories = nil },
	} {
		config := model.Config
		change(&config)
		dir := t.TempDir()
		err := checkpoint.Save(t.Context(), nil, storage.Dir(dir), 1, checkpoint.State{
			Sections: map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(model.Model).All())},
			Files:    func(w *checkpoint.Writer) error { return w.WriteJSON(configFile, config) },
		})
		if err != nil {
			t.Fatal(err)
		}
		bad, _, err := checkpoint.Latest(t.Context(), storage.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenRecommender(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// FuzzRecommenderConfig: whatever config.json says makes a plan of a model or an
// error, and nothing is allocated for it.
func FuzzRecommenderConfig(f *testing.F) {
	f.Add([]byte(`{"model_type":"dlrm","width":8,"bottom":[16],"top":[32],"schema":{"label":"y","numbers":["a"],"categories":["b"],"buckets":9},"scale":{"mean":[0],"width":[1]}}`))
	f.Add([]byte(`{"model_type":"mf","width":65536,"schema":{"label":"y","categories":["a","b"],"buckets":2147483648}}`))
	f.Add([]byte(`{"model_type":"dlrm","width":1048576,"bottom":[1048576],"top":[1048576],"schema":{"label":"y","categories":["b"],"buckets":2147483648}}`))
	f.Add([]byte(`{"model_type":"dlrm","width":-1,"bottom":[0],"schema":{"label":"y","categories":["y"],"buckets":-9}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c RecommenderConfig
		if json.Unmarshal(text, &c) != nil {
			return
		}
		if r, err := NewRecommender(&nn.Build{Device: tensor.Meta}, c); err == nil {
			nn.StateDict(r.Model)
		}
	})
}
