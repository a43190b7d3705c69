// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/transport"
)

// frame encodes a frame as it goes over a connection.
func frame(kind byte, payload []byte) []byte {
	b := make([]byte, transport.HeaderSize)
	transport.PutHeader(b, kind, len(payload))
	return append(b, payload...)
}

// fuzzFrames are the beginnings of what peers say to each other.
func fuzzFrames(f *testing.F) {
	h := hello{purpose: forControl, rank: 1, number: 7, group: "fuzz"}
	var all []byte
	for _, b := range [][]byte{
		frame(frameHello, h.encode()), frame(frameStalled, encodeStalled(1, &sampleCall)), frame(frameFault, encodeFault(2, kindFailed, "why")),
		frame(frameLeft, encodeFault(2, kindLeft, "")), frame(frameBeat, make([]byte, beatSize)), frame(frameSkew, nil), frame(frameAsk, encodeAsk(1, 2, 3)),
		frame(frameDoing, encodeDoing(1, 2, 3, &sampleDoing)), frame(frameBye, nil), {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, {1, 0},
	} {
		f.Add(b)
		all = append(all, b...)
	}
	f.Add(all)
	f.Add(frame(frameData, appendCall(nil, &sampleCall)))
}

// fuzzConfig is rank of a group of three.
func fuzzConfig(rank int) Config {
	return Config{Group: "fuzz", Key: "fuzz", World: []int{0, 1, 2}, Rank: rank, Members: members(3), Agreed: 7, Timeout: time.Second,
		Progress: func() Progress { return Progress{} }}
}

// FuzzStar gives arbitrary bytes to who watches a peer: the hub and a spoke end
// the connection, and leave the group whole enough to be closed.
func FuzzStar(f *testing.F) {
	fuzzFrames(f)
	f.Fuzz(func(t *testing.T, said []byte) {
		for rank, peer := range map[int]int{0: 1, 1: 0} {
			cfg := fuzzConfig(rank)
			s := newStar(&cfg, func(rank int, kind uint32, text string) {
				if rank < 0 || rank > 2 || len(text) > maxFaultText {
					t.Errorf("heard of rank %d: %d bytes", rank, len(text))
				}
			}, func(rank int) {
				if rank < 0 || rank > 2 {
					t.Errorf("rank %d has left", rank)
				}
			})
			near, far := transport.Pipe(Proto)
			if err := s.join(peer, near, nil); err != nil {
				t.Fatal(err)
			}
			drained := make(chan struct{})
			go func() { _, _ = io.Copy(io.Discard, far); close(drained) }()
			_, _ = far.Write(said)
			far.Close()
			s.close()
			<-drained
		}
	})
}

// FuzzFabric gives arbitrary bytes of a member to who takes its connection:
// only a hello to the group that there is gets to the group.
func FuzzFabric(f *testing.F) {
	fuzzFrames(f)
	token := transport.NewToken()
	f.Fuzz(func(t *testing.T, said []byte) {
		fabric := NewFabric(token, transport.EncryptControl)
		end, err := fabric.attach("fuzz", 3, func(_ *transport.Conn, h hello) bool {
			if h.group != "fuzz" || h.rank < 0 || h.rank > 2 {
				t.Errorf("the group was given %+v", h)
			}
			return false
		})
		if err != nil {
			t.Fatal(err)
		}
		near, far := transport.Pipe(Proto)
		handled := make(chan struct{})
		go func() { fabric.handle(near); close(handled) }()
		drained := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, far); close(drained) }()
		_, _ = far.Write(said)
		far.Close()
		if err := fabric.Close(); err != nil { // who waits for another group goes too
			t.Error(err)
		}
		end.Close()
		<-handled
		<-drained
	})
}

// FuzzMesh has a rank sum with a peer that says arbitrary bytes where its part
// of the data should come: the call ends, soon.
func FuzzMesh(f *testing.F) {
	call := operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 4, Seq: 1, Reduce: operation.Sum}
	data := make([]byte, 16)
	good := frame(frameData, append(appendCall(nil, &call), data...))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(frame(frameData, appendCall(nil, &call)), good...))
	f.Add(frame(frameData, append(appendCall(nil, &sampleCall), data...)))
	f.Add(frame(frameData, make([]byte, callSize-1)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(frameData)})
	f.Fuzz(func(t *testing.T, said []byte) {
		token := transport.NewToken()
		ports := make([]*transport.Port, 2)
		book := make([]Address, 2)
		for r := range ports {
			var err error
			if ports[r], err = transport.Listen("unix:", token); err != nil {
				t.Fatal(err)
			}
			book[r].Unix = ports[r].Addr()
		}
		defer ports[1].Close()
		ports[1].Handle(Proto, func(c *transport.Conn) { _, _ = io.Copy(io.Discard, c); c.Close() })
		fabric := NewFabric(token, transport.EncryptControl)
		fabric.Listen(ports[0], true)
		fabric.SetBook(book)
		defer fabric.Close()

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		peer := NewFabric(token, transport.EncryptControl)
		peer.SetBook(book)
		open := func(why purpose) *transport.Conn {
			c, err := peer.dial(ctx, 0, overUnix, hello{purpose: why, rank: 1, group: "fuzz"})
			if err != nil {
				t.Error(err)
				return nil
			}
			return c
		}
		conns := make(chan *transport.Conn, 2)
		go func() {
			defer close(conns)
			if c := open(forControl); c != nil {
				conns <- c
			}
			if c := open(forCollectives); c != nil {
				_, _ = c.Write(said)
				conns <- c
			}
		}()
		cfg := Config{Group: "fuzz", Key: "fuzz", World: []int{0, 1}, Members: members(2), Topology: collective.Apart(2), Timeout: 5 * time.Second}
		m, err := OpenMesh(ctx, cfg, fabric, MeshOptions{Node: []int{0, 0}, Local: LocalUnix})
		if err != nil {
			t.Fatal(err)
		}
		go func() { // the peer ends when it has said what it has to say
			var all []*transport.Conn
			for c := range conns {
				all = append(all, c)
			}
			for _, c := range all {
				c.Close()
			}
		}()
		x := collective.Data{Buffer: mem.Buffer{Data: make([]byte, 16)}, DType: call.DType, NumElems: call.Count}
		start := time.Now()
		err = m.Collective(ctx, call, x, x)
		if took := time.Since(start); took > loaded.Allow(4*time.Second) {
			t.Errorf("%v until %v", took, err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}
