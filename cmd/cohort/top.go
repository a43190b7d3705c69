// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/monitor/report"
)

// topInterval is the time between two pictures of cohort top.
const topInterval = time.Second

func newTopCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "top [RUN|ADDRESS]",
		Short: "Show a running job in the terminal",
		Long: `Show a job in the terminal, and what is new once a second: steps, loss, answers to what
people ask first, where the time of the ranks goes, and what happened. Ctrl-C ends
the picture, not the job.

RUN is the directory of a run (--out of the training). ADDRESS is what a job with
--dashboard has printed, with its token; it shows the ranks' states too. Without
either, top shows the job of this user on this machine that began last.`,
		Example: `  cohort top
  cohort top out/lm
  cohort top --once out/lm`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("top shows one job, got %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := topClient(args, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			f, isFile := cmd.OutOrStdout().(*os.File)
			if once || !isFile || !term.IsTerminal(int(f.Fd())) {
				return topOnce(cmd.Context(), c, cmd.OutOrStdout())
			}
			return topLive(cmd.Context(), c, f)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one picture and end, as happens where the output is no terminal")
	return cmd
}

// topClient opens what is to be shown.
func topClient(args []string, stderr io.Writer) (*dashboard.Client, error) {
	if len(args) == 1 {
		if strings.Contains(args[0], "://") {
			c, err := dashboard.Dial(args[0])
			if err != nil {
				return nil, usageError{err}
			}
			return c, nil
		}
		if info, err := os.Stat(args[0]); err != nil {
			return nil, usageError{fmt.Errorf("top: %w: give the directory of a run, or an address such as http://127.0.0.1:8731/?token=…", err)}
		} else if !info.IsDir() {
			return nil, usageError{fmt.Errorf("top: %s is no directory: give the directory of a run (--out of the training)", args[0])}
		}
		return dashboard.Open(args[0], args), nil
	}
	jobs, err := dashboard.Jobs()
	if err != nil {
		return nil, fmt.Errorf("top: %w", err)
	}
	if len(jobs) == 0 {
		return nil, errors.New("top: no job of this user runs on this machine: give the directory of a run (cohort top out/lm), or the address that a job with --dashboard has printed")
	}
	for _, j := range jobs[1:] {
		fmt.Fprintf(stderr, "cohort: another job runs, too: %s (pid %d)\n", visible.Text(j.Title), j.PID)
	}
	if j := jobs[0]; j.URL != "" {
		return dashboard.Dial(j.URL)
	}
	return dashboard.Open(jobs[0].Title, jobs[0].Runs), nil
}

// topOnce prints one picture, as high as it needs.
func topOnce(ctx context.Context, c *dashboard.Client, w io.Writer) error {
	d, err := c.Ask(ctx)
	if err != nil {
		return err
	}
	columns, rows := 80, 24
	if f, ok := w.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil {
			columns, rows = w, h
		}
	}
	_, err = io.WriteString(w, strings.Join(report.Frame(*d, columns, rows), "\n")+"\n")
	return err
}

// topLive draws pictures on the other screen of the terminal until Ctrl-C.
func topLive(ctx context.Context, c *dashboard.Client, f *os.File) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	// Without wrapping (?7l), what is wider than a very narrow terminal is cut off.
	const enter, leave = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", "\x1b[?7h\x1b[?25h\x1b[?1049l"
	if _, err := io.WriteString(f, enter); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(f, leave) }()
	var last report.Data
	ticker := time.NewTicker(topInterval)
	defer ticker.Stop()
	for {
		d, err := c.Ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			last.Live, last.Trouble = false, []string{err.Error() + "; this was known before"}
		default:
			last = *d
		}
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns < 1 || rows < 1 {
			columns, rows = 80, 24
		}
		lines := report.Frame(last, columns, rows)
		if _, err := io.WriteString(f, picture(lines[:min(len(lines), rows)])); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case <-ticker.C:
		}
	}
}

// picture is what a terminal gets of a frame: each line over the one that is there.
func picture(lines []string) string {
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}
