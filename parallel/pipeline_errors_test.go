// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// wantErrors runs fn on ranks, and fails unless each of them returns an error that says want.
func wantErrors(t *testing.T, ranks int, want string, fn func(ctx context.Context, m *mesh.Mesh) error) {
	t.Helper()
	var mu sync.Mutex
	var errs []error
	_ = spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: pipelineAxis})
		if err == nil {
			err = fn(ctx, m)
		}
		mu.Lock()
		errs = append(errs, err)
		mu.Unlock()
		return nil
	})
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %q", err, want)
		}
	}
	if len(errs) != ranks {
		t.Errorf("%d of %d ranks returned", len(errs), ranks)
	}
}

// TestStagesThatCannotBe: what is wrong with the stages is an error before anything is trained.
func TestStagesThatCannotBe(t *testing.T) {
	k := gptTask(4, true)
	for want, c := range map[string]PipelineConfig{
		`stage 1: it begins at "transformer.h.9", and the model has no module of that name that is called; did you mean "transformer.h.`: {Starts: []string{"transformer.h.9"}},
		`2 stages begin at 1 modules besides the beginning of the model, and PipelineConfig.Starts names 2`:                              {Starts: []string{"transformer.h.1", "transformer.h.2"}},
		`stage 2: it begins at transformer.h.1, which the model`:                                                                         {Schedule: "interleaved", Starts: []string{"transformer.h.2", "transformer.h.1", "transformer.h.3"}},
		`where another stage begins as well`:                                                                                             {Schedule: "interleaved", Starts: []string{"transformer.h.1", "transformer.h.1", "transformer.h.3"}},
		`and a later stage inside of that module`:                                                                                        {Schedule: "interleaved", Starts: []string{"transformer.h.1", "transformer.h.1.mlp", "transformer.h.3"}},
		`PipelineConfig.Layers has [1 2], which are 3 layers, and the model has 4`:                                                       {Layers: []int{1, 2}},
		`PipelineConfig.Layers has 3 numbers, and there are 2 stages`:                                                                    {Layers: []int{1, 2, 1}},
		`stage 1: PipelineConfig.Layers gives it 0 layers`:                                                                               {Layers: []int{4, 0}},
		`the model has 4 layers, and there are 8 stages: 4 < 8`:                                                                          {Schedule: "interleaved", NumStages: 8},
		`exclude each other`: {Measure: true, Layers: []int{2, 2}},
		`there is no schedule "1f1", did you mean "1f1b"?`: {Schedule: "1f1"},
		`1f1b has one stage a rank, and 4 ≠ 2`:             {NumStages: 4},
		`has one input, and PipelineConfig.Example has 2`:  {Example: []*tensor.Tensor{k.example[0], k.example[0]}},
	} {
		if c.Example == nil {
			c.Example = k.example
		}
		wantErrors(t, 2, want, func(ctx context.Context, m *mesh.Mesh) error {
			_, err := Parallelize(ctx, k.model(), m, Config{Pipeline: c})
			return err
		})
	}
	wantErrors(t, 2, "set PipelineConfig.Example to the inputs of the model", func(ctx context.Context, m *mesh.Mesh) error {
		_, err := Parallelize(ctx, k.model(), m, Config{})
		return err
	})
	wantErrors(t, 2, "reads transformer.wte.weight, which stage 0 reads too, and the gradient of which is sparse: clear Sparse", func(ctx context.Context, m *mesh.Mesh) error {
		model := gptTask(4, false).model()
		nn.Parameters(model)[0].Sparse = true
		_, err := Parallelize(ctx, model, m, Config{Pipeline: PipelineConfig{Example: k.example}})
		return err
	})
	wantErrors(t, 2, "rank 0 has a pipeline of 2 stages by gpipe, which begin at [transformer.h.1] where rank 1 has a pipeline of 2 stages by gpipe, which begin at [transformer.h.2]", func(ctx context.Context, m *mesh.Mesh) error {
		_, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{
			Schedule: "gpipe", Starts: []string{fmt.Sprintf("transformer.h.%d", 1+m.Rank())}, Example: k.example,
		}})
		return err
	})
}

// TestStepsThatDiffer: ranks with other microbatches, or too few of them, return an error before the
// step begins, and none of them waits.
func TestStepsThatDiffer(t *testing.T) {
	k := gptTask(4, true)
	step := func(ctx context.Context, m *mesh.Mesh, n int, k pipeTask) error {
		p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Example: k.example}})
		if err != nil {
			return err
		}
		_, err = p.Step(ctx, k.microbatches(p, 0, n))
		return err
	}
	wantErrors(t, 2, "rank 0 of the axis pp has 4 microbatches where rank 1 has 5 microbatches", func(ctx context.Context, m *mesh.Mesh) error {
		return step(ctx, m, 4+m.Rank(), k)
	})
	wantErrors(t, 2, "rank 0 of the axis pp has microbatch 2: input 0 int64[2 6] where rank 1 has microbatch 2: input 0 int64[1 6]; give", func(ctx context.Context, m *mesh.Mesh) error {
		k := k
		batch := k.batch
		k.batch = func(step, number int) ([]*tensor.Tensor, *tensor.Tensor) {
			in, targets := batch(step, number)
			if m.Rank() == 1 && number == 2 {
				in[0], targets = in[0].Narrow(0, 0, 1), targets.Narrow(0, 0, 6)
			}
			return in, targets
		}
		return step(ctx, m, 4, k)
	})
	wantErrors(t, 4, "it needs as many microbatches as stages, and 3 < 4", func(ctx context.Context, m *mesh.Mesh) error {
		err := step(ctx, m, 3, k)
		if e := (*schedule.CountError)(nil); !errors.As(err, &e) {
			t.Errorf("%v is no CountError", err)
		}
		return err
	})
	wantErrors(t, 2, "a step has no microbatches", func(ctx context.Context, m *mesh.Mesh) error { return step(ctx, m, 0, k) })
}

