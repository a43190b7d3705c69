// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// point is a sample of the tests' task, which fits a line.
type point struct{ x, y float32 }

type points struct{ x, y *tensor.Tensor }

func collatePoints(ps []point) (points, error) {
	x, y := make([]float32, len(ps)), make([]float32, len(ps))
	for i, p := range ps {
		x[i], y[i] = p.x, p.y
	}
	return points{tensor.FromFloat32(x, len(x), 1), tensor.FromFloat32(y, len(y), 1)}, nil
}

// fitting is a run of the tests' task.
type fitting struct {
	out   string
	batch int // of all ranks
	seed  int64
	set   func(rank int, task *Task[points], o *Options) // may be nil
	get   func(rank int, key data.Key) error             // of the dataset; may be nil
	axes  func(context.Context, *dist.Group) (Axes, error)
	quiet bool // only Run knows of errors, as in a program without dist.Main
	skip  bool // replace samples that get refuses
	epoch int  // samples

	log    *log
	onStep func(Step) // may be nil
}

// line is a model with dropout, so that the generator of a pass matters.
type line struct{ In, Out *nn.Linear }

func (m *line) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	hidden := c.Call(m.In, x).Tanh()
	if c.Training() {
		hidden = tensor.Dropout(hidden, 0.1, c.Generator())
	}
	return c.Call(m.Out, hidden)
}

func (f *fitting) task(g *dist.Group, axes Axes) (Task[points], Options) {
	samples := cmp.Or(axes.Data, g)
	gen := tensor.NewGenerator(3)
	b := &nn.Build{Generator: gen}
	m := &line{nn.NewLinear(b, 1, 8), nn.NewLinear(b, 8, 1)}
	n := f.epoch
	task := Task[points]{
		Name: "fit", Model: m, Axes: axes, Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return optim.NewAdamW(params, optim.AdamWOptions{LR: 0.02})
		},
		Samples: n, Unit: "points", Size: func(p points) int { return p.x.Dim(0) },
		Loss: func(c *nn.Ctx, model any, p points) *tensor.Tensor {
			return tensor.MSE(c.Call(model.(nn.Module), p.x), p.y)
		},
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[points], error) {
			onError := data.Fail
			if f.skip {
				onError = data.SkipSample
			}
			ds := data.FromFunc(n, func(_ context.Context, key data.Key) (point, error) {
				if f.get != nil {
					if err := f.get(g.Rank(), key); err != nil {
						return point{}, err
					}
				}
				x := 2*float32(key.Index)/float32(n) - 1
				return point{x, 3*x + 1}, nil
			})
			order, err := data.NewStream(data.StreamConfig{Len: n, Total: f.batch, Rank: samples.Rank(), World: samples.Size(), Shuffle: true, Seed: f.seed})
			if err != nil {
				return nil, err
			}
			return data.NewLoader(ctx, ds, order, collatePoints, data.LoaderConfig{Workers: 1, OnError: onError}, from)
		},
	}
	o := Options{Out: f.out, Batch: f.batch, Steps: 12, SaveEvery: 5, EvalEvery: 3, Seed: f.seed, Keep: 100}
	if f.set != nil {
		f.set(g.Rank(), &task, &o)
	}
	return task, o
}

// run trains on goroutines and returns what each rank and the job were told.
func (f *fitting) run(t *testing.T, numRanks int) (told []error, job error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the test's limit"))
	defer cancel()
	f.log = newLog()
	told = make([]error, numRanks)
	job = dist.Spawn(ctx, numRanks, func(ctx context.Context, g *dist.Group) error {
		var axes Axes
		if f.axes != nil {
			var err error
			if axes, err = f.axes(ctx, g); err != nil {
				return err
			}
		}
		task, o := f.task(g, axes)
		told[g.Rank()] = Run(ctx, g, task, o, watch{f.log, f.onStep})
		if f.quiet {
			return nil
		}
		return told[g.Rank()]
	})
	return told, job
}

// watch is a log with somebody who is shown each step.
type watch struct {
	*log
	onStep func(Step)
}

