// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

func TestParsePlan(t *testing.T) {
	plan, err := ParsePlan("\ufeff" + `
# a comment
h.*.attn.c_attn:  column packed 3 in 12   # heads
h.*.attn.c_proj:row
head.bias: shard 0 packed 2
.: logits
moe: input 1 from sequence to copy
`)
	if err != nil {
		t.Fatal(err)
	}
	want := Plan{
		{Pattern: "h.*.attn.c_attn", Style: "column", Packed: 3, In: 12, Line: 3},
		{Pattern: "h.*.attn.c_proj", Style: "row", Line: 4},
		{Pattern: "head.bias", Style: "shard", Packed: 2, Line: 5},
		{Pattern: ".", Style: "logits", Line: 6},
		{Pattern: "moe", Style: "input", Index: 1, From: "sequence", To: "copy", Line: 7},
	}
	if !slices.Equal(plan, want) {
		t.Errorf("got %+v\nwant %+v", plan, want)
	}
	for _, c := range []struct{ path, pattern string }{
		{"h.0.attn.c_attn", "h.*.attn.c_attn"}, {"", "."}, {"a.q_proj", "*.[qk]_proj"}, {"layers.10", "layers.1?"},
	} {
		if !(Rule{Pattern: c.pattern}).matches(c.path) {
			t.Errorf("%q does not match %q", c.pattern, c.path)
		}
	}
	for _, c := range []struct{ path, pattern string }{
		{"h.0.attn.c_attn", "h.*.c_attn"}, {"", "*"}, {"a.b", "*"}, {"a", "."}, {"a.b.c", "a.*"},
	} {
		if (Rule{Pattern: c.pattern}).matches(c.path) {
			t.Errorf("%q matches %q", c.pattern, c.path)
		}
	}
}

// TestPlanErrors: what is no plan is refused, with the line and what to do.
func TestPlanErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a row":                    `line 1 "a row": a rule is PATH: STYLE, and there is no colon`,
		"\na: colum":               `line 2 "a: colum": there is no style "colum" (column?): the styles are column, cut,`,
		"a:":                       "there is no style behind the colon",
		": row":                    "there is no path before the colon",
		"a..b: row":                "empty part",
		"a.[b: row":                "no pattern",
		"a/b: row":                 "no spaces or slashes",
		"a: row packd 3":           `row does not know the word "packd" (packed?)`,
		"a: row packed":            `nothing behind "packed"`,
		"a: row packed 3 packed 3": "packed comes twice",
		"a: row in 0":              `in is "0", want a number from 1 to 65536`,
		"a: row in 1e3":            `in is "1e3", want a number`,
		"a: row in 99999999999":    "want a number from 1 to 65536",
		"a: row to sequense":       `there is no kind "sequense" of value (sequence?): the kinds are copy, cut, partial, replicate, sequence`,
		"a: input":                 "input wants the kind that comes of it",
		"a: shard":                 "shard wants the dim",
		"a: shard -1":              "want a number from 0",
		"a: sequence to copy":      "it takes no words",
		strings.Repeat("a", 2<<20): "at most 1048576 are read",
		strings.Repeat("a:row\n", 1<<14) + "b: row": "more than 16384 rules",
	} {
		_, err := ParsePlan(text)
		var wrong *PlanError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: got %v, want %s", text, err, want)
		}
	}
}

