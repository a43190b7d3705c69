// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"testing"
	"time"
)

// TestGiveUpAfter: a connection whose peer takes nothing ends in time, through TLS as
// well.
func TestGiveUpAfter(t *testing.T) {
	for _, secure := range []bool{false, true} {
		token := NewToken()
		port, err := Listen("127.0.0.1:0", token)
		if err != nil {
			t.Fatal(err)
		}
		defer port.Close()
		over := make(chan struct{})
		defer close(over)
		port.Handle("deaf", func(c *Conn) {
			<-over
			c.Close()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := Dial(ctx, port.Addr(), "deaf", token, WithTLS(secure))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.GiveUpAfter(500 * time.Millisecond)
		defer context.AfterFunc(ctx, func() { c.Close() })()
		for err == nil {
			err = c.WriteFrame(1, make([]byte, 1<<20))
		}
		if ctx.Err() != nil {
			t.Errorf("TLS %v: after a minute: %v", secure, err)
		}
	}
}
