// SPDX-License-Identifier: Apache-2.0

// Command cohort trains models, launches programs on several ranks, and inspects
// and measures distributed jobs.
//
// This package has the command line only: flags, help and how results are
// printed. What a command does belongs to the packages below, such as train,
// launch and internal/bench.
//
// A command is in the file of its name: cohort tokenize train is in
// tokenize_train.go, cohort run in run.go. Its constructor, new…Command, declares
// the flags; newRoot in root.go adds the commands. The other files are
//
//   - recipe.go: what the commands of cohort train have in common. A recipe's flags
//     are the settings of its struct in package train; settings.go makes flags of
//     them and reads configuration files.
//   - torchrun.go: the flags that cohort run has in common with torchrun;
//     rendezvous.go: how the machines of a job meet.
//   - run_hosts.go: jobs whose launchers ssh starts on other hosts; run_mpi.go: by an MPI.
//   - help.go: the help of all commands, and what shells complete.
//   - suggestions.go: what is said about unknown commands and flags ("did you
//     mean").
//   - ckpt.go: what the commands of cohort ckpt have in common; ckpt_tree.go: trees and
//     columns.
//   - flag_values.go: types of flags; progress_bar.go: progress on a terminal.
//
// A new flag of cohort train for all recipes is not declared here, but in
// train/shared_config.go. A new flag of another command is declared in the
// command's file; groupFlags puts it under a heading of the help, and oneOf names
// the values that exist.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/internal/errorfile"
	"github.com/cohort-ml/cohort/launch"
)

// Exit codes are those of torchrun.
const (
	exitFailed = 1 // the job failed or was stopped
	exitUsage  = 2 // the job cannot be started as asked
)

func main() {
	if err := launch.CheckLimits(); err != nil {
		fmt.Fprintf(os.Stderr, "cohort: %v\n", err)
		os.Exit(exitUsage)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process around it.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	if completes(args) {
		if err := addCompletions(root); err != nil {
			return reportError(err, stderr)
		}
	}
	if err := misnamed(root, args); err != nil {
		return reportError(err, stderr)
	}
	return reportError(root.Execute(), stderr)
}

// usageError is the error of a command line that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// reportError prints an error in the form of its kind, and returns the exit code.
func reportError(err error, stderr io.Writer) int {
	var job *launch.Error
	var config *launch.ConfigError
	var usage usageError
	var answer answerError
	var findings findingsError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &job):
		job.Report(stderr)
		return launch.ExitCode(err)
	case errors.As(err, &config):
		errorfile.Refuse(err)
		fmt.Fprintf(stderr, "cohort: %v\n", err)
		return launch.ExitCode(err)
	case errors.As(err, &usage):
		errorfile.Refuse(err) // a launcher above need not try again
		fmt.Fprintf(stderr, "cohort: %s\n", inWords(err))
		return exitUsage
	case errors.As(err, &findings): // printed already
		return exitFailed
	case errors.As(err, &answer):
		fmt.Fprintf(stderr, "cohort: %v\n", err)
		return exitDiffers
	default:
		fmt.Fprintf(stderr, "cohort: %s\n", inWords(err))
		return exitFailed
	}
}

// inWords returns the text of an error. For a missing file in an existing
// directory it says "FILE does not exist", in place of the failed system call.
func inWords(err error) string {
	text := err.Error()
	var missing *fs.PathError
	if !errors.As(err, &missing) || !errors.Is(missing, fs.ErrNotExist) {
		return text
	}
	if _, err := os.Stat(filepath.Dir(missing.Path)); err != nil {
		return text
	}
	return strings.Replace(text, missing.Error(), missing.Path+" does not exist", 1)
}
