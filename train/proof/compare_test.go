// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// state makes a proof of a small step, whose tensors a change may replace.
func proofOf(t *testing.T, change func(tensors map[string]*tensor.Tensor, p *Proof)) *Proof {
	t.Helper()
	tensors := map[string]*tensor.Tensor{}
	g := tensor.NewGenerator(3)
	for _, name := range []string{"before w", "before b", "before exp_avg.w", "gradient w", "gradient b", "after w", "after b", "after exp_avg.w"} {
		x := tensor.Zeros(8, 6)
		g.Normal(x, 0, 1)
		tensors[name] = x
	}
	p := &Proof{
		Step: 12, Made: Made{Task: "lm", Ranks: 2, Threads: 1, Wire: "shm", DType: "float32", Strategy: "FSDP over 2 ranks"}, Loss: 2.5, Norm: 0.7, Rates: []Rate{{LR: 1e-3}},
		Batch:  Batch{Order: "shuffled", Position: 64, Samples: Samples{16, 77, 88}},
		Before: State{Digests{}, Digests{}}, After: State{Digests{}, Digests{}}, Gradients: Digests{},
	}
	change(tensors, p)
	for name, x := range tensors {
		what, name, _ := strings.Cut(name, " ")
		into := map[string]State{"before": p.Before, "after": p.After, "gradient": {Weights: p.Gradients}}[what]
		if strings.Contains(name, ".") {
			into.Optimizer[name] = digestOf(t, x)
		} else {
			into.Weights[name] = digestOf(t, x)
		}
	}
	return p
}

func unchanged(map[string]*tensor.Tensor, *Proof) {}

// What differs is named, and what follows from it is marked.
func TestDifferencesAreNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(tensors map[string]*tensor.Tensor, p *Proof)
		want   string // in the error
	}{
		{"moments that are lost", func(ts map[string]*tensor.Tensor, _ *Proof) { ts["before exp_avg.w"] = tensor.Zeros(8, 6) },
			"loaded optimizer state exp_avg.w: norm 0, was norm"},
		{"rows that are exchanged", func(ts map[string]*tensor.Tensor, _ *Proof) {
			x := ts["before w"]
			ts["before w"] = tensor.Cat(0, x.Narrow(0, 4, 4), x.Narrow(0, 0, 4))
		}, "loaded weights w: "},
		{"an output layer that is untied", func(ts map[string]*tensor.Tensor, _ *Proof) { ts["before head"] = ts["before w"].Clone() },
			"loaded weights head: norm"},
		{"a tensor that is missing", func(ts map[string]*tensor.Tensor, _ *Proof) { delete(ts, "before b") }, "loaded weights b: is not there"},
		{"a loader that moved", func(_ map[string]*tensor.Tensor, p *Proof) { p.Batch.Position++ }, "place of the loader: after sample 65, was after sample 64"},
		{"other samples", func(_ map[string]*tensor.Tensor, p *Proof) { p.Batch.Samples.IDs++ }, "samples: 16 samples"},
		{"other contents", func(_ map[string]*tensor.Tensor, p *Proof) { p.Batch.Samples.Contents++ }, "contents of the samples"},
		{"another rate", func(_ map[string]*tensor.Tensor, p *Proof) { p.Rates[0].LR = 2e-3 }, "learning rate of group 0: 0.002, was 0.001"},
		{"another loss", func(_ map[string]*tensor.Tensor, p *Proof) { p.Loss = 2.6 }, "loss: 2.6, was 2.5"},
		{"another gradient", func(ts map[string]*tensor.Tensor, _ *Proof) { ts["gradient b"] = ts["gradient b"].MulScalar(2) }, "gradient b: norm"},
		{"another update", func(ts map[string]*tensor.Tensor, _ *Proof) { ts["after w"] = ts["after w"].MulScalar(1.01) }, "weights w: norm"},
		{"another moment", func(ts map[string]*tensor.Tensor, _ *Proof) {
			ts["after exp_avg.w"] = ts["after exp_avg.w"].MulScalar(1.01)
		}, "optimizer state exp_avg.w: norm"},
	} {
		for _, ranks := range []int{2, 1} {
			again := proofOf(t, func(ts map[string]*tensor.Tensor, p *Proof) {
				c.change(ts, p)
				if p.Made.Ranks = ranks; ranks == 1 {
					p.Made.Strategy = "single rank"
				}
			})
			got := Compare(proofOf(t, unchanged), again, 0)
			if err := got.Err(); err == nil || !strings.Contains(err.Error(), "step 12 does not continue its run: "+c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s on %d ranks: %v, want an error with %q", c.name, ranks, err, c.want)
			}
			if got.Exact != (ranks == 2) || got.Differences[0].Follows {
				t.Errorf("%s on %d ranks: %+v", c.name, ranks, got)
			}
		}
	}
}

