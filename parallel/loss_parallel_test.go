// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// classifier turns ids [batch, time] into logits.
type classifier struct {
	Tokens *nn.Embedding
	Head   *nn.Linear
}

func (m *classifier) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.Head, c.Call(m.Tokens, ids))
}

func newClassifier(b *nn.Build, vocab int) *classifier {
	m := &classifier{Tokens: nn.NewEmbedding(b, vocab, 8), Head: nn.NewLinear(b, 8, vocab)}
	m.Tokens.Weight.Data().Scale(3) // so that some probabilities are large
	return m
}

// TestSharedLoss: a loss of classes that ranks share is one rank's, with each of its options.
func TestSharedLoss(t *testing.T) {
	weight := tensor.Zeros(31)
	tensor.NewGenerator(9).Uniform(weight, 0.1, 2)
	ignored := int64(7)
	for name, loss := range map[string]*nn.CrossEntropyLoss{
		"mean":                  {},
		"sum":                   {Reduction: tensor.ReduceSum},
		"none":                  {Reduction: tensor.ReduceNone},
		"smoothed":              {LabelSmoothing: 0.2},
		"weighted":              {Weight: &nn.Buffer{Data: weight}},
		"weighted sum":          {Weight: &nn.Buffer{Data: weight}, Reduction: tensor.ReduceSum},
		"weighted, smoothed":    {Weight: &nn.Buffer{Data: weight}, LabelSmoothing: 0.3},
		"ignored":               {IgnoreIndex: &ignored},
		"smoothed all, no mean": {LabelSmoothing: 1, Reduction: tensor.ReduceNone},
	} {
		t.Run(name, func(t *testing.T) {
			s := sharedCase{
				build: func(b *nn.Build) nn.Module { return newClassifier(b, 31) },
				plan:  "tokens: vocabulary\nhead: column\n.: logits", ranks: []int{2, 4}, time: 8, vocab: 31, loss: loss, lost: true,
			}
			if loss.IgnoreIndex != nil {
				s.target = ignored
			}
			s.test(t)
		})
	}
	t.Run("bfloat16", func(t *testing.T) {
		s := sharedCase{
			build: func(b *nn.Build) nn.Module { return newClassifier(b, 31) },
			plan:  "tokens: vocabulary\nhead: column\n.: logits", ranks: []int{2}, time: 8, vocab: 31, lost: true, off: 2e-2,
			opts: []nn.CtxOption{nn.WithAutocast(tensor.BFloat16)},
		}
		s.test(t)
	})
	t.Run("whole logits", func(t *testing.T) {
		s := sharedCase{
			build: func(b *nn.Build) nn.Module { return newClassifier(b, 31) }, config: TPConfig{WholeLogits: true},
			plan: "tokens: vocabulary\nhead: column\n.: logits", ranks: []int{2}, time: 8, vocab: 31, lost: true,
		}
		s.test(t)
	})
}

// TestSharedLossErrors: what a shared loss cannot do is refused on every rank.
func TestSharedLossErrors(t *testing.T) {
	for _, c := range []struct {
		want    string
		loss    nn.CrossEntropyLoss
		targets *tensor.Tensor
	}{
		{"target 31 of row 1 is not one of the 31 classes", nn.CrossEntropyLoss{}, tensor.FromInt64([]int64{0, 31, 2, 3}, 2, 2)},
		{"targets that are probabilities (float32[2 2 31]) needs whole logits: set TPConfig.WholeLogits", nn.CrossEntropyLoss{}, tensor.Zeros(2, 2, 31)},
		{"the weight of a cross-entropy has the shape [30]: want [31]", nn.CrossEntropyLoss{Weight: &nn.Buffer{Data: tensor.Zeros(30)}}, tensor.FromInt64([]int64{0, 1, 2, 3}, 2, 2)},
	} {
		failed := make([]error, 2)
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m := newClassifier(&nn.Build{Generator: tensor.NewGenerator(7)}, 31)
			plan, err := ParsePlan("tokens: vocabulary\nhead: column\n.: logits")
			if err != nil {
				return err
			}
			shared, err := shareModel(ctx, g, m, plan, TPConfig{})
			if err != nil {
				return err
			}
			shared.t.lossFollows = func(*tensor.Tape) bool { return true }
			_, failed[g.Rank()] = shared.pass(ctx, func(cc *nn.Ctx) *tensor.Tensor {
				return cc.CallN(&c.loss, cc.Call(m, tensor.FromInt64([]int64{1, 2, 3, 4}, 2, 2)), c.targets)[0]
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for rank, err := range failed {
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("rank %d: got %v, want %s", rank, err, c.want)
			}
		}
	}
}

// TestLossOfWholeLogits: logits that are whole, and have as many classes as a rank has of those that
// ranks share, are refused on all ranks.
func TestLossOfWholeLogits(t *testing.T) {
	for _, vocab := range []int{6, 5} { // 3 and 3 classes, and 3 and 2
		failed := make([]error, 2)
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			b := &nn.Build{Generator: tensor.NewGenerator(7)}
			m, other := newClassifier(b, vocab), nn.NewLinear(b, 8, 3)
			plan, err := ParsePlan("tokens: vocabulary\nhead: column\n.: logits")
			if err != nil {
				return err
			}
			shared, err := shareModel(ctx, g, m, plan, TPConfig{})
			if err != nil {
				return err
			}
			shared.t.lossFollows = func(*tensor.Tape) bool { return true }
			_, failed[g.Rank()] = shared.pass(ctx, func(cc *nn.Ctx) *tensor.Tensor {
				cc.Call(m, tensor.FromInt64([]int64{1, 2, 3, 4}, 2, 2))
				whole := cc.Call(other, tensor.Zeros(2, 2, 8))
				return cc.CallN(&nn.CrossEntropyLoss{}, whole, tensor.FromInt64([]int64{0, 1, 2, 0}, 2, 2))[0]
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("whole logits of 3 classes, in a model of which ranks share %d logits, 3 of them on rank 0", vocab)
		for rank, err := range failed {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: got %v, want %s", rank, err, want)
			}
		}
	}
}
