// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// TestUnreadAnswers: a peer that asks for large values and reads none of them does
// not make the agent hold more than some of them.
func TestUnreadAnswers(t *testing.T) {
	get := NewMethod[struct{}, *tensor.Tensor]("test.get")
	const size, concurrency = 1 << 20, 8
	var made atomic.Int64
	a := agents(t, "pipe", 1, WithTimeout(time.Minute), WithConcurrency(concurrency),
		Serve(get, func(context.Context, struct{}) (*tensor.Tensor, error) {
			made.Add(size)
			return tensor.Zeros(size / 4), nil
		}))
	s := visit(t, a[0])
	s.hello(wire.Version, "")
	if kind, _, err := s.hear(); err != nil || kind != wire.FrameWelcome {
		t.Fatalf("a frame of kind %d, %v", kind, err)
	}
	for id := range uint64(1000) {
		s.call(id+1, "test.get", null, func(e *cbor.Encoder) { e.Map(0) })
	}
	for last := int64(-1); last != made.Load(); time.Sleep(100 * time.Millisecond) {
		last = made.Load()
	}
	if n := made.Load(); n > link.MaxLargeOut+(concurrency+2)*size {
		t.Errorf("%d MiB were made for a peer that reads nothing", n>>20)
	}
}

// TestStreamBound: a stream takes what it has granted and the message that went over
// it, and not the largest message's worth of small ones.
func TestStreamBound(t *testing.T) {
	pour := NewStream[[]byte, struct{}]("test.pour")
	a := agents(t, "pipe", 1, ServeStream(pour, func(ctx context.Context, _ *Stream[struct{}, []byte]) error {
		<-ctx.Done()
		return nil
	}))
	s := visit(t, a[0])
	s.hello(wire.Version, "")
	if kind, _, err := s.hear(); err != nil || kind != wire.FrameWelcome {
		t.Fatalf("a frame of kind %d, %v", kind, err)
	}
	s.call(1, "test.pour", null, func(e *cbor.Encoder) { e.Map(0) })
	item := make([]byte, 64<<10)
	sent := 0
	for ; sent < 64<<20; sent += len(item) {
		e := cbor.Encoder{Buf: make([]byte, 4)}
		e.Array(3)
		e.Uint(1)
		e.Null()
		e.Bytes(item)
		n := len(e.Buf) - 4
		e.Buf[0], e.Buf[1], e.Buf[2] = byte(n), byte(n>>8), byte(n>>16)
		if err := s.conn.WriteFrame(wire.FrameItem, e.Buf); err != nil {
			break
		}
	}
	if sent > 4*streamWindow {
		t.Errorf("%d MiB were taken on a stream whose window is %d MiB", sent>>20, streamWindow>>20)
	}
}

// TestHeadBound: a frame far over the limit is not read, however long its head.
func TestHeadBound(t *testing.T) {
	a := agents(t, "pipe", 1, serveBasics(), WithMaxMessage(1<<20))
	s := visit(t, a[0])
	s.hello(wire.Version, "")
	if kind, _, err := s.hear(); err != nil || kind != wire.FrameWelcome {
		t.Fatalf("a frame of kind %d, %v", kind, err)
	}
	const size = 128 << 20
	if _, err := s.conn.Write(frame(wire.FrameCall, size, []byte{0xfc, 0xff, 0xff, 0x07})); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for piece := make([]byte, 1<<20); sent < size-4; sent += len(piece) {
		if _, err := s.conn.Write(piece[:min(len(piece), size-4-sent)]); err != nil {
			break
		}
	}
	if sent > 8<<20 {
		t.Errorf("%d MiB of a head were read, where messages have 1 MiB", sent>>20)
	}
}
