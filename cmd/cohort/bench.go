// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/tensor"
)

// benchFlags are those that all benches have.
type benchFlags struct {
	asJSON     bool
	cpuProfile string
}

func newBenchCommand() *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench NAME",
		Short: "Measure this machine: matrix products, training steps, collectives, forming a group, launching, the store, remote calls, security, loaders",
		Long: `Bench measures what a job on this machine is made of. It prints a line a case
when the case is done; with --json, one object a line for scripts to compare.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown("bench", args[0], commandNames(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	cmd.PersistentFlags().StringVar(&f.cpuProfile, "cpuprofile", "", "write a CPU profile (of rank 0) to `file`, for go tool pprof")
	cmd.AddCommand(
		newBenchGemmCommand(f),
		newBenchStepCommand(f),
		newBenchDDPCommand(f),
		newBenchCollectivesCommand(f),
		newBenchFormCommand(f),
		newBenchLaunchCommand(f),
		newBenchStoreCommand(f),
		newBenchRPCCommand(f),
		newBenchSecurityCommand(f),
		newBenchLoaderCommand(f),
	)
	return cmd
}

// emitter returns what prints a result.
func (f *benchFlags) emitter(cmd *cobra.Command) func(bench.Result) error {
	out := cmd.OutOrStdout()
	if f.asJSON {
		return func(r bench.Result) error { return r.WriteJSON(out) }
	}
	return func(r bench.Result) error { return r.WriteText(out) }
}

// profiled runs fn under the CPU profiler if the user wants that.
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

// onRanks starts rank processes with numThreads threads each and runs fn on
// every one of them, with the group of all, formed as how says. env is added to
// their environment.
func (f *benchFlags) onRanks(ctx context.Context, numRanks, numThreads int, env []string, fn func(ctx context.Context, g *dist.Group) error, how ...dist.Option) error {
	opts := launch.SpawnOptions{PassRank0: true, Env: append(os.Environ(), env...)}
	rank := dist.Main(func(ctx context.Context, g *dist.Group) error {
		if g.Rank() == 0 {
			return f.profiled(func() error { return fn(ctx, g) })
		}
		return fn(ctx, g)
	}, how...)
	if !launch.IsRank() { // it starts them and waits
		launch.KeepSecrets()
	}
	return opts.Spawn(ctx, numRanks, func(ctx context.Context) error {
		if err := tensor.SetNumThreads(numThreads); err != nil {
			return err
		}
		return rank(ctx)
	})
}

// setThreads makes n, the value of --threads, the process's number of threads;
// 0 leaves the default.
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
	cmd.Flags().IntVar(n, "threads", 0, "`number` of threads (default COHORT_NUM_THREADS, else one a core)")
}

func newBenchGemmCommand(f *benchFlags) *cobra.Command {
	var threads int
	var dtype string
	var shapes, layouts []string
	var minTime time.Duration
	cmd := &cobra.Command{
		Use:   "gemm",
		Short: "Matrix products: square, narrow and batched ones, and those of training steps",
		Example: `  cohort bench gemm --threads 1
  cohort bench gemm --dtype bfloat16 --shapes 4096,256x1024x784 --layouts nn,nt,tn`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dtype != "float32" && dtype != "bfloat16" {
				return usageError{fmt.Errorf("--dtype %q: want float32 or bfloat16", dtype)}
			}
			products := bench.DefaultProducts()
			if cmd.Flags().Changed("shapes") || cmd.Flags().Changed("layouts") {
				var err error
				if products, err = bench.ParseProducts(shapes, layouts); err != nil {
					return usageError{err}
				}
			}
			if err := setThreads(threads); err != nil {
				return err
			}
			return f.profiled(func() error {
				o := bench.GemmOptions{DType: dtype, NumThreads: tensor.NumThreads(), MinTime: minTime}
				return bench.Gemm(cmd.Context(), products, o, f.emitter(cmd))
			})
		},
	}
	threadsFlag(cmd, &threads)
	cmd.Flags().StringSliceVar(&shapes, "shapes", []string{"512", "1024", "2048"}, "`sizes` N, MxNxK or BATCHxMxNxK, of C[M,N] = A[M,K]·B[K,N]")
	cmd.Flags().StringSliceVar(&layouts, "layouts", []string{"nn"}, "stored transposed: none (`nn`), B (nt), A (tn)")
	cmd.Flags().StringVar(&dtype, "dtype", "float32", "`type` of operands and results: float32 or bfloat16, summed in float32")
	cmd.Flags().DurationVar(&minTime, "time", 300*time.Millisecond, "least `time` to measure a product for")
	return cmd
}

func newBenchStepCommand(f *benchFlags) *cobra.Command {
	o := bench.StepOptions{DType: "float32"}
	var threads int
	cmd := &cobra.Command{
		Use:   "step",
		Short: "Training steps of a model in one process",
		Long: `Step measures whole training steps: forward, backward, optimizer.

  mlp  784-1024-1024-10, batch 256, SGD
  gpt  4 layers of width 256 with 8 heads, 8 sequences of 128 bytes, AdamW
  cnn  4 convolutions with batch norm, 64 images of 32x32, SGD
  resnet50  4 images of 224x224, SGD

With --json it also tells what the garbage collector did in the measured steps:
gc_cpu_share is its part of the process's processor time, num_gc the number of
collections, allocs_per_step and alloc_bytes_per_step what the steps put on its
heap. Tensors are not there. Some hundred steps give the share of a long run.`,
		Example: "  cohort bench step --model gpt --threads 2 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench step: %w", err)}
			}
			if err := setThreads(threads); err != nil {
				return err
			}
			return f.profiled(func() error {
				r, err := bench.Step(cmd.Context(), o)
				if err != nil {
					return err
				}
				return f.emitter(cmd)(r)
			})
		},
	}
	threadsFlag(cmd, &threads)
	cmd.Flags().StringVar(&o.Model, "model", "gpt", "`name` of the model: mlp, gpt, cnn or resnet50")
	cmd.Flags().StringVar(&o.DType, "dtype", o.DType, "`type` that is computed in: float32, or bfloat16 by autocast")
	cmd.Flags().IntVar(&o.Batch, "batch", 0, "`samples` of a step (default 256, 8, 64 and 4)")
	cmd.Flags().IntVar(&o.Steps, "steps", 30, "steps to measure")
	return cmd
}

func newBenchDDPCommand(f *benchFlags) *cobra.Command {
	var numRanks, numSteps int
	cmd := &cobra.Command{
		Use:   "ddp",
		Short: "Training steps under data parallelism, a process of one thread a rank",
		Long: fmt.Sprintf(`Ddp measures training steps of the mlp with a batch of %d a rank. Every rank
is a process of one thread with the same work, however many they are: with
perfect scaling the time stays that of --ranks 1. The same work without
data parallelism is

  cohort bench step --model mlp --batch %d --threads 1`, bench.DDPBatch, bench.DDPBatch),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bench.CheckSteps(numSteps); err != nil {
				return usageError{fmt.Errorf("bench ddp: %w", err)}
			}
			return f.onRanks(cmd.Context(), numRanks, 1, nil, func(ctx context.Context, g *dist.Group) error {
				r, err := bench.DDP(ctx, g, numSteps)
				if err != nil || g.Rank() != 0 {
					return err
				}
				return f.emitter(cmd)(r)
			})
		},
	}
	cmd.Flags().IntVar(&numRanks, "ranks", 2, "`number` of ranks")
	cmd.Flags().IntVar(&numSteps, "steps", 30, "steps to measure")
	return cmd
}
