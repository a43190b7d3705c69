// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// fault is an interceptor that breaks something at some steps of a rank.
type fault struct {
	at     func(step int) bool
	logits func(c *nn.Ctx, y *tensor.Tensor) *tensor.Tensor // what the model's results become
	grad   string                                           // parameter whose gradient becomes infinite
	value  string                                           // parameter that becomes NaN before the step
	ids    bool                                             // an id that the model has no row for
	step   int
}

func (f *fault) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	m, ok := module.(*models.GPT)
	if !ok || x[0].Device() == tensor.Meta { // which a prediction of the memory runs on
		return next(c, x)
	}
	f.step++
	if !f.at(f.step) {
		return next(c, x)
	}
	for _, p := range nn.Parameters(m) {
		if p.Name() == f.value {
			p.Data().Fill(math.NaN())
		}
	}
	if f.ids {
		ids := slices.Clone(x[0].Int64s())
		ids[3] = 77777
		x = []*tensor.Tensor{tensor.FromInt64(ids, x[0].Shape()...)}
	}
	y := next(c, x)
	if f.logits != nil {
		y[0] = f.logits(c, y[0])
	}
	return y
}

func (f *fault) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	t := next(c)
	if f.grad != p.Name() || !f.at(f.step) {
		return t
	}
	return tensor.Record("break", t.Detach(), []*tensor.Tensor{t}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{tensor.Full(math.Inf(1), g.Shape()...)}, nil
	})
}

func timesNaN(_ *nn.Ctx, y *tensor.Tensor) *tensor.Tensor { return y.MulScalar(math.NaN()) }

// runAround trains with an interceptor a rank; nil is none. It returns the runs,
// what each rank was told, and what the job was.
func runAround(t *testing.T, c LMConfig, around []nn.Interceptor, l *log) (runs []*lmRun, told []error, job error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the test's limit"))
	defer cancel()
	runs, told = make([]*lmRun, len(around)), make([]error, len(around))
	c.Ranks = len(around)
	job = dist.Spawn(ctx, len(around), func(ctx context.Context, g *dist.Group) error {
		r := newLMRun(c, nil, g, Discard)
		if g.Rank() == 0 {
			r.report = l
		}
		if i := around[g.Rank()]; i != nil {
			r.around = []nn.Interceptor{i}
		}
		runs[g.Rank()] = r
		told[g.Rank()] = r.run(ctx)
		return told[g.Rank()]
	})
	return runs, told, job
}

func only(step int) func(int) bool { return func(s int) bool { return s == step } }

// TestStopAtNonFinite: wherever it comes from, all ranks stop at the same step
// with the same words, and no parameter and no state has moved.
func TestStopAtNonFinite(t *testing.T) {
	text := writeText(t, 20_000)
	const weight = "transformer.h.0.mlp.c_fc.weight"
	for what, c := range map[string]struct {
		fault         fault
		everywhere    bool
		loss          float64 // 0: whatever is finite
		values, grads []string
	}{
		"loss":     {fault: fault{logits: timesNaN}, loss: math.NaN()},
		"gradient": {fault: fault{grad: weight}, grads: []string{weight}},
		"value":    {fault: fault{value: weight}, everywhere: true, loss: math.NaN(), values: []string{weight}},
	} {
		for _, numRanks := range []int{1, 2} {
			t.Run(fmt.Sprint(what, " on ", numRanks), func(t *testing.T) {
				cfg := tiny(t, text)
				faults := make([]nn.Interceptor, numRanks)
				for rank := range faults {
					if c.everywhere || rank == numRanks-1 {
						f := c.fault
						f.at = only(7)
						faults[rank] = &f
					}
				}
				l := newLog()
				runs, told, _ := runAround(t, cfg, faults, l)
				for rank, err := range told {
					var bad *NonFiniteError
					if !errors.As(err, &bad) {
						t.Fatalf("rank %d: %v, want a *NonFiniteError", rank, err)
					}
					if bad.Step != 7 || isFinite(bad.Norm) || isFinite(bad.Loss) != (c.loss == 0) || !slices.Equal(bad.Values, c.values) {
						t.Errorf("rank %d: %+v", rank, bad)
					}
					if c.grads != nil && !slices.Equal(bad.Grads, c.grads) || len(bad.Grads) == 0 {
						t.Errorf("rank %d names the gradients of %q, want %q", rank, bad.Grads, c.grads)
					}
					if err.Error() != told[0].Error() {
						t.Errorf("rank %d says %v\nrank 0 says %v", rank, err, told[0])
					}
					for _, part := range []string{"train lm: step 7: the loss is ", "the norm of the gradients ", bad.Grads[0], "lower --lr", "--nan skip"} {
						if !strings.Contains(err.Error(), part) {
							t.Errorf("rank %d: no %q in %v", rank, part, err)
						}
					}
					if n := runs[rank].opt.NumSteps(); n != 6 {
						t.Errorf("rank %d: the optimizer did %d steps", rank, n)
					}
				}
				if !slices.Equal(l.saved, []int{5}) || len(l.losses) != 6 {
					t.Errorf("saved %v after losses %v", l.saved, l.losses)
				}
			})
		}
	}
}

