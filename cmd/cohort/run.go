// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/launch"
)

type runFlags struct {
	numRanks    string
	numNodes    string
	nodeRank    int
	standalone  bool
	masterAddr  string
	masterPort  int
	maxRestarts int
	runID       string
	module      bool
	noPython    bool
	tokenFile   string
	survivors   bool
	torchrun    torchrunFlags
}

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] PROGRAM [ARGS...]",
		Short: "Launch a program on several ranks",
		Long: `Run starts PROGRAM once for each rank, watches the processes and ends them all.

PROGRAM is the path of a binary or its name in PATH, the directory of a Go main
package or a .go file (built once, first), or a .py script (started with
python3 -u, or the interpreter that PYTHON_EXEC names). The flags are those of
torchrun that make sense on one machine, also with underscores, --token-file and
--survivors; its others are errors that say what to do. Everything behind PROGRAM belongs to it.

Each line that a rank prints appears behind "[rank0] ". A rank finds its place in
RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; cohort env lists the
variables. ${local_rank} in ARGS stands for the local rank.

The ranks share a token that nobody else gets: a new one, or that of COHORT_TOKEN,
or of the file that --token-file or COHORT_TOKEN_FILE names. What they print is
shown without it.

When a rank ends badly, the others are ended a second later. With --survivors they
go on: they can make a group of themselves (dist.Group.NewGroup) and continue. The
job then ends when all have ended, well if those that were left ended well; the
report says who died and how.

The exit code is 0 if every rank ended with 0, 1 if one failed or the job was
stopped, 2 if it could not be started as asked.`,
		Example: `  cohort run --nproc-per-node 2 ./examples/ddp
  cohort run --standalone --nproc-per-node auto train.py --epochs 3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("run needs a program: a binary, a Go package directory or a .py script")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := f.config(cmd.Flags())
			if err != nil {
				return err
			}
			cfg.Program, cfg.Args = args[0], args[1:]
			cfg.Stdout, cfg.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			launch.KeepSecrets()
			return launch.Run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows PROGRAM is the program's
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	flags.StringVar(&f.numRanks, "nproc-per-node", "1", "ranks to start: a `number`, or cpu or auto for one a core")
	flags.StringVar(&f.numNodes, "nnodes", "1", "`machines` of the job: 1 in this version")
	flags.IntVar(&f.nodeRank, "node-rank", 0, "`rank` of this machine: 0 in this version")
	flags.BoolVar(&f.standalone, "standalone", false, "a job of this machine alone, on a free port (also the default)")
	flags.StringVar(&f.masterAddr, "master-addr", "127.0.0.1", "`address` of this machine that rank 0 listens on")
	flags.IntVar(&f.masterPort, "master-port", 0, "`port` that rank 0 listens on (default: a free one)")
	flags.IntVar(&f.maxRestarts, "max-restarts", 0, "`times` to restart after a failure: 0 in this version")
	flags.StringVar(&f.runID, "rdzv-id", "none", "`name` of the job, for its workers to see")
	flags.BoolVarP(&f.module, "module", "m", false, "PROGRAM is a Python module, as in python3 -m")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` that holds the job's token, for its owner alone to read (default: a new token)")
	flags.BoolVar(&f.survivors, "survivors", false, "when a rank ends badly, let the others go on, for programs that make a new group of them")
	flags.BoolVar(&f.noPython, "no-python", false, "run PROGRAM as it is, whatever its name ends with")
	f.torchrun.add(flags)
	return cmd
}

// config checks the flags and makes a launch configuration of them.
func (f *runFlags) config(set *pflag.FlagSet) (launch.Config, error) {
	cfg := launch.Config{
		MasterAddr: f.masterAddr, MasterPort: f.masterPort, RunID: f.runID,
		Module: f.module, Direct: f.noPython, Exclusive: true, Survivors: f.survivors,
	}
	bad := func(format string, args ...any) (launch.Config, error) {
		return launch.Config{}, usageError{fmt.Errorf(format, args...)}
	}
	if f.tokenFile != "" {
		if _, err := transport.ReadTokenFile(f.tokenFile); err != nil {
			return bad("--token-file: %w", err)
		}
		cfg.Env = append(os.Environ(), envvar.Token.Assign(""), envvar.TokenFile.Assign(f.tokenFile))
	}
	switch f.numRanks {
	case "cpu", "auto":
		cfg.NumRanks = runtime.NumCPU()
	case "gpu":
		return bad("--nproc-per-node gpu: this version computes on the CPU; give a number, cpu or auto")
	default:
		n, err := strconv.Atoi(f.numRanks)
		if err != nil || n < 1 {
			return bad("--nproc-per-node %s: give a number of at least 1, cpu or auto", f.numRanks)
		}
		cfg.NumRanks = n
	}
	switch {
	case f.numNodes != "1" && f.numNodes != "1:1":
		return bad("--nnodes %s: this version runs on one machine; start it with --nnodes 1 or without the flag", f.numNodes)
	case f.nodeRank != 0:
		return bad("--node-rank %d: this version runs on one machine, whose rank is 0", f.nodeRank)
	case f.maxRestarts != 0:
		return bad("--max-restarts %d: this version does not restart workers; give 0 or leave the flag out", f.maxRestarts)
	case set.Changed("master-port") && (f.masterPort < 1 || f.masterPort > 65535):
		return bad("--master-port %d: ports are 1 to 65535; leave the flag out for a free one", f.masterPort)
	case f.module && f.noPython:
		return bad("--module and --no-python contradict each other: leave one out")
	case f.standalone && (set.Changed("master-addr") || set.Changed("master-port")):
		return bad("--standalone picks address and port itself: leave out either it or --master-addr and --master-port")
	}
	if err := f.torchrun.apply(set, &cfg, f.standalone); err != nil {
		return bad("%w", err)
	}
	return cfg, nil
}
