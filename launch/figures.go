// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	events "github.com/cohort-ml/cohort/internal/event"
)

const (
	// figuresPatience is how long the agent waits for the ranks that it has asked for figures. A rank of
	// a program that is not Cohort's never answers.
	figuresPatience = 300 * time.Millisecond
	// figuresAge is how old figures are at most before the ranks are asked again, however many ask.
	figuresAge = 500 * time.Millisecond
)

// Figures asks the ranks of this host what they have done so far. It is given to a launcher as
// [Config].Figures, and may be asked from any goroutine, before, while and after the job runs. The
// zero value is ready.
type Figures struct {
	mu    sync.Mutex
	once  sync.Once
	wants chan chan asking
	at    time.Time // of the last answer
	last  []events.Answer
}

// asking is what an agent has asked.
type asking struct {
	dir     string
	request uint64
	asked   []int
}

// channel is where an agent finds who wants figures; nil of nil Figures.
func (f *Figures) channel() chan chan asking {
	if f == nil {
		return nil
	}
	f.once.Do(func() { f.wants = make(chan chan asking) })
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
	case f.channel() <- reply:
		f.last = (<-reply).collect(ctx)
	case <-ctx.Done():
	}
	f.at = time.Now()
	return f.last
}

// askFigures asks all live ranks.
func (a *agent) askFigures(reply chan asking) {
	a.recorders.asked++
	q := asking{dir: a.recorders.dir, request: a.recorders.asked}
	for i, w := range a.workers {
		if w.proc != nil && !w.ended {
			q.asked = append(q.asked, a.rank(i))
			_ = w.pipe.Send(agentpipe.Event{Kind: agentpipe.KindFigures, Request: q.request}) // else it does not answer
		}
	}
	reply <- q
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
