// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	events "github.com/cohort-ml/cohort/internal/event"
)

const (
	// figuresPatience is how long the agent waits for the ranks that it has asked for figures. A rank of
	// a program that is not Cohort's never answers.
	figuresPatience = 300 * time.Millisecond
	// figuresAge is how old figures are at most before the ranks are asked again, however many ask.
	figuresAge = 500 * time.Millisecond
	// reportAge is the same of dumps.
	reportAge = time.Second
)

// Figures asks the ranks of this host what they have done so far. It is given to a launcher as
// [Config].Figures, and may be asked from any goroutine, before, while and after the job runs. The
// zero value is ready.
type Figures struct {
	mu    sync.Mutex
	once  sync.Once
	wants chan want
	at    time.Time // of the last answer
	last  []events.Answer

	reported time.Time // when the last report was made
	report   *flightlog.Report
}

// want is what somebody wants of the ranks: their figures, or the dumps of their flight recorders.
type want struct {
	kind  string // of the event that asks them
	reply chan asking
}

// asking is what an agent has asked.
type asking struct {
	dir     string
	request uint64
	asked   []int
	pids    map[int]int // of these ranks
}

// channel is where an agent finds who wants figures; nil of nil Figures.
func (f *Figures) channel() chan want {
	if f == nil {
		return nil
	}
	f.once.Do(func() { f.wants = make(chan want) })
	return f.wants
}

// Ask returns the figures of the ranks of this host, in their order, at most half a second old. There are
// none while no rank runs.
func (f *Figures) Ask(ctx context.Context) []events.Answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) < figuresAge {
		return f.last
	}
	ctx, cancel := context.WithTimeout(ctx, figuresPatience)
	defer cancel()
	reply := make(chan asking, 1)
	f.last = nil
	select {
	case f.channel() <- want{agentpipe.KindFigures, reply}:
		f.last = (<-reply).collect(ctx)
	case <-ctx.Done():
	}
	f.at = time.Now()
	return f.last
}

// Report asks the ranks of this host for the dumps of their flight recorders, and merges them: who waits
// in what since when, who has not come, and their stacks. A rank that does not answer is told as such. It
// is nil while no rank runs. The job goes on meanwhile. However many ask, the ranks are asked once a second.
func (f *Figures) Report(ctx context.Context) *flightlog.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.reported) < reportAge {
		return f.report
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	reply := make(chan asking, 1)
	f.report = nil
	select {
	case f.channel() <- want{agentpipe.KindDump, reply}:
		f.report = (<-reply).merge()
	case <-ctx.Done():
	}
	f.reported = time.Now()
	return f.report
}

// merge waits for the dumps, and merges them.
func (q asking) merge() *flightlog.Report {
	if len(q.asked) == 0 {
		return nil
	}
	deadline := time.Now().Add(answerPatience)
	dumps, silent := await(q.dir, q.request, slices.Clone(q.asked), deadline, deadline)
	report := flightlog.Merge(dumps)
	for _, rank := range silent {
		fate := fmt.Sprintf("it does not answer (pid %d)", q.pids[rank])
		if why := silenceOf(q.pids[rank]); why != "" {
			fate += ": " + why
		}
		report.Tell(rank, fate)
		report.Notes = append(report.Notes, fmt.Sprintf("rank %d: %s", rank, fate))
	}
	return report
}

// askRanks asks all live ranks.
func (a *agent) askRanks(w want) {
	a.recorders.asked++
	q := asking{dir: a.recorders.dir, request: a.recorders.asked, pids: map[int]int{}}
	for i, of := range a.workers {
		if of.proc != nil && !of.ended {
			q.asked = append(q.asked, a.rank(i))
			q.pids[a.rank(i)] = of.proc.Pid
			_ = of.pipe.Send(agentpipe.Event{Kind: w.kind, Request: q.request}) // else it does not answer
		}
	}
	w.reply <- q
}

// collect waits for the answers.
func (q asking) collect(ctx context.Context) []events.Answer {
	out := make([]events.Answer, len(q.asked))
	for i, rank := range q.asked {
		out[i].Rank = rank
	}
	for left := len(out); ; {
		for i := range out {
			if out[i].File != nil {
				continue
			}
			if f, err := events.ReadFile(filepath.Join(q.dir, events.FileName(out[i].Rank))); err == nil && f.Request >= q.request {
				out[i].File = f
				left--
			}
		}
		if left == 0 {
			return out
		}
		select {
		case <-ctx.Done():
			return out
		case <-time.After(answerPoll):
		}
	}
}

// removeFigures removes the files of figures. A directory of this run alone goes too if nothing else is in it.
func (r *recorders) removeFigures() {
	dir := r.dir
	files, _ := filepath.Glob(filepath.Join(dir, events.FilePattern))
	hidden, _ := filepath.Glob(filepath.Join(dir, "."+events.FilePattern))
	for _, path := range append(files, hidden...) {
		_ = os.Remove(path)
	}
	if r.ours {
		_ = os.Remove(dir)
	}
}
