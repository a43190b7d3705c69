// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
	"github.com/cohort-ml/cohort/tensor"
)

// PipelineConfig says how [Parallelize] cuts a model into stages along the axis pp, and in which
// order the stages work. A stage is a range of the calls that the model makes: it begins at the
// first call of a module, and ends where the next stage begins. The code of the model stays as it
// is.
type PipelineConfig struct {
	// Schedule is a name of package schedule: "gpipe", "1f1b", "interleaved" and others. "" is
	// "1f1b".
	Schedule string
	// NumStages is the number of stages. 0 is as many as the schedule is made for: one a rank,
	// or two.
	NumStages int
	// Starts are the names in the model of the modules at which the stages 1, 2, … begin, such as
	// "transformer.h.2".
	Starts []string
	// Layers are the numbers of layers of the stages. The layers are the elements of the longest
	// list of modules in the model. What is before the first layer belongs to stage 0, and what is
	// behind the last layer to the last stage. Without Starts, Layers and Measure, the stages have
	// as many layers each as the numbers allow.
	Layers []int
	// Measure has rank 0 run the model on Example, and cuts it between layers so that the slowest
	// stage takes as little time as possible.
	Measure bool
	// Example are inputs of the model for one microbatch. Their shapes count alone, except with
	// Measure, so they may be on tensor.Meta. It is needed: what a stage reads is found by a dry
	// run.
	Example []*tensor.Tensor
}

// pipeline is the part of a [Parallel] for the axis pp. It runs the stages of this rank, and
// passes over the calls of the others for their shapes alone.
type pipeline struct {
	p      *Parallel
	config PipelineConfig
	all    ranks       // of the axis pp
	group  *dist.Group // of these ranks
	rank   int         // on the axis
	ranks  int

	starts []pipeStart // of the stages 1, 2, …
	paths  map[any]string
	open   map[any]bool // the modules around a cut, whose calls lie in several stages
	root   *pipelineRoot

	first     *pipePlan // of the example
	plans     map[string]*pipePlan
	planner   *planner // of the dry run under way
	pass      *pipePass
	probe     *pipeProbe
	form      *schedule.Schedule // of some step: where the stages lie
	schedules map[int]*schedule.Schedule
	tied      []*tiedParameter
	// watch is told when an action begins, and what it returns when the action has ended, with the
	// time for which it waited for other ranks. It is nil for nobody.
	watch   func(a schedule.Action) (ended func(waited time.Duration))
	stepped bool // a step has been done, and the types of all its passes been checked
}

// pipeStart is where a stage begins.
type pipeStart struct {
	path   string
	module any
}

// newPipeline makes the part of a Parallel for the axis pp. Measure runs the model on rank 0 and
// tells the others; nothing else communicates.
func newPipeline(ctx context.Context, p *Parallel, config PipelineConfig) (*pipeline, error) {
	axis, err := p.mesh.Sub(pipelineAxis)
	if err != nil {
		return nil, err
	}
	group := axis.World()
	q := &pipeline{
		p: p, config: config, all: ranks{axis, pipelineAxis}, group: group, rank: group.Rank(), ranks: group.Size(), paths: map[any]string{},
		open: map[any]bool{}, plans: map[string]*pipePlan{}, schedules: map[int]*schedule.Schedule{},
	}
	q.root = &pipelineRoot{q}
	if q.config.Schedule == "" {
		q.config.Schedule = "1f1b"
	}
	if len(config.Example) == 0 {
		return nil, stageError(-1, "there is no example: set PipelineConfig.Example to the inputs of the model for one microbatch, whose values do not matter")
	}
	for path, m := range nn.Modules(p.Model) {
		if _, has := q.paths[m]; !has {
			q.paths[m] = path
		}
	}
	if err := q.settleNumStages(); err != nil {
		return nil, err
	}
	paths, err := q.chooseStarts(ctx)
	if err != nil {
		return nil, err
	}
	return q, q.setStarts(paths)
}

// settleNumStages asks the schedule how many stages there are.
func (q *pipeline) settleNumStages() error {
	// Any number of microbatches tells the number of stages; whether a step has enough is seen then.
	s, err := schedule.New(q.config.Schedule, q.ranks, q.config.NumStages, q.ranks*max(1, q.config.NumStages)*2)
	if err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	q.config.NumStages, q.form = s.NumStages, s
	return nil
}

// setStarts looks up where the stages begin.
func (q *pipeline) setStarts(paths []string) error {
	if want := q.config.NumStages - 1; len(paths) != want {
		return stageError(-1, "%d stages begin at %d modules besides the beginning of the model, and PipelineConfig.Starts names %d: %v", want+1, want, len(paths), paths)
	}
	byPath := map[string]any{}
	var known []string
	for path, m := range nn.Modules(q.p.Model) {
		if path != "" && callable(m) {
			byPath[path] = m
			known = append(known, path)
		}
	}
	for i, path := range paths {
		m := byPath[path]
		if m == nil {
			return stageError(i+1, "it begins at %q, and the model has no module of that name that is called%s", path, nearestOf(path, known))
		}
		if slices.ContainsFunc(q.starts, func(s pipeStart) bool { return s.module == m }) {
			return stageError(i+1, "it begins at %s, where another stage begins as well", path)
		}
		q.starts = append(q.starts, pipeStart{path, m})
	}
	// The modules around a cut.
	for _, s := range q.starts {
		for path, m := range nn.Modules(q.p.Model) {
			if path == "" || strings.HasPrefix(s.path, path+".") {
				q.open[m] = true
			}
		}
	}
	for i, s := range q.starts {
		if q.open[s.module] && callable(s.module) {
			return stageError(i+1, "it begins at %s, and a later stage inside of that module: begin it at the module that %s calls first", s.path, s.path)
		}
	}
	return nil
}

