// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// stranger is a client that says what a test makes it say.
type stranger struct {
	t    testing.TB
	conn *transport.Conn
}

// visit connects to an agent without a word.
func visit(t testing.TB, a *Agent) *stranger {
	conn, err := a.end.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &stranger{t, conn}
}

// say sends a frame: a head, which f makes, and what comes behind it.
func (s *stranger) say(kind byte, f func(e *cbor.Encoder), behind ...byte) {
	s.t.Helper()
	e := cbor.Encoder{Buf: make([]byte, 4)}
	f(&e)
	binary.LittleEndian.PutUint32(e.Buf, uint32(len(e.Buf)-4))
	if err := s.conn.WriteFrame(kind, e.Buf, behind); err != nil {
		s.t.Error(err)
	}
}

func (s *stranger) hello(version uint64, to string) {
	s.say(wire.FrameHello, func(e *cbor.Encoder) {
		e.Array(6)
		e.Uint(version)
		e.Text("stranger")
		e.Int(-1)
		e.Text("0123456789abcdef")
		e.Uint(1 << 30)
		e.Text(to)
	})
}

// call sends a call of test.echo with a list of tensors and a value.
func (s *stranger) call(id uint64, method string, list, value func(e *cbor.Encoder), behind ...byte) {
	s.say(wire.FrameCall, func(e *cbor.Encoder) {
		e.Array(7)
		e.Uint(id)
		e.Text(method)
		e.Uint(0)
		e.Uint(0)
		e.Null()
		list(e)
		value(e)
	}, behind...)
}

// hear reads a frame and returns its head's items as words.
func (s *stranger) hear() (kind byte, items []any, err error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	kind, b, err := s.conn.ReadFrame(nil, 1<<20)
	if err != nil {
		return 0, nil, err
	}
	var d cbor.Decoder
	d.Reset(b[4 : 4+binary.LittleEndian.Uint32(b)])
	for n := d.Array(); n > 0; n-- {
		raw := d.Raw()
		var v any
		var one cbor.Decoder
		one.Reset(raw)
		anyPlan.Decode(&one, unsafe.Pointer(&v))
		items = append(items, v)
	}
	return kind, items, d.Err()
}

var anyPlan = planOf[any]("value", "of tests")

func null(e *cbor.Encoder) { e.Null() }

func tensorZero(e *cbor.Encoder) { e.Tag(tagTensor); e.Uint(0) }

