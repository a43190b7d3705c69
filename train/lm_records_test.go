// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/sequences"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// writeRecords makes a file of n records of a kind, of very different lengths.
func writeRecords(t *testing.T, kind string, n int) string {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	words := strings.Fields("zero one two three four five six seven eight nine")
	text := func(most int) string {
		var s []string
		for range 1 + r.IntN(most) {
			s = append(s, words[r.IntN(len(words))])
		}
		return strings.Join(s, " ")
	}
	var b strings.Builder
	for range n {
		switch kind {
		case "text":
			fmt.Fprintf(&b, "{\"text\": %q}\n", text(30))
		case "completion":
			fmt.Fprintf(&b, "{\"prompt\": %q, \"completion\": %q}\n", text(4)+" is ", text(7))
		}
	}
	path := filepath.Join(t.TempDir(), kind+".jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tuning returns settings of a short run on records.
func tuning(t *testing.T, from string) LMConfig {
	t.Setenv("COHORT_CACHE", t.TempDir())
	c := DefaultLM()
	c.InitFrom, c.Data, c.Out = "testdata/finetune/llama", from, filepath.Join(t.TempDir(), "run")
	c.Batch, c.Steps, c.SaveEvery, c.EvalEvery, c.EvalTokens, c.SampleTokens, c.LR, c.Keep = 12, 8, 4, 4, 200, 3, 1e-3, 10
	return c
}

// givenForRecords are the settings that tuning gives.
var givenForRecords = []string{"out", "steps", "lr", "eval-every", "save-every"}

// TestLossPerToken: the loss of a step is the mean over all tokens that count, and so are gradients,
// however the step is shared out. Rows have very different numbers of tokens that count.
func TestLossPerToken(t *testing.T) {
	for _, kind := range []string{"completion", "text"} {
		c := tuning(t, writeRecords(t, kind, 120))
		c.Pack = kind == "text"
		whole, err := run(t, 1, c, givenForRecords...)
		if err != nil {
			t.Fatal(err)
		}
		for _, way := range []struct {
			ranks, batch, passes int
			axes                 MeshConfig
		}{
			{2, 3, 2, MeshConfig{}}, {3, 1, 4, MeshConfig{}}, {2, 3, 2, MeshConfig{FSDP: 2}},
			{2, 12, 1, MeshConfig{TP: 2}}, {2, 6, 2, MeshConfig{CP: 2}}, {2, 3, 4, MeshConfig{PP: 2}}, {4, 3, 2, MeshConfig{FSDP: 2, TP: 2}},
		} {
			if c.Pack && way.axes == (MeshConfig{}) {
				continue
			}
			cfg := c
			cfg.Out += fmt.Sprint(way)
			cfg.Batch, cfg.Accumulate, cfg.MeshConfig = way.batch, way.passes, way.axes
			l, err := run(t, way.ranks, cfg, givenForRecords...)
			if err != nil {
				t.Fatalf("%s %+v: %v", kind, way, err)
			}
			worst := 0.0
			for step, want := range whole.losses {
				worst = max(worst, math.Abs(l.losses[step]-want)/want)
			}
			for step, want := range whole.evaluations {
				worst = max(worst, math.Abs(l.evaluations[step]-want)/want)
			}
			if !(worst < 2e-5) || len(l.losses) != c.Steps || len(l.evaluations) != 2 {
				t.Errorf("%s %+v: losses differ by %.1e from those of one pass", kind, way, worst)
			}
			t.Logf("%s %+v: largest relative difference of a loss: %.1e", kind, way, worst)
		}
	}
}

// TestTwoResumesInARow: mixed and packed, a run that is stopped twice and goes on with other ranks takes
// the samples that it would have taken, and the logs prove it.
func TestTwoResumesInARow(t *testing.T) {
	c := tuning(t, "")
	c.Mix = []string{writeRecords(t, "completion", 60) + "=2", writeRecords(t, "text", 90) + "=1"}
	c.Pack, c.Batch, c.Steps, c.SaveEvery = true, 6, 12, 1
	whole, err := run(t, 1, c, givenForRecords...)
	if err != nil {
		t.Fatal(err)
	}
	c.Out += "-again"
	got := map[int]float64{}
	for i, end := range []int{5, 9, 12} {
		ctx, stop := context.WithCancel(t.Context())
		l := newLog()
		l.onStep = func(step int) {
			if step == end && end < c.Steps {
				stop()
			}
		}
		ranks := []int{2, 3, 1}[i]
		cfg := c
		cfg.Batch = 6 / ranks
		err := spawnLM(ctx, ranks, cfg, l, givenForRecords...)
		stop()
		if (err == nil) != (end == c.Steps) {
			t.Fatalf("up to step %d: %v", end, err)
		}
		if i == 1 { // the newest checkpoint is lost, as by a crash
			if err := os.RemoveAll(checkpoint.Path(c.Out, 9)); err != nil {
				t.Fatal(err)
			}
		}
		maps.Copy(got, l.losses)
	}
	for step, want := range whole.losses {
		if !(math.Abs(got[step]-want)/want < 2e-5) {
			t.Errorf("step %d: loss %v, want %v", step, got[step], want)
		}
	}
	report, err := data.CheckOrder(filepath.Join(c.Out, data.OrderDir), data.CheckOptions{Steps: c.Steps})
	if err != nil || report.Err() != nil || report.Steps != c.Steps || len(report.Attempts) != 3 {
		t.Errorf("%v\n%v", err, report)
	}
	// Another file is noticed.
	path, _, _ := strings.Cut(c.Mix[0], "=")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "one", "ten", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	c.Steps++
	if _, err := run(t, 1, c, givenForRecords...); err == nil || !strings.Contains(err.Error(), "has changed since") {
		t.Errorf("a file that has changed: %v", err)
	}
}

// TestBadRecords: what is wrong with records is said before training, or a record is replaced by rule.
func TestBadRecords(t *testing.T) {
	path := writeRecords(t, "completion", 60)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	lines[7], lines[31] = `{"prompt": "x"}`, `{"prompt": "`+strings.Repeat("one ", 100)+`", "completion": "y"}`
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, pack := range []bool{false, true} {
		c := tuning(t, path)
		c.Pack, c.Batch, c.Context = pack, 2, 48
		given := append([]string{"context"}, givenForRecords...)
		if _, err := run(t, 2, c, given...); err == nil || !strings.Contains(err.Error(), path+`:8: field "completion": is missing; the record has prompt`) {
			t.Errorf("pack %t: %v", pack, err)
		}
		c.OnError = "skip"
		l, err := run(t, 2, c, given...)
		if err != nil {
			t.Fatal(err)
		}
		c.Out += "-one"
		c.Batch = 4
		one, err := run(t, 1, c, given...)
		if err != nil {
			t.Fatal(err)
		}
		for step, want := range one.losses {
			if !(math.Abs(l.losses[step]-want)/want < 2e-5) {
				t.Errorf("pack %t, step %d: loss %v on two ranks, %v on one", pack, step, l.losses[step], want)
			}
		}
		if said := strings.Join(append(l.notices, one.notices...), "\n"); pack && !strings.Contains(said, "2 records are left out") || !pack && !strings.Contains(said, "was replaced by sample") {
			t.Errorf("pack %t: %s", pack, said)
		}
	}
	for want, set := range map[string]func(c *LMConfig){
		"--mix names all sources":                   func(c *LMConfig) { c.Mix = []string{"x.jsonl=1"} },
		`--mix: "x.jsonl": want PATH=WEIGHT`:        func(c *LMConfig) { c.Data, c.Mix = "", []string{"x.jsonl"} },
		`--columns: "body=x": there is no field`:    func(c *LMConfig) { c.Columns = []string{"body=x"} },
		`--loss is "prompts"`:                       func(c *LMConfig) { c.Loss = "prompts" },
		"--pack is for records":                     func(c *LMConfig) { c.Data, c.Pack = "testdata/finetune/text.txt", true },
		"need a tokenizer: give --init-from":        func(c *LMConfig) { c.InitFrom = "" },
		`no field is called q, which --columns`:     func(c *LMConfig) { c.Columns = []string{"prompt=q"} },
		"there is no such file":                     func(c *LMConfig) { c.Data = "no.jsonl" },
		"--on-error is \"ignore\", want fail or sk": func(c *LMConfig) { c.OnError = "ignore" },
	} {
		c := tuning(t, writeRecords(t, "completion", 30))
		set(&c)
		if _, err := CheckLM(t.Context(), c, flags(givenForRecords)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestRecordsAgainstTransformers: tokens, which of them count, and the loss of a step over all records
// are those of transformers (testdata/finetune/records.py), alone, packed, and on two ranks.
func TestRecordsAgainstTransformers(t *testing.T) {
	const from = "testdata/finetune/records"
	text, err := os.ReadFile(from + "/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]struct {
		Loss float64
		Rows []struct{ IDs, Mask []int64 }
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	if err := os.CopyFS(base, os.DirFS("testdata/finetune/llama")); err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(from + "/chat_template.jinja")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "chat_template.jinja"), template, 0o644); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(base)
	if err != nil {
		t.Fatal(err)
	}
	rendering, err := chat.Load(base)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := tok.EndOfText()
	for name, kind := range map[string]string{"messages": "messages", "conversations": "messages", "completion": "completion", "text": "text"} {
		want := golden[kind]
		c := tuning(t, filepath.Join(from, name+".jsonl"))
		source := []sequences.Source{{Path: c.Data, Weight: 1}}
		o := sequences.Options{Tokenizer: tok, Template: rendering, EndOfText: end, Context: 64}
		d, err := sequences.Open(t.Context(), source, o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Len() {
			w, err := d.Get(t.Context(), data.Key{Index: i})
			if err != nil {
				t.Fatal(err)
			}
			row := want.Rows[i]
			n := min(len(row.IDs), 65) // the context
			if !slices.Equal(w.Tokens, row.IDs[:n]) {
				t.Fatalf("%s: record %d is %v, want %v", name, i, w.Tokens, row.IDs)
			}
			for at := range n - 1 {
				if ignored := w.Ignored != nil && w.Ignored[at]; ignored == (row.Mask[at+1] == 1) {
					t.Fatalf("%s: token %d of record %d is ignored: %t", name, at+1, i, ignored)
				}
			}
		}
		d.Close()
		if slices.ContainsFunc(want.Rows, func(row struct{ IDs, Mask []int64 }) bool { return len(row.IDs) > 65 }) {
			t.Fatalf("%s: a record is longer than the model's context", name)
		}
		for _, pack := range []bool{false, true} {
			c := c
			c.InitFrom, c.Pack, c.Steps, c.Batch = base, pack, 1, 12
			c.Out += fmt.Sprint(pack)
			ranks := 1
			if pack {
				packed := o
				packed.Pack = true
				p, err := sequences.Open(t.Context(), source, packed)
				if err != nil {
					t.Fatal(err)
				}
				c.Batch = p.Len()
				p.Close()
			} else {
				ranks, c.Batch = 2, 6
			}
			l, err := run(t, ranks, c, append([]string{"batch"}, givenForRecords...)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := l.losses[1]; !(math.Abs(got-want.Loss)/want.Loss < 1e-5) {
				t.Errorf("%s, pack %t: loss %v, transformers has %v", name, pack, got, want.Loss)
			}
		}
	}
	// A saved model is evaluated on the records that its run held out.
	e := tuning(t, from+"/messages.jsonl")
	e.InitFrom, e.Steps, e.EvalEvery, e.Best = base, 2, 2, false
	l, err := run(t, 1, e, givenForRecords...)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Eval(t.Context(), storage.Dir(e.Out), EvalOptions{}, func(text string) { t.Log(text) }); err != nil || math.Abs(r.Metrics[0].Value-l.evaluations[2]) > 1e-5 {
		t.Errorf("eval: %v, %v, the run had %v", r, err, l.evaluations[2])
	}
	// A model without a template cannot learn chats.
	c := tuning(t, from+"/messages.jsonl")
	if _, err := run(t, 1, c, givenForRecords...); err == nil || !strings.Contains(err.Error(), "chats need the chat template of a model") {
		t.Errorf("no template: %v", err)
	}
}

// foreteller is a model whose likeliest next token is always one more than the last.
type foreteller struct{ models.CausalLM }

func (foreteller) Forward(_ *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	const vocab = 10
	logits := make([]float32, ids.NumElems()*vocab)
	for i, id := range ids.Int64s() {
		logits[i*vocab+int(id+1)%vocab] = 5
	}
	return tensor.FromFloat32(logits, ids.Dim(0), ids.Dim(1), vocab)
}

// TestExactMatch: an answer counts as right if all of its tokens are foretold; a text without
// a prompt does not count, nor does what fills up a row.
func TestExactMatch(t *testing.T) {
	const no = data.NoTarget
	b := data.TokenBatch{
		Rows: 4, Length: 4,
		Inputs:  []int64{1, 2, 3, 4 /**/, 7, 3, 4, 0 /**/, 5, 5, 6, 7 /**/, 1, 2, 3, 4},
		Targets: []int64{no, 3, 4, 5 /**/, no, 4, no, no /**/, no, 6, 7, 9 /**/, 2, 3, 4, 5},
		Counted: 11,
	}
	var s scored
	if err := s.addBatch(t.Context(), foreteller{}, b); err != nil {
		t.Fatal(err)
	}
	if s.answers != 3 || s.exact != 2 || s.tokens != 11 {
		t.Errorf("%d of %d answers are exact, of %d tokens", s.exact, s.answers, s.tokens)
	}
}
