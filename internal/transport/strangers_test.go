// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

// A member that comes when strangers hold all places of a port, and wait for
// more, gets in within seconds, and the next one at once.
func TestMemberAmongStrangers(t *testing.T) {
	const numStrangers = 200
	p, token := newPort(t, "127.0.0.1:0", handshakeTimeout, numStrangers/4)
	ctx, cancel := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	var came atomic.Int64
	for range numStrangers {
		strangers.Go(func() {
			for ctx.Err() == nil {
				nc, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				came.Add(1)
				stop := context.AfterFunc(ctx, func() { nc.Close() })
				io.WriteString(nc, magic[:1])
				io.Copy(io.Discard, nc) // until it is turned away
				stop()
				nc.Close()
			}
		})
	}
	defer strangers.Wait()
	defer cancel()
	for came.Load() < numStrangers {
		time.Sleep(time.Millisecond)
	}
	for i, limit := range []time.Duration{patience, loaded.Allow(patience / 4)} {
		start := time.Now()
		c, err := Dial(soon(t), p.Addr(), "echo", token)
		for errors.Is(err, ErrRejected) && time.Since(start) < limit { // pushed out before its first words were read
			c, err = Dial(soon(t), p.Addr(), "echo", token)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		took := time.Since(start)
		t.Logf("member %d is in after %v; %d strangers came, %d were turned away", i, took, came.Load(), p.Refused())
		if took > limit {
			t.Errorf("member %d waited %v", i, took)
		}
	}
}
