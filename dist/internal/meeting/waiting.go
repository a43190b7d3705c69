// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
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
	return WaitAloud(ctx, w, m.rank, func(ctx context.Context) string {
		ranks := missing(ctx)
		switch {
		case len(ranks) == 0:
			return ""
		case m.agentServes() && m.store == nil:
			return "the launcher's store at " + m.master
		}
		return ToJoin(backend.RanksText(ranks), m.worldSize, m.meetingPoint()) + m.hindrance()
	})
}

// hindrance says what keeps this rank from rank 0, if that is more than that nobody
// listens there yet.
func (m *meeting) hindrance() string {
	err := m.failed.Load()
	if err == nil || transport.NobodyListens(*err) {
		return ""
	}
	return fmt.Sprintf(" (%v: strangers keep the port busy, or another program listens there; where that is PyTorch's rank 0, dist.WithBackend(%q) joins it)", *err, "gloo")
}

// meetingPoint names where the ranks meet.
func (m *meeting) meetingPoint() string {
	switch {
	case m.master == "" || m.settings.Store != nil:
		return "the store that Init was given"
	case m.agentServes():
		return "the launcher's store at " + m.master
	}
	return m.master
}

// ToJoin says who has not joined, of how many, and where.
func ToJoin(ranks string, of int, at string) string {
	return fmt.Sprintf("%s of %d (%s) to join", ranks, of, at)
}

// WaitAloud writes what a rank waits for until stop is called, if that takes long; what
// returns "" where that is nothing.
func WaitAloud(ctx context.Context, w io.Writer, rank int, what func(context.Context) string) (stop func()) {
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