// Equal proofs do not differ; on another mesh, neither do those that differ by rounding.
func TestNothingDiffers(t *testing.T) {
	run := proofOf(t, unchanged)
	if c := Compare(run, proofOf(t, unchanged), 0); c.Err() != nil || !c.Exact || c.Tensors != 8 {
		t.Errorf("the same proof: %+v", c)
	}
	rounding := func(ts map[string]*tensor.Tensor, p *Proof) {
		for _, name := range []string{"gradient w", "after w", "after exp_avg.w"} {
			ts[name] = ts[name].MulScalar(1 + 2e-6)
		}
		p.Loss *= 1 + 1e-7
	}
	c := Compare(run, proofOf(t, func(ts map[string]*tensor.Tensor, p *Proof) {
		rounding(ts, p)
		p.Made.Strategy, p.Made.Ranks = "tp 4", 4
	}), 0)
	if c.Err() != nil || c.Exact || c.Why != "ranks: 4, was 2; model: tp 4, was FSDP over 2 ranks" {
		t.Errorf("on another mesh: %+v", c)
	}
	if c := Compare(run, proofOf(t, rounding), 0); len(c.Differences) != 4 {
		t.Errorf("rounding on the same mesh: %+v", c.Differences)
	}
	if c := Compare(run, proofOf(t, func(_ map[string]*tensor.Tensor, p *Proof) { p.Made.Wire = "goroutines" }), 0); !c.Exact {
		t.Errorf("ranks that share memory in another way: %+v", c)
	}
}

// What depends on how samples are shared out is left out on another mesh, and told.
func TestLeftOut(t *testing.T) {
	other := func(ts map[string]*tensor.Tensor, p *Proof) {
		ts["gradient w"], p.Loss = ts["gradient w"].MulScalar(2), 3
		p.Made.Ranks = 1
	}
	for _, made := range []func(*Proof){func(p *Proof) { p.Made.Random = true }, func(p *Proof) { p.Made.Batched = true }} {
		run := proofOf(t, unchanged)
		made(run)
		if c := Compare(run, proofOf(t, other), 0); c.Err() != nil || !strings.Contains(c.LeftOut, "how the samples are shared out") {
			t.Errorf("%+v", c)
		}
	}
}

// A proof comes back from its file as it was.
func TestEncode(t *testing.T) {
	p := proofOf(t, unchanged)
	text, err := p.Encode()
	if err != nil || !p.Finite() {
		t.Fatal(err)
	}
	back, err := Parse(text)
	if err != nil || !reflect.DeepEqual(back, p) {
		t.Errorf("%+v came back as %+v (%v)", p, back, err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"cohort-proof"`, `"other"`, `has format "other"`},
		{`"version": 1`, `"version": 2`, "has version 2"},
		{`"ranks": 2`, `"ranks": 0`, "0 ranks"},
		{`"loss"`, `"los"`, "unknown field"},
		{`"elems": 48`, `"elems": -1`, "-1 elements"},
		{`"sum": "`, `"sum": "x`, "no 16 hexadecimal digits"},
	} {
		if _, err := Parse([]byte(strings.Replace(string(text), c.from, c.to, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in the place of %s: %v, want an error with %q", c.to, c.from, err, c.want)
		}
	}
	p.Loss /= 0
	if _, err := p.Encode(); err == nil || p.Finite() {
		t.Error("a loss that is not finite is encoded")
	}
}

// Parse takes what Encode gives and refuses the rest, whatever it is.
func FuzzParse(f *testing.F) {
	text, err := (&Proof{Step: 3, Made: Made{Ranks: 1, Threads: 1}, Gradients: Digests{"w": {Elems: 2, Sum: 5, Signs: [numSigns]float64{1, 2, 3, 4}}}}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"format":"cohort-proof","version":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		again, err := p.Encode()
		if err != nil {
			t.Fatalf("what was parsed cannot be encoded: %v", err)
		}
		if back, err := Parse(again); err != nil || !reflect.DeepEqual(back, p) {
			t.Fatalf("%+v came back as %+v (%v)", p, back, err)
		}
	})
}
