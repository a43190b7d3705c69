// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"
)

// TestSplitMistakes: what the axes of a mesh cannot split is told before any rank is started.
func TestSplitMistakes(t *testing.T) {
	text := writeText(t, 20_000)
	for want, set := range map[string]func(c *LMConfig){
		"train lm: --tp is 3, and the model has 2 attention heads, of which each rank takes as many: 2 % 3 = 2; give --tp 2":        func(c *LMConfig) { c.TP = 3 },
		"train lm: --pp 2 with the schedule 1f1b has 2 stages, and the model 1 layer: a stage has one at least":                     func(c *LMConfig) { c.PP, c.Batch = 2, 4 },
		"train lm: --pp 2 with the schedule zbv has 4 stages, and the model 3 layers: a stage has one at least":                     func(c *LMConfig) { c.PP, c.Batch, c.Layers, c.Schedule = 2, 4, 3, "zbv" },
		"train lm: --ep is 2, and the model has no experts to split: give --experts, or leave --ep out":                             func(c *LMConfig) { c.EP = 2 },
		"train lm: --capacity counts the tokens of whole sequences, and --cp 2 gives":                                               func(c *LMConfig) { c.CP, c.Experts, c.Capacity = 2, 4, 1 },
		"train lm: --tp is 4, and the model has 2 attention heads, of which each rank takes as many: 2 % 4 = 2; give --heads 4, or": func(c *LMConfig) { c.TP = 4 },
		"train lm: --merge puts the whole model on one rank, and --tp 2 shards it":                                                  func(c *LMConfig) { c.TP, c.InitFrom, c.LoRA, c.Merge = 2, "x", 2, true },
		"train lm: --schedule is zbv, and the run has no axis pp: give --pp, or leave --schedule out":                               func(c *LMConfig) { c.Schedule = "zbv" },
		"train lm: --stages is 3, and the run has no axis pp: give --pp":                                                            func(c *LMConfig) { c.Stages = 3 },
		"train lm: --cp-method is ring, and the run has no axis cp: give --cp":                                                      func(c *LMConfig) { c.CPMethod = cpRing },
		`train lm: --cp-method is "rings", want ring or heads`:                                                                      func(c *LMConfig) { c.CP, c.CPMethod = 2, "rings" },
		"train lm: --cp-method heads divides the 2 attention heads among --tp × --cp = 4 ranks: 2 % 4 = 2; use":                     func(c *LMConfig) { c.CP, c.CPMethod = 4, cpHeads },
		"train lm: --cp 5 cuts a sequence into 2 × 5 = 10 chunks, and --context is 8: a chunk has one token":                        func(c *LMConfig) { c.CP, c.Context = 5, 8 },
		"train lm: --ep is 4, and the model has 6 experts: ⌈6/4⌉ = 2 a rank leave the last rank none":                               func(c *LMConfig) { c.EP, c.Experts, c.Batch = 4, 6, 8 },
		`train lm: --schedule is "zbw", want gpipe, 1f1b, interleaved, interleaved-zb, zbv, dualpipev; did you mean zbv?`:           func(c *LMConfig) { c.PP, c.Schedule = 2, "zbw" },
		"train lm: --pp 4 with --accumulate 2 and --batch 3: schedule: 1f1b for 4":                                                  func(c *LMConfig) { c.PP, c.Layers, c.Batch, c.Accumulate = 4, 4, 3, 2 },
	} {
		c := tiny(t, text)
		set(&c)
		given := []string{"batch"}
		if c.Accumulate > 1 {
			given = append(given, "accumulate")
		}
		if err := c.FillRanks("lm", nil); err != nil {
			t.Fatal(err)
		}
		if err := check(t, c, given...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestDividePasses: without --accumulate, the batch of a pipeline is divided into passes, and
// the samples of a step stay.
func TestDividePasses(t *testing.T) {
	for _, c := range []struct {
		pp, ranks, batch, accumulate int
		schedule                     string
		wantBatch, wantAccumulate    int
	}{
		{2, 2, 4, 1, "", 1, 4},
		{2, 2, 8, 1, "", 1, 8},
		{2, 2, 64, 1, "", 8, 8},
		{2, 2, 12, 1, "gpipe", 2, 6},
		{2, 4, 6, 1, "zbv", 1, 6},
		{3, 3, 7, 1, "", 1, 7},
		{3, 3, 10, 1, "interleaved", 2, 5},
		{2, 2, 1, 6, "", 1, 6},
		{1, 2, 8, 1, "", 8, 1},
	} {
		cfg := DefaultLM()
		cfg.PP, cfg.Ranks, cfg.Batch, cfg.Accumulate, cfg.Schedule = c.pp, c.ranks, c.batch, c.accumulate, c.schedule
		r := newLMRun(cfg, nil, nil, Discard)
		total := r.cfg.size().total()
		if err := r.dividePasses(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if r.cfg.Batch != c.wantBatch || r.cfg.Accumulate != c.wantAccumulate || r.cfg.size().total() != total {
			t.Errorf("%+v: %d passes of %d, %d samples a step of %d", c, r.cfg.Accumulate, r.cfg.Batch, r.cfg.size().total(), total)
		}
	}
}
