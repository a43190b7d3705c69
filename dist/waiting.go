// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// A rank may wait in Init for minutes for one that has not been started. After
// joinPatience it says for whom, and again every joinReminder.
const (
	joinPatience = 5 * time.Second
	joinReminder = time.Minute
)

// reportWaiting writes whom this rank waits for until stop is called, if that takes
// long: rank 0 names all that have not introduced themselves, the others only
// rank 0, until they have reached it. A network inside the process has its own time.
func (m *meeting) reportWaiting(ctx context.Context, missing func(context.Context) []int) (stop func()) {
	if m.host != nil {
		return func() {}
	}
	return m.waitAloud(ctx, os.Stderr, missing)
}

func (m *meeting) waitAloud(ctx context.Context, w io.Writer, missing func(context.Context) []int) (stop func()) {
	return waitAloud(ctx, w, m.rank, func(ctx context.Context) string {
		ranks := missing(ctx)
		switch {
		case len(ranks) == 0:
			return ""
		case m.agentServes() && m.store == nil:
			return "the launcher's store at " + m.master
		}
		return toJoin(ranksText(ranks), m.worldSize, m.meetingPoint()) + m.hindrance()
	})
}

// hindrance says what keeps this rank from rank 0, if that is more than that nobody
// listens there yet.
func (m *meeting) hindrance() string {
	err := m.failed.Load()
	if err == nil || transport.NobodyListens(*err) {
		return ""
	}
	return fmt.Sprintf(" (%v: strangers keep the port busy, or another program listens there; where that is PyTorch's rank 0, dist.WithBackend(%q) joins it)", *err, glooBackend)
}

// meetingPoint names where the ranks meet.
func (m *meeting) meetingPoint() string {
	switch {
	case m.master == "" || m.options.store != nil:
		return "the store that Init was given"
	case m.agentServes():
		return "the launcher's store at " + m.master
	}
	return m.master
}

// toJoin says who has not joined, of how many, and where.
func toJoin(ranks string, of int, at string) string {
	return fmt.Sprintf("%s of %d (%s) to join", ranks, of, at)
}

// waitAloud writes what a rank waits for until stop is called, if that takes long; what
// returns "" where that is nothing.
func waitAloud(ctx context.Context, w io.Writer, rank int, what func(context.Context) string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done, begin := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for after := joinPatience; ; after = joinReminder {
			timer := time.NewTimer(after)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			text := what(ctx)
			if text == "" || ctx.Err() != nil {
				continue
			}
			_, _ = fmt.Fprintf(w, "cohort: rank %d has been waiting for %s for %v\n", rank, text, time.Since(begin).Round(time.Second))
		}
	}()
	return func() { cancel(); <-done }
}

// ranksText names ranks in a sentence: "rank 1", "ranks 1, 3 and 12 more".
func ranksText(ranks []int) string {
	const most = 16
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(ranks[:min(len(ranks), most)]), "[]"), " ", ", ")
	if rest := len(ranks) - most; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return "ranks " + text
}

// rankZero is who is missing while rank 0 cannot be reached.
func rankZero(context.Context) []int { return []int{0} }

// notJoined returns the ranks that have not introduced themselves. Ranks other than
// 0 leave it to that one to name the rest.
func (m *meeting) notJoined(ctx context.Context) []int {
	ranks := m.worldSize
	if m.rank != 0 {
		ranks = 1
	}
	var out []int
	for r := range ranks {
		if m.look(ctx, entryKey("introduction", r)) == nil {
			out = append(out, r)
		}
	}
	return out
}
