// SPDX-License-Identifier: Apache-2.0

//go:build !man

package main

import "github.com/spf13/cobra"

// newManCommand returns nil: this build writes no manual pages.
func newManCommand(*cobra.Command) *cobra.Command { return nil }
