// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/examples/internal/exampletest"
	"github.com/cohort-ml/cohort/train"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestStartsItsRanks is `go run ./examples/trainer`, twice.
func TestStartsItsRanks(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	exampletest.Run(t, []string{"4482 parameters", "points/s", "step 1000: validation accuracy ", "step 1000: saved " + out}, "-out", out)
	exampletest.Run(t, []string{out + " is complete at step 1000"}, "-out", out)
}

// recorder remembers losses, and stops the run at a step.
type recorder struct {
	train.Reporter
	losses   map[int]float64
	accuracy float64
	stopAt   int
	stop     context.CancelFunc
}

func (r *recorder) Step(s train.Step) {
	r.losses[s.Step] = s.Loss
	if s.Step == r.stopAt {
		r.stop()
	}
}

func (r *recorder) Evaluation(e train.Evaluation) { r.accuracy = e.Metrics[0].Value }

// TestStopsAndGoesOn: a run that stops on two ranks and continues on three equals a run
// of two ranks without a stop. Its logs prove it.
func TestStopsAndGoesOn(t *testing.T) {
	spawn := func(size int, out string, r *recorder) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		r.stop = cancel
		return dist.Spawn(context.WithoutCancel(ctx), size, func(_ context.Context, group *dist.Group) error {
			return run(ctx, group, out, r)
		})
	}
	newRecorder := func(stopAt int) *recorder {
		return &recorder{Reporter: train.Discard, losses: map[int]float64{}, stopAt: stopAt}
	}
	whole, parts := newRecorder(-1), newRecorder(333)
	if err := spawn(2, filepath.Join(t.TempDir(), "whole"), whole); err != nil {
		t.Fatal(err)
	}
	if whole.accuracy < 0.9 {
		t.Errorf("the accuracy is %v", whole.accuracy)
	}
	out := filepath.Join(t.TempDir(), "parts")
	if err := spawn(2, out, parts); !errors.Is(err, train.ErrStopped) {
		t.Fatalf("stopped: %v", err)
	}
	at := len(parts.losses)
	if err := spawn(3, out, parts); err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{1, at, at + 1, at + 10} {
		if got, want := parts.losses[step], whole.losses[step]; !(math.Abs(got-want) < 1e-3*want) {
			t.Errorf("step %d: loss %v, in the other run %v", step, got, want)
		}
	}
	report, err := data.CheckOrder(filepath.Join(out, data.OrderDir), data.CheckOptions{Steps: 1000})
	if err != nil || report.Err() != nil || !report.Once || len(report.Attempts) != 2 {
		t.Errorf("%v, %v", err, report)
	}
}
