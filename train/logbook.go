// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/internal/event"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/tensorboard"
)

// logbook writes what a run logs to its history and its TensorBoard file: numbers of steps, evaluations,
// and what the program logs. It belongs to the historian.
type logbook struct {
	reader *event.Reader
	board  *tensorboard.Writer // nil if there is none
	buffer [64]event.Event
	refuse bool // a name that the history does not keep was told
	large  bool // a picture that the history does not keep was told
	missed bool // lost values were told
}

// openLogbook begins the logbook of a run, with its settings. A run without a TensorBoard file goes on.
func openLogbook(dir string, s *event.Stream, settings map[string]string, notice func(string)) *logbook {
	b := &logbook{reader: s.ReadLogged()}
	var err error
	if b.board, err = tensorboard.Create(dir, settings); err != nil {
		notice("the run has no TensorBoard file: " + err.Error())
	}
	return b
}

// step writes the numbers of a step.
func (b *logbook) step(s Step) {
	if b.board == nil || !tensorboard.StepIsKept(s.Step) {
		return
	}
	b.board.Scalar(s.Step, "train/loss", s.Loss)
	b.board.Scalar(s.Step, "train/learning_rate", s.LearningRate)
	b.board.Scalar(s.Step, "train/grad_norm", s.GradNorm)
	b.board.Scalar(s.Step, "train/step_seconds", s.Duration.Seconds())
	if s.Unit != "" && s.Duration > 0 {
		b.board.Scalar(s.Step, "train/"+s.Unit+"_per_second", float64(s.Size)/s.Duration.Seconds())
	}
}

// evaluation writes the metrics of an evaluation.
func (b *logbook) evaluation(e Evaluation) {
	if b.board == nil {
		return
	}
	for _, m := range e.Metrics {
		b.board.Scalar(e.Step, "validation/"+m.Name, m.Value)
	}
}

// drain writes what the program has logged since the last call.
func (b *logbook) drain(w *history.Writer, now history.Seconds, notice func(string)) {
	for n := b.reader.Next(b.buffer[:]); n > 0; n = b.reader.Next(b.buffer[:]) {
		for i := range b.buffer[:n] {
			b.write(&b.buffer[i], w, now, notice)
			b.buffer[i] = event.Event{}
		}
	}
	if lost := b.reader.Lost(); lost > 0 && !b.missed {
		b.missed = true
		notice(fmt.Sprintf("%d logged values are left out: a step may log about %d", lost, event.RingOthers))
	}
}

func (b *logbook) write(e *event.Event, w *history.Writer, now history.Seconds, notice func(string)) {
	if e.Kind == event.Value && !w.Value(history.Value{Step: e.Step, Time: now, Name: e.Name, Value: history.Number(e.Value)}) && !b.refuse {
		b.refuse = true
		notice(fmt.Sprintf("the history keeps values of %d names, and not those of %q", history.MaxNames, e.Name))
	}
	if s, ok := sampleOf(e); ok {
		s.Time = now
		if err := w.Sample(s); err != nil && !b.large {
			b.large = true
			notice(err.Error() + "; TensorBoard has it")
		}
	}
	if b.board == nil {
		return
	}
	switch e.Kind {
	case event.Value:
		b.board.Scalar(e.Step, e.Name, e.Value)
	case event.Text:
		b.board.Text(e.Step, e.Name, e.Text)
	case event.Histogram:
		h := e.Data.(*event.Buckets)
		b.board.Histogram(e.Step, e.Name, tensorboard.Histogram{
			Min: h.Min, Max: h.Max, Count: float64(h.Count), Sum: h.Sum, Squares: h.Squares, Limits: h.Edges, Counts: h.Counts,
		})
	case event.Image:
		if p, ok := e.Data.(*picture); ok {
			b.board.Image(e.Step, e.Name, p.width, p.height, p.png)
		}
	}
}

// sampleOf returns the record of what the program logs, if it is a text, a picture or a histogram.
func sampleOf(e *event.Event) (s history.Sample, ok bool) {
	s = history.Sample{Step: e.Step, Name: e.Name}
	switch e.Kind {
	case event.Text:
		s.Text = e.Text
		return s, e.Text != ""
	case event.Image:
		p, ok := e.Data.(*picture)
		if ok {
			s.PNG, s.Text = p.png, p.about
		}
		return s, ok
	case event.Histogram:
		s.Histogram = histogramOf(e.Data.(*event.Buckets))
		return s, true
	}
	return s, false
}

// histogramOf returns the buckets that have something in them, and those between.
func histogramOf(b *event.Buckets) *history.Histogram {
	h := &history.Histogram{Count: b.Count, NonFinite: b.NonFinite, Min: b.Min, Max: b.Max, Edges: []float64{b.Min}, Counts: []float64{}}
	if b.Count == 0 {
		return h
	}
	h.Mean = b.Sum / float64(b.Count)
	first := slices.IndexFunc(b.Counts, func(n float64) bool { return n > 0 })
	last := len(b.Counts) - 1
	for b.Counts[last] == 0 {
		last--
	}
	for i := first; i <= last; i++ {
		h.Counts = append(h.Counts, b.Counts[i])
		h.Edges = append(h.Edges, max(b.Min, min(b.Max, b.Edges[i])))
	}
	return h
}

// end writes the end of a run.
func (b *logbook) end(f Finish, w *history.Writer, now history.Seconds) {
	if f.Text != "" {
		_ = w.Sample(history.Sample{Step: f.Steps, Time: now, Name: f.Key, Text: f.Text}) // texts are always kept
	}
	if b.board == nil {
		return
	}
	if f.Text != "" {
		b.board.Text(f.Steps, f.Key, f.Text)
	}
	b.board.End(true)
}

// err returns once what is wrong with the TensorBoard file.
func (b *logbook) err() error {
	if b.board == nil {
		return nil
	}
	return b.board.Err()
}

// close writes what is left.
func (b *logbook) close() {
	if b.board != nil {
		b.board.Close(historyPatience)
	}
}

// recipeOf returns the settings of a recipe as texts, nil if there are none.
func recipeOf(recipe json.RawMessage) map[string]string {
	var values map[string]any
	if json.Unmarshal(recipe, &values) != nil {
		return nil
	}
	settings := map[string]string{}
	for name, v := range values {
		switch v := v.(type) {
		case string, float64, bool:
			settings[name] = fmt.Sprint(v)
		}
	}
	return settings
}
