// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// netDraw is a language model of the modules that every axis can split: ids [batch,
// time] to logits [batch, time, vocabulary].
type netDraw struct {
	Vocabulary, Width int
	Blocks            []netBlockDraw
	Positions         string   `json:",omitempty"` // learned, rotary, or none
	Outside           bool     `json:",omitempty"` // the root makes the angles of rotary positions, and blocks take them as inputs
	Documents         bool     `json:",omitempty"` // sequences are packed documents
	Tied              bool     `json:",omitempty"` // the head is the embedding of the tokens
	RMS               bool     `json:",omitempty"` // norms are RMSNorm
	Again             bool     `json:",omitempty"` // the first block is called once more at the end
	Dropout           float64  `json:",omitempty"`
	Frozen            []string `json:",omitempty"` // parameters
}

// netBlockDraw is a block: attention if it has heads, and a feed-forward network or
// experts.
type netBlockDraw struct {
	Heads    int     `json:",omitempty"`
	KeyHeads int     `json:",omitempty"` // divides Heads
	HeadDim  int     `json:",omitempty"`
	Packed   bool    `json:",omitempty"` // queries, keys and values are one projection
	Window   int     `json:",omitempty"`
	Hidden   int     // inside the feed-forward network
	Gated    bool    `json:",omitempty"`
	NoBias   bool    `json:",omitempty"`
	Dropped  float64 `json:",omitempty"` // share of the attention's weights

	// A mixture of experts, whose networks have the width Hidden inside.
	Experts    int           `json:",omitempty"` // 0 for none
	Active     int           `json:",omitempty"`
	Options    nn.MoEOptions `json:",omitzero"`
	Shared     bool          `json:",omitempty"` // all tokens have a network beside the experts
	SharedGate bool          `json:",omitempty"`
	ExpertBias bool          `json:",omitempty"`
}

// drawNet draws a model that the sizes of a mesh can split.
func drawNet(r *rand.Rand, z lawSizes, numStages int) netDraw {
	n := netDraw{
		Vocabulary: pick(r, 11, 16, 33, 50, 1009), Width: pick(r, 6, 8, 16, 33), Positions: pick(r, "", "learned", "rotary"),
		Documents: chance(r, 0.25), Tied: chance(r, 0.3), RMS: chance(r, 0.3), Again: chance(r, 0.1),
	}
	if n.Vocabulary == 1009 {
		n.Width = min(n.Width, 8)
	}
	n.Outside = n.Positions == "rotary" && chance(r, 0.5)
	if chance(r, 0.2) {
		n.Dropout = 0.1
	}
	for range max(numStages, 1+r.IntN(3)) {
		b := netBlockDraw{Hidden: z.TP * pick(r, 1, 3, 8, 11), Gated: chance(r, 0.3), NoBias: chance(r, 0.2)}
		if chance(r, 0.8) {
			b.KeyHeads = z.TP * z.CP * pick(r, 1, 1, 2)
			b.Heads, b.HeadDim = b.KeyHeads*pick(r, 1, 1, 2), pick(r, 2, 4, 6)
			if b.Packed = b.Heads == b.KeyHeads && n.Positions != "rotary" && chance(r, 0.5); chance(r, 0.15) {
				b.Window = pick(r, 1, 2, 5)
			}
			if n.Dropout > 0 && chance(r, 0.5) {
				b.Dropped = 0.1
			}
		}
		if chance(r, 0.2) || z.EP > 1 {
			b.drawExperts(r, z)
		}
		n.Blocks = append(n.Blocks, b)
	}
	if chance(r, 0.3) {
		for _, p := range nn.Parameters(n.build(1)) {
			if chance(r, 0.3) && !strings.HasPrefix(p.Name(), "head") {
				n.Frozen = append(n.Frozen, p.Name())
			}
		}
	}
	return n
}

// drawExperts makes the feed-forward network of a block a mixture.
func (b *netBlockDraw) drawExperts(r *rand.Rand, z lawSizes) {
	b.Experts = max(2, z.EP*pick(r, 1, 2, 3))
	b.Active = min(b.Experts, 1+r.IntN(3))
	b.Shared, b.ExpertBias = chance(r, 0.4), chance(r, 0.3)
	b.SharedGate = b.Shared && chance(r, 0.4)
	b.Options = nn.MoEOptions{
		Sigmoid: chance(r, 0.4), Unnormalized: b.Active == 1 || chance(r, 0.3), Scale: pick(r, 0, 0, 1.5),
		Balance: pick(r, 0, 0.02), Z: pick(r, 0, 0, 0.01), BiasStep: pick(r, 0, 0, 0.05), Capacity: pick(r, 0, 0, 0, 1.0, 1.5),
	}
	if z.CP > 1 {
		b.Options.Capacity = 0 // it counts whole sequences
	}
}

