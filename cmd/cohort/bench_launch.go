// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/tensor"
)

// pythonWorker is what the ranks of bench launch do, for PyTorch.
const pythonWorker = `import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
assert x[0].item() == dist.get_world_size()
dist.destroy_process_group()
`

func newBenchLaunchCommand(f *benchFlags) *cobra.Command {
	var numRanks, reps int
	var torchrun string
	var asRank bool
	cmd := &cobra.Command{
		Use:   "launch",
		Short: "Launching a job: from the start of cohort run over a first all-reduce to its end",
		Long: `Measure a whole job that does almost nothing: cohort run starts the ranks; they form
a group, reduce a few numbers and end. With --torchrun, two more jobs take turns
with this one: torchrun, and cohort run, start the same program in Python (gloo).`,
		Example: `  cohort bench launch --ranks 2
  cohort bench launch --torchrun torchrun --reps 5`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asRank {
				return launch.Spawn(cmd.Context(), numRanks, dist.Main(reduceOnce))
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			ranks := "--nproc-per-node=" + strconv.Itoa(numRanks)
			jobs := []bench.Launch{{Case: "cohort", Argv: []string{self, "run", ranks, "--no-python", self, "bench", "launch", "--as-rank"}}}
			if torchrun != "" {
				python, script, remove, err := pythonBeside(torchrun)
				if err != nil {
					return usageError{fmt.Errorf("--torchrun: %w", err)}
				}
				defer remove()
				jobs = append(jobs,
					bench.Launch{Case: "torchrun torch", Argv: []string{torchrun, ranks, "--standalone", script}},
					bench.Launch{Case: "cohort torch", Argv: []string{self, "run", ranks, script}, Env: []string{envvar.PythonExec.Assign(python)}})
			}
			return bench.Launches(cmd.Context(), numRanks, reps, jobs, f.emitter(cmd))
		},
	}
	cmd.Flags().IntVar(&numRanks, "ranks", 2, "number of ranks")
	cmd.Flags().IntVar(&reps, "reps", 10, "number of jobs to measure")
	cmd.Flags().StringVar(&torchrun, "torchrun", "", "compare with this torchrun: `FILE`, beside which its Python is")
	cmd.Flags().BoolVar(&asRank, "as-rank", false, "be one of the ranks")
	cmd.Flags().Lookup("as-rank").Hidden = true
	return cmd
}

// reduceOnce is what a rank does.
func reduceOnce(ctx context.Context, g *dist.Group) error {
	x := tensor.FromFloat32([]float32{1, 1, 1, 1}, 4)
	if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
		return err
	}
	if got := x.Float32s()[0]; got != float32(g.Size()) {
		return fmt.Errorf("%d ones reduced to %v", g.Size(), got)
	}
	return nil
}

// pythonBeside finds the interpreter of a torchrun and writes it a program.
func pythonBeside(torchrun string) (python, script string, remove func(), err error) {
	path, err := exec.LookPath(torchrun)
	if err != nil {
		return "", "", nil, err
	}
	python = filepath.Join(filepath.Dir(path), "python3")
	if _, err := os.Stat(python); err != nil {
		return "", "", nil, err
	}
	dir, err := os.MkdirTemp("", "cohort-bench-")
	if err != nil {
		return "", "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	script = filepath.Join(dir, "reduce.py")
	if err := os.WriteFile(script, []byte(pythonWorker), 0o600); err != nil {
		remove()
		return "", "", nil, err
	}
	return python, script, remove, nil
}
