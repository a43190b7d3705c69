// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// maxReported is how many runs a report takes.
const maxReported = 64

func newReportCommand() *cobra.Command {
	var asJSON bool
	var html string
	var dash dashboardFlag
	cmd := &cobra.Command{
		Use:   "report RUN...",
		Short: "Show what runs came to, and compare them",
		Long: `Show runs of cohort train, or of programs that use train.Run, also while they are at
work: steps, loss, validation, speed, where the time went, what restarts cost, and
what to look at. RUN is the directory of a run (--out of the training), in which
rank 0 keeps the file history.jsonl.

--html writes one file with the curves of all runs, and the settings in which they
differ. The file needs no network: send it to somebody. --dashboard serves the same
page until Ctrl-C, and follows runs that are at work.`,
		Example: `  cohort report out/lm
  cohort report --dashboard 127.0.0.1:0 out/lm
  cohort report --html report.html out/lm out/lm-again`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usageError{errors.New("report needs the directory of a run, such as out/lm")}
			case len(args) > maxReported:
				return usageError{fmt.Errorf("report shows at most %d runs, got %d", maxReported, len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash.addr != "" {
				if html != "" || asJSON {
					return usageError{errors.New("report: --dashboard serves a page and prints nothing else: leave --html and --json out")}
				}
				return serveReport(cmd, &dash, args)
			}
			runs, err := readRuns(args)
			if err != nil {
				return err
			}
			if html != "" {
				if err := writeReport(html, runs); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s: open it with a browser\n", html)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				for _, r := range runs {
					if err := enc.Encode(report.Summarize(r)); err != nil {
						return err
					}
				}
				return nil
			}
			var b strings.Builder
			if err := report.Text(&b, runs); err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), visible.Text(b.String()))
			return err
		},
	}
	cmd.Flags().StringVar(&html, "html", "", "also write one self-contained page with curves to `FILE`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a run")
	dash.add(cmd.Flags())
	return cmd
}

// serveReport serves the page of runs until the command is interrupted.
func serveReport(cmd *cobra.Command, dash *dashboardFlag, dirs []string) error {
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil {
			return fmt.Errorf("report: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("report: %s is no directory: give the directory of a run (--out of the training)", dir)
		}
	}
	over, err := dash.serve(reportTitle(dirs), dirs, nil, cmd.ErrOrStderr())
	if err != nil {
		return usageError{err}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	over(nil)
	return nil
}

// reportTitle is the title of a page of runs.
func reportTitle(dirs []string) string {
	var names []string
	for _, dir := range dirs {
		names = append(names, filepath.Base(dir))
	}
	return "Report of " + strings.Join(names, ", ")
}

// readRuns reads the histories of runs, and their settings where they have some.
func readRuns(dirs []string) ([]report.Run, error) {
	var runs []report.Run
	for _, dir := range dirs {
		h, err := history.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			if _, statErr := os.Stat(dir); statErr != nil {
				return nil, fmt.Errorf("report: %w", statErr)
			}
			return nil, fmt.Errorf("report: %s has no %s: it is not the directory of a run, or an older version of Cohort has trained it", dir, history.FileName)
		}
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		r := report.Run{Name: dir, History: h}
		if r.Settings, err = settingsOf(filepath.Join(dir, "config.toml")); err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		if r.Environment, err = environmentOf(dir); err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// environmentFile is where cohort env export may have written the environment of a run: in its directory.
const environmentFile = "environment.toml"

// environmentOf reads the environment of a run, nil if its directory has none.
func environmentOf(dir string) (map[string]string, error) {
	path := filepath.Join(dir, environmentFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	f, err := readEnvFile(path)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for section, of := range f.Map() {
		for name, v := range of {
			values[section+"."+name] = v
		}
	}
	return values, nil
}

// settingsOf reads the settings of a run, nil if it has no file of them.
func settingsOf(path string) (map[string]string, error) {
	text, err := readSettingsFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var values map[string]any
	if err := toml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	settings := map[string]string{}
	for name, v := range values {
		settings[name] = fmt.Sprint(v)
	}
	return settings, nil
}

// writeReport writes the page, whole or not at all.
func writeReport(path string, runs []report.Run) error {
	var dirs []string
	for _, r := range runs {
		dirs = append(dirs, r.Name)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = errors.Join(report.HTML(f, reportTitle(dirs), runs), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