// hasUnits says whether a batch's tokens are chosen and counted together.
func (b netBlockDraw) hasUnits() bool {
	return b.Experts > 0 && (b.Options.Balance > 0 || b.Options.Z > 0 || b.Options.Capacity > 0)
}

// maxTime is how long sequences are at most.
const maxTime = 48

// build makes the model with values that its seed decides.
func (n netDraw) build(seed int64) *lawNet {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	l := &lawNet{draw: n, Tokens: &nn.Embedding{Weight: b.Normal(1.5/math.Sqrt(float64(n.Width)), n.Vocabulary, n.Width)}} // logits of about 1
	if n.Positions == "learned" {
		l.Places = nn.NewEmbedding(b, maxTime, n.Width)
	}
	for _, d := range n.Blocks {
		l.Blocks = append(l.Blocks, newNetBlock(b, n, d))
	}
	l.Norm = n.norm(b)
	l.Head = nn.NewLinear(b, n.Width, n.Vocabulary)
	if n.Tied {
		l.Head.Weight = l.Tokens.Weight
	}
	for _, p := range nn.Parameters(l) {
		p.Frozen = slices.Contains(n.Frozen, p.Name())
	}
	return l
}

// norm returns a norm with weights and biases that are not all alike.
func (n netDraw) norm(b *nn.Build) nn.Module {
	weight := b.Normal(0.3, n.Width)
	weight.Data().CopyFrom(weight.Data().AddScalar(0.5))
	const epsilon = 0.1 // keeps narrow rows from being divided by almost nothing
	if n.RMS {
		return &nn.RMSNorm{Weight: weight, Eps: epsilon}
	}
	return &nn.LayerNorm{Weight: weight, Bias: b.Normal(0.1, n.Width), Eps: epsilon}
}

// lawNet is what a netDraw describes.
type lawNet struct {
	Tokens *nn.Embedding
	Places *nn.Embedding // nil for none
	Blocks []*netBlock
	Norm   nn.Module
	Head   *nn.Linear

	draw netDraw
}

// Forward takes ids [batch, time] to logits [batch, time, vocabulary].
func (l *lawNet) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(l.Tokens, ids)
	if l.Places != nil {
		x = x.Add(c.Call(l.Places, c.Positions(ids.Dim(1))))
	}
	for _, b := range l.order() {
		if !l.draw.Outside || b.Attention == nil {
			x = c.CallN(b, x)[0]
			continue
		}
		cos, sin := anglesOf(c, ids.Dim(1), b.Attention.Core.HeadDim)
		x = c.CallN(b, x, cos, sin)[0]
	}
	x = c.Call(l.Norm, x)
	return c.Call(l.Head, x)
}

// plan is how tensor parallelism cuts the model.
func (d meshDraw) plan() string {
	var b strings.Builder
	rule := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	n := d.Net
	switch {
	case d.Embedding == "vocabulary" || n.Tied:
		rule("tokens: vocabulary")
	case d.Embedding == "width":
		rule("tokens: width")
	default:
		rule("tokens: sequence")
	}
	if n.Positions == "learned" {
		rule("places: sequence")
	}
	for i, k := range n.Blocks {
		at := fmt.Sprintf("blocks.%d.", i)
		if k.Heads > 0 {
			rule(at + "norm1: sequence")
			if k.Packed {
				rule(at+"attention.qkv: column packed 3 in %d", k.Heads)
			} else {
				rule(at+"attention.query: column in %d", k.Heads)
				rule(at+"attention.key: column in %d\n"+at+"attention.value: column in %d", k.KeyHeads, k.KeyHeads)
			}
			rule(at + "attention.core: heads\n" + at + "attention.out: row")
		}
		rule(at + "norm2: sequence")
		if k.Experts == 0 {
			rule(at + "dense.up: column\n" + at + "dense.down: row")
			if k.Gated {
				rule(at + "dense.gate: column")
			}
		} else {
			d.planExperts(k, at+"mixture", rule)
		}
		if n.Dropout > 0 {
			rule(at + "drop: sequence")
		}
	}
	rule("norm: sequence")
	if d.WholeHead && !n.Tied {
		rule("head: input from sequence to replicate")
	} else {
		rule("head: column\n.: logits")
	}
	return b.String()
}

