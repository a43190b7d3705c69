// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"flag"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// measureBubble has TestMeasuredBubble measure: on a quiet machine, COHORT_NUM_THREADS=1 go test
// ./parallel -run TestMeasuredBubble -bubble -v.
var measureBubble = flag.Bool("bubble", false, "measure the bubble of pipelines of two ranks in real time")

// timed is a model of blocks that take time: as long for a forward pass as for each part of a
// backward pass.
type timed struct {
	Shift  *shift // nil for none
	Blocks []*timedBlock
}

// shift adds a parameter, so that the first block has a gradient for its input as others have.
type shift struct {
	By *nn.Parameter
}

func (m *shift) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return x.Add(c.Param(m.By)) }

type timedBlock struct {
	Linear *nn.Linear
	takes  time.Duration // sleeps so long; 0 is what the product takes
}

func (m *timed) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if m.Shift != nil {
		x = c.Call(m.Shift, x)
	}
	for _, b := range m.Blocks {
		x = c.Call(b, x)
	}
	return x
}

func (b *timedBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := c.Call(b.Linear, x)
	if b.takes == 0 || x.Device() == tensor.Meta {
		return y
	}
	time.Sleep(b.takes)
	return tensor.Record("sleep", y.Detach(), []*tensor.Tensor{y}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		time.Sleep(b.takes)
		return []*tensor.Tensor{g}, nil
	})
}

func timedTask(blocks, rows, width int, takes time.Duration) pipeTask {
	return pipeTask{
		model: func() any {
			b := &nn.Build{Generator: tensor.NewGenerator(2)}
			m := &timed{}
			for range blocks {
				k := &timedBlock{Linear: nn.NewLinear(b, width, width), takes: takes}
				k.Linear.Bias = nil
				if takes > 0 {
					k.Linear.Weight.OnGradReady(func(context.Context, *nn.Parameter) error {
						time.Sleep(takes)
						return nil
					})
				}
				m.Blocks = append(m.Blocks, k)
			}
			return m
		},
		example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Float32, rows, width)},
		batch: func(step, number int) ([]*tensor.Tensor, *tensor.Tensor) {
			return []*tensor.Tensor{tensor.Full(0.5, rows, width)}, tensor.FromInt64(make([]int64, rows))
		},
	}
}

// stepTimes is how a step went in time.
type stepTimes struct {
	mu         sync.Mutex
	begin, end time.Time
	busy       map[schedule.Action]time.Duration
}

// of watches the actions of a rank.
func (s *stepTimes) of(a schedule.Action) func(waited time.Duration) {
	begun := time.Now()
	return func(waited time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if now := time.Now(); now.After(s.end) {
			s.end = now
		}
		if s.begin.IsZero() || begun.Before(s.begin) {
			s.begin = begun
		}
		s.busy[a] = time.Since(begun) - waited
	}
}

// bubble returns the part of the ranks' time in which they did not compute.
func (s *stepTimes) bubble(ranks int) float64 {
	var busy time.Duration
	for _, d := range s.busy {
		busy += d
	}
	return 1 - busy.Seconds()/(s.end.Sub(s.begin).Seconds()*float64(ranks))
}

// cost returns how long actions of each kind took in the mean.
func (s *stepTimes) cost() func(a schedule.Action) time.Duration {
	sum, num := map[schedule.Kind]time.Duration{}, map[schedule.Kind]time.Duration{}
	for a, d := range s.busy {
		sum[a.Kind] += d
		num[a.Kind]++
	}
	return func(a schedule.Action) time.Duration { return sum[a.Kind] / num[a.Kind] }
}

// timeStep runs steps on a rank, of which the last one is watched.
func timeStep(ctx context.Context, g *dist.Group, k pipeTask, name string, steps, n int, times *stepTimes) error {
	m, err := mesh.New(ctx, g, mesh.Axis{Name: pipelineAxis})
	if err != nil {
		return err
	}
	p, err := Parallelize(ctx, k.model(), m, Config{Pipeline: PipelineConfig{Schedule: name, Example: k.example}})
	if err != nil {
		return err
	}
	for step := range steps {
		if step == steps-1 {
			p.pipe.watch = times.of
		}
		for _, w := range nn.Parameters(p.Model) {
			w.ZeroGrad()
		}
		if _, err := p.Step(ctx, k.microbatches(p, step, n)); err != nil {
			return err
		}
	}
	return nil
}

