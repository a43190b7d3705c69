// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// Poll finds what has come, and nothing while nothing has; frames that came
// together are known to be whole, parts of one are not.
func TestPoll(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = t.TempDir() + "/s"
			}
			ln, err := net.Listen(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			out, err := net.Dial(network, ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			in, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c := NewConn(in, "test")
			defer c.Close()
			if !c.CanPoll() {
				if c.Poll(PollOptions{Spin: time.Hour, Block: time.Hour}) {
					t.Error("a connection that cannot be polled has something")
				}
				return
			}
			asked := 0
			for name, h := range map[string]PollOptions{
				"at once": {},
				"spin":    {Spin: 100 * time.Microsecond},
				"block":   {Block: time.Millisecond},
				"stopped": {Spin: time.Hour, GoOn: func() bool { asked++; return asked < 5 }},
			} {
				if c.Poll(h) {
					t.Errorf("%s: something, and nothing was sent", name)
				}
			}
			if asked != 5 {
				t.Errorf("asked %d times whether to go on, want 5", asked)
			}
			frame := make([]byte, HeaderSize+3)
			PutHeader(frame, 7, 3)
			copy(frame[HeaderSize:], "abc")
			both := append(append([]byte{}, frame...), frame[:HeaderSize+1]...)
			if _, err := out.Write(both); err != nil {
				t.Fatal(err)
			}
			// It comes soon, whichever way it is waited for.
			if !c.Poll(PollOptions{Spin: time.Second}) && !c.Poll(PollOptions{Block: time.Minute}) {
				t.Fatal("nothing came")
			}
			if !c.FrameBuffered() {
				t.Error("the first frame is not whole")
			}
			if kind, p, err := c.ReadFrame(nil, 10); kind != 7 || string(p) != "abc" || err != nil {
				t.Errorf("%d, %q, %v", kind, p, err)
			}
			if c.FrameBuffered() {
				t.Error("half a frame counts as whole")
			}
			if !c.Poll(PollOptions{}) {
				t.Error("half a frame is something")
			}
			go out.Write(frame[HeaderSize+1:])
			if kind, p, err := c.ReadFrame(nil, 10); kind != 7 || string(p) != "abc" || err != nil {
				t.Errorf("%d, %q, %v", kind, p, err)
			}
			out.Close()
			for !c.Poll(PollOptions{Block: time.Minute}) {
			}
			if _, _, err := c.ReadFrame(nil, 10); !errors.Is(err, io.EOF) {
				t.Errorf("%v, want the end", err)
			}
		})
	}
	for _, link := range links {
		if link.name == "tls" || link.name == "shm" && SharedMemory {
			t.Run(link.name, func(t *testing.T) { pollFrames(t, link.connect) })
		}
	}
	a, b := Pipe("test")
	defer a.Close()
	defer b.Close()
	if a.CanPoll() || a.Poll(PollOptions{Spin: time.Hour}) {
		t.Error("a pipe cannot be polled")
	}
}

// pollFrames polls for frames that come in pieces, with long ones in between that
// are read without a poll.
func pollFrames(t *testing.T, connect func(testing.TB) (near, far *Conn)) {
	near, far := connect(t)
	if !far.CanPoll() {
		t.Skip("cannot be polled on this system")
	}
	if far.Poll(PollOptions{}) || far.Poll(PollOptions{Spin: 50 * time.Microsecond, Block: time.Millisecond}) {
		t.Error("something, and nothing was sent")
	}
	go func() {
		for i := range 50 {
			p := pattern(i*i*i*4, uint64(i))
			frame := append(make([]byte, HeaderSize), p...)
			PutHeader(frame, byte(i), len(p))
			at := min(HeaderSize+i%7-3, len(frame))
			near.Write(frame[:at])
			near.Write(frame[at:])
		}
		near.Close()
	}()
	for i := range 50 {
		for !far.Poll(PollOptions{Spin: time.Microsecond, Block: time.Millisecond}) {
		}
		kind, p, err := far.ReadFrame(nil, 1<<20)
		if err != nil || int(kind) != i || !bytes.Equal(p, pattern(i*i*i*4, uint64(i))) {
			t.Fatalf("frame %d: kind %d, %d bytes, %v", i, kind, len(p), err)
		}
	}
	for !far.Poll(PollOptions{Block: time.Minute}) {
	}
	if _, _, err := far.ReadFrame(nil, 10); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
}