func (w watch) Step(s Step) {
	w.log.Step(s)
	if w.onStep != nil {
		w.onStep(s)
	}
}

func newFitting(t *testing.T) *fitting {
	return &fitting{out: filepath.Join(t.TempDir(), "run"), batch: 24, seed: 5, epoch: 100}
}

// sgd makes optimizers of a learning rate.
func sgd(lr float64) func(params []*nn.Parameter) optim.Optimizer {
	return func(params []*nn.Parameter) optim.Optimizer { return optim.NewSGD(params, optim.SGDOptions{LR: lr}) }
}

// kept returns where the optimizer of a task will be.
func kept(task *Task[points]) *optim.Optimizer {
	opt, build := new(optim.Optimizer), task.Optimizer
	task.Optimizer = func(params []*nn.Parameter) optim.Optimizer {
		*opt = build(params)
		return *opt
	}
	return opt
}

// metricsOf makes a task whose evaluations are these, by step.
func metricsOf(values map[int]float64, higher bool) func(int, *Task[points], *Options) {
	return func(rank int, task *Task[points], o *Options) {
		m := task.Model.(*line)
		opt := kept(task)
		task.Evaluate = func(context.Context, any) (Metrics, error) {
			// Ranks differ: only what rank 0 says counts.
			if rank == 2 {
				return nil, nil
			}
			v := values[(*opt).NumSteps()] + float64(rank)*100
			return Metrics{{Name: "score", Value: v, Higher: higher}, {Name: "size", Value: float64(nn.NumParams(m))}}, nil
		}
	}
}

// TestStanding: what is best, and when patience ends.
func TestStanding(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		values   []float64
		higher   bool
		minDelta float64
		best     []int // steps that were the best when they came
		patient  int   // at the end
	}{
		{[]float64{3, 2, 2, 1, 4}, false, 0, []int{1, 2, 4}, 1},
		{[]float64{3, 2, 2, 1, 4}, true, 0, []int{1, 5}, 0},
		{[]float64{3, 2.9, 2.8, 2.4}, false, 0.5, []int{1, 2, 3, 4}, 0},
		{[]float64{3, 2.9, 2.8, 2.6}, false, 0.5, []int{1, 2, 3, 4}, 3},
		{[]float64{nan, nan, 5, math.Inf(-1), 6}, false, 0, []int{3}, 2},
		{[]float64{0, 0, -1}, true, 0, []int{1}, 2},
	} {
		var s standing
		var best []int
		for i, v := range c.values {
			if s.add(i+1, Metric{Value: v, Higher: c.higher}, c.minDelta) {
				best = append(best, i+1)
			}
		}
		if !slices.Equal(best, c.best) || s.Patient != c.patient {
			t.Errorf("%+v: best at %v, patient %d", c, best, s.Patient)
		}
		if b, err := json.Marshal(s); err != nil {
			t.Errorf("%s, %v", b, err)
		}
	}
}

