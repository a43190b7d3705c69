// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// start over the sockets of the machine. The addresses are those of proxies, which can cut
// connections.
func startOver(t testing.TB, transport string, n int, opts ...Option) (*cluster, []*agenttest.Proxy) {
	t.Helper()
	t.Setenv("COHORT_TRANSPORT", transport)
	t.Setenv("COHORT_ENCRYPT", "")
	c := &cluster{t: t, token: agenttest.Token, servers: make([]*Server, n), agents: make([]*rpc.Agent, n)}
	var proxies []*agenttest.Proxy
	var addrs []string
	for i := range n {
		c.serve(i, n, opts...)
		p := agenttest.NewProxy(t)
		p.To(c.servers[i].Addr())
		proxies, addrs = append(proxies, p), append(addrs, p.Address())
	}
	c.at = At(addrs...)
	return c, proxies
}

// Connections are cut in the middle of pulls and pushes: each push takes effect once.
func TestPushesThroughCuts(t *testing.T) {
	seed := seeded.Of(t)
	const workers, numPushes = 3, 60
	c, proxies := startOver(t, "tcp", 2)
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	maybeCut := func() {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(4) == 0 {
			proxies[random.IntN(len(proxies))].Cut()
		}
	}
	c.workers(workers, Asynchronous(), []rows.Schema{exact("a", 1)}, func(w int, client *Client) error {
		for i := range numPushes {
			if err := client.Add(Gradient{"a", []int64{1, 2, 3, int64(10 + w)}, tensor.Full(-1, 4, 1)}); err != nil {
				return err
			}
			if err := client.Step(t.Context()); err != nil {
				return fmt.Errorf("push %d: %w", i, err)
			}
			maybeCut()
			if i%7 == 0 {
				if _, err := client.Pull(t.Context(), Request{Table: "a", Keys: []int64{1, 2, 3}}); err != nil {
					return fmt.Errorf("pull %d: %w", i, err)
				}
			}
		}
		return client.Flush(t.Context())
	})
	client := c.dial("reader")
	got, err := client.Pull(t.Context(), Request{Table: "a", Keys: []int64{1, 2, 3, 10, 11, 12}})
	if err != nil {
		t.Fatal(err)
	}
	want := []float32{workers * numPushes, workers * numPushes, workers * numPushes, numPushes, numPushes, numPushes}
	if !slices.Equal(got[0].Float32s(), want) {
		t.Errorf("the rows are %v, want %v", got[0].Float32s(), want)
	}
}

// The dtypes of the wire: what a pull gives is what the row is, rounded once.
func TestWireTypes(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Int8} {
		t.Run(dtype.String(), func(t *testing.T) {
			c := start(t, 2)
			a := exact("a", 5)
			a.Wire = dtype
			client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(a))
			var keys []int64
			for k := range int64(100) {
				keys = append(keys, k)
			}
			grads := tensor.Zeros(100, 5)
			tensor.NewGenerator(5).Normal(grads, 0, 1)
			if err := client.Push(t.Context(), Gradient{"a", keys, grads}); err != nil {
				t.Fatal(err)
			}
			got, err := client.Pull(t.Context(), Request{Table: "a", Keys: keys})
			if err != nil {
				t.Fatal(err)
			}
			apart := slices.Max(got[0].Add(grads).Abs().Float32s())
			if limit := map[tensor.DType]float32{tensor.Float32: 0, tensor.BFloat16: 0.04, tensor.Float16: 0.004, tensor.Int8: 0.03}[dtype]; apart > limit || limit > 0 && apart == 0 {
				t.Errorf("the rows differ by %v at most, want %v", apart, limit)
			}
		})
	}
}