// TestLyingClient: what a client gets wrong is told to it, or ends its connection;
// others are served all the while.
func TestLyingClient(t *testing.T) {
	a := agents(t, "pipe", 2, serveBasics(), serveStreams(), WithOptions(confHandlers...), WithMaxMessage(1<<20))
	floats := func(dims ...uint64) func(e *cbor.Encoder) {
		return func(e *cbor.Encoder) {
			e.Array(1)
			e.Array(1 + len(dims))
			e.Uint(uint64(tensor.Float32))
			for _, n := range dims {
				e.Uint(n)
			}
		}
	}
	raw := func(kind byte, b ...byte) func(s *stranger) {
		return func(s *stranger) { _ = s.conn.WriteFrame(kind, b) }
	}
	for _, tc := range []struct {
		name string
		say  func(s *stranger)
		want string // in the failure; empty: the connection ends
	}{
		{"short tensor", func(s *stranger) { s.call(1, "test.echo", floats(3), tensorZero, make([]byte, 8)...) }, "tensor 0 has 12 bytes, the message has 8 left"},
		{"long tensor", func(s *stranger) { s.call(1, "test.echo", floats(1), tensorZero, make([]byte, 8)...) }, "4 bytes of tensors that are not described"},
		{"no tensor", func(s *stranger) { s.call(1, "test.echo", null, tensorZero) }, "tensor 0 of a message that has 0"},
		{"not described", func(s *stranger) { s.call(1, "test.echo", null, null, 1, 2) }, "2 bytes of tensors that are not described"},
		{"many elements", func(s *stranger) { s.call(1, "test.echo", floats(1<<40, 1<<40, 0), tensorZero) }, "tensor 0 has more elements than any message"},
		{"dims", func(s *stranger) { s.call(1, "test.echo", floats(make([]uint64, 17)...), tensorZero) }, "17 dims"},
		{"dtype", func(s *stranger) {
			s.call(1, "test.echo", func(e *cbor.Encoder) { e.Array(1); e.Array(1); e.Uint(200) }, tensorZero)
		}, "element type 200"},
		{"wrong value", func(s *stranger) { s.call(1, "test.echo", null, func(e *cbor.Encoder) { e.Text("x") }) }, "want a tensor"},
		{"wrong fields", func(s *stranger) { s.call(1, "test.add", null, func(e *cbor.Encoder) { e.Map(0) }) }, `the field "X" is missing of {X tensor, Y tensor}`},
		{"unknown", func(s *stranger) { s.call(1, "test.none", null, null) }, `there is no method "test.none"`},
		{"too large", func(s *stranger) { s.call(1, "test.echo", floats(1<<19), tensorZero, make([]byte, 2<<20)...) }, "at most 1048576"},
		{"far too large", func(s *stranger) {
			s.call(1, "test.echo", floats(1<<21), tensorZero, make([]byte, 8<<20)...)
		}, ""},
		{"twice", func(s *stranger) { s.call(1, "test.wait", null, null); s.call(1, "test.wait", null, null) }, ""},
		{"other kind", raw(99, 0, 0, 0, 0), ""},
		{"reply", raw(wire.FrameReply, 0, 0, 0, 0), ""},
		{"no head", raw(wire.FrameCall, 1), ""},
		{"long head", raw(wire.FrameCall, 0xff, 0xff, 0xff, 0x7f, 1), ""},
		{"garbage", raw(wire.FrameCall, 2, 0, 0, 0, 0xff, 0xff), ""},
		{"items", raw(wire.FrameCall, 2, 0, 0, 0, 0x81, 0x01), ""},
		{"list for tensor", func(s *stranger) { s.call(1, "test.echo", null, func(e *cbor.Encoder) { e.Array(0) }) }, "an array of NumPy's or a tensor of PyTorch's), got a list"},
		{"tag for tensor", func(s *stranger) { s.call(1, "test.echo", null, func(e *cbor.Encoder) { e.Tag(0); e.Text("") }) }, "got tag 0"},
		{"item of another type", func(s *stranger) {
			s.call(1, "conf.Sums", null, func(e *cbor.Encoder) { e.Map(0) })
			s.say(wire.FrameItem, func(e *cbor.Encoder) { e.Array(3); e.Uint(1); e.Null(); e.Text("x") })
		}, "types a message of stranger in the stream is no int64"},
		{"maker called", func(s *stranger) { s.call(1, "conf.Maker", null, func(e *cbor.Encoder) { e.Text("x") }) }, "call it by Remote"},
		{"flood", func(s *stranger) {
			s.call(1, "test.silent", null, func(e *cbor.Encoder) { e.Map(0) })
			for range 100 {
				e := make([]byte, 1<<16)
				s.say(wire.FrameItem, func(en *cbor.Encoder) { en.Array(3); en.Uint(1); en.Null(); en.Bytes(e) })
			}
		}, ""},
	} {
		s := visit(t, a[1])
		s.hello(wire.Version, "w1")
		if kind, items, err := s.hear(); err != nil || kind != wire.FrameWelcome || items[1] != "w1" {
			t.Fatalf("%s: the welcome is %d, %v, %v", tc.name, kind, items, err)
		}
		go tc.say(&stranger{quiet{t}, s.conn})
		kind, items, err := s.hear()
		switch {
		case tc.want == "" && err == nil:
			t.Errorf("%s: the connection goes on with %d, %v", tc.name, kind, items)
		case tc.want == "":
		case err != nil || kind != wire.FrameFailure || !strings.Contains(fmt.Sprintln(items...), tc.want):
			t.Errorf("%s: %d, %v, %v, want %q", tc.name, kind, items, err, tc.want)
		default: // and the connection goes on
			s.call(2, "test.noop", null, func(e *cbor.Encoder) { e.Map(0) })
			if kind, items, err := s.hear(); err != nil || kind != wire.FrameReply {
				t.Errorf("%s: afterwards %d, %v, %v", tc.name, kind, items, err)
			}
		}
		if _, err := noop.Call(t.Context(), a[0].Peer("w1"), struct{}{}); err != nil {
			t.Fatalf("%s: others are not served: %v", tc.name, err)
		}
	}
}

