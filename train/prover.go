// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/train/proof"
)

// What to do when a checkpoint does not continue the run: a value of Options.Unproved.
const (
	unprovedWarn = "warn"
	unprovedStop = "stop"
)

// proofWriter writes proofs beside their checkpoints, on rank 0, once these are complete: a
// checkpoint that is written beside training may come to its end after the step that proves it.
type proofWriter struct {
	step   int
	done   chan error // nil where nothing is under way; ErrNone: there will be no checkpoint
	finish context.CancelFunc
}

// completeInterval is how often the writer looks whether a checkpoint is complete.
const completeInterval = 50 * time.Millisecond

// begin writes a proof in a goroutine of its own. One that still waits for its checkpoint is given up:
// the save was, too.
func (w *proofWriter) begin(ctx context.Context, to storage.Storage, step int, text []byte) {
	w.end()
	waiting, finish := context.WithCancel(ctx)
	done := make(chan error, 1)
	w.step, w.done, w.finish = step, done, finish
	go func() { done <- writeProof(ctx, waiting, to, step, text) }()
}

// writeProof waits until a checkpoint is complete, or until waiting ends, and writes the proof.
func writeProof(ctx, waiting context.Context, to storage.Storage, step int, text []byte) error {
	name := checkpoint.StepName(step)
	ticker := time.NewTicker(completeInterval)
	defer ticker.Stop()
	for last := false; ; {
		manifest, err := to.Open(ctx, name+"/"+storage.ManifestName)
		if err == nil {
			if err := manifest.Close(); err != nil {
				return err
			}
			return storage.WriteFile(ctx, to, name+"/"+proof.FileName, text)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if last {
			return checkpoint.ErrNone
		}
		select {
		case <-waiting.Done():
			last = true
		case <-ticker.C:
		}
	}
}

// poll reports, without waiting, whether the proof of a step was written.
func (w *proofWriter) poll() (step int, ended bool, err error) {
	select {
	case err = <-w.done:
		w.finish()
		w.done = nil
		return w.step, true, err
	default:
		return 0, false, nil
	}
}

// end looks a last time for the checkpoint, and waits until the writer has ended.
func (w *proofWriter) end() (step int, ended bool, err error) {
	if w.done == nil {
		return 0, false, nil
	}
	w.finish()
	err = <-w.done
	w.done = nil
	return w.step, true, err
}

// Prover does the step after a checkpoint again, such as in a process of its own, and says
// what was compared. step is that of the checkpoint. [Prove] is what it calls in the end.
type Prover func(ctx context.Context, step int) (*Comparison, error)

// Comparison is what a proof has compared.
type Comparison = proof.Comparison

// provers proves checkpoints beside training, one at a time, on rank 0. It is used by the
// goroutine of the rank.
type provers struct {
	prove   Prover // nil: none
	stop    bool   // an error ends the run
	notice  func(text string)
	running chan proved // nil where nothing is under way
	cancel  context.CancelFunc
	next    int // step of the newest checkpoint to be proved after that; 0 for none
	step    int // of the one under way
}

// proved is the end of a proof.
type proved struct {
	comparison *proof.Comparison
	err        error
	took       time.Duration
}

// begin has a checkpoint proved. While another one is under way, the newest waits.
func (p *provers) begin(ctx context.Context, step int) {
	switch {
	case p.prove == nil:
		return
	case p.running != nil:
		p.next = step
		return
	}
	ctx, p.cancel = context.WithCancel(ctx)
	done, start := make(chan proved, 1), time.Now()
	p.running, p.step = done, step
	go func() {
		c, err := p.prove(ctx, step)
		done <- proved{c, err, time.Since(start)}
	}()
}

// poll tells of a proof that has ended, without waiting. The error ends the run.
func (p *provers) poll(ctx context.Context) error {
	select {
	case end := <-p.running:
		return p.ended(ctx, end)
	default:
		return nil
	}
}

// wait waits for the proofs that are under way.
func (p *provers) wait(ctx context.Context) error {
	for p.running != nil {
		select {
		case end := <-p.running:
			if err := p.ended(ctx, end); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// ended tells of a proof, and begins the next one.
func (p *provers) ended(ctx context.Context, end proved) error {
	p.cancel()
	step, next := p.step, p.next
	p.running, p.next = nil, 0
	err := end.err
	if err == nil {
		err = end.comparison.Err()
	}
	var differs *proof.DifferenceError
	switch {
	case err == nil:
		p.notice(fmt.Sprintf("the checkpoint of step %d is proved in %v: %s", step, end.took.Round(100*time.Millisecond), end.comparison.Result()))
	case errors.As(err, &differs) && p.stop:
		return err
	case errors.As(err, &differs):
		p.notice("WARNING: " + err.Error())
	default:
		p.notice(fmt.Sprintf("the checkpoint of step %d could not be proved: %v", step, err))
	}
	if next > 0 {
		p.begin(ctx, next)
	}
	return nil
}

// close ends a proof that is under way, and waits for its end.
func (p *provers) close() {
	if p.running != nil {
		p.cancel()
		<-p.running
		p.running = nil
	}
}
