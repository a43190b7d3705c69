// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/tensor"
)

func newBenchGemmCommand(f *benchFlags) *cobra.Command {
	var threads int
	var dtype string
	var shapes, layouts []string
	var minTime time.Duration
	cmd := &cobra.Command{
		Use:   "gemm",
		Short: "Matrix products: square, narrow and batched ones, and those of training steps",
		Example: `  cohort bench gemm --threads 1
  cohort bench gemm --dtype bfloat16 --shapes 4096,256x1024x784 --layouts nn,nt`,
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
	cmd.Flags().StringSliceVar(&shapes, "shapes", []string{"512", "1024", "2048"}, "`SHAPES` of C[M,N] = A[M,K]·B[K,N]: N, MxNxK or BATCHxMxNxK, with commas between them")
	cmd.Flags().StringSliceVar(&layouts, "layouts", []string{"nn"}, "which operands are stored transposed: none (nn), B (nt), A (tn); `LAYOUTS` with commas between them")
	cmd.Flags().StringVar(&dtype, "dtype", "float32", "number type of operands and results; sums are in float32")
	cmd.Flags().DurationVar(&minTime, "time", 300*time.Millisecond, "measure each product for at least this time")
	oneOf(cmd.Flags(), "dtype", "float32", "bfloat16")
	return cmd
}
