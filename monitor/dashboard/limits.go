// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Limits of a server.
const (
	maxConns      = 64               // connections at a time
	maxRequests   = 8                // that are answered at a time
	requestRate   = 100              // requests a second, on average
	byteRate      = 4 << 20          // bytes of answers a second, on average
	byteBurst     = 64 << 20         // bytes that may be due at once: pages that are opened
	maxHeader     = 16 << 10         // bytes of a request's head
	readPatience  = 5 * time.Second  // for the head of a request
	writePatience = 10 * time.Second // for the reader of an answer
	idlePatience  = time.Minute      // between requests of a connection
)

// bucket limits a rate: what is taken on average.
type bucket struct {
	mu          sync.Mutex
	rate, burst float64 // a second; at once
	level       float64
	last        time.Time
}

func newBucket(rate, burst float64) *bucket {
	return &bucket{rate: rate, burst: burst, level: burst, last: time.Now()}
}

// take takes n if there is anything left, so that one answer may be larger than what is left.
func (b *bucket) take(n float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.level = min(b.burst, b.level+b.rate*now.Sub(b.last).Seconds())
	if b.last = now; b.level <= 0 {
		return false
	}
	b.level -= n
	return true
}

// limitedListener closes connections beyond maxConns at once, and does not accept more than
// requestRate a second: more wait in the system's queue, which is bounded.
type limitedListener struct {
	net.Listener
	slots   chan struct{}
	rate    *bucket
	refused func()
	closed  chan struct{}
	once    sync.Once
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		for !l.rate.take(1) {
			select {
			case <-l.closed:
				_ = c.Close()
				return nil, net.ErrClosed
			case <-time.After(10 * time.Millisecond):
			}
		}
		select {
		case l.slots <- struct{}{}:
			return &limitedConn{Conn: c, l: l}, nil
		default:
			_ = c.Close()
			l.refused()
		}
	}
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	err := l.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

type limitedConn struct {
	net.Conn
	l    *limitedListener
	once sync.Once
}

func (c *limitedConn) Close() error {
	c.once.Do(func() { <-c.l.slots })
	return c.Conn.Close()
}
