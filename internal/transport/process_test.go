// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// job is what a second process does for a benchmark: half of it, so that both
// have a clock, a scheduler and a heap of their own.
type job struct {
	Network, Addr string
	Token         string
	Raw           bool // sockets and loops, without frames
	TLS           bool
	Shared        bool // through shared memory
	RoundTrip     bool // answers; otherwise both send at once
	Bytes         int  // sent each way at a time
	Frame         int  // bytes of data in a frame
}

// head is what a collective writes before the data of a piece.
const head = 24

// peerArg makes the test binary a peer: the job follows it.
const peerArg = "transport-peer"

// runPeer is a peer's main.
func runPeer(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	token, err := ParseToken(j.Token)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dial := func(proto string) (*Conn, error) {
		if j.Raw {
			network, address, err := parseAddress(j.Addr)
			if err != nil {
				return nil, err
			}
			nc, err := net.Dial(network, address)
			if err != nil {
				return nil, err
			}
			return NewConn(nc, "bench"), nil
		}
		if j.Shared {
			return DialShared(ctx, j.Addr, proto, token)
		}
		return Dial(ctx, j.Addr, proto, token, WithTLS(j.TLS))
	}
	out, err := dial("up")
	if err != nil {
		return err
	}
	in := out
	if !j.RoundTrip {
		if in, err = dial("down"); err != nil {
			return err
		}
	}
	p := newParty(&j, out, in)
	for p.step(false) == nil {
	}
	return nil
}

// party is one side of a benchmark.
type party struct {
	*job
	out, in  *Conn
	src, dst []byte
	head     [head]byte
	there    [head]byte
}

func newParty(j *job, out, in *Conn) *party {
	return &party{job: j, out: out, in: in, src: bytes.Repeat([]byte{1}, j.Bytes), dst: bytes.Repeat([]byte{2}, j.Bytes)}
}

// step does one round trip, or one transfer both ways.
func (p *party) step(first bool) error {
	if p.RoundTrip {
		if first {
			if err := p.send(); err != nil {
				return err
			}
			return p.receive()
		}
		if err := p.receive(); err != nil {
			return err
		}
		return p.send()
	}
	sent := make(chan error, 1)
	go func() { sent <- p.send() }()
	if err := p.receive(); err != nil {
		return err
	}
	return <-sent
}

