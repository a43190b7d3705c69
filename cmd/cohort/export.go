// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/train/onnx"
)

func newExportCommand() *cobra.Command {
	var from modelFlags
	var out string
	cmd := &cobra.Command{
		Use:   "export --from PLACE --out FILE.onnx",
		Short: "Write a model as an ONNX file",
		Long: `Write a classifier of images or a model of tables as an ONNX file, which ONNX Runtime
and other programs run. The means and deviations of images and numbers are part of the
file; the names of classes and columns are in its metadata.

Models of texts need no export: their checkpoints are folders of Hugging Face.`,
		Example: `  cohort export --from out/vision --out photos.onnx`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := wantEnding("out", out, ".onnx"); err != nil {
				return err
			}
			m, err := from.load(cmd)
			if err != nil {
				return err
			}
			var s onnx.Summary
			err = writeOutput(cmd, out, func(w io.Writer, _ *os.File) (err error) {
				s, err = onnx.Export(w, m)
				return err
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: from %s\n", out, m.Path)
			return errors.Join(err, tellValues(cmd, "input", s.Inputs), tellValues(cmd, "output", s.Outputs))
		},
	}
	from.add(cmd, "")
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to write, such as model.onnx")
	return cmd
}

// wantEnding reports a flag that names a file of another kind.
func wantEnding(flag, path, ending string) error {
	if strings.HasSuffix(path, ending) {
		return nil
	}
	return usageError{fmt.Errorf("--%s is %q: name a file that ends with %s", flag, path, ending)}
}

// tellValues prints the inputs or outputs of a file.
func tellValues(cmd *cobra.Command, what string, values []onnx.Value) error {
	for _, v := range values {
		dims := append([]string{"batch"}, strings.Fields(strings.Trim(fmt.Sprint(v.Shape), "[]"))...)
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-6s  %-13s  %s [%s]\n", what, v.Name, v.DType, strings.Join(dims, ", ")); err != nil {
			return err
		}
	}
	return nil
}
