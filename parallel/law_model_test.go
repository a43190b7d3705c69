// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// modelDraw is a model that was drawn at random: ids [batch, time] to logits
// [batch, time, vocabulary].
type modelDraw struct {
	Vocabulary, Width int
	Blocks            []blockDraw
	Order             []int    // which block each call runs; a block may be called several times or never
	Tied              bool     `json:",omitempty"` // the head is the embedding of the tokens
	Sparse            bool     `json:",omitempty"` // a second embedding, whose gradient goes by rows
	Shared            bool     `json:",omitempty"` // all blocks have one norm
	Orphan            int      `json:",omitempty"` // elements of a parameter that no pass uses
	Frozen            []string `json:",omitempty"` // parameters
}

// blockDraw is a block of a model.
type blockDraw struct {
	Hidden    int  // the width inside
	Attention bool `json:",omitempty"`
	Branch    bool `json:",omitempty"` // a part that runs only for some batches
	Stats     bool `json:",omitempty"` // normalises by buffers
	Norm      bool `json:",omitempty"` // a layer norm before the rest
}

// drawModel draws a model. Only optimizers without a moment for every row train
// sparse parameters.
func drawModel(r *rand.Rand, sparse bool) modelDraw {
	m := modelDraw{
		Vocabulary: pick(r, 7, 11, 11, 16, 50, 50, 1009), Width: pick(r, 5, 6, 8, 16, 33),
		Tied: chance(r, 0.3), Shared: chance(r, 0.15), Sparse: sparse && chance(r, 0.4),
	}
	if m.Vocabulary == 1009 {
		m.Width = min(m.Width, 8)
	}
	if chance(r, 0.3) {
		m.Orphan = pick(r, 1, 3, 33)
	}
	for range 1 + r.IntN(3) {
		m.Blocks = append(m.Blocks, blockDraw{
			Hidden: pick(r, 1, 2, 7, 16, 33), Attention: chance(r, 0.3), Branch: chance(r, 0.2),
			Stats: chance(r, 0.3), Norm: chance(r, 0.6),
		})
		if chance(r, 0.9) {
			m.Order = append(m.Order, len(m.Blocks)-1)
		}
	}
	if len(m.Order) > 0 && chance(r, 0.3) {
		m.Order = append(m.Order, m.Order[0])
	}
	if chance(r, 0.4) {
		for _, p := range nn.Parameters(m.build(1, tensor.Float32)) {
			if chance(r, 0.3) && p.Name() != "head" && p.Name() != "head_bias" {
				m.Frozen = append(m.Frozen, p.Name())
			}
		}
	}
	return m
}

// branches says whether the parameters that a pass uses depend on its batch.
func (m modelDraw) branches() bool {
	return slices.ContainsFunc(m.Order, func(i int) bool { return m.Blocks[i].Branch })
}

// lawModel is what a modelDraw describes.
type lawModel struct {
	Tokens   *nn.Parameter // [vocabulary, width]
	Rows     *nn.Embedding // nil for none
	Blocks   []*lawBlock
	Gain     *nn.Parameter // [1]
	Head     *nn.Parameter // [vocabulary, width]
	HeadBias *nn.Parameter // [vocabulary]
	Orphan   *nn.Parameter // nil for none
	Seen     *nn.Buffer    // [1]: how many passes there were

	order []int
}