func (p *party) send() error {
	for lo := 0; lo < p.Bytes; lo += p.Frame {
		piece := p.src[lo:min(lo+p.Frame, p.Bytes)]
		var err error
		if p.Raw {
			_, err = p.out.nc.Write(piece)
		} else {
			err = p.out.WriteFrame(1, p.head[:], piece)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *party) receive() error {
	for lo := 0; lo < p.Bytes; lo += p.Frame {
		piece := p.dst[lo:min(lo+p.Frame, p.Bytes)]
		if p.Raw {
			if _, err := io.ReadFull(p.in.nc, piece); err != nil {
				return err
			}
			continue
		}
		if _, _, err := p.in.ReadHeader(head + p.Frame); err != nil {
			return err
		}
		if err := p.in.ReadPayload(p.there[:]); err != nil {
			return err
		}
		if err := p.in.ReadPayload(piece); err != nil {
			return err
		}
	}
	return nil
}

// withPeer starts a process for j and returns this side of it.
func withPeer(b *testing.B, j job) *party {
	token := NewToken()
	j.Token = token.Text()
	addr := map[string]string{"tcp": "127.0.0.1:0", "unix": "unix:"}[j.Network]
	up, down := make(chan *Conn, 1), make(chan *Conn, 1)
	if j.Raw {
		network, address, err := parseAddress(addr)
		if err != nil {
			b.Fatal(err)
		}
		if address == "" {
			if address, _, err = freshUnix(); err != nil {
				b.Fatal(err)
			}
		}
		ln, err := net.Listen(network, address)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { ln.Close() })
		j.Addr = addressOf(ln.Addr())
		go func() {
			for _, arrived := range []chan *Conn{up, down} {
				nc, err := ln.Accept()
				if err != nil {
					return
				}
				arrived <- NewConn(nc, "bench")
			}
		}()
	} else {
		port, err := Listen(addr, token)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { port.Close() })
		for proto, arrived := range map[string]chan *Conn{"up": up, "down": down} {
			port.Handle(proto, func(c *Conn) {
				if j.Shared {
					var err error
					if c, err = AcceptShared(context.Background(), c); err != nil {
						b.Error(err)
						return
					}
				}
				arrived <- c
			})
		}
		j.Addr = port.Addr()
	}
	text, err := json.Marshal(j)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], peerArg, string(text))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var conns []*Conn
	take := func(arrived chan *Conn) *Conn {
		select {
		case c := <-arrived:
			conns = append(conns, c)
			return c
		case <-time.After(patience):
			b.Fatal("the peer does not connect")
			return nil
		}
	}
	b.Cleanup(func() {
		for _, c := range conns {
			c.Close()
		}
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	in := take(up)
	out := in
	if !j.RoundTrip {
		out = take(down)
	}
	return newParty(&j, out, in)
}

func benchSteps(b *testing.B, j job) {
	p := withPeer(b, j)
	for range 3 { // buffers grow, pages come
		if err := p.step(true); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(j.Bytes))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.step(true); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkShared measures the same between processes that share memory, and 64 MiB
// one way, whose floor is a copy by each process at the same time.
func BenchmarkShared(b *testing.B) {
	if !SharedMemory {
		b.Skip("no shared memory between processes on this system")
	}
	const whole = 64 << 20
	for _, size := range []int{8, 4096, 65536} {
		b.Run("round-trip-"+strconv.Itoa(size), func(b *testing.B) {
			benchSteps(b, job{Network: "unix", Shared: true, RoundTrip: true, Bytes: size, Frame: size})
		})
	}
	b.Run("round-trip-16MiB", func(b *testing.B) {
		benchSteps(b, job{Network: "unix", Shared: true, RoundTrip: true, Bytes: 16 << 20, Frame: 16 << 20})
	})
	b.Run("two-way/1024KiB", func(b *testing.B) {
		benchSteps(b, job{Network: "unix", Shared: true, Bytes: whole, Frame: 1 << 20})
	})
}

// BenchmarkProcesses measures round trips of small frames, and 64 MiB both
// ways at once over two connections, between two processes; "raw" is a bare
// socket with loops of writes and reads.
func BenchmarkProcesses(b *testing.B) {
	const whole = 64 << 20
	for _, network := range []string{"tcp", "unix"} {
		for _, size := range []int{8, 4096, 65536} {
			name := network + "/round-trip-" + strconv.Itoa(size) + "/"
			b.Run(name+"raw", func(b *testing.B) {
				benchSteps(b, job{Network: network, Raw: true, RoundTrip: true, Bytes: size, Frame: size})
			})
			b.Run(name+"frames", func(b *testing.B) {
				benchSteps(b, job{Network: network, RoundTrip: true, Bytes: size, Frame: size})
			})
		}
		if network == "tcp" {
			b.Run("tls/round-trip-8", func(b *testing.B) {
				benchSteps(b, job{Network: network, TLS: true, RoundTrip: true, Bytes: 8, Frame: 8})
			})
			b.Run("tls/two-way/1024KiB", func(b *testing.B) {
				benchSteps(b, job{Network: network, TLS: true, Bytes: whole, Frame: 1 << 20})
			})
		}
		b.Run(network+"/two-way/raw", func(b *testing.B) {
			benchSteps(b, job{Network: network, Raw: true, Bytes: whole, Frame: 1 << 20})
		})
		for _, frame := range []int{256 << 10, 1 << 20} {
			b.Run(network+"/two-way/"+strconv.Itoa(frame>>10)+"KiB", func(b *testing.B) {
				benchSteps(b, job{Network: network, Bytes: whole, Frame: frame})
			})
		}
	}
}
