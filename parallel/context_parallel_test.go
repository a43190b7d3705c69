// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// contextCase is a model and what it is given.
type contextCase struct {
	name      string
	build     func(b *nn.Build) any
	time      int
	documents [][]int // lengths of the documents of each row
	padding   bool    // of BERT, by a mask
	recompute bool
	low       bool // bfloat16
	added     bool // with the losses of modules
	loss      nn.CrossEntropyLoss
}

const contextVocabulary = 37

func contextLlama(window, layers int) func(b *nn.Build) any {
	return func(b *nn.Build) any {
		return models.NewLlama(b, models.LlamaConfig{
			Vocab: contextVocabulary, Context: 64, Width: 24, Hidden: 40, Heads: 12, KeyHeads: 12, HeadDim: 8, Layers: layers, Window: window,
		})
	}
}

func contextGPT(b *nn.Build) any {
	return models.NewGPT(b, models.GPTConfig{Vocab: contextVocabulary, Context: 64, Width: 48, Heads: 12, Layers: 2})
}

func contextBERT(dropout float64) func(b *nn.Build) any {
	return func(b *nn.Build) any {
		return models.NewBERT(b, models.BERTConfig{Vocab: contextVocabulary, Context: 64, Width: 48, Heads: 12, Layers: 2, Dropout: dropout})
	}
}

func contextCases() []contextCase {
	return []contextCase{
		{name: "llama", build: contextLlama(0, 2), time: 24},
		{name: "llama odd", build: contextLlama(0, 2), time: 29},
		{name: "gpt", build: contextGPT, time: 25},
		{name: "bert", build: contextBERT(0), time: 23},
		{name: "bert padding", build: contextBERT(0), time: 24, padding: true},
		{name: "bert dropout", build: contextBERT(0.3), time: 21, padding: true},
		{name: "grouped queries", build: contextGrouped, time: 26},
		{name: "window", build: contextLlama(5, 2), time: 31},
		{name: "wide window", build: contextLlama(17, 1), time: 31},
		{name: "documents", build: contextLlama(0, 2), time: 31, documents: [][]int{{9, 1, 14, 7}, {31}}},
		{name: "documents of gpt", build: contextGPT, time: 24, documents: [][]int{{2, 2, 10, 2, 8}, {5, 5, 5, 5, 4}}},
		{name: "documents and window", build: contextLlama(4, 1), time: 30, documents: [][]int{{9, 2, 12, 7}, {3, 27}}},
		{name: "documents of bert", build: contextBERT(0.2), time: 24, documents: [][]int{{6, 6, 12}, {10, 14}}, padding: true},
		{name: "recomputation", build: contextLlama(0, 2), time: 27, recompute: true},
		{name: "recomputation of bert", build: contextBERT(0.2), time: 22, recompute: true, padding: true},
		{name: "bfloat16", build: contextLlama(0, 2), time: 26, low: true},
		{name: "bfloat16 of bert", build: contextBERT(0.1), time: 26, low: true, padding: true},
		{name: "bfloat16 documents", build: contextLlama(9, 1), time: 26, low: true, documents: [][]int{{6, 8, 12}, {10, 16}}, recompute: true},
		{name: "sum", build: contextGPT, time: 24, loss: nn.CrossEntropyLoss{Reduction: tensor.ReduceSum}},
		{name: "smoothing", build: contextGPT, time: 24, loss: nn.CrossEntropyLoss{LabelSmoothing: 0.1}},
		{name: "weights", build: contextGPT, time: 24, loss: nn.CrossEntropyLoss{Weight: contextWeights()}},
	}
}

func contextWeights() *nn.Buffer {
	w := tensor.Zeros(contextVocabulary)
	tensor.NewGenerator(3).Uniform(w, 0.5, 2)
	return &nn.Buffer{Data: w}
}

func contextGrouped(b *nn.Build) any {
	return models.NewLlama(b, models.LlamaConfig{
		Vocab: contextVocabulary, Context: 64, Width: 24, Hidden: 40, Heads: 24, KeyHeads: 12, HeadDim: 4, Layers: 2, AttentionBias: true,
	})
}

// contextBatch is what all ranks are given.
type contextBatch struct {
	ids, targets, mask, documents *tensor.Tensor
}

func (cc contextCase) batch(r *rand.Rand) contextBatch {
	const rows = 2
	var ids, targets, documents []int64
	var mask []bool
	for row := range rows {
		for t := range cc.time {
			ids, targets = append(ids, int64(r.IntN(contextVocabulary))), append(targets, int64(r.IntN(contextVocabulary)))
			if r.IntN(5) == 0 {
				targets[len(targets)-1] = tensor.IgnoreIndex
			}
			mask = append(mask, t < cc.time-7*row)
		}
		if cc.documents != nil {
			for i, n := range cc.documents[row] {
				for range n {
					documents = append(documents, int64(i))
				}
			}
		}
	}
	b := contextBatch{ids: tensor.FromInt64(ids, rows, cc.time), targets: tensor.FromInt64(targets, rows, cc.time)}
	if cc.padding {
		b.mask = tensor.FromBool(mask, rows, cc.time)
	}
	if cc.documents != nil {
		b.documents = tensor.FromInt64(documents, rows, cc.time)
	}
	return b
}

// contextResult is what a pass gives.
type contextResult struct {
	loss  float64
	grads map[string][]float32
	peak  int64
}

