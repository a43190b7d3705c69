// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// maxEvents is how many events of a job are kept: the last ones.
const maxEvents = 500

// Job is what the launcher of a job knows of its ranks on this machine. It is a launch.Watcher.
// Its methods are safe for concurrent use, and wait for nobody but each other.
type Job struct {
	mu    sync.Mutex
	now   func() time.Time
	d     report.JobData
	lines lines
	note  string // what the log lacks
}

// NewJob returns the job of a program.
func NewJob(program string, mesh []report.Axis) *Job {
	return &Job{now: time.Now, d: report.JobData{Version: 1, Program: plain(program, 200), Mesh: mesh, Ranks: []report.RankData{}, Events: []report.Event{}}}
}

// SetLogNote says what is missing in the lines of the ranks.
func (j *Job) SetLogNote(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note = text
}

func (j *Job) moment() history.Seconds { return history.At(j.now()) }

// event keeps an event. The caller holds the lock.
func (j *Job) event(bad bool, format string, args ...any) {
	j.d.Version++
	j.d.Events = append(j.d.Events, report.Event{Time: j.moment(), Text: plain(fmt.Sprintf(format, args...), 1000), Bad: bad})
	if n := len(j.d.Events); n > maxEvents {
		j.d.Events = slices.Clone(j.d.Events[n-maxEvents/2:])
	}
}

// Begin says that an attempt begins, in which the job has so many ranks.
func (j *Job) Begin(attempt, world int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if world != j.d.World { // the ranks have other numbers
		j.d.Ranks = []report.RankData{}
	}
	j.d.Attempt, j.d.World = attempt, world
	j.d.Version++
	if attempt > 0 {
		j.event(false, "restart %d: all ranks are started again", attempt)
	}
}

// Started says that a rank was started.
func (j *Job) Started(rank, local, pid int, host string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.rank(rank)
	*r = report.RankData{Rank: rank, Local: local, Host: plain(host, 200), PID: pid, State: "running", Since: j.moment(), Starts: r.Starts + 1}
	j.d.Version++
}

// rank returns a rank, which is made where it is new. The caller holds the lock.
func (j *Job) rank(rank int) *report.RankData {
	i, ok := slices.BinarySearchFunc(j.d.Ranks, rank, func(r report.RankData, rank int) int { return r.Rank - rank })
	if !ok {
		j.d.Ranks = slices.Insert(j.d.Ranks, i, report.RankData{Rank: rank})
	}
	return &j.d.Ranks[i]
}

// Line keeps a line that a rank has printed, on standard error or on standard output.
func (j *Job) Line(rank int, isErr bool, line []byte) {
	text := plainLine(line)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines.add(rank, isErr, text)
}

// Ended says that a rank has ended, and how. asked says that the launcher had asked it to.
func (j *Job) Ended(rank int, failed, asked bool, how string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.rank(rank)
	r.State, r.How, r.Since = "ended", plain(how, 200), j.moment()
	j.d.Version++
	switch {
	case failed && !asked:
		r.State = "failed"
		j.event(true, "rank %d (host %s, pid %d) %s", rank, r.Host, r.PID, how)
	case failed:
		j.event(false, "rank %d %s, after it was asked to end", rank, how)
	}
}

// Over says that the job has ended.
func (j *Job) Over(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.d.Over = true
	if err != nil {
		j.event(true, "the job ended: %v", err)
	} else {
		j.event(false, "the job ended well")
	}
}

// data returns the job, nil if it is as it was in this version.
func (j *Job) data(version uint64) *report.JobData {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.d.Version == version {
		return nil
	}
	d := j.d
	d.Ranks, d.Events = slices.Clone(d.Ranks), slices.Clone(d.Events)
	return &d
}
