// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
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

// expertTest is one comparison of ranks with one rank.
type expertTest struct {
	ranks, experts, active int
	biased                 bool
	options                nn.MoEOptions
	batch                  func(rank int) (ids, targets *tensor.Tensor) // of a rank
	around                 nn.Interceptor                               // nil for none
	change                 func(m *mixture)                             // of the first values, nil for none
	sum                    bool                                         // of the losses of the samples, not their mean
	low                    bool
}

// drawn gives each rank n samples of its own.
func drawn(n int) func(rank int) (ids, targets *tensor.Tensor) {
	return func(rank int) (ids, targets *tensor.Tensor) { return newBatches(rank, 8, n).next() }
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

// withAdded adds the losses of modules.
func withAdded(c *nn.Ctx, loss *tensor.Tensor) *tensor.Tensor {
	if added := c.AddedLoss(); added != nil {
		return loss.Add(added)
	}
	return loss
}

// oneRank returns the losses of the batches and the gradients of their mean on one rank.
func (e expertTest) oneRank(ctx context.Context) (losses []float64, grads map[string][]float32, err error) {
	m := e.model(3)
	for r := range e.ranks {
		err := func() (err error) {
			c := e.carrier(ctx)
			defer c.Close()
			defer c.Recover(&err)
			c.Tape().ScaleGrads(1 / float64(e.ranks))
			loss := e.loss(c, m, r)
			losses = append(losses, loss.Item())
			return withAdded(c, loss).Backward(ctx)
		}()
		if err != nil {
			return nil, nil, err
		}
	}
	return losses, gradients(m), nil
}

// splitExperts wraps a model over the ranks of a group: all of them on the axes ep and, if there
// are more, replicate.
func splitExperts(ctx context.Context, g *dist.Group, model any, ep int) (*Parallel, error) {
	axes := []mesh.Axis{{Name: expertAxis, Size: ep}}
	if g.Size() > ep {
		axes = append([]mesh.Axis{{Name: replicateAxis, Size: g.Size() / ep}}, axes...)
	}
	m, err := mesh.New(ctx, g, axes...)
	if err != nil {
		return nil, err
	}
	p := &Parallel{Model: model, mesh: m, lays: plainLays(model, m)}
	e, err := newExpertParallel(p)
	if err == nil {
		err = e.lay()
	}
	if err == nil {
		err = e.join(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, q := range nn.Parameters(model) {
		l := p.lays[q]
		if l.at[expertAxis] == (mesh.Placement{}) {
			continue
		}
		at := make([]mesh.Placement, len(axes))
		at[len(axes)-1] = l.at[expertAxis]
		boxes, err := mesh.Boxes(l.shape, m.Shape(), at, m.Coordinate())
		if err != nil {
			return nil, err
		}
		q.SetData(q.Data().Narrow(0, boxes[0].Start[0], boxes[0].Shape[0]).Clone())
	}
	world, err := newRanks(ctx, g, worldAxis)
	if err != nil {
		return nil, err
	}
	s, err := newSplit(ctx, m, world, model, p.lays)
	if err != nil {
		return nil, err
	}
	if p.engine, err = replicate(model, s, nil); err != nil {
		return nil, err
	}
	p.parts = []splitter{e}
	return p, nil
}

// compare runs the batches on ranks with the experts split over ep of them, and compares losses
// and gradients with one rank's. It returns the losses.
func (e expertTest) compare(t *testing.T, ep int, tolerance float64) {
	t.Helper()
	losses, want, err := e.oneRank(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = spawn(t, e.ranks, func(ctx context.Context, g *dist.Group) (err error) {
		m := e.model(3)
		p, err := splitExperts(ctx, g, m, ep)
		if err != nil {
			return err
		}
		c := e.carrier(ctx)
		defer c.Close()
		defer c.Recover(&err)
		loss := e.loss(c, p, g.Rank())
		if got := loss.Item(); !(abs(float32(got-losses[g.Rank()])) <= tolerance*losses[g.Rank()]) {
			t.Errorf("rank %d: the loss is %v, on one rank %v", g.Rank(), got, losses[g.Rank()])
		}
		if err := withAdded(c, loss).Backward(ctx); err != nil {
			return err
		}
		got := gradients(m)
		for _, q := range nn.Parameters(m) {
			w, scale := want[q.Name()], 0.0
			for _, v := range w {
				scale = max(scale, abs(v))
			}
			if n := q.Data().NumElems(); p.lays[q].at[expertAxis] != (mesh.Placement{}) {
				num := p.lays[q].shape[0]
				w = w[g.Rank()%ep*((num+ep-1)/ep)*(len(w)/num):][:n]
			}
			if len(got[q.Name()]) != len(w) {
				t.Errorf("rank %d: the gradient of %s has %d elements, want %d", g.Rank(), q.Name(), len(got[q.Name()]), len(w))
				continue
			}
			for i, v := range got[q.Name()] {
				if !(abs(v-w[i]) <= 10*tolerance*scale) {
					t.Errorf("rank %d: element %d of the gradient of %s is %v, on one rank %v", g.Rank(), i, q.Name(), v, w[i])
					break
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
		"dropless":      {ranks: 2, experts: 4, active: 2, batch: drawn(9)},
		"four ranks":    {ranks: 4, experts: 8, active: 2, batch: drawn(7), options: nn.MoEOptions{Balance: 0.1, Z: 0.01}},
		"one active":    {ranks: 2, experts: 4, active: 1, batch: drawn(9), options: nn.MoEOptions{Unnormalized: true}},
		"capacity":      {ranks: 2, experts: 4, active: 2, batch: drawn(16), options: nn.MoEOptions{Capacity: 0.75, Balance: 0.1}},
		"biased":        {ranks: 2, experts: 4, active: 2, biased: true, batch: drawn(9)},
		"sigmoid":       {ranks: 2, experts: 6, active: 3, batch: drawn(9), options: nn.MoEOptions{Sigmoid: true, Scale: 2.5, BiasStep: 0.1}},
		"uneven":        {ranks: 2, experts: 5, active: 2, batch: drawn(9)},
		"recomputed":    {ranks: 2, experts: 4, active: 2, batch: drawn(9), around: recomputed, options: nn.MoEOptions{Balance: 0.1}},
		"two of four":   {ranks: 4, experts: 4, active: 2, batch: drawn(9), options: nn.MoEOptions{Balance: 0.1}},
		"no samples":    {ranks: 2, experts: 4, active: 2, batch: noSamples, sum: true, options: nn.MoEOptions{Balance: 0.1, Z: 0.1, Capacity: 1.5}},
		"one favourite": {ranks: 2, experts: 4, active: 1, batch: drawn(9), options: nn.MoEOptions{Unnormalized: true}, change: oneFavourite},
		"nobody's rank": {ranks: 2, experts: 4, active: 2, batch: drawn(9), change: oneFavourite},
		"empty experts": {ranks: 2, experts: 16, active: 1, batch: drawn(2), options: nn.MoEOptions{Unnormalized: true}},
	} {
		t.Run(name, func(t *testing.T) {
			ep := e.ranks
			if name == "two of four" {
				ep = 2
			}
			e.compare(t, ep, 1e-6)
		})
	}
}

// TestExpertParallelInBFloat16: rows travel in bfloat16, and round as on one rank.
func TestExpertParallelInBFloat16(t *testing.T) {
	e := expertTest{ranks: 2, experts: 4, active: 2, batch: drawn(16), low: true, options: nn.MoEOptions{Balance: 0.1}}
	e.compare(t, 2, 2e-3)
}

// TestExpertParallelRefuses: what cannot be split is an error before anything is sent.
func TestExpertParallelRefuses(t *testing.T) {
	err := spawn(t, 4, func(ctx context.Context, g *dist.Group) error {
		for want, model := range map[string]any{
			"the model has no experts (nn.Experts) to split":                                             newToy(1, width),
			"first.experts has 6 experts for 4 ranks: ⌈6/4⌉ = 2 experts a rank leave the last rank none": newMixture(1, 6, 2, false, nn.MoEOptions{}),
			"first.experts has 3 experts for 4 ranks: ⌈3/4⌉ = 1 experts a rank":                          newMixture(1, 3, 2, false, nn.MoEOptions{}),
		} {
			if _, err := splitExperts(ctx, g, model, 4); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
