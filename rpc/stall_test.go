// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// TestStall: a peer that stops in the middle of an answer, or takes no data, holds
// no call longer than its time, but for one whose tensors are half on their way, and
// soon its connection is given up, with all that waits on it.
func TestStall(t *testing.T) {
	for name, liar := range map[string]func(far *transport.Conn){
		"takes nothing": func(*transport.Conn) {},
		"stops in a tensor": func(far *transport.Conn) {
			if _, _, err := far.ReadFrame(nil, 1<<30); err != nil {
				return
			}
			e := cbor.Encoder{Buf: make([]byte, 4)}
			e.Array(4)
			e.Uint(1)
			e.Null()
			e.Array(1)
			e.Array(2)
			e.Uint(1)
			e.Uint(1000)
			tensorZero(&e)
			e.Buf[0] = byte(len(e.Buf) - 4)
			_, _ = far.Write(frame(wire.FrameReply, len(e.Buf)+4000, e.Buf, make([]byte, 100)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, far := newLiar(t, 10*time.Second)
				defer far.Close()
				defer p.agent.Close()
				go liar(far)
				began := time.Now()
				f := echo.Async(t.Context(), p, tensor.Zeros(1<<20))
				forever := noop.Async(t.Context(), p, struct{}{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				patient := noop.Async(ctx, p, struct{}{})
				if _, err := forever.Wait(t.Context()); err == nil || time.Since(began) != 10*time.Second {
					t.Errorf("a call without tensors: %v after %v", err, time.Since(began))
				}
				_, err := f.Wait(t.Context())
				want := 10 * time.Second
				if name == "takes nothing" {
					want += link.StallTime // until then its tensors are read
				}
				if took := time.Since(began); KindOf(err) != KindTimeout || took != want {
					t.Errorf("%v after %v", err, took)
				}
				_, err = patient.Wait(ctx)
				if took := time.Since(began); KindOf(err) != KindLost || took != 10*time.Second+link.StallTime || !strings.Contains(err.Error(), "the peer ") {
					t.Errorf("a call on the connection: %v after %v", err, took)
				}
			})
		})
	}
}

// TestCancelWhileWriting: who gives a call up that it is writing itself is not held
// until the call's deadline by a peer that takes nothing.
func TestCancelWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, far := newLiar(t, time.Hour)
		defer far.Close()
		defer p.agent.Close()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := echo.Call(ctx, p, tensor.Zeros(1<<20))
		if took := time.Since(began); err == nil || took != time.Second+link.StallTime {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// newLiar returns a peer whose end of the connection is the test's, of an agent whose
// calls have a limit. Both are to be closed before the test's virtual time ends.
func newLiar(t *testing.T, limit time.Duration) (*Peer, *transport.Conn) {
	t.Helper()
	a, err := Init(t.Context(), "a", WithNetwork(NewNetwork()), WithStore(store.NewMemory(), 0, 1), WithTimeout(limit))
	if err != nil {
		t.Fatal(err)
	}
	near, far := transport.Pipe("rpc")
	return &Peer{agent: a, name: "liar", rank: 1, link: a.end.Adopt(near, "liar", 1, 1<<30)}, far
}
