// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

func TestAssignBuckets(t *testing.T) {
	const f, i = tensor.Float32, tensor.Int64
	for _, c := range []struct {
		numElems []int
		dtypes   []tensor.DType
		limits   []int
		indices  []int
		want     string
	}{
		{nil, nil, []int{8}, nil, "[]"},
		{[]int{1, 1, 1}, []tensor.DType{f, f, f}, []int{1 << 30}, nil, "[[0 1 2]]"},
		{[]int{1, 1, 1}, []tensor.DType{f, f, f}, []int{4, 8}, nil, "[[0] [1 2]]"},
		{[]int{1, 1, 1, 1, 1}, []tensor.DType{f, f, f, f, f}, []int{4, 8}, []int{4, 3, 2, 1, 0}, "[[4] [3 2] [1 0]]"},
		// Dtypes have limits of their own, and the buckets are sorted.
		{[]int{1, 1, 1, 1}, []tensor.DType{f, i, f, i}, []int{1 << 30}, nil, "[[0 2] [1 3]]"},
		{[]int{1, 1, 1, 1}, []tensor.DType{f, i, f, i}, []int{8}, nil, "[[0 2] [1] [3]]"},
		{[]int{1, 1, 1, 1}, []tensor.DType{f, i, f, i}, []int{8}, []int{3, 2, 1, 0}, "[[2] [3 1] [0]]"},
		{[]int{0, 9, 0}, []tensor.DType{f, f, f}, []int{8}, nil, "[[0 1] [2]]"},
	} {
		if got := fmt.Sprint(assignBuckets(c.numElems, c.dtypes, c.limits, c.indices)); got != c.want {
			t.Errorf("%v %v, limits %v, indices %v: %s, want %s", c.numElems, c.dtypes, c.limits, c.indices, got, c.want)
		}
	}
}

