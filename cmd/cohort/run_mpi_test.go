// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRunMPI: cohort run --mpi becomes the command of each MPI, keeps the token out of it, and
// refuses what only its own launcher does.
func TestRunMPI(t *testing.T) {
	for _, c := range []struct {
		says string // what its mpirun --version prints
		args []string
		want string // behind the launcher, before the program
		fail string
	}{
		{"mpirun (Open MPI) 4.1.4", []string{"--nproc-per-node", "3"}, "-x COHORT_BACKEND -x COHORT_NUM_THREADS -x COHORT_TOKEN -n 3", ""},
		{"HYDRA build details:", nil, "-disable-auto-cleanup -n 1 SELF mpi-rank", ""},
		{"another one", []string{"--nproc-per-node", "2"}, "-n 2", ""},
		{"HYDRA", []string{"--max-restarts", "3"}, "", "--max-restarts is a matter of cohort run's own launcher"},
		{"HYDRA", []string{"--nproc-per-node", "auto"}, "", "give the number of all ranks"},
	} {
		launcher := filepath.Join(t.TempDir(), "mpirun")
		if err := os.WriteFile(launcher, []byte("#!/bin/sh\necho '"+c.says+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		var f runFlags
		cmd := newRunCommand()
		set := cmd.Flags()
		f.mpirun = launcher
		if err := set.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		command, env, err := f.mpiCommand(set, []string{"sh", "-x"})
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%v: %v, want %q", c.args, err, c.fail)
			}
			continue
		}
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		got := strings.Join(command, " ")
		if self, err := os.Executable(); err == nil {
			got = strings.Replace(got, self+" ", "SELF ", 1)
		}
		if !strings.HasPrefix(got, launcher+" "+c.want+" /") || !strings.HasSuffix(got, "/sh -x") {
			t.Errorf("%v: %q, want %q", c.args, got, c.want)
		}
		i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "COHORT_TOKEN=") })
		if i < 0 || !slices.Contains(env, "COHORT_BACKEND=mpi") || strings.Contains(got, strings.TrimPrefix(env[i], "COHORT_TOKEN=")) {
			t.Errorf("%v: the environment lacks the backend or the token, or the command shows the token", c.args)
		}
	}
}
