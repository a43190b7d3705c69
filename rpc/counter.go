// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// counter counts what is under way, and lets others wait for none.
type counter struct {
	mu      sync.Mutex
	n       int
	started uint64
	refuses bool
	changed chan struct{} // closed when n has changed; nil if nobody waits
}

// enter adds one, unless no more are taken.
func (c *counter) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses {
		return errClosed
	}
	c.n++
	c.started++
	return nil
}

func (c *counter) add(d int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += d; d > 0 {
		c.started += uint64(d)
	}
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// refuse makes enter fail from now on.
func (c *counter) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = true
}

// count returns how many are under way, and how many there have ever been.
func (c *counter) count() (n int, started uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n, c.started
}

// wait waits until none is under way.
func (c *counter) wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		n, changed := c.n, c.changed
		c.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctxerr.Of(ctx)
		}
	}
}
