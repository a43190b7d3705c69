// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// launchPatience is how long one job may take.
const launchPatience = 2 * time.Minute

// Launch is a job to start, from nothing to its end.
type Launch struct {
	Case string
	Argv []string
	Env  []string // added to this process's
}

// Launches runs each of the jobs reps times, in turn, and emits how long each took from
// its start to its end. A first run of each job does not count.
func Launches(ctx context.Context, numRanks, reps int, jobs []Launch, emit func(Result) error) error {
	if reps < 1 {
		return fmt.Errorf("bench launch: %d repetitions, want at least 1", reps)
	}
	took := make([][]time.Duration, len(jobs))
	for rep := range 1 + reps {
		for i, job := range jobs {
			d, err := job.run(ctx)
			if err != nil {
				return err
			}
			if rep > 0 {
				took[i] = append(took[i], d)
			}
		}
	}
	for i, job := range jobs {
		slices.Sort(took[i])
		r := Result{
			Bench: "launch", Case: job.Case, Ranks: numRanks,
			MedianMicros: micros(took[i][len(took[i])/2]), MinMicros: micros(took[i][0]),
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}

func (l *Launch) run(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, launchPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.Argv[0], l.Argv[1:]...)
	cmd.Env = append(os.Environ(), l.Env...)
	cmd.WaitDelay = time.Second
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	d := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("bench launch: %s: %q: %w\n%s", l.Case, l.Argv, err, strings.TrimSpace(out.String()))
	}
	return d, nil
}