// planExperts is how tensor parallelism cuts a mixture of experts.
func (d meshDraw) planExperts(k netBlockDraw, at string, rule func(format string, args ...any)) {
	rule(at + ": input to replicate")
	rule(at + ": output from replicate to sequence")
	rule(at + ".experts: experts")
	if k.Shared {
		rule(at + ".shared_expert.up: column from replicate")
		rule(at + ".shared_expert.down: row to replicate")
		if k.Gated {
			rule(at + ".shared_expert.gate: column from replicate")
		}
	}
}

// order is which blocks are called.
func (l *lawNet) order() []*netBlock {
	if l.draw.Again {
		return append(slices.Clone(l.Blocks), l.Blocks[0])
	}
	return l.Blocks
}

// netBlock is one of the blocks that repeat.
type netBlock struct {
	Norm1     nn.Module     // nil without attention
	Attention *netAttention // nil for none
	Norm2     nn.Module
	Dense     *netDense   // nil for experts
	Mixture   *nn.MoE     // nil for none
	Drop      *nn.Dropout // nil for none
}

func newNetBlock(b *nn.Build, n netDraw, d netBlockDraw) *netBlock {
	k := &netBlock{}
	if d.Heads > 0 {
		k.Norm1 = n.norm(b)
		k.Attention = newNetAttention(b, n, d)
	}
	if k.Norm2 = n.norm(b); d.Experts > 0 {
		k.Mixture = newNetMoE(b, n, d)
	} else {
		k.Dense = newNetDense(b, n, d)
	}
	if n.Dropout > 0 {
		k.Drop = nn.NewDropout(n.Dropout)
	}
	return k
}

// ForwardN takes x [batch, time, width], and perhaps the angles of rotary positions.
func (k *netBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	x := in[0]
	if k.Attention != nil {
		h := c.Call(k.Norm1, x)
		x = x.Add(c.CallN(k.Attention, append([]*tensor.Tensor{h}, in[1:]...)...)[0])
	}
	y := c.Call(k.Norm2, x)
	if k.Mixture != nil {
		y = c.Call(k.Mixture, y)
	} else {
		y = c.Call(k.Dense, y)
	}
	if k.Drop != nil {
		y = c.Call(k.Drop, y)
	}
	return []*tensor.Tensor{x.Add(y)}
}

// netAttention is attention with heads.
type netAttention struct {
	QKV               *nn.Linear // nil for the three
	Query, Key, Value *nn.Linear
	Core              *nn.DotProductAttention
	Out               *nn.Linear

	rotary bool
}

func newNetAttention(b *nn.Build, n netDraw, d netBlockDraw) *netAttention {
	a := &netAttention{
		Core:   &nn.DotProductAttention{HeadDim: d.HeadDim, Causal: true, Window: d.Window, Dropout: d.Dropped},
		rotary: n.Positions == "rotary",
	}
	linear := func(in, out int) *nn.Linear { return newNetLinear(b, in, out, !d.NoBias) }
	if d.Packed {
		a.QKV = linear(n.Width, 3*d.Heads*d.HeadDim)
	} else {
		a.Query, a.Key, a.Value = linear(n.Width, d.Heads*d.HeadDim), linear(n.Width, d.KeyHeads*d.HeadDim), linear(n.Width, d.KeyHeads*d.HeadDim)
		if !a.rotary {
			a.Key.Bias = nil // its gradient is zero but for rounding
		}
	}
	a.Out = linear(d.Heads*d.HeadDim, n.Width)
	return a
}

// newNetLinear is a nn.Linear whose values are neither tiny nor huge.
func newNetLinear(b *nn.Build, in, out int, bias bool) *nn.Linear {
	l := &nn.Linear{Weight: b.Normal(1/math.Sqrt(float64(in)), out, in)}
	if bias {
		l.Bias = b.Normal(0.3, out)
	}
	return l
}

