// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/cohort-ml/cohort/tensor"
)

// MoE is a mixture of experts (Shazeer et al. 2017): of many feed-forward networks a
// router chooses a few for each token. A token's output is the sum of the outputs of its
// experts, each times a weight of the router's.
//
// The fields are for models that make their own; [NewMoE] is the usual way. docs/experts.md
// shows the steps of a layer.
type MoE struct {
	Gate    *Linear // the router: scores of the experts, [width] to [experts]
	Experts *Experts
	// Shared computes every token beside the experts that are chosen, nil for none; its
	// output is added. SharedGate [width] to [1] weighs it by a sigmoid (Qwen), nil for 1.
	Shared     Module  `name:"shared_expert"`
	SharedGate *Linear `name:"shared_expert_gate"`
	// ChoiceBias [experts] is added to the scores by which experts are chosen, and not to the
	// weights. [BalanceExperts] moves it. Nil for none.
	ChoiceBias *Buffer
	NumActive  int        `name:"-"` // experts for each token
	Options    MoEOptions `name:"-"`

	counted *tensor.Tensor // tokens of each expert since BalanceExperts, nil for none
}

// MoEOptions say how a [MoE] routes. The zero value is Mixtral's: weights are the softmax
// over the chosen experts, no token is dropped, and no loss is added.
type MoEOptions struct {
	// Sigmoid makes the score of each expert a sigmoid of its own (DeepSeek-V3); else scores
	// are the softmax over all experts.
	Sigmoid bool
	// Unnormalized leaves the scores of the chosen experts as weights; else they are divided
	// by their sum. With one expert for each token the weight of a normalised one is 1, and
	// teaches the router nothing.
	Unnormalized bool
	Scale        float64 // multiplies the weights; 0 is 1

	// Capacity limits how many tokens an expert takes in a pass: to Capacity times the mean
	// number, tokens·active/experts, rounded up. First choices come before second ones, and
	// earlier tokens before later ones. What is beyond the limit is dropped: that expert adds
	// nothing to the token. 0 is no limit.
	Capacity float64

	// Balance is the weight of the loss of Fedus et al. 2021 (Switch Transformers, equation
	// 4), which is least, the number of active experts, when all experts are chosen equally often.
	Balance float64
	// Z is the weight of the router z-loss of Zoph et al. 2022 (ST-MoE, equation 5): the mean
	// square of the log-sum-exp of the logits.
	Z float64
	// BiasStep balances without a loss (Wang et al. 2024, arXiv 2408.15664): once a step, the
	// ChoiceBias of each expert that had fewer tokens than the mean rises by it, and that of one
	// that had more falls.
	BiasStep float64
}

// NewMoE returns a mixture of experts [width] → [hidden] → [width] of which each token uses
// numActive, with PyTorch's first values of linear layers.
func NewMoE(b *Build, width, hidden, numExperts, numActive int, o MoEOptions) *MoE {
	c := checks{op: "new moe"}
	c.positive("width", width)
	c.positive("hidden", hidden)
	c.positive("the number of experts", numExperts)
	c.want(numActive >= 1 && numActive <= numExperts, "%d of %d experts are active: it must be at least 1, and all at most", numActive, numExperts)
	o.check(&c)
	c.end()
	m := &MoE{
		Gate:      &Linear{Weight: b.Uniform(fanInBound(width), numExperts, width)},
		Experts:   NewExperts(b, width, hidden, numExperts),
		NumActive: numActive,
		Options:   o,
	}
	if o.BiasStep != 0 {
		m.ChoiceBias = &Buffer{Data: b.Empty(numExperts).Data()}
	}
	return m
}

// Validate reports options that make no layer.
func (o MoEOptions) Validate() error {
	c := checks{op: "moe options"}
	o.check(&c)
	return c.err()
}

func (o MoEOptions) check(c *checks) {
	for _, f := range []struct {
		name  string
		value float64
	}{{"the scale of the weights", o.Scale}, {"the capacity", o.Capacity}, {"the weight of the balance loss", o.Balance}, {"the weight of the z-loss", o.Z}, {"the step of the bias", o.BiasStep}} {
		c.want(f.value >= 0 && !math.IsInf(f.value, 1), "%s is %v: it must not be negative, and finite", f.name, f.value)
	}
}

