// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/fingerprint"
)

func newEnvCommand() *cobra.Command {
	var what collected
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "env [COMMAND]",
		Short: "Print, keep, compare and rebuild the environment of a program",
		Long: `Print the fingerprint of this node's environment: what a program depends on, and what
makes a job fail if one node differs. It has the program, Cohort, kernel and libc, the
processor, memory, limits, interfaces, the clock, GPUs, the packages of a Python
environment, and variables of the libraries that train. Python is not started.

The values of variables that may hold secrets are not shown.

The exit code is 0, or 1 if the command failed, 2 if the command line makes no sense, and
3 if the command did its work and environments differ.`,
		Example: `  cohort env --python .venv/bin/python
  cohort env export job.toml --program ./train
  cohort env verify job.toml --program ./train
  cohort env create job.toml --prefix .venv`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := what.collect(cmd)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), f)
			}
			_, err = cmd.OutOrStdout().Write(f.TOML())
			return err
		},
	}
	what.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.AddCommand(newEnvExportCommand(), newEnvVerifyCommand(), newEnvDiffCommand(), newEnvCreateCommand(), newEnvVariablesCommand())
	return cmd
}

func newEnvVariablesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "variables",
		Short: "List the environment variables that Cohort reads, with their values",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			for _, s := range envvar.List() {
				value := s.Value
				if !s.IsSet {
					value = "-"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", s.Var, value, s.Meaning)
			}
			return w.Flush()
		},
	}
}

// collected says of what a fingerprint is taken.
type collected struct {
	program, python string
	variables       []string
}

func (c *collected) flags(flags *pflag.FlagSet) {
	flags.StringVar(&c.program, "program", "", "the `FILE` of the program, a binary or a .py file (default: none)")
	flags.StringVar(&c.python, "python", "", "`INTERPRETER` whose packages are read (default: that of the active environment, or python3 if the program is a .py file)")
	flags.StringSliceVar(&c.variables, "variables", nil, "`NAMES` of further variables, separated by commas; NAME* stands for all that begin so")
}

// collect takes the fingerprint of this node.
func (c *collected) collect(cmd *cobra.Command) (*fingerprint.Fingerprint, error) {
	environ := os.Environ()
	o := fingerprint.Options{Program: c.program, Python: c.python, Environ: environ, More: c.variables}
	if c.program != "" {
		switch st, err := os.Stat(c.program); {
		case err != nil:
			return nil, usageError{fmt.Errorf("--program: %w", err)}
		case st.IsDir():
			return nil, usageError{fmt.Errorf("--program %s is a directory: build the program, and name the binary", c.program)}
		}
	}
	if o.Python == "" {
		if o.Python = fingerprint.ActivePython(environ); o.Python == "" && strings.HasSuffix(c.program, ".py") {
			o.Python = envvar.PythonExec.Get("python3")
		}
	}
	if o.Python != "" {
		path, err := exec.LookPath(o.Python)
		switch {
		case err == nil:
			o.Python = path
		case c.python != "":
			return nil, usageError{fmt.Errorf("--python: %w", err)}
		default:
			o.Python = ""
		}
	}
	f := fingerprint.Collect(cmd.Context(), o)
	if c.python != "" && !f.Has(fingerprint.Python) {
		return nil, usageError{fmt.Errorf("--python %s is no Python interpreter: name the file bin/python of an environment", c.python)}
	}
	return f, nil
}
