// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"sync"
	"sync/atomic"
)

// DefaultLogLimit is how many bytes the log of a server has behind the last snapshot when
// the server writes the next one.
const DefaultLogLimit = 1 << 30

// WithLogLimit makes a server write a snapshot to its journal when what was kept behind the
// last one has more bytes, in place of [DefaultLogLimit]. So the log does not grow without
// end, and a server that is started again does not read more. 0 means that the server
// writes snapshots only when somebody asks for them.
func WithLogLimit(bytes int64) Option {
	return func(o *options) error {
		o.forServer = "WithLogLimit"
		if bytes < 0 {
			return errorf(KindSettings, "a limit of %d bytes for the log: want 0 (no limit) or more", bytes)
		}
		o.logLimit = bytes
		return nil
	}
}

// keeper writes the snapshots of a server that keep its log short.
type keeper struct {
	most    int64 // bytes of the log, 0: no limit
	again   int64 // of the writer: after a failure, at how many bytes to try again
	busy    atomic.Bool
	problem atomic.Pointer[Error] // why the last snapshot failed, nil if it did not
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup
}

func (k *keeper) begin(ctx context.Context) { k.ctx, k.cancel = context.WithCancel(ctx) }

// end gives up a snapshot that is being written. The log has all that it would have.
func (k *keeper) end() {
	k.cancel()
	k.wait.Wait()
}

// keepShort begins a snapshot if the log has become too long. The writer calls it after each
// turn.
func (s *Server) keepShort() {
	k := &s.keeper
	if s.journal == nil || k.most == 0 || k.busy.Load() {
		return
	}
	bytes := s.journal.Unsaved()
	if bytes <= k.most || bytes < k.again && k.problem.Load() != nil {
		return
	}
	// A snapshot that fails, such as on a full disk, loses nothing. It is tried again, but not
	// after each push.
	k.again = bytes + k.most/8 + 1
	k.busy.Store(true)
	k.wait.Go(func() {
		defer k.busy.Store(false)
		_, _ = s.Snapshot(k.ctx) // problem says what has happened
	})
}
