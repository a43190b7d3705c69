// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// FuzzPreamble: what is taken is what was put.
func FuzzPreamble(f *testing.F) {
	f.Add(message1(opRecvReady, slotOf(ofAllReduce, 7), 64))
	f.Add(message1(opData, 3, 1<<20))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < preambleBytes {
			return
		}
		m, err := parsePreamble(b)
		if err != nil {
			return
		}
		var again [preambleBytes]byte
		m.put(again[:])
		back, err := parsePreamble(again[:])
		if err != nil || back != m {
			t.Errorf("%v comes back as %v (%v)", m, back, err)
		}
	})
}

// FuzzRankInfo: what a rank publishes is read or refused.
func FuzzRankInfo(f *testing.F) {
	at := address{netip.MustParseAddrPort("10.1.2.3:4567"), 5}
	f.Add((&rankInfo{"host", at, []int64{1, 2, 3}}).encode(), 3)
	f.Add((&rankInfo{"", address{netip.MustParseAddrPort("[fe80::1]:1"), noSequence}, nil}).encode(), 2)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 2 || size > 1<<10 {
			return
		}
		if r, err := parseRankInfo(b, size); err == nil {
			if back, err := parseRankInfo(r.encode(), size); err != nil || back.host != r.host || back.addr != r.addr || len(back.ids) != len(r.ids) {
				t.Errorf("%+v comes back as %+v (%v)", r, back, err)
			}
		}
		_, _ = parsePairAddress(b, size, 0, size-1)
		_, _ = parsePairAddress(b, size, size-1, 0)
		_, _ = parsePairAddress(b, anySize, 0, size-1)
	})
}

// FuzzPeer: whatever a peer sends, a call ends.
func FuzzPeer(f *testing.F) {
	reducing := slotOf(ofAllReduce, 0)
	f.Add(message1(opRecvReady, reducing, 4), 4)
	f.Add(append(append(message1(opSendReady, reducing, 4), message1(opData, reducing, 4, 1, 2, 3, 4)...), message1(opRecvReady, reducing, 4)...), 16)
	f.Fuzz(func(t *testing.T, b []byte, elems int) {
		if elems < 0 || elems > 1<<10 {
			return
		}
		g, ends := bare(2)
		defer g.Close()
		go func() { _, _ = io.Copy(io.Discard, ends[1]) }()
		go func() {
			_, _ = ends[1].Write(b)
			ends[1].Close()
		}()
		data := dataOf(make([]byte, 4*elems), operation.Float32)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = g.Collective(ctx, operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: elems}, data, data)
		if ctx.Err() != nil {
			t.Error("the call has not ended with its peer")
		}
	})
}

// FuzzCaller: whatever connects, a meeting goes on.
func FuzzCaller(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		g, _ := bare(3)
		defer g.Close()
		m := &rendezvous{b: g, mesh: g.contexts[0], attached: make(chan struct{}, 1)}
		here, there := net.Pipe()
		defer there.Close()
		go func() {
			_, _ = there.Write(b)
			there.Close()
		}()
		if m.accept(here, m.callerByNumber) {
			t.Error("a second connection of a pair is taken")
		}
		here.Close()
	})
}

// TestWhoDials: of two ranks one dials, and which one is as in the format's examples.
func TestWhoDials(t *testing.T) {
	at := func(s string, seq int64) address { return address{netip.MustParseAddrPort(s), seq} }
	for _, test := range []struct{ self, peer address }{
		{at("10.0.0.2:1", 0), at("10.0.0.1:2", 0)},
		{at("10.0.1.0:1", 0), at("10.0.0.255:1", 0)},
		{at("127.0.0.1:4405", 0), at("127.0.0.1:4660", 0)}, // 0x1135 and 0x1234: 0x3511 is more than 0x3412
		{at("127.0.0.1:9", 4), at("127.0.0.1:9", 3)},
		{at("[::2]:9", 4), at("[::1]:9", 5)},
	} {
		first, err := test.self.dials(test.peer)
		second, err2 := test.peer.dials(test.self)
		if !first || second || err != nil || err2 != nil {
			t.Errorf("%v dials %v: %v, %v; the other way %v, %v", test.self, test.peer, first, err, second, err2)
		}
	}
	if _, err := at("10.0.0.2:1", 3).dials(at("10.0.0.2:1", 3)); err == nil {
		t.Error("two ranks of one address")
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		a := address{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(random.IntN(3))}), uint16(1+random.IntN(1<<16-1))), int64(random.IntN(3))}
		b := address{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(random.IntN(3))}), uint16(1+random.IntN(1<<16-1))), int64(random.IntN(3))}
		if a == b {
			continue
		}
		first, _ := a.dials(b)
		if second, _ := b.dials(a); first == second {
			t.Fatalf("%v and %v: both or neither dials", a, b)
		}
	}
}
