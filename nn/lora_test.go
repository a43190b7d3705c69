// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// turned is a projection whose matrix lies [in, out].
type turned struct{ Weight *Parameter }

func (m *turned) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Affine(x, c.Param(m.Weight), nil)
}

func (m *turned) Matrix() (*Parameter, bool) { return m.Weight, true }

// feed is a block with both kinds of projections.
type feed struct {
	Up   *Linear
	Down *turned
}

func (f *feed) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Add(c.Call(f.Down, c.Call(f.Up, x).Tanh()))
}

func newFeeds(seed int64) *Sequential {
	b := &Build{Generator: tensor.NewGenerator(seed)}
	block := func() *feed { return &feed{Up: NewLinear(b, 5, 7), Down: &turned{b.Normal(0.3, 7, 5)}} }
	return NewSequential(block(), block())
}

// within fails unless two tensors are equal to a tolerance.
func within(t *testing.T, what string, got, want *tensor.Tensor, tolerance float64) {
	t.Helper()
	g, w := got.Float32s(), want.Float32s()
	if len(g) != len(w) {
		t.Fatalf("%s: %d elements, want %d", what, len(g), len(w))
	}
	for i := range g {
		if d := math.Abs(float64(g[i]) - float64(w[i])); !(d <= tolerance) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, g[i], w[i])
		}
	}
}

func evaluate(t *testing.T, m Module, x *tensor.Tensor) *tensor.Tensor {
	c := Evaluation(t.Context())
	defer c.Close()
	return c.Call(m, x).Keep()
}

// A new LoRA computes what the model does; a trained one what the model would
// with W + scale·B·A, which it becomes by merging.
func TestLoRAComputesWhatAMergedModelDoes(t *testing.T) {
	for _, o := range []LoRAOptions{
		{Rank: 2, Targets: []string{"up", "down"}},
		{Rank: 3, Alpha: 5, Targets: []string{"down"}},
		{Rank: 4, Alpha: 3, RankStabilized: true, Targets: []string{"1.up"}},
	} {
		base := newFeeds(3)
		x := tensor.New(tensor.CPU(), tensor.Float32, 4, 6, 5)
		g := tensor.NewGenerator(8)
		g.Normal(x, 0, 1)
		before := evaluate(t, base, x)
		l, err := NewLoRA(&Build{Generator: g}, base, o)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "a new LoRA", evaluate(t, l, x), before, 0)
		for _, p := range l.Added {
			g.Normal(p.Parameter.Data(), 0, 0.5)
		}
		// The oracle: the formula, weight by weight, in float64.
		want := newFeeds(3)
		for path, m := range Modules(want) {
			p, ok := m.(Projection)
			if !ok {
				continue
			}
			var a, b []float32
			for _, n := range l.Added {
				switch n.Name {
				case "base_model.model." + path + ".lora_A.weight":
					a = n.Parameter.Data().Float32s()
				case "base_model.model." + path + ".lora_B.weight":
					b = n.Parameter.Data().Float32s()
				}
			}
			if a == nil {
				continue
			}
			scale := map[bool]float64{false: o.Alpha / float64(o.Rank), true: o.Alpha / math.Sqrt(float64(o.Rank))}[o.RankStabilized]
			if o.Alpha == 0 {
				scale = 2
			}
			w, inFirst := p.Matrix()
			in, out := projectionSize(p)
			w.Data().WithFloat32s(func(v []float32) {
				for i := range in {
					for j := range out {
						sum := 0.0
						for r := range o.Rank {
							sum += float64(b[j*o.Rank+r]) * float64(a[r*in+i])
						}
						at := j*in + i
						if inFirst {
							at = i*out + j
						}
						v[at] += float32(scale * sum)
					}
				}
			})
		}
		got := evaluate(t, l, x)
		within(t, "a LoRA", got, evaluate(t, want, x), 1e-5)
		if slices.Equal(got.Float32s(), before.Float32s()) {
			t.Fatal("the added matrices change nothing")
		}
		l.Merge()
		within(t, "a merged model", evaluate(t, base, x), got, 1e-5)
		within(t, "a LoRA after merging", evaluate(t, l, x), got, 1e-5)
	}
}

