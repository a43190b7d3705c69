// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"runtime/debug"

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
