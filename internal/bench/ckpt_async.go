// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
)

// Saving is what a save in the background costs training steps.
type Saving struct {
	AloneMicros float64 `json:"alone_us"` // median of a step with no save under way
	// SlowerBy is the median over the pairs of blocks of how much longer steps beside a save
	// take, in percent; Low and High bound it with 95 % confidence.
	SlowerBy     float64 `json:"slower_by_percent"`
	SlowerByLow  float64 `json:"slower_by_low_percent"`
	SlowerByHigh float64 `json:"slower_by_high_percent"`
	SaveSteps    int     `json:"save_steps"` // with a save under way
	SavePairs    int     `json:"save_pairs"`
}

func (s *Saving) writeText(w io.Writer) {
	fmt.Fprintf(w, "  alone %s  slower by %.2f %% (95 %%: %.2f to %.2f), %d steps, %d pairs", span(s.AloneMicros), s.SlowerBy, s.SlowerByLow, s.SlowerByHigh, s.SaveSteps, s.SavePairs)
}

func (b *ckptBench) saver(ctx context.Context) (*checkpoint.Saver, error) {
	return checkpoint.NewSaver(ctx, b.group, b.storage(), checkpoint.SaverOptions{Async: true, Keep: checkpoint.KeepLast(1)})
}

// asyncBlock measures for how long a save in the background keeps the program from going on.
func (b *ckptBench) asyncBlock(ctx context.Context) (times, error) {
	s, err := b.saver(ctx)
	if err != nil {
		return nil, err
	}
	step := 0
	ts, err := b.repeat(ctx, func(int) error { step++; _, err := s.Save(ctx, step, b.state); return err }, func() error { return s.Wait(ctx) })
	return ts, errors.Join(err, s.Close(ctx), b.removeRun())
}

// asyncStep measures training steps of the gpt of [Step] with a save of the state under way,
// and without. Blocks of both take turns.
func (b *ckptBench) asyncStep(ctx context.Context, r Result) (Result, error) {
	s, err := b.saver(ctx)
	if err != nil {
		return r, err
	}
	w := newWorkload(StepOptions{Model: "gpt"})
	for range 5 { // the first steps make what the others use
		if _, err := w.run(ctx, w.model); err != nil {
			return r, err
		}
	}
	// steps runs steps until done says so, and returns their times.
	steps := func(done func(n int) bool) (ts times, err error) {
		for n := 0; !done(n); n++ {
			start := time.Now()
			if _, err := w.run(ctx, w.model); err != nil {
				return nil, err
			}
			ts = append(ts, time.Since(start))
		}
		return ts, nil
	}
	var alone, beside times
	var ratios []float64
	for pair := range b.o.Reps + 1 {
		if err := b.group.Barrier(ctx); err != nil {
			return r, err
		}
		if _, err := s.Save(ctx, pair+1, b.state); err != nil {
			return r, err
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Wait(ctx) }()
		var failed error
		with, err := steps(func(int) bool {
			select {
			case failed = <-ended:
				return true
			default:
				return false
			}
		})
		if err = errors.Join(err, failed); err != nil {
			return r, err
		}
		if len(with) > 1 {
			with = with[:len(with)-1] // the save ended during the last one
		}
		without, err := steps(func(n int) bool { return n == max(len(with), 3) })
		if err != nil {
			return r, err
		}
		if pair > 0 && len(with) > 0 {
			beside, alone = append(beside, with...), append(alone, without...)
			ratios = append(ratios, 100*(micros(with.median())/micros(without.median())-1))
		}
	}
	if err := errors.Join(s.Close(ctx), b.removeRun()); err != nil {
		return r, err
	}
	if len(ratios) == 0 {
		return r, errors.New("the saves ended within one step: give more --bytes")
	}
	low, high := medianInterval(ratios)
	r.MedianMicros, r.MinMicros = micros(beside.median()), micros(beside.quantile(0))
	r.Saving = &Saving{AloneMicros: micros(alone.median()), SlowerBy: medianOf(ratios), SlowerByLow: low, SlowerByHigh: high, SaveSteps: len(beside), SavePairs: len(ratios)}
	return r, nil
}