// startOf returns the stage that begins at a module, and 0 for none.
func (q *pipeline) startOf(module any) int {
	return 1 + slices.IndexFunc(q.starts, func(s pipeStart) bool { return s.module == module })
}

// pathOf returns the name of a module for errors.
func (q *pipeline) pathOf(module any) string {
	if path := q.paths[module]; path != "" {
		return path
	}
	return fmt.Sprintf("a %T", module)
}

// scheduleOf returns the schedule of a step.
func (q *pipeline) scheduleOf(numMicrobatches int) (*schedule.Schedule, error) {
	if s := q.schedules[numMicrobatches]; s != nil {
		return s, nil
	}
	s, err := schedule.New(q.config.Schedule, q.ranks, q.config.NumStages, numMicrobatches)
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	q.schedules[numMicrobatches] = s
	return s, nil
}

// rankOf returns the rank of a stage on the axis.
func (q *pipeline) rankOf(stage int) int { return q.form.RankOf(stage) }

// isMine reports whether a stage is one of this rank.
func (q *pipeline) isMine(stage int) bool { return q.rankOf(stage) == q.rank }

func (*pipeline) axis() string { return pipelineAxis }

// lay runs the model on the example for shapes alone, and says which parameters are away.
func (q *pipeline) lay() (err error) {
	if q.first, err = q.dryRun(); err != nil {
		return err
	}
	for _, p := range nn.Parameters(q.p.Model) {
		stages := q.first.reads[p]
		if len(stages) == 0 {
			stages = []int{q.stageAround(p.Name())} // that no module reads
		}
		slices.Sort(stages)
		var holders []int // ranks, in the order of the stages
		for _, s := range stages {
			if r := q.rankOf(s); !slices.Contains(holders, r) {
				holders = append(holders, r)
			}
		}
		l := q.p.layOf(p)
		l.away = !slices.Contains(holders, q.rank)
		l.second = !l.away && holders[0] != q.rank
		if len(holders) > 1 {
			if p.Sparse && !p.Frozen {
				return stageError(stages[len(stages)-1], "it reads %s, which stage %d reads too, and the gradient of which is sparse: clear Sparse of the parameter", p.Name(), stages[0])
			}
			q.tied = append(q.tied, &tiedParameter{param: p, holders: holders})
		}
	}
	return nil
}

// dryRun runs the model on the example for shapes alone.
func (q *pipeline) dryRun() (plan *pipePlan, err error) {
	c := nn.Training(context.Background(), nn.WithGenerator(tensor.NewGenerator(0)))
	defer c.Close()
	defer c.Recover(&err)
	q.probe = &pipeProbe{dry: true}
	defer func() { q.probe = nil }()
	if _, ok := q.p.Model.(nn.Module); ok && len(q.config.Example) != 1 {
		return nil, stageError(-1, "the model, a %T, has one input, and PipelineConfig.Example has %d", q.p.Model, len(q.config.Example))
	}
	c.UntilStop(func() { q.callModel(q.around(c), q.config.Example) })
	if q.probe.plan == nil {
		return nil, errors.New("pipeline: the model was not called in the dry run")
	}
	return q.probe.plan, nil
}

// shapeOf returns the shape of what modules read of a parameter: of this rank's part of it, before
// fsdp has cut that.
func (q *pipeline) shapeOf(p *nn.Parameter) []int {
	l := q.p.layOf(p)
	if l == nil {
		return p.Data().Shape()
	}
	shape, err := mesh.LocalShape(l.shape, q.p.pass.Shape(), q.p.placements(l), q.p.pass.Coordinate())
	if err != nil {
		return p.Data().Shape()
	}
	return shape
}

// stageAround returns the stage that calls the module which has an entry of the state.
func (q *pipeline) stageAround(name string) int {
	for _, call := range q.first.calls {
		if path := q.paths[call.module]; path != "" && strings.HasPrefix(name, path+".") {
			return call.stage
		}
	}
	return 0
}

// shareBuffers gives the ranks of all stages the buffers of the stage whose module has them.
func (q *pipeline) shareBuffers(ctx context.Context) error {
	of := make([][]*nn.Buffer, q.ranks) // by rank
	for _, b := range nn.Buffers(q.p.Model) {
		has := func(call pipeCall) bool { return strings.HasPrefix(b.Name(), call.path+".") }
		stage := 0
		if i := slices.IndexFunc(q.first.calls, has); i >= 0 {
			stage = q.first.calls[i].stage
		}
		of[q.rankOf(stage)] = append(of[q.rankOf(stage)], b)
	}
	for rank, buffers := range of {
		for _, s := range syncsOf(buffers) {
			if err := s.broadcastFrom(ctx, q.all, rank); err != nil {
				return fmt.Errorf("pipeline: %w", err)
			}
		}
	}
	return nil
}

// agreed is what the ranks compare.
func (q *pipeline) agreed() string {
	var starts []string
	for _, s := range q.starts {
		starts = append(starts, s.path)
	}
	return fmt.Sprintf("a pipeline of %d stages by %s, which begin at %v\n%s", q.config.NumStages, q.config.Schedule, starts, q.first.text())
}

// join has nothing to make: the axis has its group.
func (q *pipeline) join(context.Context) error { return nil }

// String says what the axis splits.
func (q *pipeline) String() string {
	var starts []string
	for _, s := range q.starts {
		starts = append(starts, s.path)
	}
	return fmt.Sprintf("%d stages by %s, cut at %s", q.config.NumStages, q.config.Schedule, strings.Join(starts, ", "))
}
