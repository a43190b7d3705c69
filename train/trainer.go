// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/internal/peak"
	"github.com/cohort-ml/cohort/monitor/trace"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// trainer is one rank's part of a run.
type trainer[B any] struct {
	task   Task[B]
	o      Options
	axes   Axes
	report Reporter

	model   parallel.Strategy // the task's model, as it is spread
	opt     optim.Optimizer   // of the model's parameters as this rank holds them
	plateau *optim.Plateau    // of opt; nil for none
	params  []*nn.Parameter   // of the optimizer
	devices []tensor.Device   // of the parameters that are here; passes make new values on the first
	feed    Feed[B]
	order   *orderLog
	vote    *vote

	numParams    int  // of the whole model
	hasBuffers   bool // the model has
	sharded      bool // see isSharded
	step         int  // steps done
	replaced     int  // samples of all ranks, in this process's steps
	skipped      int  // steps of this process whose update was left out
	skippedInRow int
	metrics      Metrics // of the last evaluation
	evaluated    *rated  // its first metric
	standing     standing
	toldWaiting  bool // see tellWaiting
	shortPass    bool // the last pass took fewer samples than Options.Batch says

	islands      *parallel.DiLoCo // the model, if it trains on islands
	islandsBegun time.Time

	saves     saves
	emergency emergency
	recorder  recorder
	provers   provers
	rates     peak.Rates      // of this rank's threads
	profiler  *trace.Profiler // nil for no trace
	ledger    *ledger         // nil before the first step
	historian *historian      // of rank 0; nil if the run has no history
}

// Run trains a task on all ranks of a group, each of which calls it with the
// same task and options. Report is used on rank 0; nil is [Discard].
//
// When the run's directory has a checkpoint, Run goes on from it as if it had
// never stopped, also on another number of ranks if Feed can: the same call
// begins, resumes, and goes on after a restart by the launcher. When ctx ends,
// it saves a checkpoint and returns an error that wraps [ErrStopped]. Where no step is
// done yet there is nothing to save: it returns at once, and what is under way ends by
// itself.
func Run[B any](ctx context.Context, group *dist.Group, task Task[B], o Options, report Reporter) error {
	report = reporterOf(group, report)
	err := begins(ctx, task.Name, report, func(ctx context.Context, report Reporter) error {
		return (&trainer[B]{task: task, o: o, report: report}).run(ctx, group)
	})
	if err != nil && !errors.Is(err, ErrStopped) {
		group.Fail(err) // the other ranks' errors tell why
	}
	return err
}

// reporterOf is who is told of a run on this rank.
func reporterOf(group *dist.Group, report Reporter) Reporter {
	if group.Rank() != 0 || report == nil {
		return Discard
	}
	return report
}