// TestBubbleInVirtualTime: the runtime takes the time that the simulation of its schedule takes.
func TestBubbleInVirtualTime(t *testing.T) {
	for _, name := range schedule.Names() {
		for _, ranks := range []int{2, 4} {
			n := 2 * ranks
			sch, err := schedule.New(name, ranks, 0, n)
			if err != nil {
				t.Fatal(err)
			}
			const unit = 10 * time.Millisecond
			k := timedTask(sch.NumStages, 2, 4, unit)
			times := &stepTimes{busy: map[schedule.Action]time.Duration{}}
			res := disttest.Run(t, ranks, func(ctx context.Context, g *dist.Group) error {
				return timeStep(ctx, g, k, name, 2, n, times)
			}, disttest.WithLink(disttest.Link{Latency: 50 * time.Microsecond}))
			if err := res.Err(); err != nil {
				t.Fatal(err)
			}
			want, err := sch.Simulate(schedule.SimulateOptions{Cost: func(a schedule.Action) time.Duration { return 10 * schedule.UnitCost(a) }})
			if err != nil {
				t.Fatal(err)
			}
			took, bubble := times.end.Sub(times.begin), times.bubble(ranks)
			if took > want.Time*21/20 || took < want.Time*19/20 || math.Abs(bubble-want.Bubble) > 0.1*want.Bubble+0.01 {
				t.Errorf("%s on %d ranks: a step took %v with a bubble of %.3f, and the simulation %v and %.3f", name, ranks, took, bubble, want.Time, want.Bubble)
			}
		}
	}
}

// TestMeasuredStages: stages that are cut by measured costs take about the same time.
func TestMeasuredStages(t *testing.T) {
	k := timedTask(6, 2, 4, time.Millisecond)
	model := k.model
	k.model = func() any {
		m := model().(*timed)
		m.Blocks[4].takes = 20 * time.Millisecond
		return m
	}
	err := onPipeline(t, k, 3, PipelineConfig{Measure: true}, func(_ context.Context, p *Parallel) error {
		if s := p.pipe.starts; s[0].path != "blocks.4" && s[1].path != "blocks.4" || s[0].path == s[1].path {
			t.Errorf("the stages begin at %v: want the slow layer blocks.4 without those before it", s)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMeasuredBubble measures the bubble of two ranks of one thread each in real time, with stages
// of equal cost: the first stage has a gradient for its input as the others have, and the loss is
// cheap. Four microbatches make the bubble larger than what other programs disturb. Only the flag
// -bubble makes it measure, for it wants two cores to itself.
func TestMeasuredBubble(t *testing.T) {
	if !*measureBubble {
		t.Skip("measures only with -bubble")
	}
	const ranks, n, steps, rows, width = 2, 4, 3, 256, 1024
	for _, name := range schedule.Names() {
		sch, err := schedule.New(name, ranks, 0, n)
		if err != nil {
			t.Fatal(err)
		}
		k := timedTask(2*sch.NumStages, rows, width, 0)
		model := k.model
		k.model = func() any {
			m := model().(*timed)
			m.Shift = &shift{(&nn.Build{Generator: tensor.NewGenerator(3)}).Normal(1, width)}
			return m
		}
		k.loss = func(y *tensor.Tensor) *tensor.Tensor { return y.Narrow(0, 0, 1).Sum() }
		best := ""
		for try := range 20 { // a measurement that something disturbed is made again
			times := &stepTimes{busy: map[schedule.Action]time.Duration{}}
			if err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
				return timeStep(ctx, g, k, name, steps, n, times)
			}); err != nil {
				t.Fatal(err)
			}
			want, err := sch.Simulate(schedule.SimulateOptions{Cost: times.cost()})
			if err != nil {
				t.Fatal(err)
			}
			own, err := sch.Simulate(schedule.SimulateOptions{Cost: func(a schedule.Action) time.Duration { return times.busy[a] }})
			if err != nil {
				t.Fatal(err)
			}
			bubble := times.bubble(ranks)
			best = fmt.Sprintf("%s: a step took %v with a bubble of %.1f %%; predicted %v and %.1f %%; by what each action took %v and %.1f %%",
				name, times.end.Sub(times.begin), 100*bubble, want.Time, 100*want.Bubble, own.Time, 100*own.Bubble)
			t.Logf("try %d: %s", try, best)
			if math.Abs(bubble-want.Bubble) <= 0.1*want.Bubble {
				best = ""
				break
			}
		}
		if best != "" {
			t.Errorf("not within 10 %%: %s", best)
		}
	}
}
