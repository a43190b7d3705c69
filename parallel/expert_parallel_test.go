// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// mixture is a small model with two mixtures of experts: ids [batch] to logits [batch,
// classes]. Norms and embeddings below the experts get their gradients through them.
type mixture struct {
	Tokens *nn.Embedding
	Norm   *nn.LayerNorm
	First  *nn.MoE
	Second *nn.MoE
	Head   *nn.Linear
}

const expertWidth = 16

func newMixture(seed int64, numExperts, numActive int, biased bool, o nn.MoEOptions) *mixture {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	m := &mixture{
		Tokens: nn.NewEmbedding(b, numIDs, expertWidth),
		Norm:   nn.NewLayerNorm(b, expertWidth),
		First:  nn.NewMoE(b, expertWidth, 24, numExperts, numActive, o),
		Second: nn.NewMoE(b, expertWidth, 20, numExperts, numActive, o),
		Head:   nn.NewLinear(b, expertWidth, classes),
	}
	m.Second.Shared = nn.NewSequential(nn.NewLinear(b, expertWidth, 12), &nn.GELU{}, nn.NewLinear(b, 12, expertWidth))
	m.Second.SharedGate = nn.NewLinear(b, expertWidth, 1)
	if biased {
		for _, e := range []*nn.Experts{m.First.Experts, m.Second.Experts} {
			hidden := e.Up.Data().Dim(1)
			e.GateBias, e.UpBias, e.DownBias = b.Normal(0.5, numExperts, hidden), b.Normal(0.5, numExperts, hidden), b.Normal(0.5, numExperts, expertWidth)
		}
	}
	return m
}

func (m *mixture) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Tokens, ids)
	x = x.Add(c.Call(m.First, c.Call(m.Norm, x)))
	x = x.Add(c.Call(m.Second, x))
	return c.Call(m.Head, x)
}

// TensorPlan cuts the experts alone.
func (*mixture) TensorPlan() string { return "first.experts: experts\nsecond.experts: experts" }

// expertTest is one comparison of ranks with one rank.
type expertTest struct {
	axes            string // "fsdp 2 ep 2"
	experts, active int
	microbatches    int // of a step, 0 for one
	biased          bool
	options         nn.MoEOptions
	batch           func(rank int) (ids, targets *tensor.Tensor) // of a rank
	around          nn.Interceptor                               // nil for none
	change          func(m *mixture)                             // of the first values, nil for none
	sum             bool                                         // of the losses of the samples, not their mean
	low             bool
}

// drawn gives each rank n samples of its own.
func drawn(n int) func(rank int) (ids, targets *tensor.Tensor) {
	return func(rank int) (ids, targets *tensor.Tensor) { return newBatches(rank, 16, n).next() }
}

func (e expertTest) model(seed int64) *mixture {
	m := newMixture(seed, e.experts, e.active, e.biased, e.options)
	if e.change != nil {
		e.change(m)
	}
	return m
}

func (e expertTest) carrier(ctx context.Context) *nn.Ctx {
	var opts []nn.CtxOption
	if e.low {
		opts = append(opts, nn.WithAutocast(tensor.BFloat16))
	}
	c := nn.Training(ctx, opts...)
	if e.around != nil {
		c = c.With(e.around)
	}
	return c
}

// loss is that of a rank's batch, which the ranks' mean is made of.
func (e expertTest) loss(c *nn.Ctx, m nn.Module, rank int) *tensor.Tensor {
	ids, targets := e.batch(rank)
	var o tensor.CrossEntropyOptions
	if e.sum {
		o.Reduction = tensor.ReduceSum
	}
	return tensor.CrossEntropy(c.Call(m, ids), targets, o)
}

// passes is how many microbatches a step has.
func (e expertTest) passes() int { return max(1, e.microbatches) }

// oneRank returns the losses of the ranks' batches, and a model with the gradients of their mean.
func (e expertTest) oneRank(ctx context.Context, ranks int) (losses []float64, m *mixture, err error) {
	m = e.model(3)
	losses = make([]float64, ranks)
	for i := range ranks * e.passes() {
		err := func() (err error) {
			c := e.carrier(ctx)
			defer c.Close()
			defer c.Recover(&err)
			c.Tape().ScaleGrads(1 / float64(ranks*e.passes()))
			loss := e.loss(c, m, i)
			losses[i%ranks] += loss.Item() / float64(e.passes())
			if added := c.AddedLoss(); added != nil {
				loss = loss.Add(added)
			}
			return loss.Backward(ctx)
		}()
		if err != nil {
			return nil, nil, err
		}
	}
	return losses, m, nn.BalanceExperts(m, nil)
}

