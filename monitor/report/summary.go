// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Run is one run to be shown.
type Run struct {
	Name     string // its directory
	History  *history.History
	Settings map[string]string // by the names of flags; nil if they are not known
	// Environment is the fingerprint that cohort env export has written to the run's directory, by names such
	// as "go.version"; nil if there is none.
	Environment map[string]string
}

// Summary is what people ask first of a run. Numbers that are not known are NaN, which is null in
// JSON.
type Summary struct {
	Name       string         `json:"run"`
	Task       string         `json:"task"`
	Model      string         `json:"model,omitempty"`
	Data       string         `json:"data,omitempty"`
	Strategy   string         `json:"strategy,omitempty"`
	Ranks      int            `json:"ranks"`
	Done       int            `json:"step"`
	Steps      int            `json:"steps"` // that the run is to have
	Ended      bool           `json:"ended"`
	FirstLoss  history.Number `json:"first_loss"` // mean of the first twentieth
	LastLoss   history.Number `json:"last_loss"`  // mean of the last twentieth
	NonFinite  int            `json:"nonfinite"`  // steps
	Validation *Validation    `json:"validation,omitempty"`
	Unit       string         `json:"unit,omitempty"`
	PerSecond  history.Number `json:"per_second"` // units, median of the records
	StepMS     history.Number `json:"step_ms"`    // median of the records
	NowMS      history.Number `json:"now_ms"`     // median of the last records, of a step
	Time       Time           `json:"time"`
	Goodput    *Goodput       `json:"goodput,omitempty"`
	Restarts   int            `json:"restarts"`
	Checkpoint string         `json:"checkpoint,omitempty"` // the last
	Doubts     []string       `json:"doubts,omitempty"`
}

// Validation is the metric that counts.
type Validation struct {
	history.Metric
	Step     int            `json:"step"`
	Best     history.Number `json:"best"`
	BestStep int            `json:"best_step"`
}

// Time is where the time of a run went, in seconds.
type Time struct {
	Total history.Number `json:"total"` // from the first beginning to the last record
	Steps float64        `json:"steps"`
	Again float64        `json:"lost"`    // in steps that were done again after a restart
	Idle  float64        `json:"stopped"` // in which no process of the run was at work before it had ended
	Other history.Number `json:"other"`   // starts, evaluations, waits for checkpoints
}

// Summarize computes the summary of a run.
func Summarize(r Run) Summary {
	h := r.History
	last := h.Runs[len(h.Runs)-1]
	s := Summary{
		Name: r.Name, Task: last.Task, Model: last.Model, Data: last.Data, Strategy: last.Strategy, Ranks: last.Ranks, Done: h.Done(), Steps: last.Steps,
		Ended: h.End != nil, Unit: last.Unit, Restarts: h.Restarts(), Time: timeOf(h), Goodput: goodputOf(h),
	}
	n := max(1, len(h.Steps)/20)
	s.FirstLoss, s.LastLoss = history.MeanLoss(h.Steps[:min(n, len(h.Steps))]), history.MeanLoss(h.Steps[max(0, len(h.Steps)-n):])
	var rates, durations []float64
	for _, step := range h.Steps {
		s.NonFinite += step.NonFinite
		if step.Seconds > 0 {
			rates, durations = append(rates, float64(step.Size)/step.Seconds), append(durations, 1e3*step.Seconds/float64(step.Steps))
		}
	}
	s.NowMS = median(slices.Clone(durations[max(0, len(durations)-nowRecords):]))
	s.PerSecond, s.StepMS = median(rates), median(durations)
	s.Validation = validation(h.Evaluations)
	if n := len(h.Saved); n > 0 {
		s.Checkpoint = h.Saved[n-1].Path
	}
	s.Doubts = s.doubts()
	return s
}

func median(v []float64) history.Number {
	if len(v) == 0 {
		return history.Number(math.NaN())
	}
	slices.Sort(v)
	return history.Number((v[(len(v)-1)/2] + v[len(v)/2]) / 2)
}

