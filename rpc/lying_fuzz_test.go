// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"runtime"
	"testing"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// FuzzAnswers lets an agent answer a call of each kind, and a stream, by arbitrary
// bytes: all of them end.
func FuzzAnswers(f *testing.F) {
	a, err := Init(context.Background(), "a", WithMaxMessage(1<<20), WithErrorType[*typedError]("typed"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { a.Close() })
	head := func(kind byte, behind int, say func(e *cbor.Encoder)) []byte {
		e := cbor.Encoder{Buf: make([]byte, 4)}
		say(&e)
		e.Buf[0] = byte(len(e.Buf) - 4)
		return frame(kind, len(e.Buf)+behind, e.Buf, make([]byte, behind))
	}
	float := func(e *cbor.Encoder) { e.Array(1); e.Array(2); e.Uint(1); e.Uint(1) }
	f.Add(head(wire.FrameReply, 4, func(e *cbor.Encoder) { e.Array(4); e.Uint(1); e.Null(); float(e); tensorZero(e) }))
	f.Add(head(wire.FrameReply, 0, func(e *cbor.Encoder) { e.Array(4); e.Uint(2); e.Null(); e.Null(); e.Map(0) }))
	f.Add(head(wire.FrameItem, 4, func(e *cbor.Encoder) {
		e.Array(3)
		e.Uint(3)
		float(e)
		e.Map(2)
		e.Text("N")
		e.Int(1)
		e.Text("Data")
		tensorZero(e)
	}))
	f.Add(head(wire.FrameCredit, 0, func(e *cbor.Encoder) { e.Array(2); e.Uint(3); e.Uint(1 << 62) }))
	f.Add(head(wire.FrameFailure, 0, func(e *cbor.Encoder) {
		e.Array(7)
		e.Uint(1)
		e.Null()
		e.Text("application")
		e.Text("m")
		e.Text("s")
		e.Text("typed")
		e.Map(2)
		e.Text("Row")
		e.Int(1)
		e.Text("Table")
		e.Text("t")
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := transport.Pipe("rpc")
		p := &Peer{agent: a, name: "liar", rank: 1, link: a.end.Adopt(near, "liar", 1, 1<<20)}
		x := echo.Async(t.Context(), p, tensor.Zeros(1))
		y := noop.Async(t.Context(), p, struct{}{})
		s, err := count.Open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = far.Write(b)
		far.Close()
		_, _ = x.Wait(t.Context())
		_, _ = y.Wait(t.Context())
		for _, err := range s.All(t.Context()) {
			if err != nil {
				break
			}
		}
		s.Close()
		for len(a.end.Clients()) > 0 {
			runtime.Gosched()
		}
		if err := a.outstanding.wait(t.Context()); err != nil { // who writes may have found the end, and tells them yet
			t.Error(err)
		}
	})
}