// quiet is a test whose failures do not count: of who goes on writing to a
// connection that has been ended.
type quiet struct{ testing.TB }

func (quiet) Error(...any) {}
func (quiet) Helper()      {}

func TestLyingHello(t *testing.T) {
	a := agents(t, "pipe", 1, serveBasics())
	for _, tc := range []struct {
		name string
		say  func(s *stranger)
		kind Kind
	}{
		{"version", func(s *stranger) { s.hello(2, "w0") }, KindVersion},
		{"name", func(s *stranger) { s.hello(1, "other") }, KindUnknownPeer},
		{"garbage", func(s *stranger) { s.say(wire.FrameHello, func(e *cbor.Encoder) { e.Array(6); e.Uint(1); e.Uint(2) }) }, KindProtocol},
		{"no hello", func(s *stranger) { s.say(wire.FrameCall, func(e *cbor.Encoder) { e.Array(0) }) }, ""},
		{"long", func(s *stranger) { _ = s.conn.WriteFrame(wire.FrameHello, make([]byte, 5000)) }, ""},
	} {
		s := visit(t, a[0])
		tc.say(s)
		kind, items, err := s.hear()
		if tc.kind == "" {
			if err == nil {
				t.Errorf("%s: answered with %d, %v", tc.name, kind, items)
			}
			continue
		}
		if err != nil || kind != wire.FrameRefuse || items[0] != string(tc.kind) {
			t.Errorf("%s: %d, %v, %v, want a refusal of kind %q", tc.name, kind, items, err, tc.kind)
		}
		if _, _, err := s.hear(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", tc.name, err)
		}
	}
}

// TestTooLarge: a message over the peer's limit is refused before it is sent, and
// the connection goes on.
func TestTooLarge(t *testing.T) {
	a := agentsOf(t, "pipe", 2, func(rank int) []Option {
		return []Option{serveBasics(), WithMaxMessage(1 << (20 + rank))} // w0 takes 1 MiB, w1 2 MiB
	})
	ctx := t.Context()
	_, err := echo.Call(ctx, a[0].Peer("w1"), tensor.Zeros(1<<20))
	if KindOf(err) != KindTooLarge || !strings.Contains(err.Error(), "test.echo at w1") {
		t.Errorf("4 MiB to an agent that takes 2: %v", err)
	}
	_, err = echo.Call(ctx, a[0].Peer("w1"), tensor.Zeros(1<<18+1<<16))
	if KindOf(err) != KindTooLarge {
		t.Errorf("an answer of 1.25 MiB to an agent that takes 1: %v", err)
	}
	if _, err = echo.Call(ctx, a[0].Peer("w1"), tensor.Zeros(1<<17)); err != nil {
		t.Error(err)
	}
}

