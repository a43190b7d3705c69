// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/envvar"
)

func newEnvCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
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