// TestBestAndLast: Out/best has the weights of the best evaluation, whatever
// came after, and a run that resumes knows how good they were.
func TestBestAndLast(t *testing.T) {
	for _, numRanks := range []int{1, 3} {
		f := newFitting(t)
		scores := metricsOf(map[int]float64{3: 0.5, 6: 0.9, 9: 0.7, 12: 0.8, 15: 0.85, 18: 0.95}, true)
		steps := 12
		f.set = func(rank int, task *Task[points], o *Options) {
			scores(rank, task, o)
			o.Best, o.SaveEvery, o.Steps, o.Config = true, 3, steps, []byte("steps = 12\n")
			task.Files = func(w *checkpoint.Writer) error { return w.WriteFile("labels.txt", []byte("a\nb\n")) }
		}
		if _, err := f.run(t, numRanks); err != nil {
			t.Fatal(err)
		}
		best := func(want int) *checkpoint.Checkpoint {
			t.Helper()
			ck, damaged, err := checkpoint.Latest(t.Context(), storage.Dir(BestDir(f.out)))
			if err != nil || len(damaged) > 0 || ck.Step != want {
				t.Fatalf("the best is %+v, %v, %v, want step %d", ck, damaged, err, want)
			}
			return ck
		}
		ck := best(6)
		if sectionOf(t, ck.Path, checkpoint.Model) != modelFile(t, f.out, 6) || modelFile(t, f.out, 6) == modelFile(t, f.out, 12) {
			t.Error("the best weights are not those of step 6")
		}
		if string(fileOf(t, ck.Path, "labels.txt")) != "a\nb\n" || ck.Manifest().Section(checkpoint.Optimizer) != nil {
			t.Errorf("the best has files %v", ck.Files)
		}
		if p, err := ck.ReadProgress(); err != nil || p.Task != "fit" || p.Step != 6 {
			t.Errorf("progress %+v, %v", p, err)
		}
		if got := f.log.finish.Metrics.String(); got != "score 0.8, size 25" {
			t.Errorf("the last evaluation is %s", got)
		}
		if b := f.log.finish.Best; b == nil || b.Step != 6 || b.Path != BestDir(f.out) || b.Metric.String() != "score 0.9" {
			t.Errorf("the best is reported as %+v", b)
		}
		if got := string(fileOf(t, f.out, settingsFile)); got != "steps = 12\n" {
			t.Errorf("config.toml is %q", got)
		}
		// A worse one does not take its place after a resume, a better one does.
		steps = 15
		if _, err := f.run(t, numRanks); err != nil {
			t.Fatal(err)
		}
		best(6)
		steps = 18
		if _, err := f.run(t, numRanks); err != nil {
			t.Fatal(err)
		}
		best(18)
		if entries, err := os.ReadDir(BestDir(f.out)); err != nil || len(entries) != 1 {
			t.Errorf("the best's directory has %v, %v", entries, err)
		}
		// A run that was set back does its best again, over what is there.
		for _, step := range []int{18, 15} {
			if err := os.RemoveAll(checkpoint.Path(f.out, step)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.run(t, numRanks); err != nil {
			t.Fatal(err)
		}
		best(18)
	}
}

func fileOf(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEarlyStop: patience is counted through a stop and a resume, and a run that
// ended early stays so.
func TestEarlyStop(t *testing.T) {
	scores := metricsOf(map[int]float64{3: 5, 6: 4, 9: 4, 12: 4.5, 15: 4.2, 18: 1}, false)
	whole := newFitting(t)
	whole.set = func(rank int, task *Task[points], o *Options) {
		scores(rank, task, o)
		o.Steps, o.Patience = 30, 3
	}
	if _, err := whole.run(t, 2); err != nil {
		t.Fatal(err)
	}
	if n := len(whole.log.losses); n != 15 || whole.log.finish.Steps != 15 || !slices.Equal(whole.log.saved, []int{5, 10, 15}) {
		t.Errorf("%d steps, saved %v, finish %+v", n, whole.log.saved, whole.log.finish)
	}
	if n := whole.log.notices; len(n) != 1 || !strings.Contains(n[0], "step 15 of 30 is the last: 3 evaluations were no better than that of step 6, score 4") {
		t.Errorf("notices %q", n)
	}
	if _, err := whole.run(t, 2); err != nil {
		t.Fatal(err)
	}
	if n := whole.log.notices; len(whole.log.losses) != 0 || len(n) != 1 || !strings.Contains(n[0], "ended early at step 15 of 30") {
		t.Errorf("again: %d steps, notices %q", len(whole.log.losses), n)
	}

	parts := newFitting(t)
	for _, steps := range []int{9, 30} { // resumed in the middle of its patience
		parts.set = func(rank int, task *Task[points], o *Options) {
			scores(rank, task, o)
			o.Steps, o.Patience = steps, 3
		}
		if _, err := parts.run(t, 2); err != nil {
			t.Fatal(err)
		}
	}
	if at := parts.log.finish.Steps; at != 15 {
		t.Errorf("in two parts the run ended at step %d", at)
	}
}

// TestPlateau: the learning rate falls when nothing gets better, and a run that
// resumes in between goes on counting.
func TestPlateau(t *testing.T) {
	scores := metricsOf(map[int]float64{3: 5, 6: 5, 9: 5, 12: 5, 15: 4, 18: 4}, false)
	rates := make([]float64, 2)
	fit := func(out string, steps int) *log {
		t.Helper()
		f := newFitting(t)
		f.out = out
		f.set = func(rank int, task *Task[points], o *Options) {
			scores(rank, task, o)
			opt := kept(task)
			task.Plateau = &optim.PlateauOptions{Factor: 0.5, Patience: 1}
			evaluate := task.Evaluate
			task.Evaluate = func(ctx context.Context, model any) (Metrics, error) {
				rates[rank] = (*opt).Groups()[0].LR() // of the steps since the last evaluation
				return evaluate(ctx, model)
			}
			o.Steps = steps
		}
		if _, err := f.run(t, 2); err != nil {
			t.Fatal(err)
		}
		return f.log
	}
	whole, parts := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "parts")
	want := fit(whole, 18)
	if len(want.notices) != 1 || want.notices[0] != "step 9: nothing gets better, the learning rate is now 0.01" || rates[0] != 0.01 || rates[1] != 0.01 {
		t.Errorf("notices %q, rates %v", want.notices, rates)
	}
	first := fit(parts, 6) // one of two without a better one
	rest := fit(parts, 18)
	maps.Copy(first.losses, rest.losses)
	if !maps.Equal(first.losses, want.losses) || len(rest.notices) != 1 {
		t.Errorf("in two parts: losses %v, want %v; notices %q", first.losses, want.losses, rest.notices)
	}
	f := newFitting(t)
	f.set = func(_ int, task *Task[points], _ *Options) {
		task.Plateau, task.Schedule = &optim.PlateauOptions{}, optim.StepLR(1, 1)
	}
	if _, err := f.run(t, 1); err == nil || !strings.Contains(err.Error(), "a Schedule or a Plateau, not both") {
		t.Errorf("both: %v", err)
	}
}

// TestProof: a run through crashes, stops and other numbers of ranks takes each
// sample in its turn, which its logs prove.
func TestProof(t *testing.T) {
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 1))
	f := newFitting(t)
	crash := errors.New("a crash")
	for attempt, ranks := range []int{1, 2, 4, 3, 2, 1, 4} {
		at := 4 + 5*attempt + r.IntN(5)
		last := attempt == 6
		f.set = func(rank int, task *Task[points], o *Options) {
			o.Steps, o.SaveEvery = 40, 3
			if attempt%2 == 1 {
				o.SaveDeadline = -1 // it goes on from the last checkpoint, and not where it failed
			}
			loss, opt := task.Loss, kept(task)
			task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
				if rank == ranks-1 && (*opt).NumSteps() == at && !last {
					c.Fail(crash)
				}
				return loss(c, model, p)
			}
		}
		told, err := f.run(t, ranks)
		if last {
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !errors.Is(told[ranks-1], crash) {
			t.Fatalf("attempt %d on %d ranks: %v", attempt, ranks, err)
		}
		for rank, err := range told {
			if err == nil || !strings.Contains(err.Error(), crash.Error()) {
				t.Errorf("rank %d does not know why: %v", rank, err)
			}
		}
	}
	report, err := data.CheckOrder(filepath.Join(f.out, data.OrderDir), data.CheckOptions{Steps: 40})
	if err != nil {
		t.Fatal(err)
	}
	if report.Err() != nil || report.Steps != 40 || report.Samples != 40*24 || !report.Once || !report.Ended || len(report.Redone) == 0 {
		t.Errorf("%v\n%v", report.Err(), report)
	}
}

