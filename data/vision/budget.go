// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"context"
	"fmt"
	"sync"
)

// maxDecoding is how many bytes all goroutines of a process together take for
// encoded images and for decoding them: 1 GiB. A file of a megabyte can ask for
// all of it, so workers wait for each other rather than for the system to run out
// of memory.
const maxDecoding = 1 << 30

// decoding is what is left of that.
var decoding = budget{size: maxDecoding, free: maxDecoding}

// budget is a number of bytes that goroutines share out. Who comes first is
// served first, so that large images get their turn.
type budget struct {
	mu         sync.Mutex
	size, free int64
	queue      []*claim
}

type claim struct {
	bytes   int64
	granted chan struct{}
}

// tooLarge is the error of an image that needs more than there is.
func (b *budget) tooLarge(what string, bytes int64) error {
	return fmt.Errorf("%s takes %d MB, and all images that a process decodes at a time may take %d MB: scale it down", what, bytes/1e6, b.size/1e6)
}

// take waits for bytes, at most all that there are. Who waits holds none, and
// who holds some is decoding: no wait lasts longer than that.
func (b *budget) take(ctx context.Context, bytes int64) error {
	b.mu.Lock()
	if len(b.queue) == 0 && bytes <= b.free {
		b.free -= bytes
		b.mu.Unlock()
		return nil
	}
	c := &claim{bytes, make(chan struct{})}
	b.queue = append(b.queue, c)
	b.mu.Unlock()
	select {
	case <-c.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.queue {
		if other == c {
			b.queue = append(b.queue[:i], b.queue[i+1:]...)
			b.grant() // who waits behind may need less
			return fmt.Errorf("waiting for other images to be decoded, which take %d MB: %w", (b.size-b.free)/1e6, context.Cause(ctx))
		}
	}
	return nil // granted at the same time
}

// tryTake takes bytes that are free now.
func (b *budget) tryTake(bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 || bytes > b.free {
		return false
	}
	b.free -= bytes
	return true
}

// give gives bytes back.
func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += bytes
	b.grant()
}

// grant serves those in front of the queue. b.mu is locked.
func (b *budget) grant() {
	for len(b.queue) > 0 && b.queue[0].bytes <= b.free {
		b.free -= b.queue[0].bytes
		close(b.queue[0].granted)
		b.queue = b.queue[1:]
	}
}
