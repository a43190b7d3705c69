// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/metrics"
	"github.com/cohort-ml/cohort/monitor/report"
	"github.com/cohort-ml/cohort/train"
)

// dashboardFlag is the flag --dashboard of commands that start ranks or show runs.
type dashboardFlag struct {
	addr string
	runs []string // of cohort run: further directories

	figures launch.Figures // asks the ranks
}

func (f *dashboardFlag) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "dashboard", "", "serve a page that shows the job at `ADDR`, as HOST:PORT or PORT; 127.0.0.1:0 takes a free port. Only who has the address that is printed can read it")
}

// check refuses the flag where another process serves the page.
func (f *dashboardFlag) check() error {
	if f.addr != "" && launch.IsRank() && !envvar.Spawn.IsSet() {
		return errors.New("--dashboard: another command has started this rank: give --dashboard to that one (cohort run --dashboard ADDR --dashboard-run DIR)")
	}
	return nil
}

// serve serves the page, and says where. The function that it returns shows how the job has ended, and
// ends the server.
func (f *dashboardFlag) serve(title string, runs []string, job *dashboard.Job, stderr io.Writer) (over func(error), err error) {
	var mu sync.Mutex
	say := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(stderr, "cohort: %s\n", visible.Text(text))
	}
	o := dashboard.Options{
		Addr: f.addr, Title: title, Runs: runs, Job: job, Tell: say,
		Settings:    func(dir string) (map[string]string, error) { return settingsOf(filepath.Join(dir, "config.toml")) },
		Environment: environmentOf,
	}
	if job != nil {
		o.Metrics, o.Recorder = metrics.Handler(f.figures.Ask), f.figures.Report
	}
	s, err := dashboard.Listen(o)
	if err != nil {
		return nil, err
	}
	for _, line := range s.Announce() {
		say(line)
	}
	unregister := func() {}
	if job != nil {
		unregister = register(title, runs, s.URL())
	}
	return func(err error) {
		unregister()
		if job == nil {
			s.Close()
			return
		}
		job.Over(err)
		s.Finish()
	}, nil
}

// register lets cohort top find a job of this process.
func register(title string, runs []string, url string) (end func()) {
	r := dashboard.Running{PID: os.Getpid(), Begun: history.At(time.Now()), Title: title, URL: url}
	for _, dir := range runs {
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		r.Runs = append(r.Runs, dir)
	}
	end, _ = dashboard.Register(r) // a job that is not found is no reason not to train
	return end
}

// meshOf returns the axes of a run's mesh, as far as its settings say them.
func meshOf(c *train.SharedConfig) []report.Axis {
	axes := []report.Axis{{Name: "pp", Size: c.PP}, {Name: "replicate", Size: c.Replicate}, {Name: "fsdp", Size: c.FSDP}, {Name: "ep", Size: c.EP}, {Name: "cp", Size: c.CP}, {Name: "tp", Size: c.TP}}
	product := 1
	for i := range axes {
		axes[i].Size = max(1, axes[i].Size)
		product *= axes[i].Size
	}
	if product != c.Ranks { // the rest are replicas
		if c.Ranks%product != 0 || axes[1].Size != 1 {
			return nil
		}
		axes[1].Size = c.Ranks / product
	}
	return axes
}