// ForwardN takes x [batch, time, width], and perhaps the angles of rotary positions.
func (a *netAttention) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	x := in[0]
	if a.QKV != nil {
		y := c.CallN(a.Core, c.Call(a.QKV, x))[0]
		return []*tensor.Tensor{c.Call(a.Out, y)}
	}
	heads := func(l *nn.Linear) *tensor.Tensor {
		y := c.Call(l, x)
		return y.Reshape(y.Dim(0), y.Dim(1), -1, a.Core.HeadDim)
	}
	q, k, v := heads(a.Query), heads(a.Key), heads(a.Value)
	if a.rotary {
		var cos, sin *tensor.Tensor
		if len(in) > 1 {
			cos, sin = in[1], in[2]
		} else {
			cos, sin = anglesOf(c, q.Dim(1), a.Core.HeadDim)
		}
		q, k = turned(q, cos, sin), turned(k, cos, sin)
	}
	y := c.CallN(a.Core, q, k, v)[0]
	return []*tensor.Tensor{c.Call(a.Out, y.Reshape(y.Dim(0), y.Dim(1), -1))}
}

// anglesOf returns the cosine and the sine of the angles of positions, [time, 1, dim/2]
// or [batch, time, 1, dim/2].
func anglesOf(c *nn.Ctx, time, dim int) (cos, sin *tensor.Tensor) {
	frequencies := make([]float32, dim/2)
	for i := range frequencies {
		frequencies[i] = float32(math.Pow(100, -float64(i)/float64(len(frequencies))))
	}
	at := c.Positions(time).To(tensor.Float32).Unsqueeze(-1).Unsqueeze(-1)
	angles := at.Mul(c.Tape().Const(tensor.FromFloat32(frequencies, len(frequencies)).ToDevice(c.Device())))
	return angles.Cos(), angles.Sin()
}

// turned turns the pairs of channels of x [batch, time, heads, dim].
func turned(x, cos, sin *tensor.Tensor) *tensor.Tensor {
	half := x.Dim(3) / 2
	a, b := x.Narrow(3, 0, half), x.Narrow(3, half, half)
	return tensor.Cat(3, a.Mul(cos).Sub(b.Mul(sin)), a.Mul(sin).Add(b.Mul(cos)))
}

// netDense is a feed-forward network.
type netDense struct {
	Up, Gate, Down *nn.Linear // Gate is nil for none
}

func newNetDense(b *nn.Build, n netDraw, d netBlockDraw) *netDense {
	f := &netDense{Up: newNetLinear(b, n.Width, d.Hidden, !d.NoBias), Down: newNetLinear(b, d.Hidden, n.Width, !d.NoBias)}
	if d.Gated {
		f.Gate = newNetLinear(b, n.Width, d.Hidden, !d.NoBias)
	}
	return f
}

// newNetMoE is a nn.MoE whose values are neither tiny nor huge, and whose routers have no ties that
// are not chance.
func newNetMoE(b *nn.Build, n netDraw, d netBlockDraw) *nn.MoE {
	m := nn.NewMoE(b, n.Width, d.Hidden, d.Experts, d.Active, d.Options)
	if d.Shared {
		m.Shared = newNetDense(b, n, d)
	}
	if d.SharedGate {
		m.SharedGate = newNetLinear(b, n.Width, 1, false)
	}
	if d.ExpertBias {
		m.Experts.UpBias, m.Experts.DownBias = b.Normal(0.3, d.Experts, d.Hidden), b.Normal(0.3, d.Experts, n.Width)
		m.Experts.GateBias = b.Normal(0.3, d.Experts, d.Hidden)
	}
	m.Gate.Weight = b.Normal(1/math.Sqrt(float64(n.Width)), d.Experts, n.Width)
	for _, w := range []*nn.Parameter{m.Experts.Gate, m.Experts.Up, m.Experts.Down} {
		w.SetData(b.Normal(1/math.Sqrt(float64(w.Data().Dim(2))), w.Data().Shape()...).Data())
	}
	return m
}

// closest is an interceptor that looks at the routers of a model on one rank: how near a choice of
// experts has been to another one. Ranks may choose otherwise there, for they round otherwise.
type closest struct {
	routers map[any]*nn.MoE
	gap     float64
}

// closestOf looks at a model's routers.
func closestOf(l *lawNet) *closest {
	t := &closest{routers: make(map[any]*nn.MoE), gap: 1}
	for _, k := range l.Blocks {
		if k.Mixture != nil {
			t.routers[k.Mixture.Gate] = k.Mixture
		}
	}
	return t
}

