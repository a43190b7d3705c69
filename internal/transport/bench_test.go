// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"io"
	"net"
	"testing"
)

// BenchmarkRoundTrip sends a frame of 8 bytes there and back; raw is the same
// over the bare socket, the floor in the same run.
func BenchmarkRoundTrip(b *testing.B) {
	for _, link := range links {
		b.Run(link.name, func(b *testing.B) {
			near, far := link.connect(b)
			go func() {
				buf := make([]byte, 64)
				for {
					kind, p, err := far.ReadFrame(buf, 64)
					if err != nil || far.WriteFrame(kind, p) != nil {
						return
					}
				}
			}()
			buf := make([]byte, 8)
			b.ReportAllocs()
			for b.Loop() {
				if err := near.WriteFrame(1, buf); err != nil {
					b.Fatal(err)
				}
				if _, _, err := near.ReadFrame(buf, 8); err != nil {
					b.Fatal(err)
				}
			}
		})
		if link.name == "pipe" || link.name == "shm" {
			continue
		}
		b.Run("raw-"+link.name, func(b *testing.B) {
			near, far := link.connect(b)
			go func() {
				buf := make([]byte, 8)
				for {
					if _, err := io.ReadFull(far.nc, buf); err != nil {
						return
					}
					if _, err := far.nc.Write(buf); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, 8)
			for b.Loop() {
				near.nc.Write(buf)
				if _, err := io.ReadFull(near.nc, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStream sends frames of 4 MiB one way.
func BenchmarkStream(b *testing.B) {
	for _, link := range links {
		b.Run(link.name, func(b *testing.B) {
			near, far := link.connect(b)
			payload := make([]byte, 4<<20)
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			go func() {
				for near.WriteFrame(1, payload) == nil {
				}
			}()
			buf := make([]byte, len(payload))
			for b.Loop() {
				if _, _, err := far.ReadFrame(buf, len(payload)); err != nil {
					b.Fatal(err)
				}
			}
			far.Close()
		})
	}
}

// BenchmarkDial connects, with the handshake, and closes.
func BenchmarkDial(b *testing.B) {
	for _, c := range []struct{ name, addr string }{{"tcp", "127.0.0.1:0"}, {"tls", "127.0.0.1:0"}, {"unix", "unix:"}} {
		b.Run(c.name, func(b *testing.B) {
			token := NewToken()
			p, err := Listen(c.addr, token)
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			p.Handle("bench", func(c *Conn) { c.Close() })
			for b.Loop() {
				c, err := Dial(context.Background(), p.Addr(), "bench", token, WithTLS(c.name == "tls"))
				if err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
	b.Run("raw-tcp", func(b *testing.B) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		for b.Loop() {
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}
