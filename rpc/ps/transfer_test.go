// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// Rows that Lookup has read go by Insert to another number of servers, with rows of their own
// that Begin removes, and the workers go on there with the same bits. A server that is started
// again from its log knows all of it.
func TestRowsMove(t *testing.T) {
	const workers, numKeys = 2, 50
	table := rows.Schema{Name: "a", Width: 3, Init: rows.Init{Kind: rows.Uniform, Scale: 1}, Optimizer: rows.Optimizer{Kind: rows.Adagrad, LR: 0.1, LRDecay: 0.3}}
	var keys []int64
	for k := range int64(numKeys) {
		keys = append(keys, k)
	}
	train := func(client *Client, w, from, to int) error {
		for step := from; step < to; step++ {
			if got := client.StepNumber(); got != int64(step) {
				return fmt.Errorf("the worker is in step %d, want %d", got, step)
			}
			own := keys[w+step : w+step+20]
			r, err := client.Pull(t.Context(), Request{Table: "a", Keys: own})
			if err != nil {
				return err
			}
			if err := client.Push(t.Context(), Gradient{"a", own, r[0].MulScalar(float64(w + 1)).AddScalar(0.1)}); err != nil {
				return err
			}
		}
		return nil
	}
	look := func(client *Client) (values, states *tensor.Tensor) {
		t.Helper()
		values, states = tensor.Zeros(numKeys, 3), tensor.Zeros(numKeys, 3)
		if err := client.Lookup(t.Context(), "a", keys, values, states); err != nil {
			t.Fatal(err)
		}
		return values, states
	}
	one := start(t, 1)
	var first []*Client
	for w := range workers {
		first = append(first, one.dial(fmt.Sprintf("worker%d", w), WithWorker(w, workers, Synchronous()), WithTables(table)))
	}
	both := func(clients []*Client, f func(w int, c *Client) error) {
		t.Helper()
		errs := make(chan error)
		for w, c := range clients {
			go func() { errs <- f(w, c) }()
		}
		for range clients {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
	both(first, func(w int, c *Client) error { return train(c, w, 0, 4) })
	values, states := look(first[0])

	for _, n := range []int{1, 3} {
		other := &cluster{t: t, net: rpc.NewNetwork(), servers: make([]*Server, n), agents: make([]*rpc.Agent, n)}
		journals := make([]*memory, n)
		var addrs []string
		for i := range n {
			journals[i] = &memory{id: uint64(i + 1)}
			other.serve(i, n, WithJournal(journals[i]))
			addrs = append(addrs, other.servers[i].Addr())
		}
		other.at = At(addrs...)
		var clients []*Client
		for w := range workers {
			clients = append(clients, other.dial(fmt.Sprintf("other%d.%d", n, w), WithWorker(w, workers, Synchronous()), WithTables(table)))
		}
		both(clients, func(w int, c *Client) error { return train(c, w, 0, 2) }) // rows that leave
		if err := clients[1].Begin(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		half := numKeys / 2
		for w, c := range clients {
			if err := c.Insert(t.Context(), "a", keys[w*half:(w+1)*half], values.Narrow(0, w*half, half).Contiguous(), states.Narrow(0, w*half, half).Contiguous()); err != nil {
				t.Fatal(err)
			}
			if err := c.Rejoin(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		both(clients, func(w int, c *Client) error { return train(c, w, 4, 7) })
		if n == 1 {
			both(first, func(w int, c *Client) error { return train(c, w, 4, 7) })
		}
		wantValues, wantStates := look(first[1])
		gotValues, gotStates := look(clients[0])
		if !sameBits(gotValues, wantValues) || !sameBits(gotStates, wantStates) {
			t.Errorf("%d servers: the rows go on in another way than where they came from", n)
		}
		for i := range n {
			again := &cluster{t: t, net: rpc.NewNetwork(), servers: make([]*Server, n), agents: make([]*rpc.Agent, n)}
			a := again.agent(fmt.Sprintf("again%d.%d", n, i))
			s, err := Serve(context.Background(), a, i, n, WithJournal(journals[i]))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			sum := func(s *Server) (count int, sum float64) {
				_ = s.Tables()[0].Scan(0, func(r rows.Record) error {
					v := make([]float32, 3)
					_ = rows.DecodeRows(v, r.Row, tensor.Float32, 3)
					count, sum = count+1, sum+float64(v[0])
					return nil
				})
				return count, sum
			}
			n1, s1 := sum(s)
			n2, s2 := sum(other.servers[i])
			if n1 != n2 || math.Abs(s1-s2) > 1e-9 || !slices.Equal(s.Status().Next, []int64{7, 7}) {
				t.Errorf("server %d of %d: its log gives %d rows with a sum of %v and the steps %v, it had %d and %v", i, n, n1, s1, s.Status().Next, n2, s2)
			}
		}
	}
}

func sameBits(a, b *tensor.Tensor) bool {
	return slices.EqualFunc(a.Float32s(), b.Float32s(), func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestInsertRefuses(t *testing.T) {
	c := start(t, 2)
	client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(exact("a", 2)))
	bad := tensor.FromFloat32([]float32{1, float32(math.Inf(1))}, 1, 2)
	for name, err := range map[string]error{
		string(KindTable):  client.Insert(t.Context(), "b", []int64{1}, tensor.Zeros(1, 2), tensor.Zeros(1, 0)),
		string(KindValues): client.Insert(t.Context(), "a", []int64{1}, bad, tensor.Zeros(1, 0)),
		string(KindOrder):  client.Begin(t.Context(), -1),
	} {
		if string(KindOf(err)) != name {
			t.Errorf("got %v, want an error of the kind %s", err, name)
		}
	}
	if err := client.Lookup(t.Context(), "a", []int64{1}, tensor.Zeros(1, 3), tensor.Zeros(1, 0)); KindOf(err) != KindValues {
		t.Errorf("a lookup into another shape: %v", err)
	}
}

// A worker that is ahead is told how far: the slowest one has pushed nothing.
func TestStaleness(t *testing.T) {
	c := start(t, 2)
	how := Bounded(3)
	slow := c.dial("slow", WithWorker(0, 2, how), WithTables(exact("a", 1)))
	fast := c.dial("fast", WithWorker(1, 2, how), WithTables(exact("a", 1)))
	keys := []int64{1, 2, 3, 4, 5, 6}
	for range 4 {
		if _, err := fast.Pull(t.Context(), Request{Table: "a", Keys: keys}); err != nil {
			t.Fatal(err)
		}
		if err := fast.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := fast.Staleness(); got != (Staleness{Pulls: 4, Sum: 0 + 1 + 2 + 3, Most: 3}) {
		t.Errorf("the fast worker's staleness is %+v", got)
	}
	if _, err := slow.Pull(t.Context(), Request{Table: "a", Keys: keys}); err != nil {
		t.Fatal(err)
	}
	if got := slow.Staleness(); got != (Staleness{Pulls: 1}) {
		t.Errorf("the slow worker's staleness is %+v", got)
	}
}
