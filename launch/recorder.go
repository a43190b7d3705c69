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
)

const (
	// answerPatience is how long the agent waits for dumps that it has asked
	// for, and answerPoll the time between two looks.
	answerPatience = time.Second
	answerPoll     = 10 * time.Millisecond
	// hangs is from what wait on a rank is said to keep the others waiting.
	hangs = time.Second
	// keepDumps is for how long the dumps of a job that failed are kept, at least:
	// a later job of the same user removes them. Their directory is dumpPrefix and
	// dumpBytes random bytes in hexadecimal.
	keepDumps  = 7 * 24 * time.Hour
	dumpPrefix = "cohort-"
	dumpBytes  = 16
	// maxReportLines is how many lines of the recorders' report a failure
	// report has.
	maxReportLines = 8
)

// lookPatience is how long a SIGINT waits for the first dump: a program that is not
// Cohort's writes none. Tests on a busy machine have more of it.
var lookPatience = 200 * time.Millisecond

// recorders is where the ranks' flight recorders write, and what becomes of it.
// The ranks make the directory when there is something to write.
type recorders struct {
	dir   string
	ours  bool // the directory is of this run alone: it goes if all went well
	asked uint64
	told  bool           // all have been asked because of a failure
	views sync.WaitGroup // what is being printed
	busy  atomic.Bool    // a view is: who asks again meanwhile gets that one
}

// newRecorders chooses the directory: the user's, or one of the run's own, whose
// name nobody can guess: in a directory that is there before the ranks make it,
// another user could put dumps of its own. (The job's id is in the guard's arguments.)
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

// removeOldDumps removes this user's directories of dumps of earlier jobs that
// nothing has been written to since a time. In each only dumps go: a directory
// that holds anything else stays, with that.
func removeOldDumps(tmp string, before time.Time) {
	dirs, _ := filepath.Glob(filepath.Join(tmp, dumpPrefix+strings.Repeat("[0-9a-f]", 2*dumpBytes)))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || info.ModTime().After(before) {
			continue
		}
		// What another user owns cannot be opened, nor changed.
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue
		}
		files, _ := fs.Glob(root.FS(), "rank-*.json")
		hidden, _ := fs.Glob(root.FS(), ".rank-*") // of a rank that was killed while it wrote
		for _, name := range append(files, hidden...) {
			_ = root.Remove(name)
		}
		_ = root.Close()
		_ = os.Remove(dir)
	}
}

// ask makes every live worker write its dump.
func (a *agent) ask() (request uint64, asked []int) {
	a.recorders.asked++
	for i, w := range a.workers {
		if w.proc != nil && !w.ended && w.pipe.Send(agentpipe.Event{Kind: agentpipe.KindDump, Request: a.recorders.asked}) == nil {
			asked = append(asked, a.rank(i))
		}
	}
	return a.recorders.asked, asked
}

// view asks all ranks for their dumps and prints what they say together, once
// all have answered or time is up.
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
			if fate := strings.TrimPrefix(stateOf(pid), ": "); fate != "" {
				report.Tell(rank, fate)
			}
		}
		lines := report.Lines()
		if len(dumps) == 0 {
			lines = []string{"no rank has a flight recorder: none has called dist.Init, or the program is not Cohort's"}
		} else {
			for _, i := range silent {
				lines = append(lines, fmt.Sprintf("rank %d (pid %d) does not answer%s", i, pids[i], stateOf(pids[i])))
			}
			lines = append(lines, "the dumps are in "+dir)
		}
		a.say(lines...)
	})
}

// lookout is a look at where the ranks are before a SIGINT goes to them: a person
// who stops a job that hangs wants to know where.
type lookout struct {
	sig  syscall.Signal
	done chan struct{}
}

// over is closed when the look has ended; of none, it never is.
func (l *lookout) over() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.done
}

// lookBefore begins to print where the ranks wait for each other, if they do.
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

// passOn delivers the signal of a look that has ended, or is not waited for.
func (a *agent) passOn(l *lookout) *lookout {
	if l != nil && a.supervisor.interrupts == 0 {
		a.do(signalled{l.sig})
	}
	return nil
}

// await collects the dumps that answer a request, and the ranks whose do not come
// by the deadline, or by the first one while nobody has answered.
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

// finish returns the first lines of what the ranks' recorders say about a job
// that failed (fates are how the ranks ended), where the rest is, and their report, of a
// job of none an empty one. Dumps from before its beginning are of another. The directory of a job that did not fail goes, and that of one whose
// ranks have all ended with the same error (alike) while none waited for another:
// the error says it all.
func (r *recorders) finish(failed, alike bool, begin time.Time, fates map[int]string) (lines []string, dir string, report *flightlog.Report) {
	r.views.Wait()
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
