// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// TestTrain: steps of Train are those of one process, bit for bit, and a step that fails
// says why, changes nothing, and leaves nothing behind.
func TestTrain(t *testing.T) {
	ctx := t.Context()
	all, stages := stagesOf(t, 2)
	refs := Refs(all[0], nn.Parameters(stages[0].model))
	theirs, err := refsMethod.Call(ctx, all[0].PeerRank(1), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	refs = append(refs, theirs...)
	opt, err := NewOptimizer(ctx, all[0], SGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}), refs)
	for _, r := range refs {
		r.Release()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Close()
	far := func(c *nn.Ctx, x *tensor.Tensor) (*tensor.Tensor, error) {
		h, err := layerMethod.Call(c, all[0].PeerRank(1), stages[0].forward(c, x))
		if err != nil {
			return nil, err
		}
		return h.Square().Mean(), nil
	}

	local := []*stage{newStage(0), newStage(1)}
	params := append(nn.Parameters(local[0].model), nn.Parameters(local[1].model)...)
	same := optim.NewSGD(params, optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	broken := errors.New("broken")
	for step := range 4 {
		x := tensor.FromFloat32(values(8, 50+step), 2, 4)
		same.ZeroGrad()
		want, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			return local[1].forward(c, local[0].forward(c, x)).Square().Mean()
		})
		if err != nil {
			t.Fatal(err)
		}
		same.Step(nil)
		got, err := opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) { return far(c, x) })
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("step %d: the loss is %v, in one process %v", step, got, want)
		}
		for how, fail := range map[string]func(c *nn.Ctx) (*tensor.Tensor, error){
			"returned":    func(c *nn.Ctx) (*tensor.Tensor, error) { _, _ = far(c, x); return nil, broken },
			"of the pass": func(c *nn.Ctx) (*tensor.Tensor, error) { _, _ = far(c, x); c.Fail(broken); return nil, nil },
		} {
			if _, err := opt.Train(ctx, fail); !errors.Is(err, broken) {
				t.Errorf("an error %s: got %v", how, err)
			}
		}
		if _, err := opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) { return nil, nil }); err == nil {
			t.Error("a step without a loss is no error")
		}
	}
	theirData, err := peekMethod.Call(ctx, all[0].PeerRank(1), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	mine := nn.Parameters(stages[0].model)
	for i, got := range []*tensor.Tensor{mine[0].Data(), mine[1].Data(), theirData[0], theirData[1]} {
		if !slices.Equal(got.Float32s(), params[i].Data().Float32s()) {
			t.Errorf("parameter %d differs from that of one process", i)
		}
	}
	for _, a := range all {
		e, err := engineOf(a)
		if err != nil {
			t.Fatal(err)
		}
		left := func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.states)
		}
		for end := time.Now().Add(30 * time.Second); left() > 0; time.Sleep(time.Millisecond) { // releases are on their way
			if time.Now().After(end) {
				t.Fatalf("%s still has %d contexts", a.Name(), left())
			}
		}
	}
}