// TestSkipNonFinite: steps that are left out move nothing, on any rank, and the
// run goes on.
func TestSkipNonFinite(t *testing.T) {
	text := writeText(t, 20_000)
	for _, numRanks := range []int{1, 2} {
		cfg := tiny(t, text)
		cfg.NaN, cfg.SaveEvery, cfg.Keep = nanSkip, 1, 100
		faults := make([]nn.Interceptor, numRanks)
		faults[numRanks-1] = &fault{at: func(s int) bool { return s == 4 || s == 5 || s == 9 }, logits: timesNaN}
		l := newLog()
		runs, _, err := runAround(t, cfg, faults, l)
		if err != nil {
			t.Fatal(err)
		}
		state := func(step int) []byte {
			b, err := os.ReadFile(filepath.Join(checkpoint.Path(cfg.Out, step), checkpoint.OptimizerFile))
			if err != nil {
				t.Fatal(err)
			}
			return append(b, modelFile(t, cfg.Out, step)...)
		}
		for step := 2; step <= cfg.Steps; step++ {
			left := step == 4 || step == 5 || step == 9
			if bytes.Equal(state(step), state(step-1)) != left {
				t.Errorf("%d ranks: weights and optimizer after step %d against those before: want equal %v", numRanks, step, left)
			}
			if isFinite(l.losses[step]) == left {
				t.Errorf("%d ranks: the loss of step %d is %v", numRanks, step, l.losses[step])
			}
		}
		for rank, r := range runs {
			if r.opt.NumSteps() != cfg.Steps-3 {
				t.Errorf("rank %d of %d did %d steps", rank, numRanks, r.opt.NumSteps())
			}
			a, b := nn.StateDict(runs[0].base), nn.StateDict(r.base)
			for i := range a {
				if !slices.Equal(a[i].Tensor.Float32s(), b[i].Tensor.Float32s()) {
					t.Errorf("rank %d has another %s than rank 0", rank, a[i].Name)
				}
			}
		}
		if len(l.notices) != 3 || !strings.Contains(l.notices[2], "step 9 is left out (3 so far): the loss is NaN") {
			t.Errorf("notices %q", l.notices)
		}
		if !slices.Equal(l.skipped, []int{0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3}) {
			t.Errorf("steps reported as left out: %v", l.skipped)
		}
	}
}

// TestSkipsEnd: a run whose weights are NaN does not go on for ever.
func TestSkipsEnd(t *testing.T) {
	cfg := tiny(t, writeText(t, 20_000))
	cfg.NaN, cfg.Steps = nanSkip, 40
	value := func() *fault { return &fault{at: only(3), value: "transformer.wpe.weight"} }
	l := newLog()
	_, told, _ := runAround(t, cfg, []nn.Interceptor{value(), value()}, l)
	for rank, err := range told {
		var bad *NonFiniteError
		if !errors.As(err, &bad) || bad.Step != 12 || bad.InRow != maxSkipsInRow || !slices.Equal(bad.Values, []string{"transformer.wpe.weight"}) {
			t.Errorf("rank %d: %v", rank, err)
		}
		if !strings.Contains(fmt.Sprint(err), "the last of 10 steps in a row that were left out") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if len(l.notices) != maxSkipsInRow-1 {
		t.Errorf("%d notices", len(l.notices))
	}
}

// TestBadIndexInStep: an index out of range is an error with rank, step, module
// and value, and no rank waits for ever.
func TestBadIndexInStep(t *testing.T) {
	cfg := tiny(t, writeText(t, 20_000))
	_, told, job := runAround(t, cfg, []nn.Interceptor{nil, &fault{at: only(4), ids: true}}, newLog())
	for _, part := range []string{"rank 1: train lm: step 4: ", "transformer.wte", "77777"} {
		if !strings.Contains(fmt.Sprint(job), part) {
			t.Errorf("no %q in %v", part, job)
		}
	}
	if told[0] == nil || !strings.Contains(told[0].Error(), "step 4: ") || !strings.Contains(told[0].Error(), "rank 1") {
		t.Errorf("rank 0 says %v", told[0])
	}
}
