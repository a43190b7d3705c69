// SPDX-License-Identifier: Apache-2.0

// Command cohort launches, trains and inspects distributed jobs. Each
// subcommand is one file of this package with one constructor, new…Command,
// which newRoot adds; what a command does belongs to the packages below, here
// are only its flags and how it prints.
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

// exit codes, as torchrun's.
const (
	exitFailed = 1 // the job failed or was stopped
	exitUsage  = 2 // it cannot be started as asked
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
			return report(err, stderr)
		}
	}
	if err := misnamed(root, args); err != nil {
		return report(err, stderr)
	}
	return report(root.Execute(), stderr)
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// report prints an error as fits its kind and returns the exit code.
func report(err error, stderr io.Writer) int {
	var job *launch.Error
	var config *launch.ConfigError
	var usage usageError
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
	default:
		fmt.Fprintf(stderr, "cohort: %s\n", inWords(err))
		return exitFailed
	}
}

// inWords is an error's text. Of a file that is missing in a directory that is
// there it says that, in place of the system call that found it out.
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
