// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// TestStrangers: who comes from elsewhere than from where a rank is does not become that
// rank, though it comes first and says that it is. Members come in by what they publish.
func TestStrangers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8 as its own")
	}
	for _, g := range []Generation{PerPair, PerDevice} {
		t.Run(map[Generation]string{PerPair: "pair", PerDevice: "device"}[g], func(t *testing.T) {
			s := store.NewMemory()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			asked, refused := make(chan netip.Addr, 8), make(chan netip.AddrPort, 8)
			told := make(chan struct{}) // a group that has ended refuses nobody
			var all sync.WaitGroup
			defer all.Wait()
			rank := func(r int, addr string) {
				cfg := config(s, g, r, 2)
				cfg.Addrs = []netip.Addr{netip.MustParseAddr(addr)}
				cfg.Admit = func(from netip.Addr) bool { asked <- from; return false }
				cfg.Refused = func(from netip.AddrPort, as int, _ error) {
					if r != 0 || as != 1 {
						t.Errorf("rank %d refused somebody as rank %d", r, as)
					}
					refused <- from
				}
				b, err := Open(ctx, cfg)
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
					return
				}
				defer b.Close()
				if err := b.Collective(ctx, operation.Call{Op: operation.Barrier, Seq: 1}, collective.Data{}, collective.Data{}); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
				<-told
			}
			all.Go(func() { rank(0, "127.0.0.1") })
			v, err := s.Get(ctx, "0/0")
			if err != nil {
				t.Fatal(err)
			}
			var there netip.AddrPort
			if g == PerPair {
				a, err := parsePairAddress(v, 2, 0, 1)
				if err != nil {
					t.Fatal(err)
				}
				there = a.addr
			} else {
				info, err := parseRankInfo(v, 2)
				if err != nil {
					t.Fatal(err)
				}
				there = info.addr.addr
			}
			stranger, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}).DialContext(ctx, "tcp", there.String())
			if err != nil {
				t.Fatal(err)
			}
			defer stranger.Close()
			if g == PerDevice {
				if _, err := stranger.Write(binary.LittleEndian.AppendUint64(nil, 1)); err != nil {
					t.Fatal(err)
				}
			}
			select { // so that it is first, where that counts
			case <-asked:
			case <-ctx.Done():
				t.Error("the stranger has not come in")
			}
			all.Go(func() { rank(1, "127.0.0.2") })
			select {
			case from := <-refused:
				if from.String() != stranger.LocalAddr().String() {
					t.Errorf("refused %v, want %v", from, stranger.LocalAddr())
				}
			case <-ctx.Done():
				t.Error("nobody was refused")
			}
			close(told)
			_ = stranger.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := stranger.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the stranger's connection: %v, want its end", err)
			}
		})
	}
}
