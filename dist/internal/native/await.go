// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// A member that has not come to a group yet may still be computing, for as long
// as it likes, or it may be gone: there are no beats before there is a
// connection. Who waits for it asks at its port whether its process is there,
// which answers whatever its program does.
const (
	// comeWithin is how long members have to come before they are asked.
	comeWithin = 500 * time.Millisecond
	// asksAtOnce bounds the members that are asked at the same time.
	asksAtOnce = 64
	// answerWithin is what an answer may take at least: a handshake is several
	// turns of processes that may have little of a processor.
	answerWithin = time.Second
)

// askAbsent asks the processes of members that have not come whether they are
// there, until stop is called. absent returns the members' ranks; lost is
// called for one that has not answered for the silence limit.
func (f *Fabric) askAbsent(ctx context.Context, cfg *Config, route func(rank int) route, absent func() []int, lost func(rank int, text string)) (stop func()) {
	if cfg.Silence <= 0 {
		return func() {}
	}
	most := max(cfg.Silence, answerWithin)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		pause := time.NewTimer(min(comeWithin, cfg.Silence))
		defer pause.Stop()
		for {
			select {
			case <-pause.C:
			case <-ctx.Done():
				return
			}
			var asked sync.WaitGroup
			room := make(chan struct{}, asksAtOnce)
			for _, r := range absent() {
				room <- struct{}{}
				asked.Go(func() {
					defer func() { <-room }()
					limit, cancel := context.WithTimeout(ctx, most)
					defer cancel()
					if err := f.reach(limit, cfg.World[r], route(r)); err != nil && ctx.Err() == nil {
						lost(r, fmt.Sprintf("for %v while the group was formed: %v", most, err))
					}
				})
			}
			asked.Wait()
			pause.Reset(cfg.Silence)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// reach returns nil if the process of a rank of the job answers: it proves that
// it has the token.
func (f *Fabric) reach(ctx context.Context, rank int, by route) error {
	conn, err := f.connect(ctx, rank, by)
	if err == nil {
		conn.Close()
	}
	return err
}

// absent returns the spokes that the hub has no connection to.
func (s *star) absent() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ranks []int
	for r := 1; r < s.numRanks; r++ {
		if s.conns[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// mute takes a rank that does not answer before it has joined.
func (s *star) mute(rank int, text string) { s.news(s.rank, rank, kindSilent, text) }

// withHub returns a context that ends when the process of a group's hub, which
// this spoke waits for, does not answer.
func (f *Fabric) withHub(ctx context.Context, cfg *Config, by route) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := f.askAbsent(ctx, cfg, func(int) route { return by }, func() []int { return []int{0} },
		func(rank int, text string) { cancel(SilenceError(cfg.Group, cfg.Members[rank], text)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// connect opens a connection to a rank of the job.
func (f *Fabric) connect(ctx context.Context, rank int, by route) (*transport.Conn, error) {
	f.mu.Lock()
	var at Address
	if rank >= 0 && rank < len(f.book) {
		at = f.book[rank]
	}
	f.mu.Unlock()
	addr := at.TCP
	if by == overUnix {
		addr = at.Unix
	}
	if addr == "" {
		return nil, errNotListening
	}
	return transport.Dial(ctx, addr, Proto, f.token, transport.WithTLS(by == overTLS), transport.WithDialer(f.dialer))
}
