// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/internal/transport"
)

// A member that has not come to a group yet may compute for as long as it likes, or it
// may be gone. Heartbeats do not tell, for there is no connection yet. So a rank that
// waits for the member connects to the member's port: the process answers there whatever
// its program does.
const (
	// comeWithin is how long members have to come before their ports are asked.
	comeWithin = 500 * time.Millisecond
	// asksAtOnce bounds the members that are asked at the same time.
	asksAtOnce = 64
	// askSoon is after what time survivors ask for a second time. The time doubles with
	// each question, up to askLate where there is no silence limit.
	askSoon = 50 * time.Millisecond
	askLate = 3 * time.Second
	// endPatience is how long a process of this host may take to end after its sockets
	// have been closed.
	endPatience = 100 * time.Millisecond
)

// askAbsent asks the processes of members that have not come whether they are there,
// until stop is called. absent returns the members' ranks. lost is called for a member
// whose process has ended, or has not answered for the silence limit. Survivors of a lost
// rank ask at once, for others may be lost too.
func (f *Fabric) askAbsent(ctx context.Context, cfg *Config, route func(rank int) route, absent func() []int, lost func(rank int, kind uint32, text string)) (stop func()) {
	if cfg.Silence <= 0 && !cfg.Survivors {
		return func() {}
	}
	most := cfg.dialLimit()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		first, next := min(comeWithin, cfg.Silence), cfg.Silence
		if cfg.Survivors {
			first, next = 0, askSoon
		}
		pause := time.NewTimer(first)
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
					err := f.reach(limit, cfg.World[r], route(r))
					if err == nil || ctx.Err() != nil || transport.Alive(err) { // it has strangers at its port
						return
					}
					if kind, ended := cfg.ended(r, err); ended {
						if ctx.Err() == nil { // else the others know better, meanwhile
							lost(r, kind, "")
						}
					} else if cfg.Silence > 0 {
						lost(r, kindSilent, fmt.Sprintf("for %v while the group was formed: %v", most, err))
					}
				})
			}
			asked.Wait()
			pause.Reset(next)
			if next *= 2; cfg.Silence > 0 {
				next = min(next, cfg.Silence)
			} else {
				next = min(next, askLate)
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// reach returns nil if the process of a rank of the job answers, and has the token.
func (f *Fabric) reach(ctx context.Context, rank int, by route) error {
	conn, err := f.connect(ctx, rank, by)
	if err == nil {
		conn.Close()
	}
	return err
}

// ended reports whether the error of a dial says that a rank's process has ended: nobody
// listens where it listened. kind is the fault. A process of this host that still exists
// has left the job. A process of another host tells that it has left, which may take a
// moment.
func (cfg *Config) ended(rank int, err error) (kind uint32, ended bool) {
	if !transport.NobodyListens(err) {
		return 0, false
	}
	m, me := cfg.Members[rank], cfg.Members[cfg.Rank]
	if m.Host == me.Host && m.PID == me.PID { // a goroutine of this process, which is there
		return kindLeft, true
	}
	for end := time.Now().Add(endPatience); ; time.Sleep(time.Millisecond) {
		s, seen := cfg.neighbour(rank)
		switch {
		case seen && (s.state == 'Z' || s.state == 'X'), !seen && m.Host == me.Host:
			return kindDied, true
		case time.Now().After(end) && seen:
			return kindLeft, true
		case time.Now().After(end):
			return kindDied, true
		}
	}
}

// hungUp reports whether the hub has ended the connection of a spoke that was joining. The
// next connection tells what that means: that the hub's process has ended, or why it has
// given up the group.
func hungUp(ctx context.Context, err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return ctx.Err() == nil
		}
	}
	return false
}

// maxJoins is how often a spoke tries to join, joinPause the time between.
const (
	maxJoins  = 5
	joinPause = 5 * time.Millisecond
)

// lostHub returns the error of a spoke that could not join because of err. conn is the
// connection, nil if there was none. The hub may have counted this rank in already, so
// this rank tells it why it leaves.
func (s *star) lostHub(ctx context.Context, conn *transport.Conn, err error) error {
	err = s.cfg.absent(ctx, 0, err)
	if conn == nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	var other *fault.RankError
	if errors.As(err, &other) {
		_ = conn.WriteFrame(frameFault, encodeFault(s.cfg.faultOf(err)))
	}
	_ = conn.WriteFrame(frameBye, s.words())
	conn.Close()
	return err
}

// absent returns the spokes to which the hub has no connection.
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

// mute takes the fault of a rank that does not answer before it has joined.
func (s *star) mute(rank int, kind uint32, text string) { s.news(s.rank, rank, kind, text) }

// withHub returns a context that ends when the hub's process, for which this spoke waits,
// does not answer. Survivors watch all members: the hub may be alive and wait in another
// group, because it heard of another loss first.
func (f *Fabric) withHub(ctx context.Context, cfg *Config, by func(rank int) route) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	others := []int{0}
	if cfg.Survivors {
		for r := 1; r < len(cfg.Members); r++ {
			if r != cfg.Rank {
				others = append(others, r)
			}
		}
	}
	stop := f.askAbsent(ctx, cfg, by, func() []int { return others },
		func(rank int, kind uint32, text string) { cancel(cfg.found(rank, kind, text)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// found returns the error about a member that this rank has found lost while it waits for
// the group. It tells the other groups too.
func (cfg *Config) found(rank int, kind uint32, text string) error {
	if kind == kindDied && cfg.Deaths != nil {
		cfg.Deaths(rank)
	}
	return cfg.faultError(nil, rank, kind, text)
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
	return transport.Dial(ctx, addr, Proto, f.token, transport.WithListener(), transport.WithTLS(by == overTLS), transport.WithDialer(f.dialer))
}

// dialLimit is how long a connection to a rank with heartbeats may take: a handshake needs
// several turns of processes that may get little processor time.
func (cfg *Config) dialLimit() time.Duration { return max(2*cfg.Silence, dialAtLeast) }

const dialAtLeast = 5 * time.Second
