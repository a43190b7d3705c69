// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print which build this is",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd) },
	}
}

func printVersion(cmd *cobra.Command) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), version(debug.ReadBuildInfo()))
	return err
}

// version says which build a program is, as far as the Go command has noted it:
// "cohort v0.3.0 (1a2b3c4d5e6f of 2026-01-02T03:04:05Z, changed since), go1.26.0 linux/amd64".
func version(info *debug.BuildInfo, ok bool) string {
	text := "cohort"
	if ok && info.Main.Version != "" {
		text += " " + info.Main.Version
	}
	if ok {
		notes := map[string]string{}
		for _, s := range info.Settings {
			notes[s.Key] = s.Value
		}
		if commit := notes["vcs.revision"]; commit != "" {
			text += " (" + commit[:min(12, len(commit))]
			if when := notes["vcs.time"]; when != "" {
				text += " of " + when
			}
			if notes["vcs.modified"] == "true" {
				text += ", changed since"
			}
			text += ")"
		}
	}
	return fmt.Sprintf("%s, %s %s/%s", text, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
