// SPDX-License-Identifier: Apache-2.0

package train

import (
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"maps"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
)

// mixed is a run of a small mixture of experts, without the loss that balances them, which is a
// mean over ranks of something that is no mean over their tokens.
func mixed(t *testing.T, text string) LMConfig {
	c := tiny(t, text)
	c.Experts, c.Active, c.SharedExperts, c.Balance = 4, 2, 1, 0
	return c
}

// TestMixture: a mixture of experts is trained, on two ranks as on one, goes on where it was,
// and is evaluated and writes text from its checkpoint.
func TestMixture(t *testing.T) {
	text := writeText(t, 20_000)
	c := mixed(t, text)
	c.Batch = 4
	one, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	if want := "mixture of 4 experts, 2 active and a shared one, 1 layer"; !strings.HasPrefix(one.start.About.Model, want) {
		t.Errorf("%q", one.start.About.Model)
	}
	for _, ranks := range []int{2, 1} {
		d := c
		d.Out += "-two"
		d.Batch /= 2
		if ranks == 1 {
			if err := os.RemoveAll(checkpoint.Path(d.Out, 12)); err != nil {
				t.Fatal(err)
			}
		}
		l, err := run(t, ranks, d)
		if err != nil {
			t.Fatal(err)
		}
		closeTo(t, "mixture", l.losses, one.losses, 1e-5)
	}
	r, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{Tokens: c.EvalTokens}, noNotice(t))
	if err != nil || math.Abs(r.Metrics[2].Value-one.evaluations[12]) > 1e-5 || !strings.HasPrefix(r.Model, "mixture of 4 experts") {
		t.Errorf("%+v, %v, the run printed %v", r, err, one.evaluations[12])
	}
	m, tok, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	_, prompt, _ := strings.Cut(one.finish.Next, " --prompt '")
	var b strings.Builder
	o := GenerateOptions{NumTokens: c.SampleTokens, Temperature: 0.8, TopK: 50, Seed: c.Seed}
	if err := Generate(t.Context(), m, tok, strings.TrimSuffix(prompt, "'"), o, func(piece []byte) error { b.Write(piece); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSuffix(prompt, "'") + b.String(); got != one.finish.Text {
		t.Errorf("%q, the run printed %q", got, one.finish.Text)
	}
	balanced := c
	balanced.Out, balanced.Balance = c.Out+"-balanced", 10
	other, err := run(t, 1, balanced)
	if err != nil {
		t.Fatal(err)
	}
	if maps.Equal(other.losses, one.losses) || other.losses[1] != one.losses[1] {
		t.Errorf("losses %v with a balance, %v without: the loss that is reported has it, or nothing does", other.losses, one.losses)
	}
}

// closeTo compares losses by step.
func closeTo(t *testing.T, what string, got, want map[int]float64, tolerance float64) {
	t.Helper()
	worst := 0.0
	for step, loss := range got {
		worst = max(worst, math.Abs(loss-want[step])/want[step])
	}
	if !(worst <= tolerance) || len(got) == 0 {
		t.Errorf("%s: losses differ by %.1e, want at most %.0e:\n%v\n%v", what, worst, tolerance, got, want)
	}
}

// TestExpertMistakes: settings that make no mixture are told before any rank is started.
func TestExpertMistakes(t *testing.T) {
	text := writeText(t, 20_000)
	for want, set := range map[string]func(c *LMConfig){
		"train lm: --active is 2, want 1 to 1":                                                    func(c *LMConfig) { c.Experts, c.Active = 1, 2 },
		"train lm: --active is of a mixture of experts, and the model has none: give --experts":   func(c *LMConfig) { c.Active = 2 },
		"train lm: --shared-experts is of a mixture of experts, and the model has none":           func(c *LMConfig) { c.SharedExperts = 1 },
		"train lm: --capacity is -1, want a finite number from 0 on":                              func(c *LMConfig) { c.Experts, c.Capacity = 4, -1 },
		"train lm: --experts makes a mixture of experts of Llama's kind: leave --model gpt2 out":  func(c *LMConfig) { c.Experts, c.Model = 4, "gpt2" },
		"train lm: --ep is 3, and the model has 2 experts: a rank has one at least":               func(c *LMConfig) { c.Experts, c.EP = 2, 3 },
		"train lm: --experts cannot be given with --init-from: the model in elsewhere decides it": func(c *LMConfig) { c.Experts, c.InitFrom = 2, "elsewhere" },
	} {
		c := tiny(t, text)
		set(&c)
		if err := c.FillRanks("lm", nil); err != nil {
			t.Fatal(err)
		}
		if err := check(t, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
