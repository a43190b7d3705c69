// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func newEnvCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "List the environment variables that Cohort reads, with their values",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return nil
		},
	}
}