func FuzzEntry(f *testing.F) {
	f.Add((&push{client: 1, number: 2, worker: 3, step: 4, parts: []part{{table: 5, lr: 0.5, keys: []int64{6, 7}, grads: []float32{1, 2, 3, 4}}}}).encode())
	f.Add([]byte("\x0200000000000000000000000000000000\x01\x00\x00\x00000000000000\x00\x00\x00\x000000")) // no keys, and yet a width
	f.Add((&removal{table: 1, step: 2, keys: []int64{3}}).encode())
	f.Add((&Progress{Steps: 3, Next: []int64{3}, Left: []bool{false}, Rates: []float64{0, 1}}).encode())
	f.Add((&leaving{client: 1, worker: 2}).encode())
	f.Add((&beginning{step: 3}).encode())
	f.Add((&insertion{table: 1, keys: []int64{2, 5}, values: []float32{1, 2, 3, 4}, states: []float32{5, 6}}).encode())
	s := settings{Servers: 2, Tables: []rows.Schema{exact("a", 2)}}
	f.Add(append([]byte{entrySettings}, s.encode()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEntry(b)
		if err != nil {
			return
		}
		switch e.(type) {
		case *settings, *Progress: // JSON may have spaces
			b = encodeEntry(e)
			if e2, err := decodeEntry(b); err != nil || string(encodeEntry(e2)) != string(b) {
				t.Errorf("settings %s do not come back: %v", b, err)
			}
			return
		}
		if got := encodeEntry(e); string(got) != string(b) {
			t.Errorf("an entry %x is %x when it is written again", b, got)
		}
	})
}

// FuzzState gives a server states of snapshots, which may be damaged.
func FuzzState(f *testing.F) {
	routing, err := NewRouting(1)
	if err != nil {
		f.Fatal(err)
	}
	s := newState(routing, 0, "")
	how := Synchronous()
	if err := s.apply(1, &settings{Servers: 1, Workers: 2, Consistency: &how, Tables: []rows.Schema{exact("a", 1)}}); err != nil {
		f.Fatal(err)
	}
	if err := s.apply(2, &push{client: 1, number: 1, worker: 1, parts: []part{{keys: []int64{1}, grads: []float32{1}}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(s.save())
	_ = s.close()
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newState(routing, 0, "")
		defer s.close()
		if s.restore(b) != nil {
			return
		}
		again := newState(routing, 0, "")
		defer again.close()
		if err := again.restore(s.save()); err != nil {
			t.Errorf("a state that was read is not read again: %v", err)
		}
	})
}

func BenchmarkPull(b *testing.B) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, numRows := range []int{1024, 16384} {
			b.Run(fmt.Sprintf("%s/%d", transport, numRows), func(b *testing.B) {
				b.Setenv("COHORT_TRANSPORT", map[string]string{"shm": "", "tcp": "tcp"}[transport])
				c := &cluster{t: b, token: agenttest.Token, servers: make([]*Server, 1), agents: make([]*rpc.Agent, 1)}
				a := exact("a", 64)
				c.serve(0, 1, WithTables(a))
				c.at = At(c.servers[0].Addr())
				client := c.dial("worker", WithWorker(0, 1, Asynchronous()))
				const all = 1 << 20
				keys := make([]int64, 1<<14)
				for lo := int64(0); lo < all; lo += int64(len(keys)) {
					for i := range keys {
						keys[i] = lo + int64(i)
					}
					if err := client.Push(context.Background(), Gradient{"a", keys, tensor.Full(1, len(keys), 64)}); err != nil {
						b.Fatal(err)
					}
				}
				random := rand.New(rand.NewPCG(1, 2))
				var lists [][]int64
				for range 64 {
					list := make([]int64, numRows)
					for i := range list {
						list[i] = random.Int64N(all)
					}
					slices.Sort(list)
					lists = append(lists, slices.Compact(list))
				}
				i := 0
				b.ResetTimer()
				for b.Loop() {
					list := lists[i%len(lists)]
					i++
					if _, err := client.Pull(context.Background(), Request{Table: "a", Keys: list}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N*numRows)/b.Elapsed().Seconds()/1e6, "Mrows/s")
			})
		}
	}
}
