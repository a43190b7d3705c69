// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cohort-ml/cohort/train"
)

func newTrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "train RECIPE",
		Short: "Train a model by a ready recipe",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("recipe", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrainClassifyCommand(), newTrainEmbedCommand(), newTrainLMCommand(), newTrainRecCommand(), newTrainVisionCommand())
	return cmd
}

func ranks(n int) string {
	if n == 1 {
		return "rank"
	}
	return "ranks"
}

func newReporter(asJSON bool, stdout, stderr io.Writer) train.Reporter {
	if asJSON {
		return train.NewJSONLines(stdout, stderr)
	}
	f, ok := stdout.(*os.File)
	return train.NewConsole(stdout, ok && term.IsTerminal(int(f.Fd())), command())
}

// command returns how the user calls this program: `go run` leaves nothing to
// call.
func command() string {
	if exe, err := os.Executable(); err == nil && strings.Contains(exe, "go-build") {
		return "go run ./cmd/cohort"
	}
	return "cohort"
}