// TestLyingServer: answers that make no sense are errors of their calls.
func TestLyingServer(t *testing.T) {
	reply := func(f func(s *stranger, id uint64)) error {
		p, far := newLiar(t, 10*time.Second)
		defer p.agent.Close()
		go func() {
			defer far.Close()
			if _, _, err := far.ReadFrame(nil, 1<<20); err == nil {
				f(&stranger{quiet{t}, far}, 1)
			}
		}()
		_, err := echo.Call(t.Context(), p, nil)
		return err
	}
	for _, tc := range []struct {
		name string
		say  func(s *stranger, id uint64)
		kind Kind
	}{
		{"nothing", func(s *stranger, id uint64) {}, KindLost},
		{"type", func(s *stranger, id uint64) {
			s.say(wire.FrameReply, func(e *cbor.Encoder) { e.Array(4); e.Uint(id); e.Null(); e.Null(); e.Text("x") })
		}, KindTypes},
		{"no tensor", func(s *stranger, id uint64) {
			s.say(wire.FrameReply, func(e *cbor.Encoder) { e.Array(4); e.Uint(id); e.Null(); e.Null(); tensorZero(e) })
		}, KindTypes},
		{"tensors", func(s *stranger, id uint64) {
			s.say(wire.FrameReply, func(e *cbor.Encoder) { e.Array(4); e.Uint(id); e.Null(); e.Text("x"); e.Null() })
		}, KindProtocol},
		{"cut tensor", func(s *stranger, id uint64) {
			e := cbor.Encoder{Buf: []byte{11, 0, 0, 0}}
			e.Array(4)
			e.Uint(id)
			e.Null()
			e.Array(1)
			e.Array(2)
			e.Uint(1)
			e.Uint(2)
			tensorZero(&e)
			e.Buf[0] = byte(len(e.Buf) - 4)
			_, _ = s.conn.Write(frame(wire.FrameReply, len(e.Buf)+8, e.Buf, []byte{1, 2, 3}))
		}, KindLost},
		{"kind", func(s *stranger, id uint64) { s.say(wire.FrameCall, func(e *cbor.Encoder) { e.Array(1); e.Uint(id) }) }, KindProtocol},
		{"failure", func(s *stranger, id uint64) {
			s.say(wire.FrameFailure, func(e *cbor.Encoder) {
				e.Array(7)
				e.Uint(id)
				e.Null()
				e.Text("application")
				e.Text("m")
				e.Text("s")
				e.Uint(0)
				e.Null()
			})
		}, KindProtocol},
	} {
		if err := reply(tc.say); KindOf(err) != tc.kind || !strings.Contains(err.Error(), "test.echo at liar") {
			t.Errorf("%s: %v, want the kind %q", tc.name, err, tc.kind)
		}
	}
}

// frame returns a frame's bytes, which may be fewer than its header says.
func frame(kind byte, size int, parts ...[]byte) []byte {
	b := make([]byte, transport.HeaderSize)
	transport.PutHeader(b, kind, size)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// FuzzServer gives arbitrary bytes, behind a hello, to an agent.
func FuzzServer(f *testing.F) {
	a, err := Init(context.Background(), "a", serveBasics(), serveStreams(), WithMaxMessage(1<<20))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { a.Close() })
	f.Add(frame(wire.FrameCall, 4, []byte{0, 0, 0, 0}))
	f.Add(frame(wire.FrameCancel, 6, []byte{2, 0, 0, 0, 0x81, 1}))
	var e cbor.Encoder
	e.Buf = make([]byte, 4)
	e.Array(7)
	e.Uint(1)
	e.Text("test.add")
	e.Uint(1000)
	e.Uint(0)
	e.Null()
	e.Array(1)
	e.Array(2)
	e.Uint(1)
	e.Uint(1)
	e.Map(2)
	e.Text("X")
	tensorZero(&e)
	e.Text("Y")
	tensorZero(&e)
	e.Buf[0] = byte(len(e.Buf) - 4)
	f.Add(frame(wire.FrameCall, len(e.Buf)+4, e.Buf, []byte{0, 0, 128, 63}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := visit(t, a)
		s.hello(wire.Version, "a")
		if kind, _, err := s.hear(); err != nil || kind != wire.FrameWelcome {
			t.Fatal(kind, err)
		}
		_, _ = s.conn.Write(b)
		s.conn.Close()
		for served := true; served; runtime.Gosched() { // until all of it has been read
			served = false
			for _, other := range serversOf(a) {
				served = served || other.peer.rank < 0
			}
		}
		if _, err := noop.Call(t.Context(), a.Self(), struct{}{}); err != nil {
			t.Fatal(err)
		}
		if err := a.handling.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
