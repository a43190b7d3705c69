// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/storage"
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
the name. Of a run the commands take the newest checkpoint.

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
	cmd.AddCommand(newCkptShowCommand(), newCkptDiffCommand(), newCkptConvertCommand(), newCkptProveCommand())
	return cmd
}

// locate finds out whether an argument names a file or a folder, in which storage.
func locate(arg string) (anyformat.Location, error) {
	at := anyformat.Location{Text: arg}
	if arg == "" {
		return at, usageError{errors.New("a checkpoint has the empty name")}
	}
	st, err := os.Stat(arg)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return at, &anyformat.AccessError{Location: arg, Problem: "does not exist", Err: fs.ErrNotExist}
	case errors.Is(err, fs.ErrPermission):
		return at, &anyformat.AccessError{Location: arg, Problem: "may not be read by this user", Err: err}
	case err != nil:
		return at, err
	case !st.IsDir() && !st.Mode().IsRegular():
		return at, fmt.Errorf("%s is neither a file nor a folder (%s)", arg, st.Mode().Type())
	}
	path, err := filepath.Abs(arg)
	if err != nil {
		return at, err
	}
	at.Parent, at.Name = storage.Dir(filepath.Dir(path)), filepath.Base(path)
	if st.IsDir() {
		at.Inside = storage.Dir(path)
	}
	return at, nil
}

// openInput opens an argument of a command.
func openInput(ctx context.Context, arg string) (*anyformat.Input, error) {
	at, err := locate(arg)
	if err != nil {
		return nil, err
	}
	return anyformat.Open(ctx, at)
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
