// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// standing is the best evaluation of a run so far. It is saved with every
// checkpoint: a run that resumes does not take a worse model for a better one,
// nor begin to be patient anew.
type standing struct {
	Step    int     `json:"best_step"` // 0 before the first evaluation that is a number
	Value   float64 `json:"best_value"`
	Patient int     `json:"without_better"` // evaluations since one that was better by MinDelta
	Mark    float64 `json:"mark"`           // that one's value
	Marked  bool    `json:"marked"`
	MarkAt  int     `json:"mark_step,omitempty"` // and its step; 0 in older checkpoints
	Metric  string  `json:"metric,omitempty"`    // what Value is of, for people
	Unit    string  `json:"unit,omitempty"`
	Due     bool    `json:"due,omitempty"` // the evaluation of the checkpoint's step was cut short

	Batch   int                 `json:"batch,omitempty"`   // Options.Batch
	Plateau *optim.PlateauState `json:"plateau,omitempty"` // that of the task
	Goodput *Goodput            `json:"goodput,omitempty"` // up to the step
}

// rated is what an evaluation came to.
type rated struct {
	Metric
	step int
}

// metric is the best value.
func (s standing) metric() Metric { return Metric{Name: s.Metric, Value: s.Value, Unit: s.Unit} }

// over reports whether there were more evaluations without a better one than a
// run is to wait for.
func (s standing) over(patience int) bool { return patience > 0 && s.Patient >= patience }

// why says what patience has ended by.
func (s standing) why(minDelta float64) string {
	mark, at := s.metric(), s.Step
	if s.MarkAt > 0 {
		mark.Value, at = s.Mark, s.MarkAt
	}
	better := "no better than"
	if minDelta > 0 {
		better = fmt.Sprintf("not better by more than %v than", minDelta)
	}
	return fmt.Sprintf("%d evaluations were %s that of step %d, %v", s.Patient, better, at, mark)
}

// add takes an evaluation and reports whether it is the best of all.
func (s *standing) add(step int, m Metric, minDelta float64) (best bool) {
	better := func(than, by float64) bool { // NaN never is
		if m.Higher {
			return m.Value > than+by
		}
		return m.Value < than-by
	}
	s.Patient++
	if isFinite(m.Value) && (!s.Marked || better(s.Mark, minDelta)) {
		s.Patient, s.Mark, s.Marked, s.MarkAt = 0, m.Value, true, step
	}
	if isFinite(m.Value) && (s.Step == 0 || better(s.Value, 0)) {
		s.Step, s.Value, s.Metric, s.Unit = step, m.Value, m.Name, m.Unit
		return true
	}
	return false
}

// evaluate has the task say how good the model is, and keeps the best one.
func (r *trainer[B]) evaluate(ctx context.Context) error {
	r.standing.Due = false
	if r.task.Evaluate == nil {
		return nil
	}
	if err := r.sound(ctx); err != nil {
		return err
	}
	// Running statistics are each rank's own after a pass. What is evaluated is
	// what is saved: rank 0's.
	if err := r.model.SyncBuffers(ctx); err != nil {
		return r.errorf("evaluate after step %d: %w", r.step, err)
	}
	metrics, err := r.task.Evaluate(ctx, r.model)
	if errors.Is(err, errCut) {
		r.report.Notice(fmt.Sprintf("step %d: %v, to stop", r.step, err))
		r.standing.Due = true
		return nil
	}
	if err == nil && len(metrics) == 0 && r.axes.World.Rank() == 0 {
		if err = errors.New("Task.Evaluate returned no metric"); r.o.EvalEvery == 0 {
			// The only evaluation: what was trained is worth saving all the same.
			r.report.Notice(err.Error())
			metrics, err = Metrics{{Value: math.NaN()}}, nil
		}
	}
	if err != nil {
		return r.errorf("evaluate after step %d: %w", r.step, err)
	}
	first, err := r.ofRank0(ctx, metrics)
	if err != nil {
		return r.errorf("evaluate after step %d: %w", r.step, err)
	}
	r.metrics, r.evaluated = metrics, &rated{first, r.step}
	r.report.Evaluation(Evaluation{Step: r.step, Metrics: metrics})
	r.lowerRates(first.Value)
	best := r.standing.add(r.step, first, r.o.MinDelta)
	if best && r.o.Best {
		if err := r.saveBest(ctx); err != nil {
			return err
		}
	}
	if r.standing.over(r.o.Patience) && r.step < r.o.Steps {
		r.report.Notice(fmt.Sprintf("step %d of %d is the last: %s", r.step, r.o.Steps, r.standing.why(r.o.MinDelta)))
	}
	return nil
}

// ofRank0 returns the first metric that rank 0 has, and makes the best so far that of
// rank 0, which alone knows what it kept: what follows from them must follow on all ranks.
func (r *trainer[B]) ofRank0(ctx context.Context, metrics Metrics) (first Metric, err error) {
	if len(metrics) > 0 {
		first = metrics[0]
	}
	best := &r.standing
	shared := [...]float64{first.Value, asNumber(first.Higher), float64(best.Step), best.Value}
	t := tensor.New(tensor.CPU(), tensor.Float64, len(shared))
	for i, v := range shared {
		t.Select(0, i).Fill(v)
	}
	if err := r.axes.World.Broadcast(ctx, t, 0); err != nil {
		return first, err
	}
	for i := range shared {
		shared[i] = t.Select(0, i).Item()
	}
	first.Value, first.Higher, best.Step, best.Value = shared[0], shared[1] != 0, int(shared[2]), shared[3]
	return first, nil
}

// lowerRates tells the task's plateau of an evaluation.
func (r *trainer[B]) lowerRates(metric float64) {
	p := r.plateau
	if p == nil {
		return
	}
	if math.IsInf(metric, 0) {
		metric = math.NaN() // never better, and an infinite best could not be saved
	}
	if p.Step(metric) {
		r.report.Notice(fmt.Sprintf("step %d: nothing gets better, the learning rate is now %.4g", r.step, r.opt.Groups()[0].LR()))
	}
}
