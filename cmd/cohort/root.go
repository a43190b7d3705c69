// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
)

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "cohort",
		Short:         "Distributed deep learning in Go",
		Long:          "Cohort trains models on several processes and machines, in Go alone.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if _, err := envvar.NumThreads.IntOr(1, 1, math.MaxInt32); err != nil {
				return usageError{err}
			}
			// Every rank would say it.
			if _, err := envvar.Transport.OneOf(envvar.Transports()...); err != nil {
				return usageError{err}
			}
			if _, err := envvar.Silence.DurationOr(0, envvar.MinSilence, envvar.MaxSilence); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.Version = version(debug.ReadBuildInfo())
	root.SetVersionTemplate("{{.Version}}\n")
	root.InitDefaultVersionFlag()
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newTrainCommand(),
		newGenerateCommand(),
		newEvalCommand(),
		newRunCommand(),
		newStoreCommand(),
		newEnvCommand(),
		newBenchCommand(),
		newDataCommand(),
		newTokenCommand(),
		newTokenizeCommand(),
		newRecorderCommand(),
		newRPCCommand(),
		newVersionCommand(),
	)
	return root
}

// noArgs refuses arguments of a command that has none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if args[0] == "true" || args[0] == "false" {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				hint = fmt.Sprintf(": did you mean --%s=%s?", f.Name, args[0])
			}
		})
	} else if cmd.Flags().Lookup("from") != nil && !cmd.Flags().Changed("from") {
		hint = fmt.Sprintf(": did you mean --from %s?", args[0])
	}
	return usageError{fmt.Errorf("%s takes no argument, got %q%s", cmd.CommandPath(), args[0], hint)}
}

// flagError makes an error of the flag parser a usage error, and adds the
// nearest flag to an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	if notExist, ok := err.(*pflag.NotExistError); ok && len(notExist.GetSpecifiedName()) > 1 {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		return unknown("flag", "--"+notExist.GetSpecifiedName(), names, cmd.CommandPath())
	}
	return usageError{fmt.Errorf("%w (%s --help lists the flags)", err, cmd.CommandPath())}
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// unknown reports a name that is none of known, with the nearest that is.
func unknown(what, name string, known []string, command string) error {
	if best := nearest(name, known); best != "" {
		return usageError{fmt.Errorf("unknown %s %s for %s: did you mean %s?", what, name, command, best)}
	}
	return usageError{fmt.Errorf("unknown %s %s for %s (%s --help lists what there is)", what, name, command, command)}
}

// nearest returns the name among known that name was likely meant to be, "" if
// there is none.
func nearest(name string, known []string) string {
	best, bestDist := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), k); d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace between two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diag
			if a[i] != b[j] {
				d = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
