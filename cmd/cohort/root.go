// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// newRoot returns the command cohort with all commands below it. The help lists
// them in these groups.
func newRoot(stdout, stderr io.Writer) *cobra.Command {
	groups := []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Models", []*cobra.Command{newTrainCommand(), newEvalCommand(), newPredictCommand(), newEmbedCommand(), newGenerateCommand(), newServeCommand(), newExportCommand(), newTokenizeCommand()}},
		{"Jobs", []*cobra.Command{newRunCommand(), newMPIRankCommand(), newHostAgentCommand(), newTokenCommand(), newStoreCommand(), newPSCommand()}},
		{"Looking into jobs and checkpoints", []*cobra.Command{newTopCommand(), newReportCommand(), newCkptCommand(), newRecorderCommand(), newDataCommand(), newScheduleCommand(), newRPCCommand()}},
		{"This machine and this program", []*cobra.Command{newDoctorCommand(), newDevicesCommand(), newBenchCommand(), newEnvCommand(), newVersionCommand()}},
	}
	root := &cobra.Command{
		Use:           "cohort COMMAND",
		Short:         "Distributed deep learning in Go",
		Long:          "Cohort trains models on several processes and machines, in pure Go.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				return printVersion(cmd)
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if _, err := envvar.NumThreads.IntOr(1, 1, math.MaxInt32); err != nil {
				return usageError{err}
			}
			// Each rank would report these mistakes again.
			if _, err := envvar.Transport.OneOf(envvar.Transports()...); err != nil {
				return usageError{err}
			}
			if _, err := envvar.Silence.DurationOr(0, envvar.MinSilence, envvar.MaxSilence); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	// A template of cobra's for the version would keep all methods of all types in the binary.
	root.Flags().BoolP("version", "v", false, "print the version of this program")
	root.PersistentFlags().BoolP("help", "h", false, "print this help")
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd, helpWidth(cmd.OutOrStdout())) })
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(flagError)
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	if man := newManCommand(root); man != nil {
		root.AddCommand(man)
	}
	last := groups[len(groups)-1].title
	root.SetHelpCommandGroupID(last)
	root.SetCompletionCommandGroupID(last)
	return root
}

// noArgs refuses arguments of a command that takes none.
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
