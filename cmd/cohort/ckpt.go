// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/internal/visible"
)

// exitDiffers is the exit code of a command that did its work, and whose answer is no:
// checkpoints differ, or one is damaged.
const exitDiffers = 3

// answerError is the error of such a command.
type answerError struct{ error }

func (e answerError) Unwrap() error { return e.error }

func newCkptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ckpt COMMAND",
		Short: "Look into checkpoints, check, compare and convert them",
		Long: `Work on checkpoints without a job. CKPT is a run of Cohort or one of its checkpoints,
a folder of Hugging Face, a safetensors file, a file of torch.save, or a directory of
PyTorch's distributed checkpoints (DCP). The content says which of them it is, not
the name. Of a run the commands take the newest checkpoint. Checkpoints lie in
directories, in stores (s3://BUCKET/PREFIX) and on web servers (https://…, to read).

Tensors are read piece by piece, so that memory does not depend on the size of a
checkpoint. The exit code is 0, or 1 if the command failed, 2 if the command line makes
no sense, and 3 if the command did its work and the answer is no: checkpoints
differ, or one is damaged.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCkptListCommand(), newCkptShowCommand(), newCkptVerifyCommand(), newCkptDiffCommand(), newCkptProveCommand(),
		newCkptConvertCommand(), newCkptReshardCommand(), newCkptMergeCommand(), newCkptCopyCommand(), newCkptPruneCommand())
	return cmd
}

// openInput opens an argument of a command. It tells of damaged checkpoints of a run that it
// passes over.
func openInput(cmd *cobra.Command, arg string) (*anyformat.Input, error) {
	at, err := locate(arg)
	if err != nil {
		return nil, err
	}
	in, err := anyformat.Open(cmd.Context(), at)
	if err != nil {
		return nil, err
	}
	for _, text := range in.Notices {
		fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %s\n", visible.Text(text))
	}
	return in, nil
}

// numArgs wants a number of arguments, which what names.
func numArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usageError{fmt.Errorf("%s needs %s, got %d arguments", strings.TrimPrefix(cmd.CommandPath(), "cohort "), what, len(args))}
	}
}

// printJSON prints one object, in a line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w) // in one line: shapes would have a line for each dim
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// inBytes is a number of bytes for people, with three digits at least.
func inBytes(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1000, 0
	for v >= 999.5 && unit < len(units)-1 {
		v /= 1000
		unit++
	}
	decimals := 0
	switch {
	case v < 9.995:
		decimals = 2
	case v < 99.95:
		decimals = 1
	}
	return fmt.Sprintf("%.*f %cB", decimals, v, units[unit])
}

// inCounts is a number of things for people: 494 M.
func inCounts(n int64) string {
	if n < 10_000 {
		return fmt.Sprint(n)
	}
	return strings.TrimSuffix(strings.Replace(inBytes(n), "k", "thousand ", 1), "B")
}