// chain is a model of blocks, with what a pipeline cannot run as an option.
type chain struct {
	Blocks []*chainBlock
	Head   *nn.Linear
	wrong  string
}

type chainBlock struct {
	Linear *nn.Linear
	wrong  string
}

func (b *chainBlock) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	y := c.Call(b.Linear, in[0]).Tanh()
	switch {
	case b.wrong == "values" && in[0].Device() == tensor.Meta:
		return []*tensor.Tensor{y}
	case b.wrong == "values":
		return []*tensor.Tensor{y.Narrow(0, 0, 1)}
	case b.wrong == "host":
		_ = in[0].Float32s()[0]
	}
	if len(in) > 1 {
		y = y.Add(in[1])
	}
	return []*tensor.Tensor{y}
}

func (m *chain) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	first := x.MulScalar(2)
	for i, b := range m.Blocks {
		y := c.CallN(b, x)[0]
		switch {
		case m.wrong == "between" && i == 2:
			x = x.Add(y)
		case m.wrong == "skip" && i == 3:
			x = c.CallN(b, y, first)[0]
		case m.wrong == "device" && i == 2:
			x = c.CallN(b, y, tensor.Zeros(1, 5))[0]
		default:
			x = y
		}
	}
	return c.Call(m.Head, x)
}

func chainTask(wrong string) pipeTask {
	return pipeTask{
		model: func() any {
			b := &nn.Build{Generator: tensor.NewGenerator(4)}
			m := &chain{Head: nn.NewLinear(b, 5, 3), wrong: wrong}
			for range 4 {
				m.Blocks = append(m.Blocks, &chainBlock{Linear: nn.NewLinear(b, 5, 5)})
			}
			if wrong == "values" || wrong == "host" {
				m.Blocks[1].wrong = wrong
			}
			return m
		},
		example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Float32, 2, 5)},
		batch: func(step, number int) ([]*tensor.Tensor, *tensor.Tensor) {
			x := tensor.Zeros(2, 5)
			tensor.NewGenerator(int64(10*step+number)).Normal(x, 0, 1)
			return []*tensor.Tensor{x}, tensor.FromInt64([]int64{int64(number % 3), int64(step % 3)})
		},
	}
}

// TestModelsThatStagesCannotRun: the error says what to change in the model.
func TestModelsThatStagesCannotRun(t *testing.T) {
	for wrong, want := range map[string]string{
		"between": `pipeline: stage 1: the operation "add" between calls of modules, after the call of blocks.2, reads as its operand 0 a value of shape [2 5] (result 0 of the call of blocks.1) that stage 0 has made: put the operation in a module`,
		"values":  "stage 0: result 0 of the call of blocks.1 is float32[1 5], and was promised as float32[2 5]",
		"device":  "two devices",
	} {
		wantErrors(t, 2, want, func(ctx context.Context, m *mesh.Mesh) error {
			k := chainTask(wrong)
			p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Starts: []string{"blocks.2"}, Example: k.example}})
			if err == nil {
				_, err = p.Step(ctx, k.microbatches(p, 0, 4))
				m.World().Fail(err) // as dist.Main does
			}
			return err
		})
	}
}

// TestOddModelsInStages: values that skip a stage, and modules that read values on the host.
func TestOddModelsInStages(t *testing.T) {
	for _, wrong := range []string{"skip", "host", ""} {
		k := chainTask(wrong)
		want, _ := k.alone(t, 2, 4)
		for _, name := range []string{"1f1b", "zbv"} {
			err := onPipeline(t, k, 2, PipelineConfig{Schedule: name}, func(ctx context.Context, p *Parallel) error {
				losses, _, err := k.train(ctx, p, p.Model, 2, 4)
				if err == nil && !slices.Equal(losses, want) {
					t.Errorf("%s by %s: losses %v, want %v", wrong, name, losses, want)
				}
				return err
			})
			if err != nil {
				t.Errorf("%q by %s: %v", wrong, name, err)
			}
		}
	}
}

// TestPassesThatAPipelineCannotRun: training outside of a step, and losses that call the model
// otherwise than once.
func TestPassesThatAPipelineCannotRun(t *testing.T) {
	k := gptTask(4, true)
	for want, run := range map[string]func(ctx context.Context, p *Parallel) error{
		"train by Step": func(ctx context.Context, p *Parallel) (err error) {
			c := nn.Training(ctx)
			defer c.Close()
			defer c.Recover(&err)
			in, _ := k.batch(0, 0)
			p.Forward(c, in[0])
			return nil
		},
		"Microbatch.Loss has not called the model": func(ctx context.Context, p *Parallel) error {
			_, err := p.Step(ctx, []Microbatch{{
				Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
				Loss:    func(*nn.Ctx) *tensor.Tensor { return tensor.Zeros() },
			}, {
				Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
				Loss:    func(*nn.Ctx) *tensor.Tensor { return tensor.Zeros() },
			}})
			return err
		},
		"Microbatch.Loss has called the model twice": func(ctx context.Context, p *Parallel) error {
			ms := k.microbatches(p, 0, 2)
			for i := range ms {
				once := ms[i].Loss
				ms[i].Loss = func(c *nn.Ctx) *tensor.Tensor { return once(c).Add(once(c)) }
			}
			_, err := p.Step(ctx, ms)
			p.mesh.World().Fail(err)
			return err
		},
	} {
		wantErrors(t, 2, want, func(ctx context.Context, m *mesh.Mesh) error {
			p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Example: k.example}})
			if err != nil {
				return err
			}
			return run(ctx, p)
		})
	}
}