// Only the added matrices are trained, with their names in PEFT, and the
// gradients are those of the merged weights by the chain rule; recomputed
// blocks give the same.
func TestLoRATrainsTheAddedMatricesAlone(t *testing.T) {
	grads := func(around ...Interceptor) map[string][]float32 {
		g := tensor.NewGenerator(4)
		l, err := NewLoRA(&Build{Generator: g}, newFeeds(3), LoRAOptions{Rank: 2, Dropout: 0.25, Targets: []string{"down"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range l.Added {
			g.Normal(p.Parameter.Data(), 0, 0.5)
		}
		x := tensor.New(tensor.CPU(), tensor.Float32, 3, 5)
		g.Normal(x, 0, 1)
		c := Training(t.Context(), WithGenerator(tensor.NewGenerator(9)))
		defer c.Close()
		for _, i := range around {
			c = c.With(i)
		}
		y := c.Call(l, x)
		if err := y.Mul(y).Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		out := make(map[string][]float32)
		for _, p := range Parameters(l) {
			if p.Grad() != nil {
				out[p.Name()] = p.Grad().Float32s()
			}
		}
		return out
	}
	plain := grads()
	var names []string
	for n := range plain {
		names = append(names, n)
	}
	slices.Sort(names)
	want := strings.Fields(`base_model.model.0.down.lora_A.weight base_model.model.0.down.lora_B.weight
		base_model.model.1.down.lora_A.weight base_model.model.1.down.lora_B.weight`)
	if !slices.Equal(names, want) {
		t.Errorf("these have gradients: %q, want %q", names, want)
	}
	again := grads(Recompute(func(m any) bool { _, ok := m.(*feed); return ok }))
	for n, g := range plain {
		if !slices.Equal(g, again[n]) {
			t.Errorf("recomputed, %s has the gradient %v, want %v", n, again[n], g)
		}
	}
}

// The derivative of the loss by each element agrees with differences.
func TestLoRAGradients(t *testing.T) {
	g := tensor.NewGenerator(4)
	l, err := NewLoRA(&Build{Generator: g}, newFeeds(3), LoRAOptions{
		Rank: 2, Alpha: 3, Targets: []string{"up", "down"}, Own: map[string]LoRASize{"1.up": {Rank: 1, Alpha: 0.5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Added {
		g.Normal(p.Parameter.Data(), 0, 0.5)
	}
	x := tensor.New(tensor.CPU(), tensor.Float32, 3, 5)
	g.Normal(x, 0, 1)
	loss := func(c *Ctx) *tensor.Tensor { y := c.Call(l, x); return y.Mul(y).Mean() }
	c := Training(t.Context())
	if err := loss(c).Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Close()
	value := func() float64 {
		c := Evaluation(t.Context())
		defer c.Close()
		return loss(c).Item()
	}
	const h = 1e-2
	for _, n := range l.Added {
		grad := n.Parameter.Grad().Float32s()
		for i := 0; i < len(grad); i += 3 {
			nudge := func(d float32) { n.Parameter.Data().WithFloat32s(func(v []float32) { v[i] += d }) }
			nudge(h)
			up := value()
			nudge(-2 * h)
			down := value()
			nudge(h)
			if d := (up - down) / (2 * h); math.Abs(d-float64(grad[i])) > 2e-3*(1+math.Abs(d)) {
				t.Errorf("%s element %d: gradient %v, by differences %v", n.Name, i, grad[i], d)
			}
		}
	}
}

func TestLoRAsThatMakeNoSense(t *testing.T) {
	for _, c := range []struct {
		o    LoRAOptions
		says string
	}{
		{LoRAOptions{Targets: []string{"up"}}, "rank of a LoRA is 0"},
		{LoRAOptions{Rank: 2}, "needs the names"},
		{LoRAOptions{Rank: 2, Targets: []string{"up", "q_proj"}}, `called "q_proj": LoRA can adapt down, up`},
		{LoRAOptions{Rank: 2, Targets: []string{"own"}}, `called "own"`},
		{LoRAOptions{Rank: 2, Targets: []string{""}}, "no name"},
		{LoRAOptions{Rank: 2, Alpha: math.NaN(), Targets: []string{"up"}}, "alpha"},
		{LoRAOptions{Rank: 2, Alpha: -1, Targets: []string{"up"}}, "alpha"},
		{LoRAOptions{Rank: 2, Dropout: 1, Targets: []string{"up"}}, "dropout"},
		{LoRAOptions{Rank: 2, Targets: []string{"up"}, Own: map[string]LoRASize{"0.up": {}}}, "rank of a LoRA is 0"},
		{LoRAOptions{Rank: 2, Targets: []string{"up"}, Own: map[string]LoRASize{"0.up": {Rank: 1, Alpha: math.Inf(1)}}}, "alpha"},
		{LoRAOptions{Rank: 2, Targets: []string{"up"}, Own: map[string]LoRASize{"9.up": {Rank: 1}}}, "9.up, which it does not adapt"},
	} {
		m := newFeeds(1)
		_, err := NewLoRA(&Build{}, m, c.o)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.says)
		}
		for _, p := range Parameters(m) {
			if p.Frozen {
				t.Errorf("%+v: a failed LoRA has frozen %s", c.o, p.Name())
			}
		}
	}
	l, err := NewLoRA(&Build{}, newFeeds(1), LoRAOptions{Rank: 1, Targets: []string{"up"}})
	if err != nil {
		t.Fatal(err)
	}
	if l.NumAdded() != 2*(5+7) {
		t.Errorf("%d elements were added, want %d", l.NumAdded(), 2*(5+7))
	}
	if _, err := NewLoRA(&Build{}, l, LoRAOptions{Rank: 1, Targets: []string{"up"}}); err == nil {
		t.Error("a LoRA of a LoRA is accepted")
	}
}
