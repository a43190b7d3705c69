// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkClient measures calls over loopback TCP and unix sockets: one caller
// that waits for each reply, and 16 for each processor on one connection.
func BenchmarkClient(b *testing.B) {
	value := make([]byte, 64)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ops := []struct {
		name string
		f    func(c *Client, i int) error
	}{
		{"set", func(c *Client, i int) error { return c.Set(ctx, fmt.Sprint("key", i%1000), value) }},
		{"get", func(c *Client, i int) error { _, err := c.Get(ctx, "k"); return err }},
		{"add", func(c *Client, i int) error { _, err := c.Add(ctx, "n", 1); return err }},
	}
	for _, addr := range []string{"127.0.0.1:0", "unix:"} {
		for _, op := range ops {
			b.Run(addr+"/"+op.name, func(b *testing.B) {
				c := serve(b, addr)
				if err := c.Set(ctx, "k", value); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					if err := op.f(c, i); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			})
			b.Run(addr+"/"+op.name+"/16 callers a processor", func(b *testing.B) {
				c := serve(b, addr)
				if err := c.Set(ctx, "k", value); err != nil {
					b.Fatal(err)
				}
				var i atomic.Int64
				b.SetParallelism(16)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := op.f(c, int(i.Add(1))); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			})
		}
	}
}

// BenchmarkClients measures get with 64 clients, one caller each.
func BenchmarkClients(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h := newHost(b, "127.0.0.1:0")
	if err := h.mem.Set(ctx, "k", make([]byte, 64)); err != nil {
		b.Fatal(err)
	}
	const n = 64
	clients := make([]*Client, n)
	for i := range clients {
		clients[i] = h.client(b)
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for range (b.N + i) / n {
				if _, err := c.Get(ctx, "k"); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

// BenchmarkSetAsync measures sets of one caller that does not wait for answers.
func BenchmarkSetAsync(b *testing.B) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := serve(b, "127.0.0.1:0")
	value := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.SetAsync(ctx, "k", value); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