// build makes the model with values that its seed decides.
func (m modelDraw) build(seed int64, dtype tensor.DType) *lawModel {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	l := &lawModel{
		Tokens: b.Normal(1, m.Vocabulary, m.Width), Gain: b.Full(0.7, 1), HeadBias: b.Normal(0.1, m.Vocabulary),
		Seen: &nn.Buffer{Data: tensor.Zeros(1)}, order: m.Order,
	}
	l.Head = l.Tokens
	if !m.Tied {
		l.Head = b.Normal(0.5, m.Vocabulary, m.Width)
	}
	if m.Sparse {
		l.Rows = nn.NewEmbedding(b, m.Vocabulary, m.Width, nn.EmbeddingOptions{Sparse: true})
	}
	if m.Orphan > 0 {
		l.Orphan = b.Full(1, m.Orphan)
	}
	var norm *lawNorm
	for _, d := range m.Blocks {
		k := &lawBlock{Up: newLawLinear(b, m.Width, d.Hidden), Down: newLawLinear(b, d.Hidden, m.Width), Gate: b.Full(0.8, 1)}
		if d.Norm || m.Shared {
			if norm == nil || !m.Shared {
				norm = &lawNorm{Weight: b.Normal(0.3, m.Width), Bias: b.Normal(0.1, m.Width)}
			}
			k.Norm = norm
		}
		if d.Attention {
			k.Attention = &lawAttention{
				Query: newLawLinear(b, m.Width, m.Width), Value: newLawLinear(b, m.Width, m.Width), Out: newLawLinear(b, m.Width, m.Width),
				Key: newLawLinear(b, m.Width, m.Width),
			}
			k.Attention.Key.Bias = nil // its gradient is zero but for rounding
		}
		if d.Branch {
			k.Branch = newLawLinear(b, m.Width, m.Width)
		}
		if d.Stats {
			k.Mean, k.Deviation = &nn.Buffer{Data: b.Normal(0.1, m.Width).Data()}, &nn.Buffer{Data: tensor.Full(1.5, m.Width)}
		}
		l.Blocks = append(l.Blocks, k)
	}
	for _, p := range nn.Parameters(l) {
		p.SetData(p.Data().To(dtype))
		p.Frozen = slices.Contains(m.Frozen, p.Name())
	}
	for _, b := range nn.Buffers(l) {
		b.Data = b.Data.To(dtype)
	}
	nn.Parameters(l) // names the new values
	nn.Buffers(l)
	return l
}

// Forward takes ids [batch, time] to logits [batch, time, vocabulary].
func (l *lawModel) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	if c.Training() {
		seen := c.BufferData(l.Seen)
		seen.CopyFrom(seen.AddScalar(1))
	}
	x := tensor.Embedding(c.Param(l.Tokens), ids)
	if l.Rows != nil {
		x = x.Add(c.Call(l.Rows, ids))
	}
	for _, i := range l.order {
		x = c.CallN(l.Blocks[i], x, ids)[0]
	}
	x = x.Mul(c.Param(l.Gain)).MulScalar(1 / math.Sqrt(float64(x.Dim(2)))) // logits of about 1
	return product(x, c.Param(l.Head)).Add(c.Param(l.HeadBias))
}

// lawBlock is one of the blocks that repeat.
type lawBlock struct {
	Norm            *lawNorm // nil for none
	Mean, Deviation *nn.Buffer
	Attention       *lawAttention
	Up, Down        *lawLinear
	Gate            *nn.Parameter // [1]
	Branch          *lawLinear
}

// ForwardN takes x [batch, time, width] and the ids of its tokens.
func (k *lawBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	x, ids := in[0], in[1]
	h := x
	if k.Norm != nil {
		h = c.Call(k.Norm, h)
	}
	if k.Mean != nil {
		h = h.Sub(c.Buffer(k.Mean)).Div(c.Buffer(k.Deviation))
	}
	if k.Attention != nil {
		h = h.Add(c.Call(k.Attention, h))
	}
	y := c.Call(k.Down, c.Call(k.Up, h).Tanh())
	if k.Branch != nil && ids.Narrow(0, 0, 1).Narrow(1, 0, 1).Int64s()[0]%3 == 0 {
		y = y.Add(c.Call(k.Branch, h))
	}
	return []*tensor.Tensor{x.Add(y.Mul(c.Param(k.Gate)))}
}

// lawLinear is nn.Linear, in float64 too.
type lawLinear struct {
	Weight *nn.Parameter // [out, in]
	Bias   *nn.Parameter // [out], nil for none
}

func newLawLinear(b *nn.Build, in, out int) *lawLinear {
	return &lawLinear{Weight: b.Normal(1/math.Sqrt(float64(in)), out, in), Bias: b.Normal(0.3, out)}
}

func (l *lawLinear) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := product(x, c.Param(l.Weight))
	if l.Bias != nil {
		y = y.Add(c.Param(l.Bias))
	}
	return y
}

// lawNorm is nn.LayerNorm, in float64 too, with an epsilon that keeps narrow
// rows from being divided by almost nothing.
type lawNorm struct {
	Weight, Bias *nn.Parameter // [width]
}

func (n *lawNorm) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	const epsilon = 0.1
	weight, bias := c.Param(n.Weight), c.Param(n.Bias)
	if x.DType() == tensor.Float32 {
		return tensor.LayerNorm(x, weight, bias, epsilon)
	}
	x = x.Sub(x.MeanKeep(-1))
	return x.Mul(x.Square().MeanKeep(-1).AddScalar(epsilon).Rsqrt()).Mul(weight).Add(bias)
}

