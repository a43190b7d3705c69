// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	events "github.com/cohort-ml/cohort/internal/event"
)

const (
	// answerPatience is how long the agent waits for the dumps that it has asked for.
	// answerPoll is the time between two looks for them.
	answerPatience = time.Second
	answerPoll     = 10 * time.Millisecond
	// hangs is how long ranks must have waited for another one before the agent says so.
	hangs = time.Second
	// keepDumps is how long the dumps of a failed job are kept at least. After that, a later
	// job of the same user removes them. The name of their directory is dumpPrefix and
	// dumpBytes random bytes in hexadecimal.
	keepDumps  = 7 * 24 * time.Hour
	dumpPrefix = "cohort-"
	dumpBytes  = 16
	// maxReportLines is how many lines of the recorders' report a failure report shows.
	maxReportLines = 8
)

// lookPatience is how long the agent waits for the first dump before it passes a SIGINT on.
// A program that does not use Cohort writes no dump. Tests on a busy machine wait longer.
var lookPatience = 200 * time.Millisecond

// recorders is the directory into which the ranks' flight recorders write their dumps. The
// ranks make it when there is something to write.
type recorders struct {
	dir   string
	ours  bool           // the directory is of this run alone: it is removed if the job ends well
	asked uint64         // number of the last request for dumps
	told  bool           // dumps have been asked for because of a failure
	views sync.WaitGroup // of goroutines that print
	busy  atomic.Bool    // a view is being printed; another request then does nothing
}

// newRecorders chooses the directory: the user's, or one of this run's own. The name of the
// latter cannot be guessed, so that another user cannot make it first and put dumps into it.
// (The job's id can be guessed: it is in the arguments of the guard.)
func newRecorders(cfg *Config) *recorders {
	if dir := valueOf(cfg.Env, envvar.RecorderDir); dir != "" {
		if abs, err := filepath.Abs(dir); err == nil && cfg.Dir == "" {
			dir = abs
		} else if !filepath.IsAbs(dir) {
			dir = filepath.Join(cfg.Dir, dir)
		}
		return &recorders{dir: dir}
	}
	removeOldDumps(os.TempDir(), time.Now().Add(-keepDumps))
	return &recorders{dir: filepath.Join(os.TempDir(), dumpPrefix+randomHex(dumpBytes)), ours: true}
}

// removeOldDumps removes the directories of dumps of this user's earlier jobs, if nothing has
// been written to them since a time. It removes dumps only: a directory that holds anything
// else stays.
func removeOldDumps(tmp string, before time.Time) {
	dirs, _ := filepath.Glob(filepath.Join(tmp, dumpPrefix+strings.Repeat("[0-9a-f]", 2*dumpBytes)))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || info.ModTime().After(before) {
			continue
		}
		// A directory of another user cannot be opened.
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue
		}
		for _, pattern := range []string{"rank-*.json", ".rank-*", events.FilePattern, "." + events.FilePattern} { // hidden: of a rank that was killed while it wrote
			files, _ := fs.Glob(root.FS(), pattern)
			for _, name := range files {
				_ = root.Remove(name)
			}
		}
		_ = root.Close()
		_ = os.Remove(dir)
	}
}

// ask asks every live worker to write its dump.
func (a *agent) ask() (request uint64, asked []int) {
	a.recorders.asked++
	for i, w := range a.workers {
		if w.proc != nil && !w.ended && w.pipe.Send(agentpipe.Event{Kind: agentpipe.KindDump, Request: a.recorders.asked}) == nil {
			asked = append(asked, a.rank(i))
		}
	}
	return a.recorders.asked, asked
}

// view asks all ranks for their dumps. When all have answered or the time is over, it prints
// what the dumps say.
func (a *agent) view() {
	if !a.recorders.busy.CompareAndSwap(false, true) {
		return
	}
	request, asked := a.ask()
	pids := map[int]int{} // by rank
	for i, w := range a.workers {
		if w.proc != nil {
			pids[a.rank(i)] = w.proc.Pid
		}
	}
	dir := a.recorders.dir
	a.recorders.views.Go(func() {
		defer a.recorders.busy.Store(false)
		dumps, silent := await(dir, request, asked, time.Now().Add(answerPatience), time.Now().Add(answerPatience))
		report := flightlog.Merge(dumps)
		for rank, pid := range pids {
			if why := silenceOf(pid); why != "" {
				report.Tell(rank, why)
			}
		}
		lines := report.Lines()
		if len(dumps) == 0 {
			lines = []string{"no rank has a flight recorder: none has called dist.Init, or the program is not Cohort's"}
		} else {
			for _, i := range silent {
				line := fmt.Sprintf("rank %d (pid %d) does not answer", i, pids[i])
				if why := silenceOf(pids[i]); why != "" {
					line += ": " + why
				}
				lines = append(lines, line)
			}
			lines = append(lines, "the dumps are in "+dir)
		}
		a.say(lines...)
	})
}