func TestPyTorchsOrder(t *testing.T) {
	for text, want := range map[string]string{
		"a b":                                     "a b",
		"wte.weight pos h.0.w h.0.ln.b h.0.b":     "pos wte.weight h.0.w h.0.b h.0.ln.b",
		"a.b.c a.c d a.d e.f d.g":                 "d a.c a.d a.b.c e.f d.g",
		"layers.1.w layers.0.w layers.1.b last.w": "layers.1.w layers.1.b layers.0.w last.w",
	} {
		if got := strings.Join(inPyTorchOrder(strings.Fields(text), func(s string) string { return s }), " "); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestPyTorchsStrides(t *testing.T) {
	for want, shape := range map[string][]int{"[]": {}, "[1]": {5}, "[12 4 1]": {2, 3, 4}, "[3 1 1]": {2, 3, 1}, "[3 1]": {0, 3}, "[1 1]": {3, 0}} {
		if got := fmt.Sprint(stridesOf(shape)); got != want {
			t.Errorf("%v: %s, PyTorch has %s", shape, got, want)
		}
	}
}

func build(seed int64) *nn.Build { return &nn.Build{Generator: tensor.NewGenerator(seed)} }

// TestForeignModels: each rank says what the other has sent.
func TestForeignModels(t *testing.T) {
	more := func(b *nn.Build) nn.Module { return newBranches(b) }
	same := func(b *nn.Build) nn.Module { return newMLP(b) }
	wide := func(b *nn.Build) nn.Module {
		m := newMLP(b)
		m.FC2 = nn.NewLinear(b, 4, 6)
		return m
	}
	for name, c := range map[string]struct {
		models [2]func(*nn.Build) nn.Module
		want   [2]string
	}{
		"number": {[2]func(*nn.Build) nn.Module{same, more},
			[2]string{"rank 1 trains 8 parameters and this rank 6", "rank 0 trains 6 parameters and this rank 8"}},
		"shape": {[2]func(*nn.Build) nn.Module{same, wide},
			[2]string{"", "rank 0 sent the sizes and strides [4 6 6 1] where this rank has fc2.weight with [6 4 4 1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				_, err := NewDDP(ctx, c.models[g.Rank()](build(0)), g, WithPyTorch(PyTorchOptions{}))
				var foreign *PeerModelError
				want := c.want[g.Rank()]
				if want != "" && (!errors.As(err, &foreign) || foreign.Rank != 1-g.Rank() || !strings.Contains(err.Error(), want)) {
					return fmt.Errorf("rank %d: %v, want a *PeerModelError with %q", g.Rank(), err, want)
				}
				// A rank that finds nothing amiss waits for rank 1, as PyTorch's would.
				if want == "" && err == nil {
					return errors.New("rank 0 has a DDP, although rank 1 has none")
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestLyingRank0: what it sends as the layout of buckets is not trusted.
func TestLyingRank0(t *testing.T) {
	params := []*nn.Parameter{nn.NewParameter(tensor.Zeros(2)), nn.NewParameter(tensor.Zeros(2)), nn.NewParameter(tensor.FromInt64([]int64{1}))}
	p := &pytorchReducer{params: params}
	if got, err := p.layoutOf([]int64{1, 0, 2}, []int64{2, 1}); err != nil || fmt.Sprint(got) != "[[1 0] [2]]" {
		t.Errorf("%v, %v", got, err)
	}
	for want, c := range map[string][2][]int64{
		"with 4 of 3 parameters":                   {{0, 1, 2}, {4}},
		"bucket 1 of 2 with 0 of":                  {{0, 1, 2}, {2, 0}},
		"bucket 0 of 1 with -1":                    {{0, 1, 2}, {-1}},
		"bucket 0 of 1 with 9223372036854775807":   {{0, 1, 2}, {math.MaxInt64}},
		"buckets with 2 of 3 parameters":           {{0, 1, 2}, {2}},
		"parameter 0 of 3, out of range or twice":  {{0, 0, 2}, {2, 1}},
		"parameter 3 of 3, out of range or twice":  {{0, 3, 2}, {2, 1}},
		"parameter -1 of 3, out of range or twice": {{0, -1, 2}, {2, 1}},
		"different dtypes":                         {{0, 2, 1}, {2, 1}},
	} {
		if got, err := p.layoutOf(c[0], c[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, %v, want %q", c, got, err, want)
		}
	}
}

// FuzzLayout: whatever rank 0 sends as the layout of buckets, it is one that has
// every parameter once, or an error.
func FuzzLayout(f *testing.F) {
	f.Add([]byte{0, 1, 2}, []byte{2, 1})
	f.Add([]byte{2, 1, 0}, []byte{1, 1, 1})
	f.Add([]byte{0, 0, 255}, []byte{0, 255})
	p := &pytorchReducer{}
	for range 3 {
		p.params = append(p.params, nn.NewParameter(tensor.Zeros(2)))
	}
	f.Fuzz(func(t *testing.T, indices, sizes []byte) {
		var numbers [2][]int64
		for i, text := range [][]byte{indices, sizes} {
			for _, b := range text {
				numbers[i] = append(numbers[i], int64(int8(b)))
			}
		}
		for len(numbers[0]) < len(p.params) { // its length is not rank 0's to choose
			numbers[0] = append(numbers[0], 0)
		}
		layout, err := p.layoutOf(numbers[0][:len(p.params)], numbers[1])
		if err != nil {
			return
		}
		all := slices.Concat(layout...)
		slices.Sort(all)
		if !slices.Equal(all, []int{0, 1, 2}) {
			t.Errorf("%v, %v: %v", numbers[0], numbers[1], layout)
		}
	})
}

// passOf runs a training pass of random inputs.
func passOf(ctx context.Context, m nn.Module, g *tensor.Generator) (err error) {
	x := tensor.Zeros(5, 8)
	g.Uniform(x, -1, 1)
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	y := c.Call(m, x)
	return y.Mul(y).Mean().Backward(ctx)
}

func TestUnusedIsNamed(t *testing.T) {
	for _, static := range []bool{false, true} {
		t.Run(fmt.Sprint("static ", static), func(t *testing.T) {
			err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
				m := newBranches(build(0))
				ddp, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{StaticGraph: static}))
				if err != nil {
					return err
				}
				random := tensor.NewGenerator(1)
				want := []string{"never.weight", "never.bias", "sometimes.weight", "sometimes.bias"}
				if static {
					m.on = true
					if err := passOf(ctx, ddp, random); err != nil {
						return err
					}
					m.on = false
					want = want[2:]
				}
				err = passOf(ctx, ddp, random)
				var unused *UnusedError
				if !errors.As(err, &unused) || !slices.Equal(unused.Params, want) || unused.Static != static {
					return fmt.Errorf("%v, want an *UnusedError of %v", err, want)
				}
				if err := passOf(ctx, ddp, random); err == nil || !strings.Contains(err.Error(), "an earlier backward pass has not come to its end") {
					return fmt.Errorf("the next pass: %v", err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestUnusedKeepsItsGradient: of a parameter that no rank has used; one that
// any has used gets the average.
func TestUnusedKeepsItsGradient(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newBranches(build(0))
		ddp, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{FindUnused: true}))
		if err != nil {
			return err
		}
		random := tensor.NewGenerator(int64(g.Rank()))
		m.on = g.Rank() == 1
		if err := passOf(ctx, ddp, random); err != nil {
			return err
		}
		if m.Never.Weight.Grad() != nil {
			return errors.New("a parameter that nobody has used has a gradient")
		}
		first := m.Sometimes.Weight.Grad()
		if first == nil || slices.Max(first.Abs().Float32s()) == 0 {
			return fmt.Errorf("rank %d: a parameter that rank 1 has used has the gradient %v", g.Rank(), first)
		}
		before := first.Float32s()
		all := tensor.New(tensor.CPU(), tensor.Float32, 2, 36)
		if err := g.AllGather(ctx, all, first.Reshape(1, 36)); err != nil {
			return err
		}
		if v := all.Float32s(); !slices.Equal(v[:36], v[36:]) {
			return errors.New("the ranks have different gradients")
		}
		// Nobody uses it, and nobody has dropped its gradient.
		m.on = false
		if err := passOf(ctx, ddp, random); err != nil {
			return err
		}
		if !slices.Equal(before, m.Sometimes.Weight.Grad().Float32s()) {
			return errors.New("the gradient that nobody has used has changed")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPyTorchsArithmetic: gradients that accumulate without synchronisation
// are whole; the sum is of those multiplied by 1/ranks, in float32.
func TestPyTorchsArithmetic(t *testing.T) {
	const ranks = 3
	alone := make([][]float32, ranks) // each rank's own two passes
	for r := range alone {
		m := newMLP(build(0))
		random := tensor.NewGenerator(int64(r))
		for range 2 {
			if err := passOf(t.Context(), m, random); err != nil {
				t.Fatal(err)
			}
		}
		alone[r] = m.FC1.Weight.Grad().Float32s()
	}
	err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
		m := newMLP(build(0))
		ddp, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{}), WithLocalBuffers())
		if err != nil {
			return err
		}
		random := tensor.NewGenerator(int64(g.Rank()))
		if err := ddp.NoSync(func() error { return passOf(ctx, ddp, random) }); err != nil {
			return err
		}
		if err := passOf(ctx, ddp, random); err != nil {
			return err
		}
		third := float32(1.0 / ranks)
		for i, got := range m.FC1.Weight.Grad().Float32s() {
			want := float32(alone[0][i]*third) + float32(alone[1][i]*third)
			want += float32(alone[2][i] * third)
			if got != want {
				return fmt.Errorf("element %d: %v, want %v", i, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestJoinEndsAlike: ranks with unlike numbers of steps have the same
// parameters at the end, those of who trained longest.
func TestJoinEndsAlike(t *testing.T) {
	for name, o := range map[string][]JoinOption{"divided by all": nil, "divided by the live": {WithDivideByLive()}} {
		t.Run(name, func(t *testing.T) {
			const ranks = 3
			digests, last := make([]string, ranks), ""
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				m := newMLP(build(int64(g.Rank())))
				ddp, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{}))
				if err != nil {
					return err
				}
				opt := optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.1, Momentum: 0.9})
				random := tensor.NewGenerator(int64(g.Rank()))
				err = ddp.Join(ctx, func() error {
					for range []int{4, 7, 2}[g.Rank()] {
						opt.ZeroGrad()
						if err := passOf(ctx, ddp, random); err != nil {
							return err
						}
						opt.Step(nil)
					}
					return nil
				}, o...)
				if err != nil {
					return err
				}
				digests[g.Rank()] = stateDigest(m)
				// The next step is one of all ranks again.
				if err := passOf(ctx, ddp, random); err != nil {
					return err
				}
				if g.Rank() == 1 {
					last = digests[1]
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for rank, d := range digests {
				if d != last {
					t.Errorf("rank %d ends with %s, rank 1 with %s", rank, d, last)
				}
			}
		})
	}
}

// averages is what ranks should come to, in one process: at each step, every rank
// that still has inputs brings its own gradient times 1/divisor, and a parameter
// that none of them used has no gradient.
type averages struct {
	model  *branches
	opt    optim.Optimizer
	random []*tensor.Generator
}

func newAverages(ranks int) *averages {
	a := &averages{model: newBranches(build(0))}
	a.opt = uneven(a.model)
	for r := range ranks {
		a.random = append(a.random, tensor.NewGenerator(int64(r)))
	}
	return a
}

// uneven is an optimizer that moves parameters by gradients of zero, too.
func uneven(m *branches) optim.Optimizer {
	return optim.NewSGD(nn.Parameters(m), optim.SGDOptions{LR: 0.1, Momentum: 0.9, WeightDecay: 0.1})
}

// on says whether a rank uses the branch that is used sometimes.
func on(rank, step int) bool { return step%2 == 0 && (rank+step/2)%3 == 0 }

func (a *averages) step(ctx context.Context, step int, live []int, divisor int) error {
	params := nn.Parameters(a.model)
	sums := make([][]float32, len(params))
	for _, rank := range live {
		a.model.on = on(rank, step)
		a.opt.ZeroGrad()
		if err := passOf(ctx, a.model, a.random[rank]); err != nil {
			return err
		}
		for k, p := range params {
			if p.Grad() == nil {
				continue
			}
			g := p.Grad().Float32s()
			if sums[k] == nil {
				sums[k] = make([]float32, len(g))
			}
			for i, v := range g {
				sums[k][i] += float32(v * float32(1/float64(divisor)))
			}
		}
	}
	a.opt.ZeroGrad()
	for k, p := range params {
		if sums[k] == nil {
			continue
		}
		buf, _ := p.GradBuffer()
		buf.CopyFrom(tensor.FromFloat32(sums[k], p.Data().Shape()...))
		if err := p.GradReady(ctx); err != nil {
			return err
		}
	}
	a.opt.Step(nil)
	return nil
}

// TestJoinAverages holds the parameters after steps of fewer and fewer ranks,
// and of all again, against what they should be, bit for bit.
func TestJoinAverages(t *testing.T) {
	const ranks = 3
	counts := []int{3, 9, 5}
	for name, o := range map[string][]JoinOption{"divided by all": nil, "divided by the live": {WithDivideByLive()}} {
		t.Run(name, func(t *testing.T) {
			want := newAverages(ranks)
			for step := range slices.Max(counts) + 1 {
				live := []int{0, 1, 2}
				if step < slices.Max(counts) {
					live = slices.DeleteFunc(live, func(r int) bool { return step >= counts[r] })
				}
				divisor := ranks
				if len(o) > 0 {
					divisor = len(live)
				}
				if err := want.step(t.Context(), step, live, divisor); err != nil {
					t.Fatal(err)
				}
			}
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				m := newBranches(build(0))
				ddp, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{FindUnused: true}), tinyBuckets)
				if err != nil {
					return err
				}
				opt, random := uneven(m), tensor.NewGenerator(int64(g.Rank()))
				train := func(step int) error {
					m.on = on(g.Rank(), step)
					opt.ZeroGrad()
					if err := passOf(ctx, ddp, random); err != nil {
						return err
					}
					opt.Step(nil)
					return nil
				}
				err = ddp.Join(ctx, func() error {
					for step := range counts[g.Rank()] {
						if err := train(step); err != nil {
							return err
						}
					}
					return nil
				}, o...)
				if err != nil {
					return err
				}
				if err := train(slices.Max(counts)); err != nil || g.Rank() != 1 {
					return err // the momentum of ranks that ended early is another
				}
				if got, want := stateDigest(m), stateDigest(want.model); got != want {
					return fmt.Errorf("rank 1 ends with\n%s, want\n%s", got, want)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// tinyBuckets has one bucket a parameter.
var tinyBuckets = WithBucketBytes(1, 1)

// TestPassesSideBySide: two passes that are both begun before either ends leave
// one order of gradients.
func TestPassesSideBySide(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) (err error) {
		ddp, err := NewDDP(ctx, newMLP(build(0)), g, WithPyTorch(PyTorchOptions{}), tinyBuckets)
		if err != nil {
			return err
		}
		begin := func() (*nn.Ctx, *tensor.Tensor) {
			c := nn.Training(ctx)
			return c, c.Call(ddp, tensor.Full(1, 5, 8)).Sum()
		}
		c1, first := begin()
		defer c1.Close()
		c2, second := begin()
		defer c2.Close()
		if err := errors.Join(first.Backward(ctx), second.Backward(ctx)); err != nil {
			return err
		}
		return errors.Join(passOf(ctx, ddp, tensor.NewGenerator(1)), passOf(ctx, ddp, tensor.NewGenerator(1)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func stateDigest(m any) string {
	var b strings.Builder
	for _, s := range nn.StateDict(m) {
		if s.Tensor.DType().IsFloat() {
			for _, v := range s.Tensor.Float32s() {
				fmt.Fprintf(&b, "%08x", math.Float32bits(v))
			}
		} else {
			fmt.Fprint(&b, s.Tensor.Int64s())
		}
	}
	return b.String()
}

func TestPyTorchsMistakes(t *testing.T) {
	err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
		sparse := newToy(0, width)
		sparse.Tokens.Weight.Sparse = true
		still := newMLP(build(0))
		for _, p := range nn.Parameters(still) {
			p.Frozen = true
		}
		for want, m := range map[string]nn.Module{"tokens.weight takes its gradient by rows": sparse, "no parameter of the model is trained": still} {
			if _, err := NewDDP(ctx, m, g, WithPyTorch(PyTorchOptions{})); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%v, want %q", err, want)
			}
		}
		native, err := NewDDP(ctx, newMLP(build(0)), g)
		if err != nil {
			return err
		}
		if err := native.Join(ctx, nil); err == nil || !strings.Contains(err.Error(), "the option WithPyTorch") {
			return fmt.Errorf("Join: %v", err)
		}
		d, err := NewDDP(ctx, newMLP(build(0)), g, WithPyTorch(PyTorchOptions{}))
		if err != nil {
			return err
		}
		if err := d.SyncBuffers(ctx); err == nil {
			return errors.New("SyncBuffers: no error")
		}
		err = d.Join(ctx, func() error { return d.Join(ctx, nil) })
		if err == nil || !strings.Contains(err.Error(), "Join inside a Join") {
			return fmt.Errorf("Join inside a Join: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// overGloo runs two ranks of this process that meet as PyTorch's do.
func overGloo(t *testing.T, rank func(ctx context.Context, g *dist.Group) error) (errs [2]error) {
	t.Helper()
	url := "tcp://" + freeAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var ranks sync.WaitGroup
	for r := range errs {
		ranks.Go(func() {
			g, err := dist.Init(ctx, dist.WithBackend("gloo"), dist.WithURL(url), dist.WithRank(r, 2))
			if err != nil {
				errs[r] = err
				return
			}
			errs[r] = rank(ctx, g)
			_ = g.Close()
		})
	}
	ranks.Wait()
	return errs
}

// TestForgottenOption: beside ranks whose DDP is PyTorch's, one without that option says
// that it is missing.
func TestForgottenOption(t *testing.T) {
	errs := overGloo(t, func(ctx context.Context, g *dist.Group) error {
		var opts []DDPOption
		if g.Rank() == 0 {
			opts = append(opts, WithPyTorch(PyTorchOptions{}))
		}
		_, err := NewDDP(ctx, newMLP(build(0)), g, opts...)
		return err
	})
	var wire *dist.WireError
	if !errors.As(errs[1], &wire) || !strings.Contains(errs[1].Error(), "needs the option parallel.WithPyTorch") {
		t.Errorf("the rank without the option: %v", errs[1])
	}
	if errs[0] == nil || strings.Contains(errs[0].Error(), "needs the option") {
		t.Errorf("the rank with the option: %v", errs[0])
	}
}

// TestOtherOptions: where ranks' collectives differ, an error names what of their models and
// options may.
func TestOtherOptions(t *testing.T) {
	t.Parallel()
	unused := WithPyTorch(PyTorchOptions{FindUnused: true})
	for name, c := range map[string]struct {
		options [2]DDPOption // beside the defaults
		noStats bool         // rank 0's norm has no buffers
		want    string
	}{
		"find_unused_parameters on rank 0": {options: [2]DDPOption{unused, nil}, want: "the same find_unused_parameters (FindUnused)"},
		"find_unused_parameters on rank 1": {options: [2]DDPOption{nil, unused}, want: "the same find_unused_parameters (FindUnused)"},
		"broadcast_buffers on rank 0":      {options: [2]DDPOption{nil, WithLocalBuffers()}, want: "the same broadcast_buffers (WithLocalBuffers)"},
		"buffers":                          {noStats: true, want: "the same buffers"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := overGloo(t, func(ctx context.Context, g *dist.Group) error {
				o := nn.BatchNormOptions{NoRunningStats: c.noStats && g.Rank() == 0}
				b := build(0)
				opts := []DDPOption{WithPyTorch(PyTorchOptions{})}
				if more := c.options[g.Rank()]; more != nil {
					opts = append(opts, more)
				}
				d, err := NewDDP(ctx, &mlp{nn.NewLinear(b, 8, 6), nn.NewBatchNorm1d(b, 6, o), nn.NewLinear(b, 6, 4)}, g, opts...)
				for range 3 {
					if err == nil {
						err = passOf(ctx, d, tensor.NewGenerator(1))
					}
				}
				return err
			})
			var wire *dist.WireError
			err := errs[0]
			if !errors.As(err, &wire) { // whose call is whose depends on who was first
				err = errs[1]
			}
			if !errors.As(err, &wire) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("no *dist.WireError with %q: %v; %v", c.want, errs[0], errs[1])
			}
		})
	}
}