func (t *closest) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	y := next(c, x)
	m := t.routers[module]
	if m == nil {
		return y
	}
	logits := elements(y[0])
	for row := range slices.Chunk(logits, y[0].Dim(-1)) {
		scores := make([]float64, len(row))
		sum := 0.0
		for _, l := range row {
			sum += math.Exp(l)
		}
		for i, l := range row {
			if scores[i] = math.Exp(l) / sum; m.Options.Sigmoid {
				scores[i] = 1 / (1 + math.Exp(-l))
			}
		}
		if m.ChoiceBias != nil {
			for i, b := range elements(m.ChoiceBias.Data) {
				scores[i] += b
			}
		}
		slices.SortFunc(scores, func(a, b float64) int { return cmp.Compare(b, a) })
		from := m.NumActive - 1
		if m.Options.Capacity > 0 {
			from = 0 // first choices are served first
		}
		for i := from; i < min(m.NumActive, len(scores)-1); i++ {
			t.gap = min(t.gap, scores[i]-scores[i+1])
		}
	}
	return y
}

func (t *closest) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// Forward keeps the shape of x.
func (f *netDense) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := c.Call(f.Up, x).Tanh()
	if f.Gate != nil {
		y = y.Mul(c.Call(f.Gate, x).Sigmoid())
	}
	return c.Call(f.Down, y)
}

// netBatch is what the ranks that take the same samples compute in one microbatch.
type netBatch struct {
	lawBatch
	documents []int64 // nil for none
	seed      int64   // of dropout
}

// drawNetBatches draws one step's batches, [microbatch][rank of the samples]. With a
// pipeline all have one shape.
func (d meshDraw) batches(r *rand.Rand) [][]netBatch {
	out := make([][]netBatch, d.Microbatches)
	rows, time := 1+r.IntN(2), d.Time
	more := 0
	if d.Sequence && d.Sizes.TP*d.Reloaded.TP > 1 {
		rows, more = 2, 1
	}
	for i := range out {
		for range numSamples(d.Sizes) {
			b := netBatch{lawBatch: lawBatch{rows: rows, time: time}, seed: r.Int64()}
			if d.Sizes.PP <= 1 {
				b.rows = 1 + more + r.IntN(2)
			}
			share := pick(r, 0, 0.3, 0.7, 1)
			if d.Mean {
				share = pick(r, 0.3, 0.7, 1)
			}
			for row := range b.rows {
				document, start := int64(r.IntN(3)), true
				for at := range b.time {
					b.ids = append(b.ids, int64(r.IntN(d.Net.Vocabulary)))
					target := int64(ignored)
					if chance(r, share) || d.Mean && row == 0 && at == 0 {
						target, b.valid = int64(r.IntN(d.Net.Vocabulary)), b.valid+1
					}
					b.targets = append(b.targets, target)
					if !start && chance(r, 0.3) {
						document++
					}
					start = false
					if d.Net.Documents {
						b.documents = append(b.documents, document)
					}
				}
			}
			out[i] = append(out[i], b)
		}
	}
	if first := &out[0][0]; first.valid == 0 {
		first.targets[0], first.valid = first.ids[0], 1
	}
	return out
}

// joinNet makes one batch of several.
func joinNet(batches []netBatch) netBatch {
	var plain []lawBatch
	all := netBatch{seed: batches[0].seed}
	for _, b := range batches {
		plain, all.documents = append(plain, b.lawBatch), append(all.documents, b.documents...)
	}
	all.lawBatch = join(plain)
	return all
}

// share is the batch's part of the loss that is trained: the sum over the tokens that count, divided by
// their number over all batches.
func (b netBatch) share(c *nn.Ctx, d meshDraw, m nn.Module, valid int) *tensor.Tensor {
	if b.documents != nil {
		c = c.WithDocuments(tensor.FromInt64(b.documents, b.rows, b.time))
	}
	logits := c.Call(m, tensor.FromInt64(b.ids, b.rows, b.time))
	loss, factor := &nn.CrossEntropyLoss{Reduction: tensor.ReduceSum}, 1/float64(valid)
	if d.Mean {
		loss, factor = &nn.CrossEntropyLoss{}, float64(b.valid)/float64(valid)
	}
	return c.CallN(loss, logits, tensor.FromInt64(b.targets, b.rows, b.time))[0].MulScalar(factor)
}
