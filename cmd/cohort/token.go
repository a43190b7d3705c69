// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func newTokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token",
		Short: "Make a job token, for jobs started by hand on several machines",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return nil
		},
	}
}
