// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestPhases: on every rank the phases of the steps add up to the time of the clock, however the model
// is spread; and where ranks communicate, it shows.
func TestPhases(t *testing.T) {
	text := writeText(t, 40_000)
	for _, name := range []string{"replicate1", "replicate2", "fsdp2", "pp2", "tp2"} {
		t.Run(name, func(t *testing.T) {
			c, ranks := onMesh(t, layered(t, text), name)
			c.Out, c.Steps, c.EvalEvery, c.SaveEvery = filepath.Join(t.TempDir(), "out"), 12, 0, 4
			l := newLog()
			begin := time.Now()
			if err := runWith(t, ranks, c, l); err != nil {
				t.Fatal(err)
			}
			all := time.Since(begin).Seconds()
			h, err := history.ReadDir(c.Out)
			if err != nil {
				t.Fatal(err)
			}
			steps, inSteps, clock := 0, 0.0, 0.0
			for _, s := range h.Steps {
				inSteps += s.Seconds
			}
			sums, by := make([]float64, ranks), make([]map[string]float64, ranks)
			for _, r := range h.Ranks {
				steps, clock = steps+r.Steps, clock+r.Seconds
				for name, column := range r.Phases {
					for rank, v := range column {
						if by[rank] == nil {
							by[rank] = map[string]float64{}
						}
						sums[rank] += v
						by[rank][name] += v
					}
				}
			}
			if steps != c.Steps {
				t.Errorf("the records are of %d steps, want %d", steps, c.Steps)
			}
			slack := 0.02*clock + loaded.Allow(10*time.Millisecond).Seconds()
			for rank, sum := range sums {
				p := by[rank]
				within := sum - p["evaluation"] - p["checkpoint"]
				if math.Abs(sum-clock) > slack || sum > all || within < inSteps-slack && rank == 0 || p["forward"] <= 0 || p["backward"] <= 0 || p["optimizer"] <= 0 {
					t.Errorf("rank %d: the phases are %v, %.4g s in all and %.4g s in steps; the clock says %.4g s of %.4g s, %.4g s in steps", rank, p, sum, within, clock, all, inSteps)
				}
				if ranks > 1 && p["communication"]+p["waiting"] <= 0 {
					t.Errorf("rank %d never stood still: %v", rank, p)
				}
			}
			g := l.finish.Goodput
			total := 0.0
			for _, v := range g.Phases {
				total += v
			}
			if math.Abs(total-g.Seconds) > 1e-6*total || len(g.Ranks) != ranks || g.Starts != 1 || !strings.HasPrefix(g.String(), "compute ") {
				t.Errorf("got %+v", g)
			}
		})
	}
}

// TestGoodputGoesOn: a run that goes on adds to what its checkpoint says.
func TestGoodputGoesOn(t *testing.T) {
	c := tiny(t, writeText(t, 10_000))
	c.Out, c.Steps, c.SaveEvery = filepath.Join(t.TempDir(), "out"), 4, 2
	first, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	c.Steps = 8
	second, err := run(t, 1, c, "steps")
	if err != nil {
		t.Fatal(err)
	}
	a, b := first.finish.Goodput, second.finish.Goodput
	if a.Starts != 1 || b.Starts != 2 || b.Seconds <= a.Seconds || b.Phases["forward"] <= a.Phases["forward"] {
		t.Errorf("got %+v, then %+v", a, b)
	}
}

// simulated returns what ranks with so long steps (seconds of computing, by rank) give in a window of
// steps. Each step ends in a collective.
func simulated(r *rand.Rand, ids *uint64, steps int, compute func(rank, step int) float64, ranks int) []event.Cut {
	cuts := make([]event.Cut, ranks)
	const move = 2e-4
	for step := range steps {
		took, last := make([]float64, ranks), 0.0
		for i := range took {
			took[i] = compute(i, step)
			last = max(last, took[i])
		}
		*ids++
		for i := range cuts {
			stood := time.Duration((last - took[i] + move*(1+0.2*r.Float64())) * 1e9)
			busy := time.Duration(took[i] * 1e9)
			c := &cuts[i]
			c.Steps, c.Calls = c.Steps+1, c.Calls+1
			c.Times[event.Backward] += busy
			c.Times[event.Communication] += stood
			c.Wall += busy + stood
			c.Running += stood
			c.Held.CPU += busy
			c.Samples = append(c.Samples, event.Sample{ID: *ids, Took: stood, Exposed: stood})
		}
	}
	return cuts
}