// lawAttention is attention with one head.
type lawAttention struct {
	Query, Key, Value, Out *lawLinear
}

func (a *lawAttention) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	q, k, v := c.Call(a.Query, x), c.Call(a.Key, x), c.Call(a.Value, x) // [batch, time, width]
	if x.DType() == tensor.Float32 {
		y := tensor.ScaledDotProductAttention(q.Unsqueeze(2), k.Unsqueeze(2), v.Unsqueeze(2), tensor.AttentionOptions{Causal: true})
		return c.Call(a.Out, y.Reshape(x.Shape()...))
	}
	time := x.Dim(1)
	scores := q.Unsqueeze(2).Mul(k.Unsqueeze(1)).Sum(-1).MulScalar(1 / math.Sqrt(float64(x.Dim(2)))) // [batch, time, time]
	future := tensor.On(x.Device()).Full(1, time, time).Triu(1).GtScalar(0)
	weights := scores.MaskedFill(future, math.Inf(-1)).Softmax(-1)
	return c.Call(a.Out, weights.Unsqueeze(-1).Mul(v.Unsqueeze(1)).Sum(2))
}

// product is x [batch, time, in] by weight [out, in] to [batch, time, out].
func product(x, weight *tensor.Tensor) *tensor.Tensor {
	if x.DType() != tensor.Float64 {
		return tensor.Linear(x, weight, nil)
	}
	return x.Unsqueeze(2).Mul(weight).Sum(-1)
}

// lawBatch is what one rank computes in one microbatch. A target of -100 does not
// count.
type lawBatch struct {
	ids, targets []int64
	rows, time   int
	valid        int
}

const ignored = -100

// drawBatches draws one step's batches, [microbatch][rank], of unequal sizes.
// Some ranks may have no token that counts, but not all.
func drawBatches(r *rand.Rand, m modelDraw, microbatches, ranks int) [][]lawBatch {
	out := make([][]lawBatch, microbatches)
	time := 2 + r.IntN(4)
	for i := range out {
		for range ranks {
			b := lawBatch{rows: 1 + r.IntN(2), time: time}
			share := pick(r, 0, 0.3, 0.7, 1)
			for range b.rows * b.time {
				b.ids = append(b.ids, int64(r.IntN(m.Vocabulary)))
				target := int64(ignored)
				if chance(r, share) {
					target, b.valid = int64(r.IntN(m.Vocabulary)), b.valid+1
				}
				b.targets = append(b.targets, target)
			}
			out[i] = append(out[i], b)
		}
	}
	if first := &out[0][0]; first.valid == 0 {
		first.targets[0], first.valid = first.ids[0], 1
	}
	return out
}

// countValid returns the tokens that count on all ranks in all microbatches.
func countValid(batches [][]lawBatch) int {
	n := 0
	for _, ranks := range batches {
		for _, b := range ranks {
			n += b.valid
		}
	}
	return n
}

// join makes one batch of those of several ranks.
func join(batches []lawBatch) lawBatch {
	all := lawBatch{time: batches[0].time}
	for _, b := range batches {
		all.ids, all.targets = append(all.ids, b.ids...), append(all.targets, b.targets...)
		all.rows, all.valid = all.rows+b.rows, all.valid+b.valid
	}
	return all
}

// loss is the sum of the losses of the batch's tokens that count.
func (b lawBatch) loss(c *nn.Ctx, m nn.Module) *tensor.Tensor {
	logits := c.Call(m, tensor.FromInt64(b.ids, b.rows, b.time))
	return tensor.CrossEntropy(logits.Reshape(b.rows*b.time, logits.Dim(2)), tensor.FromInt64(b.targets),
		tensor.CrossEntropyOptions{Reduction: tensor.ReduceSum})
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

// elements returns the elements of a tensor in float64.
func elements(t *tensor.Tensor) []float64 {
	out := make([]float64, t.NumElems())
	flat := tensor.New(tensor.CPU(), tensor.Float64, len(out))
	flat.CopyFrom(t.Detach().To(tensor.Float64).Reshape(len(out)))
	flat.WithFloat64s(func(data []float64) { copy(out, data) })
	return out
}
