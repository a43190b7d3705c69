// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Bounds of a history, see the documentation of the package.
const (
	MaxSteps  = 8192
	MaxOthers = 2048 // of each other kind
	maxText   = 8192 // bytes of a note
)

// interval is the time between two writes of the file.
const interval = time.Second

// Writer writes the history of a run. One goroutine calls its methods.
type Writer struct {
	path string

	mu          sync.Mutex
	h           History
	stride      int            // steps of a record
	open        *Step          // of fewer steps, until they are stride
	every       int            // of so many evaluations one is kept
	passing     bool           // the last evaluation is not to be kept
	names       map[string]int // of values, and how many; nil before the first
	sampleBytes int            // of all samples, 0 before the first
	lines       []byte         // to be appended to the file
	rewrite     bool           // the file is to be written anew

	evaluations int // since every changed
	err         error
	told        bool // of err
	ended       bool // the run, by a process before

	wake, closing, done chan struct{}
}

// Create begins or goes on with the history of the run in a directory. Records of steps after
// run.FirstStep, which a process before has done and which will be done again, become a record of
// the kind lost. A history that cannot be read stays there under another name, and aside is that name
// with the reason.
func Create(dir string, run Run) (w *Writer, aside string, err error) {
	w = &Writer{path: filepath.Join(dir, FileName), stride: 1, every: 1, rewrite: true, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{})}
	switch before, err := ReadDir(dir); {
	case err == nil:
		w.h = *before
		w.goOn(run)
	case !errors.Is(err, fs.ErrNotExist):
		kept, renameErr := setAside(w.path)
		if renameErr != nil {
			return nil, "", fmt.Errorf("history: %w", errors.Join(err, renameErr))
		}
		aside = fmt.Sprintf("%v; it is now %s, and a new history begins", err, kept)
	}
	run.Version, run.AfterEnd = Version, w.ended
	w.h.Runs = keepLast(append(w.h.Runs, run))
	if err := w.store(); err != nil {
		return nil, "", fmt.Errorf("history: %w", err)
	}
	go w.writing()
	return w, aside, nil
}

// setAside gives the file another name, and returns it.
func setAside(path string) (kept string, err error) {
	for i := 1; i < 1000; i++ {
		kept = fmt.Sprintf("%s.unread-%d", path, i)
		if _, err := os.Lstat(kept); errors.Is(err, fs.ErrNotExist) {
			return kept, os.Rename(path, kept)
		}
	}
	return "", fmt.Errorf("%s: there are too many histories that could not be read", path)
}

// goOn takes back what the new process will do again.
func (w *Writer) goOn(run Run) {
	h := &w.h
	w.ended, h.End = h.End != nil, nil
	lost := Lost{Time: run.Time, Step: run.FirstStep, Times: 1}
	n := len(h.Steps)
	for ; n > 0 && h.Steps[n-1].Step > run.FirstStep; n-- {
		lost.Until, lost.Last = max(lost.Until, h.Steps[n-1].Step), max(lost.Last, h.Steps[n-1].Time)
		lost.Seconds += h.Steps[n-1].Seconds
	}
	h.Steps = h.Steps[:n]
	for _, s := range h.Steps {
		w.stride = max(w.stride, s.Steps)
	}
	h.Evaluations = upTo(h.Evaluations, func(e Evaluation) bool { return e.Step <= run.FirstStep })
	h.Saved = upTo(h.Saved, func(s Saved) bool { return s.Step <= run.FirstStep })
	h.Ranks = upTo(h.Ranks, func(r Ranks) bool { return r.Step <= run.FirstStep })
	h.Values = upTo(h.Values, func(v Value) bool { return v.Step <= run.FirstStep })
	h.Samples = upTo(h.Samples, func(s Sample) bool { return s.Step <= run.FirstStep })
	if lost.Until == 0 {
		return
	}
	if len(h.Lost) == MaxOthers {
		a, b := h.Lost[0], &h.Lost[1]
		b.Times, b.Seconds = b.Times+a.Times, b.Seconds+a.Seconds
		h.Lost = h.Lost[1:]
	}
	h.Lost = append(h.Lost, lost)
}

// upTo keeps the first records of which keep is true.
func upTo[T any](records []T, keep func(T) bool) []T {
	n := len(records)
	for n > 0 && !keep(records[n-1]) {
		n--
	}
	return records[:n]
}

// keepLast leaves the oldest records out where there are too many.
func keepLast[T any](records []T) []T {
	if len(records) > MaxOthers {
		return append(records[:0], records[len(records)-MaxOthers/2:]...)
	}
	return records
}

// Step notes a step.
func (w *Writer) Step(s Step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Steps = 1
	if s.NonFinite = 0; !s.Loss.IsFinite() {
		s.NonFinite = 1
	}
	if w.open != nil {
		s = merged(*w.open, s)
	}
	if w.open = &s; s.Steps < w.stride {
		return
	}
	w.keepStep()
	if len(w.h.Steps) > MaxSteps {
		w.thin()
	}
}

