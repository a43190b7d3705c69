// SPDX-License-Identifier: Apache-2.0

//go:build unix

package transport

import (
	"context"
	"testing"
)

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