// validation returns the last value of the metric that counts, and its best.
func validation(evaluations []history.Evaluation) *Validation {
	var v *Validation
	for _, e := range evaluations {
		if len(e.Metrics) == 0 {
			continue
		}
		m := e.Metrics[0]
		if v == nil || v.Name != m.Name {
			v = &Validation{Best: history.Number(math.NaN())}
		}
		v.Metric, v.Step = m, e.Step
		if !m.Value.IsFinite() {
			continue
		}
		if !v.Best.IsFinite() || m.Higher && m.Value > v.Best || !m.Higher && m.Value < v.Best {
			v.Best, v.BestStep = m.Value, e.Step
		}
	}
	return v
}

// timeOf divides the time of a run.
func timeOf(h *history.History) Time {
	var t Time
	end := h.Runs[len(h.Runs)-1].Time
	for _, s := range h.Steps {
		t.Steps, end = t.Steps+s.Seconds, max(end, s.Time)
	}
	for _, e := range h.Evaluations {
		end = max(end, e.Time)
	}
	for _, s := range h.Saved {
		end = max(end, s.Time)
	}
	if h.End != nil {
		end = max(end, h.End.Time)
	}
	for _, l := range h.Lost {
		t.Again += l.Seconds
	}
	for _, next := range h.Runs[1:] {
		idle := max(0, float64(next.Time-lastBefore(h, next.Time)))
		if next.AfterEnd {
			end -= history.Seconds(idle) // nothing was to be done
		} else {
			t.Idle += idle
		}
	}
	total := float64(end - h.Runs[0].Time)
	t.Total, t.Other = history.Number(total), history.Number(max(0, total-t.Steps-t.Again-t.Idle))
	return t
}

// lastBefore returns the time of the last sign of life before a moment.
func lastBefore(h *history.History, moment history.Seconds) history.Seconds {
	var last history.Seconds
	see := func(t history.Seconds) {
		if t < moment {
			last = max(last, t)
		}
	}
	for _, r := range h.Runs {
		see(r.Time)
	}
	for _, s := range h.Steps {
		see(s.Time)
	}
	for _, e := range h.Evaluations {
		see(e.Time)
	}
	for _, n := range h.Notes {
		see(n.Time)
	}
	for _, l := range h.Lost {
		see(l.Last)
	}
	return last
}

// nowRecords is of how many of the last records the speed is that of now.
const nowRecords = 30

// Limits from which a reading is a doubt.
const (
	worseBy   = 0.02 // of the best value, for overfitting
	lostShare = 0.05 // of the time, for restarts
	slowShare = 0.25 // of the time outside of steps
	slowerBy  = 0.15 // of the usual time of a step, for the last steps
)

// doubts says what somebody should look at, each in a sentence.
func (s *Summary) doubts() []string {
	var d []string
	doubt := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if s.NonFinite > 0 {
		doubt("%d of %d steps were not finite: lower the learning rate, or clip the gradients", s.NonFinite, s.Done)
	}
	if v := s.Validation; s.overfits() {
		doubt("%s on what was not trained on was best after step %d (%s) and is %s after step %d, while the loss falls: the model overfits; take the best checkpoint, more data, or fewer steps",
			v.Name, v.BestStep, number(v.Best), number(v.Value), v.Step)
	}
	if s.LastLoss >= s.FirstLoss && s.Done > minJudged {
		doubt("the loss does not fall (%s at the beginning, %s at the end): check the data and the learning rate", number(s.FirstLoss), number(s.LastLoss))
	}
	total := float64(s.Time.Total)
	if lost := s.Time.Again + s.Time.Idle; total > 0 && lost > lostShare*total {
		doubt("restarts cost %.0f %% of the time: save more often (--save-every), and look why the processes ended", 100*lost/total)
	}
	if other := float64(s.Time.Other); s.Done > minJudged && total > 0 && other > slowShare*total {
		doubt("%.0f %% of the time passed outside of steps (starts, evaluations, waits for checkpoints): evaluate and save less often", 100*other/total)
	}
	return d
}

// number is a number for people.
func number(n history.Number) string {
	if !n.IsFinite() {
		return "not finite"
	}
	return fmt.Sprintf("%.4g", float64(n))
}
