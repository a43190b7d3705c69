// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/transport"
)

func newTokenCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a job token, for jobs on several machines",
		Long: `Print a new random job token, or write it to a new file that only its owner can
read. Every process of a job must know the token; a process that does not is not
let in. cohort run makes a token by itself. For ranks that are started by hand,
export it on every machine:

  export COHORT_TOKEN=$(cohort token)

or name a file that holds it, in COHORT_TOKEN_FILE or with cohort run
--token-file.`,
		Example: `  cohort token --file token.txt
  cohort run --token-file token.txt --nproc-per-node 2 ./examples/ddp`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := transport.NewToken().Text()
			if file == "" {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
				return err
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return usageError{fmt.Errorf("--file %s: the file exists, and may hold the token of a job: use it with cohort run --token-file, name another file, or remove it first", file)}
			}
			if err != nil {
				return usageError{fmt.Errorf("--file: %w", err)}
			}
			_, err = fmt.Fprintln(f, text)
			return errors.Join(err, f.Close())
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "write the token to a new `FILE` that only its owner can read (default: print it)")
	return cmd
}
