// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// TestLeave has rank 0 give up on a group of which rank 1 does not come, while rank 2
// waits for a connection from it: it gets one, that says what it must and ends, and is
// not reset.
func TestLeave(t *testing.T) {
	for _, g := range []Generation{PerPair, PerDevice} {
		t.Run(g.String(), func(t *testing.T) {
			t.Parallel() // it waits
			s := store.NewMemory()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(ctx, min(loaded.Allow(500*time.Millisecond), 2*time.Second)) // in which rank 2 comes
				defer cancel()
				b, err := Open(ctx, config(s, g, 0, 3))
				if err == nil {
					err = b.Close()
				}
				failed <- err
			}()
			v, err := s.Get(ctx, "0/0")
			if err != nil {
				t.Fatal(err)
			}
			var there address // of rank 0
			number := int64(noSequence)
			if g == PerPair {
				there, err = parsePairAddress(v, 3, 0, 2)
			} else {
				var info rankInfo
				if info, err = parseRankInfo(v, 3); err == nil {
					there, number = address{info.addr.addr, info.ids[2]}, 7
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			var l net.Listener
			var here netip.AddrPort
			for { // until rank 0 is the one to connect
				if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				here = l.Addr().(*net.TCPAddr).AddrPort()
				if first, err := there.dials(address{here, number}); err != nil {
					t.Fatal(err)
				} else if first {
					break
				}
			}
			published := appendPairAddresses(nil, []netip.AddrPort{here, here, {}}, 2)
			if g == PerDevice {
				published = (&rankInfo{host: "host2", addr: address{here, noSequence}, ids: []int64{number, 8, 9}}).encode()
			}
			if err := s.Set(ctx, "0/2", published); err != nil {
				t.Fatal(err)
			}
			_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second))
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if said, err := io.ReadAll(conn); err != nil || g == PerPair && len(said) > 0 || g == PerDevice && binary.LittleEndian.Uint64(said) != uint64(number) {
				t.Errorf("it says %x, %v", said, err)
			}
			var late *fault.TimeoutError
			if err := <-failed; !errors.As(err, &late) || len(late.Missing) == 0 || late.Missing[0].Rank != 1 {
				t.Errorf("rank 0 says %v, want that rank 1 is missing", err)
			}
		})
	}
}
