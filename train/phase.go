// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/parallel/islands"
)

// What comes before the first step, and that step itself, may take minutes: a large
// file, a tokenizer, a batch of a hundred thousand samples. There is nothing to save
// then, so that a wish to stop ends the call at once, and whoever waits is told for what.

// phases is what a rank is at until it has done a step.
type phases struct {
	mu     sync.Mutex
	report Reporter
	doing  string
	since  time.Time
	begun  bool // a step is done: from here on the loop looks at its context
	over   bool // the call has returned: nothing is reported any more
	stop   context.Context
}

// errCut is an evaluation that all ranks have given up, for one of them is to stop.
var errCut = errors.New("the evaluation was cut short")

// stopping reports whether this rank is to stop: an evaluation ends early then, on all ranks.
func (p *phases) stopping() bool { return p != nil && p.stop.Err() != nil }

// phasesKey is where a context has them, so that a recipe and the Run that it calls have
// the same.
type phasesKey struct{}

// phaseOf returns the phases of a call; a call without any has none to tell of.
func phaseOf(ctx context.Context) *phases {
	p, _ := ctx.Value(phasesKey{}).(*phases)
	return p
}

// enter says what is done from here on: "reading clicks.csv".
func (p *phases) enter(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing, p.since = fmt.Sprintf(format, args...), time.Now()
}

// begin says that a step is done.
func (p *phases) begin() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
}

// tellWait reports for which islands this one waits.
func (p *phases) tellWait(w islands.Wait) {
	if p != nil {
		p.Notice(w.String())
	}
}

// firstTold is after what time a phase is told of; each next time is twice as long.
const firstTold = 5 * time.Second

// begins calls f, which reports to what it is given and returns what begins returns,
// unless ctx ends before the first step: then f is left alone and ends when it comes to its
// next call of the group.
func begins(ctx context.Context, task string, report Reporter, f func(ctx context.Context, report Reporter) error) error {
	if phaseOf(ctx) != nil { // the recipe looks after it
		return f(ctx, report)
	}
	p := &phases{report: report, doing: "beginning", since: time.Now(), stop: ctx}
	done := make(chan error, 1)
	go func() {
		done <- withAdvice(task, func() error { return f(context.WithValue(ctx, phasesKey{}, p), p) })
	}()
	stop, next := ctx.Done(), firstTold
	var late <-chan time.Time
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			if left := (*dist.RankError)(nil); ctx.Err() != nil && errors.As(err, &left) && !p.hasBegun() {
				return stoppedEarly(ctx, task, p) // another one was as quick
			}
			return err
		case <-stop:
			if stop = nil; !p.hasBegun() {
				return stoppedEarly(ctx, task, p)
			}
			late = time.After(time.Second)
		case <-late:
			p.Notice("stopping: the step that is under way is done first, and saved")
		case <-timer.C:
			next *= 2
			p.tell()
			timer.Reset(next)
		}
	}
}

func (p *phases) hasBegun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// tell reports a phase that takes long.
func (p *phases) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took := time.Since(p.since).Round(time.Second); !p.begun && took >= firstTold {
		p.report.Notice(fmt.Sprintf("%s: %v so far", p.doing, took))
	}
}

// stoppedEarly ends the call before there is anything to save.
func stoppedEarly(ctx context.Context, task string, p *phases) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Notice(fmt.Sprintf("stopped before the first step (%s): there is nothing to save", p.doing))
	p.over = true
	return fmt.Errorf("%s: %w before the first step, %s (%w)", trainOf(task), ErrStopped, p.doing, context.Cause(ctx))
}

// do reports, unless the call has returned.
func (p *phases) do(report func(Reporter)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		report(p.report)
	}
}

func (p *phases) Start(s Start)           { p.do(func(r Reporter) { r.Start(s) }) }
func (p *phases) Step(s Step)             { p.do(func(r Reporter) { r.Step(s) }) }
func (p *phases) Evaluation(e Evaluation) { p.do(func(r Reporter) { r.Evaluation(e) }) }
func (p *phases) Saved(s Saved)           { p.do(func(r Reporter) { r.Saved(s) }) }
func (p *phases) Finish(f Finish)         { p.do(func(r Reporter) { r.Finish(f) }) }

// Notice implements Reporter.
func (p *phases) Notice(text string) { p.do(func(r Reporter) { r.Notice(text) }) }
