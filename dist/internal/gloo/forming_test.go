// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// callsAs connects to rank 0 of a group of size as another rank.
func callsAs(t *testing.T, s store.Store, rank, size int) net.Conn {
	t.Helper()
	v, err := s.Get(t.Context(), "0/0")
	if err != nil {
		t.Fatal(err)
	}
	info, err := parseRankInfo(v, size)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", info.addr.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(binary.LittleEndian.AppendUint64(nil, uint64(rank))); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestWrongWhileForming: a rank that sends what cannot be while others have yet to come
// ends the meeting, and is named; what the meeting would have opened after that is closed.
func TestWrongWhileForming(t *testing.T) {
	for name, size := range map[string]int{"others to come": 3, "another interface to come": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := store.NewMemory()
			cfg := config(s, PerDevice, 0, size)
			cfg.Timeout = time.Minute
			cfg.Addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1")}
			ended := make(chan error, 1)
			go func() {
				_, err := Open(context.Background(), cfg)
				ended <- err
			}()
			conn := callsAs(t, s, 1, size)
			if _, err := conn.Write(message1(77, 0, 0)); err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Read(make([]byte, 1)) // until it has been noticed
			// As all of rank 1 that the first interface waits for.
			far := rankInfo{"host1", address{netip.MustParseAddrPort("127.0.0.9:9"), noSequence}, make([]int64, size)}
			if err := s.Set(t.Context(), "0/1", far.encode()); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				var rank *fault.RankError
				var wire *fault.WireError
				if !errors.As(err, &rank) || rank.Rank != 1 || !errors.As(err, &wire) {
					t.Errorf("%v, want what rank 1 has sent", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("the meeting goes on")
			}
		})
	}
}

// TestManyStrangers: connections that say nothing keep no member out.
func TestManyStrangers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8 as its own")
	}
	s := store.NewMemory()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	rank := func(r int) {
		cfg := config(s, PerDevice, r, 2)
		cfg.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, byte(r + 1)})} // the greater one connects
		b, err := Open(ctx, cfg)
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
			return
		}
		defer b.Close()
		if err := b.Collective(ctx, operation.Call{Op: operation.Barrier, Seq: 1}, collective.Data{}, collective.Data{}); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	all.Go(func() { rank(0) })
	v, err := s.Get(ctx, "0/0")
	if err != nil {
		t.Fatal(err)
	}
	info, err := parseRankInfo(v, 2)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * (2*2 + spareOpenings) {
		conn, err := net.Dial("tcp", info.addr.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	all.Go(func() { rank(1) })
}

// TestLoopbackOfAnother: a rank that has published an address of its own host alone, as
// one does whose host's name stands for that, is told apart from one that is not there.
func TestLoopbackOfAnother(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddrPort("127.0.0.1:1") // nobody is there, and nobody is given that port
	for own, says := range map[string]bool{"127.0.0.1": false, "192.0.2.1": true} {
		b := newCommunicator(config(store.NewMemory(), PerDevice, 0, 2))
		m := &rendezvous{b: b, addr: netip.MustParseAddr(own)}
		d := m.dialing(t.Context())
		d.start(1, at, nil)
		if err := <-d.failed; strings.Contains(err.Error(), "GLOO_SOCKET_IFNAME") != says || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("from %s: %v", own, err)
		}
		d.end()
	}
}
