// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// anyPause is the longest that a receive from any rank looks away from pipes.
const anyPause = time.Millisecond

// AwaitAny implements [collective.Backend]: each connection from a peer is
// watched by a goroutine while the wait lasts; pipes are looked into, more and
// more seldom.
func (m *Mesh) AwaitAny(ctx context.Context, c operation.Call) (src int, err error) {
	if err := m.usable(&c); err != nil {
		return 0, err
	}
	if src, err = m.awaitAny(ctx, &c); err != nil {
		return 0, m.fail(err)
	}
	return src, nil
}

// readiness is what the watcher of a connection has to say.
type readiness struct {
	peer int
	err  error
}

func (m *Mesh) awaitAny(ctx context.Context, c *operation.Call) (int, error) {
	limit := time.NewTimer(m.cfg.Timeout - time.Since(c.Start()))
	defer limit.Stop()
	ready := make(chan readiness, m.n)
	watched := map[int]*transport.Conn{}
	var watchers sync.WaitGroup
	defer func() {
		for _, conn := range watched {
			_ = conn.SetReadDeadline(time.Unix(1, 0))
		}
		watchers.Wait()
		for _, conn := range watched {
			_ = conn.SetReadDeadline(time.Time{})
		}
	}()
	pause := time.Microsecond
	var gone <-chan time.Time // when all have left: until what they opened before must have come in
	overdue := false
	for {
		m.mu.Lock()
		failed, numLeft, news := m.fault, len(m.left), m.news
		m.mu.Unlock()
		for i := 1; i < m.n; i++ {
			peer := (m.cfg.Rank + i) % m.n
			if j := m.localOf[peer]; j >= 0 {
				if m.local.hasMessage(j) {
					return peer, nil
				}
				continue
			}
			if watched[peer] != nil {
				continue
			}
			if conn := m.arrived(peer); conn != nil {
				watched[peer] = conn
				watchers.Go(func() {
					if begun, err := conn.Begun(); begun || err != nil {
						ready <- readiness{peer, err}
					}
				})
			}
		}
		var look <-chan time.Time
		if m.local != nil {
			look = time.After(pause)
			pause = min(2*pause, anyPause)
		}
		select {
		case r := <-ready:
			if r.err == nil {
				return r.peer, nil
			}
			// One that has left sends nothing more; its note may come after the
			// end of its connection.
			if !m.HasLeft(r.peer) {
				if err := m.explain(c, r.peer, r.err); !errors.Is(err, fault.ErrLeft) {
					return 0, err
				}
			}
			continue
		default:
		}
		switch {
		case failed != nil:
			return 0, m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
		case numLeft == m.n-1 && m.nothingComes(ready, &watchers):
			if overdue {
				return 0, m.cfg.faultError(c, m.others()[0].Rank, kindLeft, "")
			}
			if gone == nil {
				gone = time.After(newsPatience)
			}
		}
		select {
		case r := <-ready:
			ready <- r
		case <-news:
		case <-look:
		case <-gone:
			overdue = true
		case <-ctx.Done():
			return 0, m.late(ctx, c, m.others()...)
		case <-limit.C:
			return 0, m.late(ctx, c, m.others()...)
		}
	}
}

// nothingComes reports whether what the ranks sent that have all left has been
// taken: all watchers have ended, none of them with a message.
func (m *Mesh) nothingComes(ready chan readiness, watchers *sync.WaitGroup) bool {
	watchers.Wait() // the ranks have closed their connections
	return len(ready) == 0
}

// hasMessage reports whether a message from a peer has begun to come.
func (s *Shm) hasMessage(peer int) bool {
	p := s.pipes.has(pipeKey{peer, false, pipeMessages})
	return p != nil && p.block.sent.reached(p.count+1)
}