// lookout is a look at the flight recorders before a SIGINT goes to the ranks. A person who
// stops a job that hangs wants to know where it hangs.
type lookout struct {
	sig  syscall.Signal
	done chan struct{}
}

// over returns a channel that is closed when the look has ended. A nil look never ends.
func (l *lookout) over() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.done
}

// lookBefore begins a look: it prints where ranks wait for each other, if they do.
func (a *agent) lookBefore(sig syscall.Signal) *lookout {
	l := &lookout{sig: sig, done: make(chan struct{})}
	request, asked := a.ask()
	dir := a.recorders.dir
	a.recorders.views.Go(func() {
		defer close(l.done)
		dumps, silent := await(dir, request, asked, time.Now().Add(lookPatience), time.Now().Add(answerPatience))
		report := flightlog.Merge(dumps)
		if len(dumps) == 0 || !report.Waits(hangs) {
			return
		}
		lines := report.Lines()
		lines = append([]string{"before the job is stopped, its ranks are here:"}, lines[:min(len(lines), maxReportLines)]...)
		for _, i := range silent {
			lines = append(lines, fmt.Sprintf("rank %d does not answer", i))
		}
		a.say(lines...)
	})
	return l
}

// passOn passes the signal of a look on, when the look has ended or another signal comes.
func (a *agent) passOn(l *lookout) *lookout {
	if l != nil && a.supervisor.interrupts == 0 {
		a.do(signalled{l.sig})
	}
	return nil
}

// await collects the dumps that answer a request, and returns the ranks that have not
// answered. It waits until all have answered, until the deadline, or until the time first
// if nobody has answered by then.
func await(dir string, request uint64, asked []int, first, deadline time.Time) (dumps []*flightlog.Dump, silent []int) {
	seen := map[int]time.Time{}
	for {
		var left []int
		for _, rank := range asked {
			path := filepath.Join(dir, flightlog.FileName(rank))
			st, err := os.Stat(path)
			if err == nil && !st.ModTime().Equal(seen[rank]) {
				seen[rank] = st.ModTime()
				if ds, err := flightlog.Load(path); err == nil && ds[0].Asked >= request {
					dumps = append(dumps, ds[0])
					continue
				}
			}
			left = append(left, rank)
		}
		if asked = left; len(asked) == 0 || time.Now().After(deadline) || len(dumps) == 0 && time.Now().After(first) {
			return dumps, asked
		}
		time.Sleep(answerPoll)
	}
}

// isWorthDumps reports whether the dumps of the flight recorders say something of a
// failure. They do not where the rank ended because the agent asked it to.
func isWorthDumps(f Failure) bool { return !f.Stopped || f.Signal == syscall.SIGKILL }

// finish merges the dumps of a job that has ended. It returns the first lines of the report,
// the directory of the dumps, and the report, which is empty if there are no dumps. fates
// says how the ranks' processes ended. Dumps from before the time begin belong to another
// job. If the job has not failed, finish removes the directory. It does so too if all ranks
// have ended with the same error (alike) and none waited for another, because the error then
// says everything.
func (r *recorders) finish(failed, alike bool, begin time.Time, fates map[int]string) (lines []string, dir string, report *flightlog.Report) {
	r.views.Wait()
	r.removeFigures()
	if !failed {
		if r.ours {
			_ = os.RemoveAll(r.dir)
		}
		return nil, "", &flightlog.Report{}
	}
	if _, err := os.Stat(r.dir); err != nil {
		return nil, "", &flightlog.Report{} // nothing was written
	}
	dumps, _ := flightlog.Load(r.dir)
	dumps = slices.DeleteFunc(dumps, func(d *flightlog.Dump) bool { return d.Time().Before(begin) })
	if len(dumps) == 0 {
		return nil, "", &flightlog.Report{}
	}
	report = flightlog.Merge(dumps)
	for rank, fate := range fates {
		report.Tell(rank, fate)
	}
	if alike && len(report.Culprits()) == 0 && !report.Waits(0) {
		if r.ours {
			_ = os.RemoveAll(r.dir)
		}
		return nil, "", &flightlog.Report{}
	}
	lines = report.Lines()
	return lines[:min(len(lines), maxReportLines)], r.dir, report
}