// keepStep makes a record of the steps that are waiting for more.
func (w *Writer) keepStep() {
	if w.open == nil {
		return
	}
	w.h.Steps = append(w.h.Steps, *w.open)
	w.open = nil
	w.add(w.h.Steps[len(w.h.Steps)-1])
}

// thin makes one record of each two, but for a last one.
func (w *Writer) thin() {
	w.stride *= 2
	steps := w.h.Steps[:0]
	for i := 0; i+1 < len(w.h.Steps); i += 2 {
		steps = append(steps, merged(w.h.Steps[i], w.h.Steps[i+1]))
	}
	if n := len(w.h.Steps); n%2 == 1 {
		last := w.h.Steps[n-1]
		w.open = &last
	}
	w.h.Steps = steps
	w.rewrite = true
}

// Evaluation notes an evaluation.
func (w *Writer) Evaluation(e Evaluation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.passing { // the last one is there until the next comes
		w.h.Evaluations, w.rewrite = w.h.Evaluations[:len(w.h.Evaluations)-1], true
	}
	w.h.Evaluations = append(w.h.Evaluations, e)
	w.evaluations++
	w.passing = w.evaluations%w.every != 0
	if w.add(e); len(w.h.Evaluations) > MaxOthers {
		kept := w.h.Evaluations[:0]
		for i := 1; i < len(w.h.Evaluations); i += 2 {
			kept = append(kept, w.h.Evaluations[i])
		}
		kept = append(kept, e) // MaxOthers is even
		w.h.Evaluations, w.every, w.evaluations, w.passing, w.rewrite = kept, 2*w.every, w.every, true, true
	}
}

// Saved notes a checkpoint.
func (w *Writer) Saved(s Saved) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.h.Saved = append(w.h.Saved, s)
	if w.add(s); len(w.h.Saved) > MaxOthers {
		w.h.Saved, w.rewrite = keepLast(w.h.Saved), true
	}
}

// Note notes a text for people, of which it keeps the first 8 KiB.
func (w *Writer) Note(n Note) {
	if len(n.Text) > maxText {
		n.Text = n.Text[:maxText] + "…"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.h.Notes = append(w.h.Notes, n)
	if w.add(n); len(w.h.Notes) > MaxOthers {
		w.h.Notes, w.rewrite = keepLast(w.h.Notes), true
	}
}

// End notes that the run is over.
func (w *Writer) End(e End) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keepStep()
	w.h.End = &e
	w.add(e)
}

// add has the line of a record written.
func (w *Writer) add(record any) {
	if !w.rewrite {
		w.lines = appendLine(w.lines, record)
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Err returns the error of the file once: nil before and afterwards.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told {
		return nil
	}
	w.told = w.err != nil
	return w.err
}

// Close writes what is missing in the file. It waits for at most patience.
func (w *Writer) Close(patience time.Duration) {
	w.mu.Lock()
	w.keepStep()
	w.mu.Unlock()
	close(w.closing)
	select {
	case <-w.done:
	case <-time.After(patience):
	}
}

// writing writes the file until Close, and once more then.
func (w *Writer) writing() {
	defer close(w.done)
	for last := false; !last; {
		select {
		case <-w.wake:
		case <-w.closing:
			last = true
		}
		if err := w.store(); err != nil {
			w.mu.Lock()
			if w.err == nil {
				w.err = fmt.Errorf("history: the file is not whole, and the run goes on: %w", err)
			}
			w.rewrite = true // what is there is unknown
			w.mu.Unlock()
		}
		select {
		case <-time.After(interval):
		case <-w.closing:
		}
	}
}

// store brings the file up to date.
func (w *Writer) store() error {
	w.mu.Lock()
	lines, rewrite := w.lines, w.rewrite
	if w.lines, w.rewrite = nil, false; rewrite {
		lines = w.h.lines()
	}
	w.mu.Unlock()
	if rewrite {
		return replace(w.path, lines)
	}
	if len(lines) == 0 {
		return nil
	}
	f, err := os.OpenFile(w.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Close())
}

// lines returns the text of a history.
func (h *History) lines() []byte {
	var text []byte
	for _, r := range h.Runs {
		text = appendLine(text, r)
	}
	for _, l := range h.Lost {
		text = appendLine(text, l)
	}
	for _, s := range h.Steps {
		text = appendLine(text, s)
	}
	for _, e := range h.Evaluations {
		text = appendLine(text, e)
	}
	for _, s := range h.Saved {
		text = appendLine(text, s)
	}
	for _, n := range h.Notes {
		text = appendLine(text, n)
	}
	for _, r := range h.Ranks {
		text = appendLine(text, r)
	}
	for _, v := range h.Values {
		text = appendLine(text, v)
	}
	for _, s := range h.Samples {
		text = appendLine(text, s)
	}
	if h.End != nil {
		text = appendLine(text, *h.End)
	}
	return text
}

// replace puts another file in the place of one, whole or not at all.
func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+FileName+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
