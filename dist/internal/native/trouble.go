// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// lostError is that a peer's process could not be reached, or did not answer,
// whatever that means.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// unreached returns why a peer's memory, or a pipe to it, was not to be had; nil
// if that is for reasons of this rank's own. A process that dies may be missed
// here a moment before the news of its death has come.
func (s *Shm) unreached(ctx context.Context, c *operation.Call, peer int, err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return s.trouble(ctx, c, peer)
	}
	tick := time.NewTicker(nap)
	defer tick.Stop()
	for waited := time.Now(); ; {
		if reason := s.trouble(ctx, c, peer); reason != nil {
			return reason
		}
		if time.Since(waited) >= newsPatience {
			return s.faultError(c, peer, kindFailed, "could not be reached: "+lost.Error())
		}
		<-tick.C
	}
}

// Trouble implements [collective.Backend].
func (s *Shm) Trouble(c operation.Call) error {
	if err := s.usable(&c); err != nil {
		return err
	}
	for r := range s.n {
		if r != s.cfg.Rank && s.seg.block(r).left.Load() != 0 {
			if err := s.usable(&c); err != nil { // for which it has left
				return err
			}
			return s.faultError(&c, r, kindLeft, "")
		}
	}
	return nil
}

// Trouble implements [collective.Backend].
func (m *Mesh) Trouble(c operation.Call) error {
	if err := m.usable(&c); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.fault; f != nil {
		return m.cfg.faultError(&c, f.rank, f.kind, f.text)
	}
	for r := range m.left {
		return m.cfg.faultError(&c, r, kindLeft, "")
	}
	return nil
}
