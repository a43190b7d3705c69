// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/mpirank"
	"github.com/cohort-ml/cohort/internal/transport"
)

// runMPI replaces this process by the launcher of an MPI, which starts the ranks.
func (f *runFlags) runMPI(set *pflag.FlagSet, args []string) error {
	command, env, err := f.mpiCommand(set, args)
	if err != nil {
		return usageError{fmt.Errorf("run --mpi: %w", err)}
	}
	return fmt.Errorf("run --mpi: start %s: %w", command[0], syscall.Exec(command[0], command, env))
}

// mpiCommand returns the command of an MPI that starts the ranks, and its environment.
func (f *runFlags) mpiCommand(set *pflag.FlagSet, args []string) (command, env []string, err error) {
	set.Visit(func(given *pflag.Flag) {
		switch given.Name {
		case "mpi", "nproc-per-node", "token-file":
		default:
			if err == nil {
				err = fmt.Errorf("--%s is a matter of cohort run's own launcher: give what is like it to mpirun, as in mpirun -x %s=mpi -n 2 PROGRAM", given.Name, envvar.Backend)
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	n, err := strconv.Atoi(set.Lookup("nproc-per-node").Value.String())
	if err != nil || n < 1 {
		return nil, nil, fmt.Errorf("--nproc-per-node %s: give the number of all ranks", set.Lookup("nproc-per-node").Value)
	}
	launcher, err := exec.LookPath(f.mpirun)
	if err != nil {
		return nil, nil, fmt.Errorf("there is no launcher of an MPI: %w; install Open MPI or MPICH, or give the path, as in --mpi=/opt/mpi/bin/mpirun", err)
	}
	if launcher, err = filepath.Abs(launcher); err != nil {
		return nil, nil, err
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return nil, nil, fmt.Errorf("%s is no program: %w; build it with go build -tags mpi", args[0], err)
	}
	env = append(os.Environ(), envvar.Backend.Assign("mpi"))
	if !envvar.NumThreads.IsSet() {
		env = append(env, envvar.NumThreads.Assign(strconv.Itoa(max(1, runtime.NumCPU()/n))))
	}
	token, err := f.mpiToken()
	if err != nil {
		return nil, nil, err
	}
	env = append(env, envvar.Token.Assign(token.Text()))
	version, err := exec.Command(launcher, "--version").CombinedOutput()
	command = []string{launcher}
	switch text := string(version); {
	case err != nil:
		return nil, nil, fmt.Errorf("%s --version: %w", launcher, err)
	case strings.Contains(text, "Open MPI") || strings.Contains(text, "OpenRTE"):
		for _, v := range []envvar.Var{envvar.Backend, envvar.NumThreads, envvar.Token} { // for other machines
			command = append(command, "-x", string(v))
		}
	case strings.Contains(text, "HYDRA"):
		// It kills the ranks before they can name one that has died, unless a keeper of each
		// rank is between.
		self, err := os.Executable()
		if err != nil {
			return nil, nil, err
		}
		command = append(command, "-disable-auto-cleanup", "-n", strconv.Itoa(n), self, keepCommand, program)
		return append(command, args[1:]...), env, nil
	}
	command = append(command, "-n", strconv.Itoa(n), program)
	return append(command, args[1:]...), env, nil
}

// keepCommand is the command that cohort run --mpi puts before the program of a rank.
const keepCommand = "mpi-rank"

func newMPIRankCommand() *cobra.Command {
	return &cobra.Command{
		Use:   keepCommand + " PROGRAM [ARGUMENT]...",
		Short: "Run a rank of MPICH so that the others can name it when it dies",
		Long: `MPICH's launcher kills all ranks within a millisecond when one of them has died.
This command stands between the launcher and a rank. When the rank ends badly,
the launcher hears of it only 2 seconds later. Until then the other ranks can
write which rank has died. "cohort run --mpi" starts this command itself.`,
		Example:            "  mpirun -n 4 cohort mpi-rank ./program",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || strings.HasPrefix(args[0], "-") {
				return usageError{errors.New("mpi-rank: give the program of the rank, as in mpirun -n 4 cohort mpi-rank ./program")}
			}
			k := mpirank.Keeper{Command: args, Grace: mpirank.Grace}
			code, by, err := k.Run(cmd.Context())
			if err != nil {
				return fmt.Errorf("mpi-rank: %w", err)
			}
			mpirank.Exit(code, by)
			return nil
		},
	}
}

// mpiToken returns the job's token: that of --token-file, or of the environment, or a new one.
func (f *runFlags) mpiToken() (transport.Token, error) {
	if f.tokenFile != "" {
		return transport.ReadTokenFile(f.tokenFile)
	}
	token, err := transport.TokenFromEnv()
	if errors.Is(err, transport.ErrNoToken) {
		return transport.NewToken(), nil
	}
	return token, err
}
