// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/internal/transport"
)

// BenchmarkBeat is what a beat costs the hub of a group: what it sends to all,
// and what it takes from them, who are in this process too.
func BenchmarkBeat(b *testing.B) {
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			token := transport.NewToken()
			port, err := transport.Listen("unix:", token)
			if err != nil {
				b.Fatal(err)
			}
			defer port.Close()
			accepted := make(chan *transport.Conn, 1)
			port.Handle("test", func(c *transport.Conn) { accepted <- c })
			stars := make([]*star, n)
			for r := range stars {
				cfg := &Config{Rank: r, Members: make([]fault.Member, n), Silence: time.Hour}
				cfg.Progress = func() Progress { return Progress{} }
				stars[r] = newStar(cfg, func(int, uint32, string) {}, func(int) {})
				stars[r].beats.period = time.Hour
			}
			for r := 1; r < n; r++ {
				conn, err := transport.Dial(b.Context(), port.Addr(), "test", token)
				if err == nil {
					err = stars[r].join(0, conn, nil)
				}
				if err == nil {
					err = stars[0].join(r, <-accepted, nil)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			// The pulses' own goroutines sleep: this is the only one that beats.
			hub := stars[0].beats
			hub.conns = stars[0].connections(hub.conns[:0])
			frames := make([]uint64, n)
			b.ReportAllocs()
			for b.Loop() {
				for r := 1; r < n; r++ {
					frames[r] = stars[r].beats.peers[0].frames.Load()
				}
				hub.beat()
				for i := range hub.peers {
					hub.peers[i].unheard = 0
				}
				for r := 1; r < n; r++ {
					for stars[r].beats.peers[0].frames.Load() == frames[r] {
						time.Sleep(0)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n-1), "ns/rank")
			for r := n - 1; r >= 0; r-- {
				stars[r].close()
			}
		})
	}
}
