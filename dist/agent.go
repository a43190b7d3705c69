// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/agentpipe"
)

// newsPatience is how long an error about a dead rank waits for the agent to
// say how it died. Sockets are quicker than the agent by a little.
const newsPatience = 250 * time.Millisecond

// agentWatch listens to the agent that launched this process, if there is
// one: it knows first-hand which local rank has died and of what.
type agentWatch struct {
	reader *agentpipe.Reader // nil: no agent
	ended  chan struct{}     // closed when listening has ended

	mu     sync.Mutex
	dead   map[int]native.Obituary
	news   chan struct{} // closed and replaced at every death
	onDead func(rank int)
	early  func(*RankError) // until forward: a death while the group is formed
}

func watchAgent(early func(*RankError)) (*agentWatch, error) {
	r, err := agentpipe.Open()
	if err != nil {
		return nil, err
	}
	w := &agentWatch{reader: r, ended: make(chan struct{}), dead: map[int]native.Obituary{}, news: make(chan struct{}), early: early}
	if r == nil {
		close(w.ended)
		return w, nil
	}
	go w.listen()
	return w, nil
}

func (w *agentWatch) listen() {
	defer close(w.ended)
	for {
		e, err := w.reader.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || e.Kind != agentpipe.KindExited {
			if err != nil && !isLine(err) {
				return
			}
			continue
		}
		w.mu.Lock()
		o := native.Obituary{Known: true, Signal: e.Signal, Code: e.Code}
		w.dead[e.Rank] = o
		close(w.news)
		w.news = make(chan struct{})
		onDead, early := w.onDead, w.early
		w.mu.Unlock()
		if onDead != nil {
			onDead(e.Rank)
		} else {
			early(native.DeathError(worldName, Member{Rank: e.Rank, Host: e.Host, PID: e.PID}, o))
		}
	}
}

// isLine reports whether an error is about one line, after which others come.
func isLine(err error) bool {
	var pe *os.PathError
	return !errors.As(err, &pe)
}

// forward sends news of deaths to a group's backend from now on, past deaths
// first.
func (w *agentWatch) forward(onDead func(rank int)) {
	w.mu.Lock()
	w.onDead = onDead
	var before []int
	for r := range w.dead {
		before = append(before, r)
	}
	w.mu.Unlock()
	for _, r := range before {
		onDead(r)
	}
}

// obituary says how a rank died, waiting a moment for the news.
func (w *agentWatch) obituary(rank int) native.Obituary {
	deadline := time.NewTimer(newsPatience)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		o, news := w.dead[rank], w.news
		w.mu.Unlock()
		if o.Known || w.reader == nil {
			return o
		}
		select {
		case <-news:
		case <-w.ended:
			return o
		case <-deadline.C:
			return o
		}
	}
}

func (w *agentWatch) close() {
	if w.reader != nil {
		_ = w.reader.Close()
		<-w.ended
	}
}