// pass runs forward and backward; p is nil on one rank. It leaves gradients that owe a sum over
// the ranks.
func (cc contextCase) pass(ctx context.Context, model any, p *contextParallel, b contextBatch) (out contextResult, err error) {
	var opts []nn.CtxOption
	if cc.low {
		opts = append(opts, nn.WithAutocast(tensor.BFloat16))
	}
	c := nn.Training(ctx, append(opts, nn.WithGenerator(tensor.NewGenerator(99)))...)
	defer c.Close()
	defer c.Recover(&err)
	inner := c
	if p != nil {
		inner = inner.With(p)
	}
	if cc.recompute {
		inner = inner.With(recomputeBlocks)
	}
	if b.documents != nil {
		inner = inner.WithDocuments(b.documents)
	}
	for _, q := range nn.Parameters(model) {
		q.ZeroGrad()
	}
	l := inner.CallN(&cc.loss, callModel(inner, model, b), b.targets)[0]
	if cc.added {
		l = l.Add(c.AddedLoss())
	}
	if err := l.Backward(ctx); err != nil {
		return out, err
	}
	out.loss, out.peak = l.Item(), c.Tape().PeakBytes()
	return out, nil
}

// recomputeBlocks keeps only the inputs of blocks.
var recomputeBlocks = nn.Recompute(func(m any) bool {
	switch m.(type) {
	case *models.LlamaBlock, *models.GPTBlock, *models.BERTLayer:
		return true
	}
	return false
})

func callModel(c *nn.Ctx, model any, b contextBatch) *tensor.Tensor {
	if b.mask != nil {
		return c.CallN(model.(nn.ModuleN), b.ids, nil, b.mask)[0]
	}
	return c.Call(model.(nn.Module), b.ids)
}

// trained returns the parameters that are not frozen.
func trained(model any) []*nn.Parameter {
	return slices.DeleteFunc(nn.Parameters(model), func(q *nn.Parameter) bool { return q.Frozen })
}

// onOneRank is the oracle.
func (cc contextCase) onOneRank(t *testing.T, seed int64) contextResult {
	t.Helper()
	model := cc.build(&nn.Build{Generator: tensor.NewGenerator(seed)})
	out, err := cc.pass(t.Context(), model, nil, cc.batch(rand.New(rand.NewPCG(uint64(seed), 1))))
	if err != nil {
		t.Fatal(err)
	}
	out.grads = map[string][]float32{}
	for _, q := range trained(model) {
		out.grads[q.Name()] = q.Grad().Float32s()
	}
	return out
}

// onRanks returns the sum of the shares of the loss, the sums of the gradients, and the largest
// peak.
func (cc contextCase) onRanks(t *testing.T, seed int64, n int, config ContextConfig) contextResult {
	t.Helper()
	results := make([]contextResult, n)
	err := spawn(t, n, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: contextAxis})
		if err != nil {
			return err
		}
		model := cc.build(&nn.Build{Generator: tensor.NewGenerator(seed)})
		p, err := newContextParallel(model, m, config)
		if err != nil {
			return err
		}
		out, err := cc.pass(ctx, model, p, cc.batch(rand.New(rand.NewPCG(uint64(seed), 1))))
		if err != nil {
			return err
		}
		if len(p.passes) != 0 {
			return fmt.Errorf("%d passes are left", len(p.passes))
		}
		out.grads = map[string][]float32{}
		for _, q := range trained(model) {
			if err := g.AllReduce(ctx, q.Grad(), dist.Sum); err != nil {
				return err
			}
			out.grads[q.Name()] = q.Grad().Float32s()
		}
		results[g.Rank()] = out
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sum := results[0]
	for _, r := range results[1:] {
		sum.loss += r.loss
		sum.peak = max(sum.peak, r.peak)
	}
	return sum
}

// apart is the Euclidean one of two lists, and length the length of one.
func apart(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += (float64(a[i]) - float64(b[i])) * (float64(a[i]) - float64(b[i]))
	}
	return math.Sqrt(sum)
}

func length(a []float32) float64 { return apart(a, make([]float32, len(a))) }

// compare holds a result to that of one rank.
func (cc contextCase) compare(t *testing.T, got, want contextResult, bound float64) {
	t.Helper()
	if d := math.Abs(got.loss-want.loss) / math.Abs(want.loss); !(d <= bound) {
		t.Errorf("the loss is %v, on one rank %v: %.2g apart", got.loss, want.loss, d)
	}
	floor := 0.0 // below this gradients are rounding, such as of the biases of keys, which have none
	for _, w := range want.grads {
		floor = max(floor, 1e-4*length(w))
	}
	for name, w := range want.grads {
		if d := apart(got.grads[name], w) / max(length(w), floor); !(d <= bound) {
			t.Errorf("the gradient of %s differs by %.2g", name, d)
		}
	}
}

// TestContextEqualsOneRank: ranks that share sequences give the loss and the gradients, by name,
// of one rank.
func TestContextEqualsOneRank(t *testing.T) {
	t.Parallel()
	seed := int64(seeded.Of(t))
	for _, cc := range contextCases() {
		want := cc.onOneRank(t, seed)
		bound := 1e-5
		if cc.low {
			bound = 2e-2
		}
		for _, form := range []string{ringAttention, headsAttention} {
			for _, n := range []int{2, 3, 4} {
				t.Run(fmt.Sprintf("%s/%s/%d", cc.name, form, n), func(t *testing.T) {
					got := cc.onRanks(t, seed, n, ContextConfig{Attention: form})
					cc.compare(t, got, want, bound)
				})
			}
		}
	}
}
