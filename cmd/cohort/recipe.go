// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/train"
)

// recipe is what `cohort train` needs to know of one. Its settings are flags, and
// keys of a file.
type recipe struct {
	settings any // pointer to the struct, with the defaults; see package config
	// check is asked before any rank is started whether they could begin; it
	// returns the settings that they would begin with, as config.toml.
	check func(ctx context.Context, given map[string]string) (resolved []byte, err error)
	// run is what every rank does. given says where values came from that the user
	// gave, by name.
	run func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error
}

// command makes a recipe's command of one that has only its words.
func (r recipe) command(cmd *cobra.Command) *cobra.Command {
	s := config.New(r.settings)
	addSettings(cmd, s)
	var file string
	var asJSON, print bool
	fl := cmd.Flags()
	fl.StringVar(&file, "config", "", "take settings from a TOML `FILE`, by the names of flags, one in a line; a flag comes before the file")
	fl.BoolVar(&print, "print-config", false, "print all settings of the run and where each comes from, and train nothing")
	fl.BoolVar(&asJSON, "json", false, "print progress on standard output as JSON, one object in a line")
	groupFlags(fl, "Configuration and output", "config", "print-config", "json")
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file != "" {
			if err := readSettings(file, s); err != nil {
				return usageError{err}
			}
		}
		numRanks, given := s.Field("ranks").Value().(int), s.Given()
		if !launch.IsRank() {
			launch.KeepSecrets()
			if err := launch.CheckRanks(numRanks); err != nil {
				return usageError{fmt.Errorf("--ranks is %d: %w", numRanks, err)}
			}
			resolved, err := r.check(cmd.Context(), given)
			if err != nil {
				return usageError{err}
			}
			if print {
				_, err := cmd.OutOrStdout().Write(resolved)
				return err
			}
			if !asJSON {
				fmt.Fprintf(cmd.ErrOrStderr(), "starting %d %s on this machine; Ctrl-C saves and stops\n", numRanks, ranks(numRanks))
			}
		}
		rank := dist.Main(func(ctx context.Context, group *dist.Group) error {
			return r.run(ctx, group, given, newReporter(asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		})
		return launch.SpawnOptions{PassRank0: true}.Spawn(cmd.Context(), numRanks, func(ctx context.Context) error {
			// Rank 0 writes where the command does. A reader that has gone (| head)
			// must not end the training.
			signal.Ignore(syscall.SIGPIPE)
			err := rank(ctx)
			if errors.Is(err, train.ErrStopped) {
				os.Exit(exitFailed) // the reporter has said it, the job is not complete
			}
			return err
		})
	}
	return cmd
}