// simulate plays windows of a job, and returns what it tells.
func simulate(t *testing.T, seed uint64, ranks int, compute func(r *rand.Rand, rank, step int) float64) (notices []string, records []history.Ranks) {
	t.Helper()
	err := dist.Spawn(t.Context(), ranks, func(_ context.Context, g *dist.Group) error {
		if g.Rank() != 0 {
			return nil
		}
		r := rand.New(rand.NewPCG(seed, 1))
		l := newLedger(g, 0, nil, 0, nil, func(text string) { notices = append(notices, text) }, func(r history.Ranks) { records = append(records, r) })
		ids := uint64(0)
		for window := range 12 {
			cuts := simulated(r, &ids, 20, func(rank, step int) float64 { return compute(r, rank, step) }, ranks)
			l.take(20*(window+1), cuts)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return notices, records
}

// TestSlowRankIsNamed: a rank that is slowed by 20 % is named with the reason, whatever noise the
// others have; and without one nobody is.
func TestSlowRankIsNamed(t *testing.T) {
	seed := seeded.Of(t)
	noise := func(r *rand.Rand) float64 { // a few per cent, and a pause now and then
		d := 0.02 * (1 + 0.03*r.NormFloat64())
		if r.IntN(50) == 0 {
			d += 0.01 * r.Float64()
		}
		return max(1e-3, d)
	}
	for i := range uint64(20) {
		slow := int(i % 8)
		notices, records := simulate(t, seed+i, 8, func(r *rand.Rand, rank, _ int) float64 {
			d := noise(r)
			if rank == slow {
				d *= 1.2
			}
			return d
		})
		last := records[len(records)-1].Slow
		if len(notices) != 1 || !strings.HasPrefix(notices[0], fmt.Sprintf("rank %d ", slow)) || !strings.Contains(notices[0], "it computes longer") || last == nil || last.Rank != slow {
			t.Errorf("seed %d: rank %d is slow, and the job says %q, %+v", seed+i, slow, notices, last)
		}
	}
	for i := range uint64(100) {
		if notices, _ := simulate(t, seed+1000+i, 8, func(r *rand.Rand, _, _ int) float64 { return noise(r) }); len(notices) > 0 {
			t.Errorf("seed %d: nobody is slow, and the job says %q", seed+1000+i, notices)
		}
	}
}

// TestSlowForAMoment: a rank that is slow for less than two seconds is not called slow, however many
// comparisons that takes.
func TestSlowForAMoment(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(_ context.Context, g *dist.Group) error {
		for _, c := range []struct {
			seconds float64
			slow    int // the comparison, from 1, in which rank 1 is called slow; 0: none
		}{{0.1, 0}, {0.35, 6}, {1, 3}} {
			w := newSlowWatch(g)
			for i := range 10 {
				record := &history.Ranks{Steps: 10, Seconds: c.seconds, Late: []float64{0, 0.2 * c.seconds}, CPU: []float64{0, 0}, Phases: map[string]history.Column{}}
				for _, name := range []string{"data", "forward", "backward", "optimizer", "checkpoint", "evaluation", "other"} {
					record.Phases[name] = history.Column{0, 0}
				}
				if news := w.look(record, make([]event.Cut, 2)); (news != "") != (i+1 == c.slow) {
					return fmt.Errorf("comparison %d of %v s: %q", i+1, c.seconds, news)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// BenchmarkCompare is what a comparison costs two ranks of 8 million parameters, once a second.
func BenchmarkCompare(b *testing.B) {
	err := dist.Spawn(b.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		params := nn.Parameters(&struct{ W *nn.Parameter }{nn.NewParameter(tensor.New(tensor.CPU(), tensor.Float32, 8_000_000))})
		l := newLedger(g, 0, nil, 0, watchReplicas(params), func(string) {}, nil)
		for i := range b.N {
			if err := l.compare(ctx, i+1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStepEvents is what the events of a step cost a rank: its phases, and what it came to.
func BenchmarkStepEvents(b *testing.B) {
	s := event.New(time.Now())
	for i := 0; b.Loop(); i++ {
		for _, p := range []event.Phase{event.Data, event.Other, event.Forward, event.Backward, event.Other, event.Optimizer, event.Other} {
			s.Enter(p)
		}
		s.StepDone(i, event.StepNumbers{})
	}
}

// teller stops a run as soon as a rank is called slow.
type teller struct {
	*log
	slow chan<- string
	stop context.CancelFunc
}

func (r teller) Notice(text string) {
	if strings.Contains(text, " is slow: the others wait ") {
		select {
		case r.slow <- text:
		default:
		}
		r.stop()
	}
}

// TestSlowRankOfJob: in a job of three ranks, one that computes longer, and one whose data come late, is named
// with the reason.
func TestSlowRankOfJob(t *testing.T) {
	before := compareEvery
	compareEvery = 100 * time.Millisecond
	defer func() { compareEvery = before }()
	const pass = 10 * time.Millisecond
	for _, c := range []struct {
		name, why        string
		compute, loading time.Duration // more, of rank 1
	}{
		{"compute", "it computes longer", 2 * pass, 0},
		{"data", "it waits longer for its data", 0, 2 * pass},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFitting(t)
			f.batch = 3 // a sample a rank
			f.get = func(rank int, _ data.Key) error {
				if rank == 1 {
					time.Sleep(pass + c.loading) // the loader works while the pass does
				}
				return nil
			}
			f.set = func(rank int, task *Task[points], o *Options) {
				o.Steps, o.SaveEvery, o.EvalEvery, o.Best = 3000, 0, 0, false
				loss := task.Loss
				task.Loss = func(carrier *nn.Ctx, model any, p points) *tensor.Tensor {
					time.Sleep(pass)
					if rank == 1 {
						time.Sleep(c.compute)
					}
					return loss(carrier, model, p)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			slow := make(chan string, 1)
			_ = dist.Spawn(ctx, 3, func(_ context.Context, g *dist.Group) error {
				task, o := f.task(g, Axes{})
				return Run(ctx, g, task, o, teller{newLog(), slow, cancel})
			})
			select {
			case text := <-slow:
				if !strings.HasPrefix(text, "rank 1 ") || !strings.Contains(text, c.why) {
					t.Errorf("the job says %q, want rank 1: %s", text, c.why)
				}
			default:
				t.Error("nobody is called slow")
			}
		})
	}
}
