// SPDX-License-Identifier: Apache-2.0

//go:build man

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the command that writes the manual pages of a release. It has the build
// tag man, because nobody needs it, and what it depends on, afterwards. The date is that of the
// release: two builds of a version give the same bytes.
func newManCommand(root *cobra.Command) *cobra.Command {
	var seconds int64
	c := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			date := time.Unix(seconds, 0).UTC()
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Title: "COHORT", Section: "1", Date: &date, Source: "Cohort", Manual: "Cohort"}, args[0])
		},
	}
	c.Flags().Int64Var(&seconds, "date", 0, "date of the pages, in `SECONDS` since 1970")
	return c
}