// TestResumeIsExact: also what is random in a pass is as if the run had not
// stopped, and other ranks come to nearly the same.
func TestResumeIsExact(t *testing.T) {
	whole := newFitting(t)
	if _, err := whole.run(t, 2); err != nil {
		t.Fatal(err)
	}
	want := whole.log.losses
	if err := os.RemoveAll(checkpoint.Path(whole.out, 12)); err != nil {
		t.Fatal(err)
	}
	if _, err := whole.run(t, 2); err != nil {
		t.Fatal(err)
	}
	rest := maps.Clone(want)
	maps.DeleteFunc(rest, func(step int, _ float64) bool { return step <= 10 })
	if !maps.Equal(whole.log.losses, rest) {
		t.Errorf("losses %v after a resume, want %v", whole.log.losses, rest)
	}
}

// TestReplacedSamples: samples that cannot be made are counted over all ranks,
// and the logs still prove the order.
func TestReplacedSamples(t *testing.T) {
	f := newFitting(t)
	f.skip = true
	f.get = func(_ int, key data.Key) error {
		if key.Index%10 == 3 {
			return errors.New("torn")
		}
		return nil
	}
	counts := map[int]int{}
	f.set = func(_ int, _ *Task[points], o *Options) { o.Steps, o.SaveEvery = 25, 0 }
	f.onStep = func(s Step) { counts[s.Step] = s.Replaced }
	if _, err := f.run(t, 3); err != nil {
		t.Fatal(err)
	}
	if counts[25] != 60 || counts[1] > counts[2] { // 25 · 24 samples are 6 epochs of 100
		t.Errorf("replaced: %v", counts)
	}
	report, err := data.CheckOrder(filepath.Join(f.out, data.OrderDir), data.CheckOptions{Steps: 25})
	if err != nil || report.Err() != nil || report.Replaced != 60 {
		t.Errorf("%v, %v", err, report)
	}
}