// run does the job.
func (r *trainer[B]) run(ctx context.Context, group *dist.Group) (err error) {
	if r.task.Model == nil || r.task.Loss == nil || r.task.Optimizer == nil || r.task.Feed == nil {
		return settled(r.errorf("a task needs Model, Loss, Optimizer and Feed"))
	}
	if r.task.Schedule != nil && r.task.Plateau != nil {
		return settled(r.errorf("a task has a Schedule or a Plateau, not both: each would overwrite the other's rates"))
	}
	if r.o, err = r.o.resolve(r.task.Name, r.task.Samples); err != nil {
		return settled(err)
	}
	if r.axes, err = r.task.Axes.resolve(group); err != nil {
		return settled(r.errorf("%w", err))
	}
	saved := r.o.From
	if saved == nil && !r.o.sought {
		if saved, err = findRun(ctx, group, r.task.Name, r.o.SaveTo, r.report.Notice); err != nil {
			return settled(err)
		}
	}
	again := replayOf(ctx)
	if again != nil {
		r.o.Best = false // which are not the checkpoint's
	}
	phaseOf(ctx).enter("joining the ranks")
	if again == nil {
		if err := r.sameBefore(ctx, saved); err != nil {
			return err
		}
	}
	if err := r.prepare(ctx, saved); err != nil {
		return err
	}
	defer r.closeIslands(ctx)
	if again == nil {
		r.findRates(ctx)
	}
	if err := r.startFeed(ctx, saved); err != nil {
		return err
	}
	defer r.feed.Close()
	if again != nil {
		return r.replay(ctx, again)
	}
	if r.axes.World.Rank() == 0 {
		release, err := claim(ctx, r.o.Out)
		if err != nil {
			return settled(r.errorf("checkpoints cannot be saved in %s: %w", r.o.Out, err))
		}
		defer release()
		if err := keepPlace(r.o.Out, r.o.SaveTo, saved == nil); err != nil {
			return settled(r.errorf("%w", err))
		}
	}
	if err := r.sameOrder(ctx); err != nil {
		return err
	}
	if err := r.writeSettings(); err != nil {
		return err
	}
	if err := r.openOrderLog(ctx); err != nil {
		return err
	}
	defer func() { r.order.close() }()
	r.provers = provers{prove: r.o.Prove, stop: r.o.Unproved == unprovedStop, notice: r.report.Notice}
	defer func() {
		r.recorder.writer.end() // of a run that has failed; else it has ended
		r.provers.close()
	}()
	defer r.closeSaves(ctx)
	if err := r.openSaves(ctx); err != nil {
		return err
	}
	if err := r.prepareEmergency(ctx); err != nil {
		return err
	}
	start := r.start(saved)
	if saved != nil {
		r.axes.World.Events().Emit(event.Event{Kind: event.Restart, Text: saved.Checkpoint.Path})
	}
	if r.axes.World.Rank() == 0 {
		defer r.keepHistory(start)()
	}
	r.report.Start(start)
	defer func() {
		if v := recover(); v != nil {
			r.rescue(ctx, fmt.Errorf("panic: %v", v))
			panic(v)
		}
	}()
	if err := r.toTheEnd(ctx); err != nil {
		return r.rescue(ctx, err)
	}
	return nil
}

// toTheEnd does the steps that are left, and ends the run.
func (r *trainer[B]) toTheEnd(ctx context.Context) error {
	if done := r.step >= r.o.Steps; done && !r.standing.Due {
		r.report.Notice(fmt.Sprintf("%s is complete at step %d: more %s go on, another %s starts afresh", r.o.Out, r.step, r.o.length, r.o.name("out")))
	} else if !done && r.standing.over(r.o.Patience) {
		r.report.Notice(fmt.Sprintf("%s ended early at step %d of %d: %s; without %s it goes on, another %s starts afresh",
			r.o.Out, r.step, r.o.Steps, r.standing.why(r.o.MinDelta), r.o.name("patience"), r.o.name("out")))
	} else if err := r.train(ctx); err != nil {
		return err
	}
	return r.finish(ctx)
}

// trainOf is what errors of a task begin with.
func trainOf(task string) string { return strings.TrimSpace("train " + task) }

// errorf makes an error that says whose it is.
func (r *trainer[B]) errorf(format string, args ...any) error {
	return fmt.Errorf(trainOf(r.task.Name)+": "+format, args...)
}

// prepare spreads the model over the ranks, and takes over what was saved.
func (r *trainer[B]) prepare(ctx context.Context, saved *SavedRun) (err error) {
	params := nn.Parameters(r.task.Model) // gives them their names
	r.numParams, r.hasBuffers = nn.NumParams(r.task.Model), len(nn.Buffers(r.task.Model)) > 0
	if e := r.task.Elsewhere; e != nil {
		r.numParams += e.NumParams()
		r.o.SaveDeadline = -1 // a rank alone has not the state of one step
		if saved == nil {
			if err := e.Anew(ctx); err != nil {
				return settled(r.errorf("%w", err))
			}
		}
	}
	if r.model, err = r.spread(ctx); err != nil {
		return err
	}
	if err := r.checkHooked(); err != nil {
		return settled(err)
	}
	if err := r.joinIslands(); err != nil {
		return err
	}
	r.sharded = isSharded(r.model)
	if err := r.makeOptimizer(ctx, params); err != nil {
		return settled(err)
	}
	if p := r.task.Plateau; p != nil {
		r.plateau = optim.ReduceLROnPlateau(r.opt, *p)
	}
	for _, g := range r.opt.Groups() {
		r.params = append(r.params, g.Params()...)
	}
	for _, p := range r.params {
		if d := p.Data().Device(); d != tensor.Meta && !slices.Contains(r.devices, d) {
			r.devices = append(r.devices, d)
		}
	}
	if len(r.devices) == 0 {
		r.devices = []tensor.Device{tensor.CPU()}
	}
	r.vote = newVote(r.axes, r.devices[0])
	if saved != nil {
		if err := r.load(ctx, saved); err != nil {
			return settled(err)
		}
		r.keptBest(ctx)
		if was := r.standing.Batch; was > 0 && r.o.Batch > 0 && was != r.o.Batch {
			r.report.Notice(fmt.Sprintf("a step takes %d samples from here on, %d before: the steps of the run are counted as if all had %d", r.o.Batch, was, r.o.Batch))
		}
	}
	r.standing.Batch = r.o.Batch
	return nil
}