// splitExperts wraps a model over the ranks of a group.
func splitExperts(ctx context.Context, g *dist.Group, model any, axes ...mesh.Axis) (*Parallel, error) {
	m, err := mesh.New(ctx, g, axes...)
	if err != nil {
		return nil, err
	}
	return Parallelize(ctx, model, m, Config{})
}

// over names the axes of a test's ranks: "fsdp 2 ep 2".
func over(t *testing.T, text string) (axes []mesh.Axis, ranks int) {
	t.Helper()
	ranks = 1
	words := strings.Fields(text)
	for i := 0; i < len(words); i += 2 {
		n, err := strconv.Atoi(words[i+1])
		if err != nil {
			t.Fatal(err)
		}
		axes = append(axes, mesh.Axis{Name: words[i], Size: n})
		ranks *= n
	}
	return axes, ranks
}

// compare runs the batches on the ranks of the test's axes and compares losses, gradients and
// the norm with one rank's, in one step of as many microbatches as the test has.
func (e expertTest) compare(t *testing.T, tolerance float64) {
	t.Helper()
	axes, ranks := over(t, e.axes)
	same := 1 // ranks that take the same samples
	if last := axes[len(axes)-1]; last.Name == tensorAxis {
		same = last.Size
	}
	samplers := ranks / same
	losses, alone, err := e.oneRank(t.Context(), samplers)
	if err != nil {
		t.Fatal(err)
	}
	want := gradients(alone)
	wantNorm := 0.0
	for _, w := range want {
		for _, v := range w {
			wantNorm += float64(v) * float64(v)
		}
	}
	wantNorm = math.Sqrt(wantNorm)
	err = spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
		m := e.model(int64(3 + g.Rank())) // the ranks take rank 0's values
		p, err := splitExperts(ctx, g, m, axes...)
		if err != nil {
			return err
		}
		var passes []Microbatch
		for i := range e.passes() {
			passes = append(passes, Microbatch{Carrier: e.carrier, Loss: func(c *nn.Ctx) *tensor.Tensor {
				return e.loss(c, p, g.Rank()/same+i*samplers).MulScalar(1 / float64(e.passes()))
			}})
		}
		loss, err := p.Step(ctx, passes)
		if err != nil {
			return err
		}
		if got, want := loss.Item(), losses[g.Rank()/same]; !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
			t.Errorf("rank %d: the loss is %v, on one rank %v", g.Rank(), got, want)
		}
		norm, _, err := p.ClipGradNorm(ctx, nn.Parameters(m), 1)
		if err != nil {
			return err
		}
		if got := norm.Item(); !(math.Abs(got-wantNorm) <= 10*tolerance*wantNorm) {
			t.Errorf("rank %d: the norm of the gradients is %v, on one rank %v", g.Rank(), got, wantNorm)
		}
		for i, b := range nn.Buffers(alone) {
			if got := nn.Buffers(m)[i].Data.Float32s(); !slices.Equal(got, b.Data.Float32s()) {
				t.Errorf("rank %d: %s is %v, on one rank %v", g.Rank(), b.Name(), got, b.Data.Float32s())
			}
		}
		got, err := wholeValues(ctx, p, gradOf)
		if err != nil || g.Rank() > 0 {
			return err
		}
		e.sameGradients(t, got, want, 10*tolerance)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (e expertTest) sameGradients(t *testing.T, got, want map[string][]float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d parameters have gradients, on one rank %d", len(got), len(want))
	}
	for name, w := range want {
		scale := 0.0
		for _, v := range w {
			scale = max(scale, abs(v))
		}
		if len(got[name]) != len(w) {
			t.Errorf("the gradient of %s has %d elements, want %d", name, len(got[name]), len(w))
			continue
		}
		for i, v := range got[name] {
			if !(abs(v-w[i]) <= tolerance*scale) {
				t.Errorf("element %d of the gradient of %s is %v, on one rank %v", i, name, v, w[i])
				break
			}
		}
	}
}

// noSamples gives samples to rank 0 alone.
func noSamples(rank int) (ids, targets *tensor.Tensor) {
	if rank > 0 {
		return tensor.New(tensor.CPU(), tensor.Int64, 0), tensor.New(tensor.CPU(), tensor.Int64, 0)
	}
	return drawn(9)(rank)
}

// oneFavourite makes every token choose expert 1, and then expert 0.
func oneFavourite(m *mixture) {
	m.Norm.Bias.Data().Fill(3) // so that the sum of a token's features is positive
	m.First.Gate.Weight.Data().Narrow(0, 1, 1).Fill(2)
	m.First.Gate.Weight.Data().Narrow(0, 0, 1).Fill(1)
}