// Forward maps x [batch…, width] to the same shape. In training it adds the losses of the
// options by [Ctx.AddLoss].
func (m *MoE) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	shape := x.Shape()
	x = x.Reshape(-1, x.Dim(-1)) // [tokens, width]
	logits := c.Call(m.Gate, x).To(tensor.Float32)
	weights, chosen, scores := m.route(c, logits)
	m.balance(c, logits, scores, chosen)
	if m.Options.Capacity != 0 {
		limit := ExpertCapacity(m.Options.Capacity, x.Dim(0), m.NumActive, logits.Dim(1))
		chosen = tensor.LimitGroups(chosen, logits.Dim(1), limit)
	}
	if low := c.Tape().Autocast(); low != 0 {
		x = x.To(low) // once, and not each copy of a row
	}
	y := c.CallN(m.Experts, x, weights, chosen)[0]
	if m.Shared != nil {
		shared := c.Call(m.Shared, x)
		if m.SharedGate != nil {
			shared = shared.Mul(c.Call(m.SharedGate, x).Sigmoid())
		}
		y = y.Add(shared)
	}
	return y.Reshape(shape...)
}

// route returns the experts that each token chose, best first, int64 [tokens, active], their
// weights [tokens, active], and the scores of all experts [tokens, experts].
func (m *MoE) route(c *Ctx, logits *tensor.Tensor) (weights, chosen, scores *tensor.Tensor) {
	if m.Options.Sigmoid {
		scores = logits.Sigmoid()
	} else {
		scores = logits.Softmax(-1)
	}
	if m.ChoiceBias != nil {
		_, chosen = scores.Detach().Add(c.Buffer(m.ChoiceBias).Detach()).TopK(m.NumActive, -1, true)
		weights = scores.Gather(-1, chosen)
	} else {
		weights, chosen = scores.TopK(m.NumActive, -1, true)
	}
	if !m.Options.Unnormalized {
		sum := weights.SumKeep(-1)
		if m.Options.Sigmoid {
			sum = sum.AddScalar(1e-20) // all of them may be 0
		}
		weights = weights.Div(sum)
	}
	if s := m.Options.Scale; s != 0 && s != 1 {
		weights = weights.MulScalar(s)
	}
	return weights, chosen, scores
}

// ExpertCapacity returns how many of a pass's tokens an expert takes under a factor of
// [MoEOptions].Capacity.
func ExpertCapacity(factor float64, tokens, numActive, numExperts int) int {
	return int(min(math.Ceil(factor*float64(tokens)*float64(numActive)/float64(numExperts)), float64(tokens)))
}

// balance counts the tokens of each expert and adds the losses of the options. Where ranks
// share the tokens of a pass, counts are those of all of them, and the losses this rank's
// parts.
func (m *MoE) balance(c *Ctx, logits, scores, chosen *tensor.Tensor) {
	o := m.Options
	if !c.Training() || o.Balance == 0 && o.Z == 0 && m.ChoiceBias == nil {
		return
	}
	_, counts := tensor.GroupRows(chosen, logits.Dim(1))
	load := counts.To(tensor.Float32)
	if m.ChoiceBias != nil {
		m.count(c, load)
	}
	load = c.Call(&ExpertLoad{}, load)
	choices := load.Sum().Clamp(1, math.Inf(1)) // active · tokens; a rank may have none
	if o.Balance != 0 {
		probs := scores
		if o.Sigmoid {
			probs = scores.Div(scores.SumKeep(-1).AddScalar(1e-20))
		}
		k := float64(m.NumActive)
		mean := probs.Sum(0).Div(choices).MulScalar(k)
		share := load.Div(choices).MulScalar(k)
		c.AddLoss(mean.Mul(share).Sum().MulScalar(o.Balance * float64(logits.Dim(1))))
	}
	if o.Z != 0 {
		squares := logits.LogSumExp(-1).Square().Sum()
		c.AddLoss(squares.Div(choices).MulScalar(o.Z * float64(m.NumActive)))
	}
}

// count adds to what [BalanceExperts] looks at. A pass that is run again counts once.
func (m *MoE) count(c *Ctx, load *tensor.Tensor) {
	if c.Recomputing() || load.Device() == tensor.Meta {
		return
	}
	if m.counted == nil {
		m.counted = tensor.New(load.Device(), tensor.Float32, load.Shape()...)
	}
	m.counted.Axpy(1, load.Detach())
}
