// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/tensor"
)

// glooRank is the first argument of this binary where it is a Go rank of the jobs below.
const glooRank = "test-gloo-rank"

// runGlooRank does what testdata/mixed.py does, in the directory where.
func runGlooRank(where string) int {
	err := dist.Main(func(ctx context.Context, g *dist.Group) error {
		for met := false; ; {
			stop := float32(0)
			if _, err := os.Stat(filepath.Join(where, "stop")); err == nil && g.Rank() == 0 {
				stop = 1
			}
			x := tensor.FromFloat32([]float32{1, stop}, 2)
			if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
				return err
			}
			if !met {
				met = true
				fmt.Printf("go %d: met %v of %d, agent %s, attempt %s\n", g.Rank(), x.Float32s()[0], g.Size(), envvar.UseAgentStore.Text(), envvar.RestartCount.Text())
			}
			if x.Float32s()[1] > 0 {
				return g.Barrier(ctx)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}, dist.WithBackend("gloo"))(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return launch.ExitCode(err)
}
