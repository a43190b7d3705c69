// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/transport"
)

func newTokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token",
		Short: "Make a job token, for jobs started by hand on several machines",
		Long: `Token prints a new random job token. Every process of a job has to know it; who
does not is not let in. cohort run makes one by itself; for ranks started by
hand, export it on every machine:

  export COHORT_TOKEN=$(cohort token)

or keep it in a file that nobody else can read, and name that in COHORT_TOKEN_FILE
or by cohort run --token-file:

  (umask 077; cohort token > FILE)`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), transport.NewToken().Text())
			return err
		},
	}
}