// TestExpertParallelIsOneRank: losses and gradients, by name, of experts on several ranks.
func TestExpertParallelIsOneRank(t *testing.T) {
	seeded.Of(t)
	recomputed := nn.Recompute(func(m any) bool { _, ok := m.(*nn.MoE); return ok })
	for name, e := range map[string]expertTest{
		"dropless":      {axes: "ep 2", experts: 4, active: 2, batch: drawn(9)},
		"four ranks":    {axes: "ep 4", experts: 8, active: 2, batch: drawn(7), options: nn.MoEOptions{Balance: 0.1, Z: 0.01}},
		"one active":    {axes: "ep 2", experts: 4, active: 1, batch: drawn(9), options: nn.MoEOptions{Unnormalized: true}},
		"capacity":      {axes: "ep 2", experts: 4, active: 2, batch: drawn(16), options: nn.MoEOptions{Capacity: 0.75, Balance: 0.1}},
		"biased":        {axes: "ep 2", experts: 4, active: 2, biased: true, batch: drawn(9)},
		"sigmoid":       {axes: "ep 2", experts: 6, active: 3, batch: drawn(9), options: nn.MoEOptions{Sigmoid: true, Scale: 2.5, BiasStep: 0.1}},
		"uneven":        {axes: "ep 2", experts: 5, active: 2, batch: drawn(9)},
		"recomputed":    {axes: "ep 2", experts: 4, active: 2, batch: drawn(9), around: recomputed, options: nn.MoEOptions{Balance: 0.1}},
		"accumulated":   {axes: "ep 2", experts: 4, active: 2, batch: drawn(9), microbatches: 3, options: nn.MoEOptions{Balance: 0.1}},
		"replicas":      {axes: "replicate 2 ep 2", experts: 4, active: 2, batch: drawn(9), options: nn.MoEOptions{Balance: 0.1}},
		"sharded":       {axes: "fsdp 2 ep 2", experts: 4, active: 2, batch: drawn(9), options: nn.MoEOptions{Balance: 0.1}},
		"sharded twice": {axes: "fsdp 2 ep 2", experts: 8, active: 2, batch: drawn(9), microbatches: 2, around: recomputed, options: nn.MoEOptions{Capacity: 1}},
		"tensor":        {axes: "tp 2", experts: 4, active: 2, biased: true, batch: drawn(9), options: nn.MoEOptions{Balance: 0.1, Z: 0.1, BiasStep: 0.1}},
		"ep and tp":     {axes: "ep 2 tp 2", experts: 4, active: 2, biased: true, batch: drawn(9), options: nn.MoEOptions{Balance: 0.1, Z: 0.1, BiasStep: 0.1}},
		"no samples":    {axes: "ep 2", experts: 4, active: 2, batch: noSamples, sum: true, options: nn.MoEOptions{Balance: 0.1, Z: 0.1, Capacity: 1.5}},
		"one favourite": {axes: "ep 2", experts: 4, active: 1, batch: drawn(9), options: nn.MoEOptions{Unnormalized: true}, change: oneFavourite},
		"nobody's rank": {axes: "ep 2", experts: 4, active: 2, batch: drawn(9), change: oneFavourite},
		"empty experts": {axes: "ep 2", experts: 16, active: 1, batch: drawn(2), options: nn.MoEOptions{Unnormalized: true}},
	} {
		t.Run(name, func(t *testing.T) { e.compare(t, 1e-6) })
	}
}

// TestExpertParallelInBFloat16: rows travel in bfloat16, and round as on one rank.
func TestExpertParallelInBFloat16(t *testing.T) {
	e := expertTest{axes: "ep 2", experts: 4, active: 2, batch: drawn(16), low: true, options: nn.MoEOptions{Balance: 0.1}}
	e.compare(t, 2e-3)
}