// TestPlanDoesNotFit: a plan that does not fit the model or the ranks is refused before anything
// is cut.
func TestPlanDoesNotFit(t *testing.T) {
	gpt := tinyGPT(models.GPTConfig{Vocab: 31})
	sparse := func(b *nn.Build) nn.Module {
		return nn.NewSequential(nn.NewEmbedding(b, 8, 4, nn.EmbeddingOptions{Sparse: true}))
	}
	attention := func(b *nn.Build) nn.Module { return nn.NewSequential(nn.NewMultiheadAttention(b, 6, 2)) }
	lora := func(b *nn.Build) nn.Module {
		l, err := nn.NewLoRA(b, gpt(b), nn.LoRAOptions{Rank: 2, Dropout: 0.1, Targets: []string{"mlp.c_proj"}})
		if err != nil {
			panic(err)
		}
		return l
	}
	for _, c := range []struct {
		build func(b *nn.Build) nn.Module
		ranks int
		plan  string
		want  string
	}{
		{gpt, 2, "transformer.h.*.attn.c_atn: column", "the model has no module transformer.h.*.attn.c_atn: did you mean transformer.h.0.attn.c_attn?"},
		{gpt, 2, "foo: row", "the model has no module foo: look at the paths that nn.Modules gives"},
		{gpt, 2, "transformer.wte.wieght: shard 0", "the model has no parameter transformer.wte.wieght: did you mean transformer.wte.weight?"},
		{gpt, 3, "transformer.h.*.attn.c_attn: column packed 3 in 4", "the 3 ranks of axis tp cannot share 4 pieces (heads) of transformer.h.0.attn.c_attn equally: 4 % 3 = 1: choose a tp that divides 4"},
		{gpt, 2, "transformer.h.*.attn.c_attn: column packed 5", "dim 1 of transformer.h.0.attn.c_attn.weight is not 5 parts of one size: 48 % 5 = 3"},
		{gpt, 2, "transformer.h.*.attn.c_attn: column packed 3 in 6", "is not 6 pieces of one size: 16 % 6 = 4"},
		{gpt, 2, "transformer.ln_f: column", "transformer.ln_f is a *nn.LayerNorm, and the style column is for linear layers"},
		{gpt, 2, "transformer.ln_f: vocabulary", "the style vocabulary is for *nn.Embedding"},
		{gpt, 2, "transformer.ln_f: heads", "the style heads is for *nn.MultiheadAttention"},
		{gpt, 2, "transformer.wte: shard 0", "the model has no parameter transformer.wte"},
		{gpt, 2, "transformer.ln_f.weight: shard 1", "transformer.ln_f.weight has the shape [16], and no dim 1"},
		{gpt, 2, "transformer.h.*.mlp.c_fc: column\ntransformer.h.1.mlp.*: row", `transformer.h.1.mlp.c_fc matches the rule "transformer.h.*.mlp.c_fc: column" of line 1 too`},
		{gpt, 2, "transformer.wte: vocabulary\ntransformer.wte.weight: shard 1", "is cut as Shard("},
		{gpt, 17, "transformer.h.*.mlp.c_proj: row\ntransformer.h.*.attn.c_proj: row", "dim 0 of transformer.h.0.attn.c_proj.weight has 16 elements for 17 ranks of axis tp: 16 < 17"},
		{tinyGPT(models.GPTConfig{Vocab: 11}), 8, "transformer.wte: vocabulary", "transformer.wte has 11 rows for 8 ranks of axis tp, and the last has none: 6 ranks of 2 rows have all: 6 × 2 ≥ 11: choose tp 6, or pad the table to a multiple of 8"},
		{tinyGPT(models.GPTConfig{Vocab: 7}), 8, "transformer.wte: vocabulary", "has 7 elements for 8 ranks of axis tp: 7 < 8"},
		{sparse, 2, "0: vocabulary", "takes its gradient by rows"},
		{attention, 2, "0: heads", `add the rule "0.out_proj: row"`},
		{lora, 2, "transformer.h.*.mlp.c_proj: row", "the LoRA beside transformer.h.0.mlp.c_proj drops out inputs that are cut"},
	} {
		plan, err := ParsePlan(c.plan)
		if err != nil {
			t.Fatal(err)
		}
		m := c.build(&nn.Build{Generator: tensor.NewGenerator(1), Device: tensor.Meta})
		sketch, err := mesh.Sketch(1, mesh.Axis{Name: tensorAxis, Size: c.ranks})
		if err != nil {
			t.Fatal(err)
		}
		lays := map[*nn.Parameter]*lay{}
		for _, p := range nn.Parameters(m) {
			lays[p] = &lay{shape: p.Data().Shape()}
		}
		tp, err := newTensorParallel(m, sketch, plan, TPConfig{}, lays)
		if err == nil {
			err = tp.lay()
		}
		var wrong *PlanError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s over %d ranks: got %v, want %s", c.plan, c.ranks, err, c.want)
		}
	}
	sketch, err := mesh.Sketch(0, mesh.Axis{Name: tensorAxis, Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newTensorParallel(&toy{}, sketch, nil, TPConfig{}, nil); err == nil || !strings.Contains(err.Error(), "a *parallel.toy has no plan of its own: give one in Config.Plan") {
		t.Errorf("got %v, want an error that asks for a plan", err)
	}
}

func FuzzPlan(f *testing.F) {
	f.Add("h.*.attn.c_attn: column packed 3 in 12 # heads\n.: logits\n")
	f.Add("a: input 1 from sequence to copy\nb.c: shard 2 packed 3 in 4\r\n\x00: row")
	f.Add(encoderPlan)
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := ParsePlan(text)
		if err != nil {
			return
		}
		again, err := ParsePlan(plan.String())
		if err != nil || len(again) != len(plan) {
			t.Fatalf("%q is read as %q, and that not: %v", text, plan, err)
		}
		for i := range plan {
			plan[i].Line, again[i].Line = 0, 0
			if plan[i] != again[i] {
				t.Fatalf("%+v is written as %q and read as %+v", plan[i], plan[i], again[i])
			}
			if err := plan[i].validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
