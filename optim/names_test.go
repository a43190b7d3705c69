// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
)

// TestNames: an optimizer calls parameters that were never walked by their
// place, and refuses a state that no checkpoint could tell apart.
func TestNames(t *testing.T) {
	b := &nn.Build{}
	p, q := b.Full(1, 2), b.Full(1, 2)
	buf, _ := q.GradBuffer()
	buf.Fill(math.NaN())
	if err := q.GradReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	params := []*nn.Parameter{p, q}
	norm, _ := ClipGradNorm(params, 1)
	if err := CheckGradNorm(params, norm.Item()); err == nil || !strings.HasSuffix(err.Error(), "look at param 1") {
		t.Errorf("the error is %v", err)
	}
	opt := NewAdam(params, AdamOptions{})
	mustRefuse(t, "a state without names", func() { opt.State() }, "optimizer state(param 0 float32[2])", "has no name", "nn.Parameters(&struct{")
	mustRefuse(t, "an average without names", func() { NewEMA(params, 0.9).State() }, "has no name")
	mustRefuse(t, "a parameter twice", func() { opt.AddGroup(params[1:], AdamOptions{}) }, "param 2", "in a group already")
	mustRefuse(t, "a dense gradient", func() { NewSparseAdam(params, SparseAdamOptions{}).Step(nil) }, "param 1", "only for tables that Embedding and EmbeddingBag look up")

	one, two := nn.NewLinear(b, 2, 2), nn.NewLinear(b, 2, 2)
	both := NewAdam(append(nn.Parameters(one), nn.Parameters(two)...), AdamOptions{})
	mustRefuse(t, "two models of the same names", func() { both.State() }, "params 0 and 2 have the same name", "walking them as one model")
	nn.Parameters(&struct{ G, D *nn.Linear }{one, two})
	if name := both.State()[2].Name; name != "exp_avg.d.weight" {
		t.Errorf("the third state is %s, want exp_avg.d.weight", name)
	}
	if n := len(NewSGD(params, SGDOptions{}).State()); n != 0 {
		t.Errorf("SGD without momentum has %d state tensors, want none", n)
	}
}

// TestNoParameters: there is nothing to train, which is a mistake.
func TestNoParameters(t *testing.T) {
	mustRefuse(t, "no parameter", func() { NewSGD(nil, SGDOptions{}) }, "there are no parameters to optimize")
	mustRefuse(t, "a nil parameter", func() { NewAdamW([]*nn.Parameter{names(1)[0], nil}, AdamWOptions{}) }, "param 1 is nil")
	NewSGD(names(1), SGDOptions{}).AddGroup(nil, SGDOptions{}) // a later group may be empty
}
