// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"runtime"
	"testing"
)

func TestPending(t *testing.T) {
	eachLink(t, func(t *testing.T, near, far *Conn) {
		if far.Pending() {
			t.Fatal("something is pending before anything was sent")
		}
		sent := make(chan error, 1)
		go func() { sent <- near.WriteFrame(1, []byte("x")) }()
		if near.socketOf() != nil {
			for !far.Pending() { // on its way; the test's time limit ends this
				runtime.Gosched()
			}
		}
		if _, _, err := far.ReadFrame(nil, 10); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if far.Pending() {
			t.Error("something is pending after all was read")
		}
		near.Close()
		for near.socketOf() != nil && !far.Pending() { // the end
			runtime.Gosched()
		}
	})
}

// TestBuffers asks for the room of a socket, and of a connection that has none.
func TestBuffers(t *testing.T) {
	here, there := Pipe("test")
	defer here.Close()
	defer there.Close()
	if out, in := here.Buffers(); out != 0 || in != 0 {
		t.Errorf("a pipe has buffers of %d and %d bytes", out, in)
	}
	token := NewToken()
	port, err := Listen("127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	port.Handle("test", func(c *Conn) { c.Close() })
	for _, encrypted := range []bool{false, true} {
		conn, err := Dial(context.Background(), port.Addr(), "test", token, WithTLS(encrypted))
		if err != nil {
			t.Fatal(err)
		}
		if out, in := conn.Buffers(); out < 1024 || in < 1024 {
			t.Errorf("with TLS %v a socket has buffers of %d and %d bytes", encrypted, out, in)
		}
		conn.Close()
	}
}
