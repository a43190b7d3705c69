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

	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
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
		// Otherwise it kills the ranks before they can name one that has died.
		command = append(command, "-disable-auto-cleanup")
	}
	command = append(command, "-n", strconv.Itoa(n), program)
	return append(command, args[1:]...), env, nil
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
