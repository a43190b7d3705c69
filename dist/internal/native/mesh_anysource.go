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

// anyPause is the longest interval between two looks into the pipes.
const anyPause = time.Millisecond

// AwaitAny implements [backend.Communicator]. While the wait lasts, a goroutine watches each
// connection from a peer, and the rank looks into the pipes at growing intervals.
func (m *Mesh) AwaitAny(ctx context.Context, c operation.Call) (src int, err error) {
	if err := m.usable(&c); err != nil {
		return 0, err
	}
	if m.carrier != nil {
		src, err = m.awaitCarried(ctx, &c)
	} else {
		src, err = m.awaitAny(ctx, &c)
	}
	if err != nil {
		return 0, m.fail(err)
	}
	return src, nil
}

// readiness is what the watcher of a connection reports: a message has begun to come,
// or the connection has ended with an error.
type readiness struct {
	peer int
	err  error
}

// anyWait is the wait of a receive from any rank.
type anyWait struct {
	m        *Mesh
	c        *operation.Call
	ready    chan readiness
	watched  map[int]*transport.Conn // by peer: connections that have a watcher
	watchers sync.WaitGroup
	pause    time.Duration    // before the next look into the pipes
	gone     <-chan time.Time // when all have left: until what they sent before must have come in
	overdue  bool             // that time is over
}

func (m *Mesh) awaitAny(ctx context.Context, c *operation.Call) (int, error) {
	limit := time.NewTimer(m.cfg.Timeout - time.Since(c.Start()))
	defer limit.Stop()
	w := &anyWait{m: m, c: c, ready: make(chan readiness, m.n), watched: map[int]*transport.Conn{}, pause: time.Microsecond}
	defer w.release()
	for {
		m.mu.Lock()
		failed, numLeft, news := m.fault, len(m.left), m.news
		m.mu.Unlock()
		if peer, found := w.look(); found {
			return peer, nil
		}
		again := w.nextLook()
		select {
		case r := <-w.ready:
			if r.err == nil {
				return r.peer, nil
			}
			if err := w.ended(r); err != nil {
				return 0, err
			}
			continue
		default:
		}
		switch {
		case failed != nil:
			return 0, m.cfg.faultError(c, failed.rank, failed.kind, failed.text)
		case numLeft == m.n-1 && w.nothingComes():
			if w.overdue {
				return 0, m.cfg.faultError(c, m.others()[0].Rank, kindLeft, "")
			}
			if w.gone == nil {
				w.gone = time.After(newsPatience)
			}
		}
		select {
		case r := <-w.ready:
			w.ready <- r
		case <-news:
		case <-again:
		case <-w.gone:
			w.overdue = true
		case <-ctx.Done():
			return 0, m.late(ctx, c, m.others()...)
		case <-limit.C:
			return 0, m.late(ctx, c, m.others()...)
		}
	}
}

// look looks into the pipes of all peers, and gives each new connection a watcher. It
// returns a peer whose message lies in its pipe.
func (w *anyWait) look() (peer int, found bool) {
	m := w.m
	for i := 1; i < m.n; i++ {
		peer := (m.cfg.Rank + i) % m.n
		if j := m.localOf[peer]; j >= 0 {
			if m.local.hasMessage(j) {
				return peer, true
			}
			continue
		}
		if w.watched[peer] != nil {
			continue
		}
		if conn := m.arrived(peer); conn != nil {
			w.watched[peer] = conn
			w.watchers.Go(func() {
				if begun, err := conn.Begun(); begun || err != nil {
					w.ready <- readiness{peer, err}
				}
			})
		}
	}
	return 0, false
}

// nextLook returns when to look into the pipes again; nil where there are none.
func (w *anyWait) nextLook() <-chan time.Time {
	if w.m.local == nil {
		return nil
	}
	after := time.After(w.pause)
	w.pause = min(2*w.pause, anyPause)
	return after
}

// ended returns the error of the call for a connection that has ended, nil if its peer
// has left: a peer that has left sends nothing more, and the news of its leave may come
// after the end of its connection.
func (w *anyWait) ended(r readiness) error {
	if w.m.HasLeft(r.peer) {
		return nil
	}
	if err := w.m.explain(w.c, r.peer, r.err); !errors.Is(err, fault.ErrLeft) {
		return err
	}
	return nil
}

// nothingComes reports whether everything has been taken that the ranks sent before all
// of them left: all watchers have ended, none of them with a message.
func (w *anyWait) nothingComes() bool {
	w.watchers.Wait() // the ranks have closed their connections
	return len(w.ready) == 0
}

// release ends the watchers.
func (w *anyWait) release() {
	for _, conn := range w.watched {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	}
	w.watchers.Wait()
	for _, conn := range w.watched {
		_ = conn.SetReadDeadline(time.Time{})
	}
}

// hasMessage reports whether a message from a peer has begun to come.
func (s *Shm) hasMessage(peer int) bool {
	p := s.pipes.has(pipeKey{peer, false, pipeMessages})
	return p != nil && p.block.sent.reached(p.count+1)
}