// TestExpertParallelRefuses: what cannot be split is an error before anything is sent.
func TestExpertParallelRefuses(t *testing.T) {
	err := spawn(t, 4, func(ctx context.Context, g *dist.Group) error {
		for _, c := range []struct {
			want  string
			model any
		}{
			{"the model has no experts (nn.Experts) to split", newToy(1, width)},
			{"first.experts has 6 experts for 4 ranks: ⌈6/4⌉ = 2 experts a rank leave the last rank none", newMixture(1, 6, 2, false, nn.MoEOptions{})},
			{"first.experts has 3 experts for 4 ranks: ⌈3/4⌉ = 1 experts a rank", newMixture(1, 3, 2, false, nn.MoEOptions{})},
		} {
			if _, err := splitExperts(ctx, g, c.model, mesh.Axis{Name: expertAxis, Size: 4}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestExpertBytes: what the all-to-alls of a pass send is a function of the counts, to the byte.
func TestExpertBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 4))
	for _, ranks := range []int{2, 3} {
		const numExperts, tokens, active = 7, 40, 2
		counts := make([][]int64, ranks)
		chosen := make([][]int64, ranks)
		for r := range ranks {
			counts[r] = make([]int64, numExperts)
			for range tokens * active {
				k := int64(rng.IntN(1 + rng.IntN(numExperts))) // the first ones are chosen most
				if chosen[r] = append(chosen[r], k); k == 1 {
					chosen[r][len(chosen[r])-1] = -1 // dropped
				} else {
					counts[r][k]++
				}
			}
		}
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) (err error) {
				m := newMixture(1, numExperts, active, false, nn.MoEOptions{})
				p, err := splitExperts(ctx, g, m, mesh.Axis{Name: expertAxis, Size: ranks})
				if err != nil {
					return err
				}
				e := p.parts[0].(*expertParallel)
				want := int64(0)
				for _, call := range exchangeCalls(counts, chunkSizes(numExperts, ranks), g.Rank(), expertWidth, dtype, true) {
					n, err := e.group.PredictSent(call, false)
					if err != nil {
						return err
					}
					want += n
				}
				if err := e.group.Barrier(ctx); err != nil { // what the split sent has been read
					return err
				}
				before := e.group.Traffic()
				c := nn.Training(ctx)
				defer c.Close()
				defer c.Recover(&err)
				c.ReadShards()
				c = c.With(e)
				if dtype == tensor.BFloat16 {
					c.Tape().SetAutocast(dtype)
				}
				x := c.Leaf(tensor.Full(1, tokens, expertWidth))
				y := c.CallN(m.First.Experts, x.To(dtype), tensor.Full(1, tokens, active), tensor.FromInt64(chosen[g.Rank()], tokens, active))[0]
				if err := y.To(tensor.Float32).Sum().Backward(ctx); err != nil {
					return err
				}
				if err := e.group.Barrier(ctx); err != nil {
					return err
				}
				if got := e.group.Traffic().Since(before).SentBytes; got != want {
					t.Errorf("%d ranks, %v: rank %d has sent %d bytes, want %d", ranks, dtype, g.Rank(), got, want)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPredictExperts: a dry run on tensor.Meta gives each expert equally many rows, and knows
// the memory of a step. The bytes depend on the tokens.
func TestPredictExperts(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		p, err := splitExperts(ctx, g, newMixture(1, 4, 2, true, nn.MoEOptions{Balance: 0.1, Capacity: 1.25}), mesh.Axis{Name: expertAxis, Size: 2})
		if err != nil {
			return err
		}
		got := Predict(ctx, p, PredictOptions{Loss: func(c *nn.Ctx, m any) *tensor.Tensor {
			ids := tensor.New(tensor.Meta, tensor.Int64, 9)
			return tensor.CrossEntropy(c.Call(m.(nn.Module), ids), ids)
		}})
		if got.NoPeak != nil || got.PeakBytes <= got.StateBytes {
			t.Errorf("rank %d: the peak is %d bytes of which %d are state (%v)", g.Rank(), got.PeakBytes, got.StateBytes, got.NoPeak)
		}
		if got.NoSent == nil || !strings.Contains(got.NoSent.Error(), "ep") {
			t.Errorf("rank %d: %d bytes are predicted (%v), though they depend on the tokens", g.Rank(), got.SentBytes, got.NoSent)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestExpertRankLeaves: a rank that ends before the exchange is named with the experts that
// wait for it.
func TestExpertRankLeaves(t *testing.T) {
	gone := errors.New("this rank has had enough")
	e := expertTest{axes: "ep 2", experts: 4, active: 2, batch: drawn(9)}
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := e.model(3)
		p, err := splitExperts(ctx, g, m, mesh.Axis{Name: expertAxis, Size: 2})
		if err != nil {
			return err
		}
		passes := []Microbatch{{Carrier: e.carrier, Loss: func(c *nn.Ctx) *tensor.Tensor { return e.loss(c, p, 0) }}}
		if _, err := p.Step(ctx, passes); err != nil { // the first one compares the ranks
			return err
		}
		if g.Rank() == 1 {
			return gone
		}
		_, err = p.Step(ctx, passes)
		if err == nil || !strings.Contains(err.Error(), "forward of first.experts") || !strings.Contains(err.Error(), "exchange the numbers of rows of first.experts") || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("got %v", err)
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}