// TestBuffers: running statistics are each rank's own after a pass; evaluated are
// those that are saved, on all ranks.
func TestBuffers(t *testing.T) {
	f := newFitting(t)
	seen := make([]map[int][]float32, 2)
	f.set = func(rank int, task *Task[points], o *Options) {
		b := &nn.Build{Generator: tensor.NewGenerator(3)}
		m := nn.NewSequential(nn.NewLinear(b, 1, 4), nn.NewBatchNorm1d(b, 4, nn.BatchNormOptions{}), nn.NewLinear(b, 4, 1))
		task.Model, task.Optimizer = m, sgd(0.01)
		opt := kept(task)
		seen[rank] = map[int][]float32{}
		task.Evaluate = func(context.Context, any) (Metrics, error) {
			seen[rank][(*opt).NumSteps()] = slices.Clone(nn.Buffers(m)[0].Data.Float32s())
			return Metrics{{Name: "x"}}, nil
		}
	}
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	for step, want := range seen[0] {
		if got := seen[1][step]; !slices.Equal(got, want) {
			t.Errorf("step %d: rank 1 evaluates with %v, rank 0 with %v", step, got, want)
		}
	}
	if len(seen[0]) != 4 || slices.Equal(seen[0][3], seen[0][6]) {
		t.Errorf("statistics %v", seen[0])
	}
}

// TestUnevenRanks: ranks among which the samples of a step cannot be shared out
// evenly come to what one rank does, also in several passes.
func TestUnevenRanks(t *testing.T) {
	plain := func(_ int, task *Task[points], o *Options) {
		m := nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(3)}, 1, 1)
		task.Model, task.Optimizer = m, sgd(0.3)
		o.Steps, o.Clip = 20, 1
	}
	one := newFitting(t)
	one.batch, one.set = 22, plain
	if _, err := one.run(t, 1); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ ranks, passes int }{{3, 1}, {4, 1}, {3, 2}, {5, 2}} {
		f := newFitting(t)
		f.batch = 22 / c.passes
		f.set = func(rank int, task *Task[points], o *Options) {
			plain(rank, task, o)
			o.Accumulate, o.Batch = c.passes, 22
		}
		if _, err := f.run(t, c.ranks); err != nil {
			t.Fatal(err)
		}
		for step, want := range one.log.losses {
			if got := f.log.losses[step]; !(math.Abs(got-want) <= 1e-4*want+1e-7) {
				t.Errorf("%+v, step %d: loss %v, alone %v", c, step, got, want)
			}
		}
		if report, err := data.CheckOrder(filepath.Join(f.out, data.OrderDir), data.CheckOptions{Steps: 20}); err != nil || report.Err() != nil {
			t.Errorf("%+v: %v, %v", c, err, report)
		}
	}
}

