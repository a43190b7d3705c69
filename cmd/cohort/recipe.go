// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3"
	"github.com/cohort-ml/cohort/checkpoint/storage/web"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/train"
)

// recipe is what `cohort train` needs to know about a recipe.
type recipe struct {
	task     string
	settings any                 // pointer to the struct of settings, with the defaults; see package config
	shared   *train.SharedConfig // of settings
	// check reports, before any rank is started, whether the ranks could begin. It
	// returns the settings that they would begin with, as config.toml. given has the
	// source of each value that the user gave, by the name of the setting.
	check func(ctx context.Context, given map[string]string) (resolved []byte, err error)
	// run is what every rank does.
	run func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error
}

// command completes the command of a recipe. cmd has only its name and its texts.
func (r recipe) command(cmd *cobra.Command) *cobra.Command {
	s := config.New(r.settings)
	addSettings(cmd, s)
	var file string
	var asJSON, print bool
	var dash dashboardFlag
	fl := cmd.Flags()
	fl.StringVar(&file, "config", "", "take settings from a TOML `FILE`, by the names of flags, one in a line; a flag comes before the file")
	fl.BoolVar(&print, "print-config", false, "print all settings of the run and where each comes from, and train nothing")
	fl.BoolVar(&asJSON, "json", false, "print progress on standard output as JSON, one object in a line")
	dash.add(fl)
	groupFlags(fl, "Configuration and output", "config", "print-config", "json", "dashboard")
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file != "" {
			if err := readSettings(file, s); err != nil {
				return usageError{err}
			}
		}
		given := s.Given()
		if !launch.IsRank() { // a rank knows how many there are
			if err := r.shared.FillRanks(r.task, given); err != nil {
				return usageError{err}
			}
		}
		r.shared.OpenPlace = openModelPlace
		var err error
		if r.shared.Storage, err = openPlace(r.shared.SaveTo); err != nil {
			return usageError{fmt.Errorf("--save-to: %w", err)}
		}
		if err := dash.check(); err != nil {
			return usageError{err}
		}
		numRanks := r.shared.Ranks
		opts := []launch.SpawnOption{launch.WithPassRank0()}
		over := func(error) {}
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
			if dash.addr != "" {
				job := dashboard.NewJob(cmd.CommandPath(), meshOf(r.shared))
				job.SetLogNote("rank 0 prints on the terminal of the job; its notes are among the events")
				if over, err = dash.serve("cohort train "+cmd.Name()+": "+r.shared.Out, []string{r.shared.Out}, job, cmd.ErrOrStderr()); err != nil {
					return usageError{err}
				}
				opts = append(opts, launch.WithWatcher(job), launch.WithFigures(&dash.figures))
			} else {
				end := register("cohort train "+cmd.Name()+": "+r.shared.Out, []string{r.shared.Out}, "")
				over = func(error) { end() }
			}
		}
		r.shared.Prover = func(ctx context.Context, step int) (*train.Comparison, error) {
			return proveInChild(ctx, inPlace(cmp.Or(r.shared.SaveTo, r.shared.Out), checkpoint.StepName(step)))
		}
		rank := dist.Main(func(ctx context.Context, group *dist.Group) error {
			return r.run(ctx, group, given, newReporter(asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		})
		err = launch.Spawn(cmd.Context(), numRanks, func(ctx context.Context) error {
			// Rank 0 writes to the standard output of the command. If the reader of a
			// pipe ends (| head), the training must not.
			signal.Ignore(syscall.SIGPIPE)
			err := rank(ctx)
			if errors.Is(err, train.ErrStopped) {
				os.Exit(exitFailed) // the reporter has said so: the job is not complete
			}
			return err
		}, opts...)
		over(err)
		return err
	}
	return cmd
}

// openPlace opens the place of a run's checkpoints, nil for none.
func openPlace(arg string) (storage.Storage, error) {
	scheme, _, isAddress := strings.Cut(arg, "://")
	switch {
	case arg == "":
		return nil, nil
	case !isAddress:
		return storage.Dir(arg), nil
	case scheme == "s3":
		return s3.Open(arg)
	}
	return nil, fmt.Errorf("%s: checkpoints are saved in directories and at s3://, not at %s://", arg, scheme)
}

// openModelPlace opens the place of a model or a run that is only read.
func openModelPlace(arg string) (storage.Storage, error) {
	switch scheme, _, isAddress := strings.Cut(arg, "://"); {
	case arg == "":
		return nil, errors.New("the name of the model is empty")
	case !isAddress:
		return storage.Dir(arg), nil
	case scheme == "s3":
		return s3.Open(arg)
	case scheme == "http" || scheme == "https":
		return web.Open(arg)
	default: // without the address, which may have a secret
		return nil, fmt.Errorf("models are read from directories and from s3://, http:// and https://, not from %s://", scheme)
	}
}

// inPlace returns the name of a folder in a directory or at an address, which may have
// parameters.
func inPlace(arg, folder string) string {
	address, query, hasQuery := strings.Cut(arg, "?")
	if !strings.Contains(address, "://") {
		return filepath.Join(arg, folder)
	}
	if hasQuery {
		query = "?" + query
	}
	return strings.TrimSuffix(address, "/") + "/" + folder + query
}
