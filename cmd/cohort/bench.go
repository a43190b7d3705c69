// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/tensor"
)

// benchFlags are the flags that all benches share.
type benchFlags struct {
	asJSON     bool
	cpuProfile string
}

func newBenchCommand() *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench NAME",
		Short: "Measure the speed of this machine",
		Long: `Measure what a job on this machine is made of. The command prints a line for each
case when the case is done; with --json, one object in a line for scripts to
compare.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown("bench", args[0], commandNames(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().BoolVar(&f.asJSON, "json", false, "print JSON, one object in a line")
	cmd.PersistentFlags().StringVar(&f.cpuProfile, "cpuprofile", "", "write a CPU profile of rank 0 to `FILE`, for go tool pprof")
	cmd.AddCommand(
		newBenchGemmCommand(f),
		newBenchStepCommand(f),
		newBenchDDPCommand(f),
		newBenchShardCommand(f),
		newBenchCollectivesCommand(f),
		newBenchFormCommand(f),
		newBenchLaunchCommand(f),
		newBenchStoreCommand(f),
		newBenchRPCCommand(f),
		newBenchPSCommand(f),
		newBenchSecurityCommand(f),
		newBenchLoaderCommand(f),
		newBenchCkptCommand(f),
	)
	return cmd
}

// emitter returns the function that prints a result.
func (f *benchFlags) emitter(cmd *cobra.Command) func(bench.Result) error {
	out := cmd.OutOrStdout()
	if f.asJSON {
		return func(r bench.Result) error { return r.WriteJSON(out) }
	}
	return func(r bench.Result) error { return r.WriteText(out) }
}

// profiled runs fn, under the CPU profiler if the user asks for it.
func (f *benchFlags) profiled(fn func() error) (err error) {
	if f.cpuProfile == "" {
		return fn()
	}
	file, err := os.Create(f.cpuProfile)
	if err != nil {
		return fmt.Errorf("bench: --cpuprofile: %w", err)
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	if err := pprof.StartCPUProfile(file); err != nil {
		return fmt.Errorf("bench: --cpuprofile %s: %w", f.cpuProfile, err)
	}
	defer pprof.StopCPUProfile()
	return fn()
}

// onRanks starts rank processes with numThreads threads each and calls fn in each of
// them, with the group of all ranks. how are the options of the group. env is added
// to the environment of the ranks.
func (f *benchFlags) onRanks(ctx context.Context, numRanks, numThreads int, env []string, fn func(ctx context.Context, g *dist.Group) error, how ...dist.Option) error {
	rank := dist.Main(func(ctx context.Context, g *dist.Group) error {
		if g.Rank() == 0 {
			return f.profiled(func() error { return fn(ctx, g) })
		}
		return fn(ctx, g)
	}, how...)
	if !launch.IsRank() { // this process starts the ranks and waits
		launch.KeepSecrets()
	}
	return launch.Spawn(ctx, numRanks, func(ctx context.Context) error {
		if err := tensor.SetNumThreads(numThreads); err != nil {
			return err
		}
		return rank(ctx)
	}, launch.WithPassRank0(), launch.WithEnv(append(os.Environ(), env...)))
}

// setThreads sets the number of threads of the process to the value of --threads; 0
// keeps the default.
func setThreads(n int) error {
	if n == 0 {
		return nil
	}
	if err := tensor.SetNumThreads(n); err != nil {
		return usageError{fmt.Errorf("--threads: %w", err)}
	}
	return nil
}

func threadsFlag(cmd *cobra.Command, n *int) {
	cmd.Flags().IntVar(n, "threads", 0, "number of threads (default: COHORT_NUM_THREADS, or else one for each core)")
}
