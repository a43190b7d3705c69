// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"math"
	"time"

	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/monitor/history"
)

// historyPatience is how long the end of a run waits for the last lines of its history.
const historyPatience = 5 * time.Second

// historian is a reporter that keeps the history of a run, and tells another one.
type historian struct {
	Reporter
	w      *history.Writer
	log    *logbook
	stream *event.Stream
	now    func() time.Time
	done   int // steps
}

// keepHistory has the run's history kept from here on. A history that cannot be kept is told,
// and no reason not to train.
func (r *trainer[B]) keepHistory(s Start) (end func()) {
	w, aside, err := history.Create(r.o.Out, history.Run{
		Time: history.At(time.Now()), Task: r.task.Name, Model: s.Model, Data: s.Data, NumParams: s.NumParams, DType: s.DType, Ranks: s.Ranks, Threads: s.Threads,
		Strategy: s.Strategy, Transport: s.Transport, Unit: r.task.Unit, FirstStep: s.FirstStep, Steps: s.Steps, Resumed: s.Resumed,
	})
	switch {
	case err != nil:
		r.report.Notice("the run has no history: " + err.Error())
		return func() {}
	case aside != "":
		r.report.Notice(aside)
	}
	r.historian = &historian{Reporter: r.report, w: w, now: time.Now, done: s.FirstStep, stream: r.axes.World.Events(), log: openLogbook(r.o.Out, r.axes.World.Events(), recipeOf(r.o.Recipe), r.report.Notice)}
	r.report = r.historian
	kept := r.historian
	return func() {
		kept.log.drain(w, kept.moment(), kept.Reporter.Notice)
		kept.log.close()
		w.Close(historyPatience)
	}
}

// moment returns the time of a record.
func (h *historian) moment() history.Seconds { return history.At(h.now()) }

// Step implements [Reporter].
func (h *historian) Step(s Step) {
	h.done = s.Step
	h.w.Step(history.Step{
		Step: s.Step, Time: h.moment(), Loss: history.Number(s.Loss), LearningRate: history.Number(s.LearningRate), GradNorm: history.Number(s.GradNorm),
		Size: s.Size, Seconds: s.Duration.Seconds(), Epoch: history.Number(s.Epoch),
	})
	h.log.step(s)
	h.log.drain(h.w, h.moment(), h.Reporter.Notice)
	for _, err := range []error{h.w.Err(), h.log.err()} {
		if err != nil {
			h.Reporter.Notice(err.Error())
		}
	}
	h.Reporter.Step(s)
}

// Evaluation implements [Reporter].
func (h *historian) Evaluation(e Evaluation) {
	kept := history.Evaluation{Step: e.Step, Time: h.moment()}
	for _, m := range e.Metrics {
		kept.Metrics = append(kept.Metrics, history.Metric{Name: m.Name, Value: history.Number(m.Value), Unit: m.Unit, Higher: m.Higher})
	}
	h.w.Evaluation(kept)
	h.log.evaluation(e)
	h.Reporter.Evaluation(e)
}

// Saved implements [Reporter].
func (h *historian) Saved(s Saved) {
	h.w.Saved(history.Saved{Step: s.Step, Time: h.moment(), Path: s.Path})
	h.Reporter.Saved(s)
}

// Notice implements [Reporter].
func (h *historian) Notice(text string) {
	h.w.Note(history.Note{Step: h.done, Time: h.moment(), Text: text})
	h.stream.Emit(event.Event{Kind: event.Note, Text: text})
	h.Reporter.Notice(text)
}

// Finish implements [Reporter].
func (h *historian) Finish(f Finish) {
	end := history.End{Step: f.Steps, Time: h.moment(), Checkpoint: f.Checkpoint}
	if f.Best != nil {
		end.Best, end.BestStep = f.Best.Path, f.Best.Step
	}
	h.log.end(f, h.w, end.Time)
	h.w.End(end)
	h.Reporter.Finish(f)
}

// epoch returns how often the run has gone through its samples, NaN if they have no end.
func (r *trainer[B]) epoch() float64 {
	if r.task.Samples < 1 {
		return math.NaN()
	}
	return float64(r.feed.State().Position) / float64(r.task.Samples)
}

// noteRanks has the history keep where the time of the ranks went.
func (r *trainer[B]) noteRanks(record history.Ranks) {
	if r.historian != nil {
		r.historian.w.Ranks(record)
	}
}

// tellStep has a step among the events of this rank.
func (r *trainer[B]) tellStep(s *event.Stream, all share, took time.Duration) {
	s.StepDone(r.step, event.StepNumbers{
		Loss: all.loss, LearningRate: r.opt.Groups()[0].LR(), GradNorm: all.norm, Size: float64(all.size), Seconds: took.Seconds(), Epoch: r.epoch(),
	})
}

// compareTimes has the ranks compare where their time went, up to this step.
func (r *trainer[B]) compareTimes(ctx context.Context) error {
	if err := r.ledger.compare(ctx, r.step); err != nil {
		return r.errorf("compare the times of the ranks after step %d: %w", r.step, err)
	}
	goodput := r.ledger.goodput
	r.standing.Goodput = &goodput
	return nil
}