// TestErrorOfOneRank: wherever it comes from, all ranks end, and say whose it is
// and why.
func TestErrorOfOneRank(t *testing.T) {
	torn := errors.New("the file torn.jpeg is cut off")
	for what, set := range map[string]func(rank int, task *Task[points]){
		"sample": nil,
		"feed": func(rank int, task *Task[points]) {
			if rank == 1 {
				task.Feed = func(context.Context, data.LoaderState) (Feed[points], error) { return nil, torn }
			}
		},
		"evaluation": func(rank int, task *Task[points]) {
			task.Evaluate = func(context.Context, any) (Metrics, error) {
				if rank == 1 {
					return nil, torn
				}
				return Metrics{{Name: "x"}}, nil
			}
		},
		"files": func(rank int, task *Task[points]) {
			task.Files = func(*checkpoint.Writer) error { return torn }
		},
		"finish": func(rank int, task *Task[points]) {
			task.Finish = func(context.Context, any) (Ending, error) {
				if rank == 0 {
					return Ending{}, torn
				}
				return Ending{}, nil
			}
		},
		"panic": func(rank int, task *Task[points]) {
			loss := task.Loss
			task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
				if rank == 1 {
					c.Fail(torn)
				}
				return loss(c, model, p)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFitting(t)
			f.quiet = true
			if set != nil {
				f.set = func(rank int, task *Task[points], o *Options) { set(rank, task) }
			} else {
				f.get = func(rank int, key data.Key) error {
					if rank == 1 && key.Epoch == 1 {
						return torn
					}
					return nil
				}
			}
			culprit := 1
			if what == "files" || what == "finish" {
				culprit = 0
			}
			began := time.Now()
			told, _ := f.run(t, 3)
			for rank, err := range told {
				if err == nil || !strings.Contains(err.Error(), torn.Error()) || !strings.Contains(err.Error(), "train fit: ") {
					t.Errorf("rank %d is told %v", rank, err)
				} else if rank != culprit && !strings.Contains(err.Error(), fmt.Sprintf("rank %d", culprit)) {
					t.Errorf("rank %d does not say whose it is: %v", rank, err)
				}
			}
			if d := time.Since(began); d > 30*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// pair is a model with two inputs.
type pair struct{ A, B *nn.Linear }

func (m *pair) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	return []*tensor.Tensor{c.Call(m.A, x[0]).Add(c.Call(m.B, x[1]))}
}

// TestModuleN: a model of several inputs is trained like any other, by epochs.
func TestModuleN(t *testing.T) {
	f := newFitting(t)
	f.set = func(rank int, task *Task[points], o *Options) {
		m := &pair{nn.NewLinear(&nn.Build{}, 1, 1), nn.NewLinear(&nn.Build{}, 1, 1)}
		task.Model, task.Optimizer = m, sgd(0.1)
		task.Schedule = optim.StepLR(30, 0.5)
		task.Loss = func(c *nn.Ctx, model any, p points) *tensor.Tensor {
			return tensor.MSE(c.CallN(model.(nn.ModuleN), p.x, p.x)[0], p.y)
		}
		o.Steps, o.Epochs, o.Accumulate, o.DType = 0, 10, 2, "float32"
	}
	f.batch = 12 // a pass; a step has 24
	f.set = func(set func(int, *Task[points], *Options)) func(int, *Task[points], *Options) {
		return func(rank int, task *Task[points], o *Options) { set(rank, task, o); o.Batch = 24 }
	}(f.set)
	if _, err := f.run(t, 2); err != nil {
		t.Fatal(err)
	}
	// ⌈10 epochs · 100 samples / 24⌉
	if n := len(f.log.losses); n != 42 || f.log.losses[42] > 0.1*f.log.losses[1] {
		t.Errorf("%d steps, losses from %v to %v", n, f.log.losses[1], f.log.losses[42])
	}
	p := func() checkpoint.Progress {
		ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(f.out))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ck.ReadProgress()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}()
	if p.Epoch != 10 {
		t.Errorf("the run is in epoch %d", p.Epoch)
	}
}

func TestBadOptions(t *testing.T) {
	good := Options{Out: "x", Steps: 3}
	for _, c := range []struct {
		set  func(o *Options)
		want string
	}{
		{func(o *Options) {}, ""},
		{func(o *Options) { o.Steps, o.Epochs, o.Batch = 0, 2.5, 3 }, ""},
		{func(o *Options) { o.Out = " " }, "Out must name"},
		{func(o *Options) { o.Steps = 0 }, "want either Steps or Epochs"},
		{func(o *Options) { o.Epochs = 1 }, "want either Steps or Epochs"},
		{func(o *Options) { o.Steps = -1 }, "neither may be negative"},
		{func(o *Options) { o.Steps, o.Epochs = 0, math.NaN() }, "neither may be negative"},
		{func(o *Options) { o.Steps, o.Epochs = 0, 1 }, "Task.Samples and Batch must be at least 1"},
		{func(o *Options) { o.Steps, o.Epochs, o.Batch = 0, 1e30, 1 }, "steps, want at most"}, // was one step
		{func(o *Options) { o.Clip = math.NaN() }, "none may be negative"},
		{func(o *Options) { o.Patience = -1 }, "none may be negative"},
		{func(o *Options) { o.Patience = 1 }, "Patience 1 counts evaluations"},
		{func(o *Options) { o.Patience, o.EvalEvery = 1, 1 }, ""},
		{func(o *Options) { o.DType = "float16" }, `DType is "float16", want float32 or bfloat16`},
		{func(o *Options) { o.NaN = "hide" }, `NaN is "hide", want stop or skip`},
	} {
		o := good
		c.set(&o)
		got, err := o.resolve("fit", 10)
		if c.want == "" && (err != nil || got.Steps < 1 || got.Accumulate != 1 || got.Keep != 2 || got.NaN != nanStop) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "train fit: ")) {
			t.Errorf("%+v: %+v, %v; want %q", o, got, err, c.want)
		}
	}
	f := newFitting(t)
	f.set = func(_ int, task *Task[points], _ *Options) { task.Loss = nil }
	if _, err := f.run(t, 1); err == nil || !strings.Contains(err.Error(), "a task needs Model, Loss, Optimizer and Feed") {
		t.Errorf("a task without loss: %v", err)
	}
}

// TestAnotherTask: the run of one recipe is not gone on with by another.
func TestAnotherTask(t *testing.T) {
	f := newFitting(t)
	if _, err := f.run(t, 1); err != nil {
		t.Fatal(err)
	}
	f.set = func(_ int, task *Task[points], _ *Options) { task.Name = "other" }
	if _, err := f.run(t, 1); err == nil || !strings.Contains(err.Error(), "is of a train fit; give another --out") {
		t.Errorf("the error is %v", err)
	}
}

// TestClaim: a run whose directory is another's ends at once; one that was
// started again waits for what is left of its former ranks.
func TestClaim(t *testing.T) {
	f := newFitting(t)
	release, err := checkpoint.Claim(f.out)
	if err != nil {
		t.Fatal(err)
	}
	var busy *storage.BusyError
	told, _ := f.run(t, 2)
	if !errors.As(told[0], &busy) || told[1] == nil || !strings.Contains(told[1].Error(), "another run is under way in "+f.out) {
		t.Errorf("told %v", told)
	}
	t.Setenv(string(envvar.RestartCount), "1")
	time.AfterFunc(3*claimInterval, release)
	if _, err := f.run(t, 2); err != nil {
		t.Errorf("started again: %v", err)
	}
}