// makeOptimizer makes the optimizer, and divides its state among the ranks if the options say so.
func (r *trainer[B]) makeOptimizer(ctx context.Context, params []*nn.Parameter) error {
	if !r.o.ZeRO1 {
		if r.opt = r.task.Optimizer(params); r.opt == nil {
			return r.errorf("Task.Optimizer returned nil, want an optimizer of the parameters")
		}
		return nil
	}
	switch r.model.(type) {
	case *parallel.DDP, *parallel.Single:
	default:
		return r.errorf("ZeRO1 divides the optimizer state of replicas, and the model is spread as %v: leave ZeRO1 (--zero1) out; fsdp divides the state too", r.model)
	}
	z, err := parallel.NewZeroRedundancyOptimizer(ctx, r.axes.World, params, r.task.Optimizer)
	if err != nil {
		return r.errorf("%w", err)
	}
	r.opt = z
	return nil
}

// generator is the source of random numbers of a pass, such as dropout's. It is a
// function of the seed, the step, the pass and the rank on the data axis: a run
// that resumes draws what it would have drawn, and ranks that take the same
// samples draw the same.
func (r *trainer[B]) generator(pass int) *tensor.Generator {
	// Seeds are near each other, and so are steps: the first must be far apart.
	seed := (uint64(r.o.Seed) + 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	for _, v := range [...]int{r.step, pass, r.axes.Data.Rank()} {
		seed = (seed ^ seed>>33 ^ uint64(v)) * 0xff51afd7ed558ccd
		seed = (seed ^ seed>>33) * 0xc4ceb9fe1a85ec53
	}
	return tensor.NewGenerator(int64(seed >> 1))
}

// start describes the run.
func (r *trainer[B]) start(saved *SavedRun) Start {
	s := Start{
		About: r.task.About, DType: r.o.DType, NumParams: r.numParams,
		Ranks: r.axes.World.Size(), Threads: tensor.NumThreads(), Transport: r.axes.World.Transport(), Interface: r.axes.World.Interface(),
		Strategy: r.strategy(), Sharding: r.sharding(), Memory: r.memory(), FirstStep: r.step, Steps: r.o.Steps,
	}
	if saved != nil {
		s.Resumed = saved.Checkpoint.Path
	}
	return s
}

// strategy says how the model and the state of its optimizer are spread.
func (r *trainer[B]) strategy() string {
	if z, ok := r.opt.(fmt.Stringer); ok {
		return fmt.Sprintf("%v, %v", r.model, z)
	}
	return r.model.String()
}

// finish says what there is, and where.
func (r *trainer[B]) finish(ctx context.Context) error {
	if err := r.endSaves(ctx); err != nil {
		return err
	}
	if err := r.order.end(); err != nil {
		return r.errorf("end of the run: %w", err)
	}
	if err := r.endProofs(ctx); err != nil {
		return r.errorf("%w", err)
	}
	f := Finish{Steps: r.step, Goodput: r.standing.Goodput, Metrics: r.metrics, Checkpoint: storage.At(r.o.SaveTo, checkpoint.StepName(r.step)), Out: r.o.Out}
	if s := r.standing; r.o.Best && s.Step > 0 && s.Step != r.step {
		f.Best = &Best{Step: s.Step, Metric: s.metric(), Path: r.bestPlace().String()}
	}
	if r.task.Finish != nil {
		var err error
		if f.Ending, err = r.task.Finish(ctx, r.model); err != nil {
			return r.errorf("end of the run: %w", err)
		}
	}
	r.report.Finish(f)
	// Nobody leaves before rank 0 has finished, which others would take for a failure.
	if err := r.axes.World.Barrier(ctx); err != nil {
		return r.errorf("end of the run: %w", err)
	}
	return nil
}
