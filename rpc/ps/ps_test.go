// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) {
	tensor.CPU() // its threads live as long as the process, not in the bubble of a test
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// cluster is the servers of a test, on a network inside the process.
type cluster struct {
	t       testing.TB
	net     *rpc.Network // nil: the machine's, with a token
	token   string
	servers []*Server
	agents  []*rpc.Agent // of the servers
	at      Servers
}

// agent makes an agent that is closed at the end of the test.
func (c *cluster) agent(name string) *rpc.Agent {
	c.t.Helper()
	opts := []rpc.Option{rpc.WithToken(c.token), rpc.WithListen("127.0.0.1:0")}
	if c.net != nil {
		opts = []rpc.Option{rpc.WithNetwork(c.net)}
	}
	a, err := rpc.Init(context.Background(), name, opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { a.Close() })
	return a
}

// start makes the servers.
func start(t testing.TB, n int, opts ...Option) *cluster {
	t.Helper()
	c := &cluster{t: t, net: rpc.NewNetwork(), servers: make([]*Server, n), agents: make([]*rpc.Agent, n)}
	var addrs []string
	for i := range n {
		c.serve(i, n, opts...)
		addrs = append(addrs, c.servers[i].Addr())
	}
	c.at = At(addrs...)
	return c
}

// serve makes the server of a number.
func (c *cluster) serve(i, n int, opts ...Option) {
	c.t.Helper()
	a := c.agent(fmt.Sprintf("server%d", i))
	s, err := Serve(context.Background(), a, i, n, opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	c.servers[i], c.agents[i] = s, a
}

// dial makes a client that is closed at the end of the test.
func (c *cluster) dial(name string, opts ...Option) *Client {
	c.t.Helper()
	client, err := Dial(context.Background(), c.agent(name), c.at, opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

// workers runs a function as each of n workers, whose clients are closed in its end.
func (c *cluster) workers(n int, how Consistency, tables []rows.Schema, f func(w int, client *Client) error) {
	c.t.Helper()
	var wg sync.WaitGroup
	for w := range n {
		client := c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, n, how), WithTables(tables...))
		wg.Go(func() {
			if err := f(w, client); err != nil {
				c.t.Errorf("worker %d: %v", w, err)
			}
		})
	}
	wg.Wait()
}

// exact is a table that adds up what is pushed, exactly for small whole numbers.
func exact(name string, width int) rows.Schema {
	return rows.Schema{Name: name, Width: width, Optimizer: rows.Optimizer{Kind: rows.SGD, LR: 1}}
}

func TestPullAndPush(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d servers", n), func(t *testing.T) {
			c := start(t, n)
			a, b := exact("a", 2), exact("b", 3)
			b.Init = rows.Init{Kind: rows.Constant, Scale: 5}
			client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(a, b))
			ctx := t.Context()
			for step := range 3 {
				err := client.Push(ctx,
					Gradient{"a", []int64{-4, 7, 9}, tensor.FromFloat32([]float32{-1, -2, -3, -4, -5, -6}, 3, 2)},
					Gradient{"b", []int64{7}, tensor.FromFloat32([]float32{1, 0, -1}, 1, 3)})
				if err != nil {
					t.Fatal(err)
				}
				if got := client.StepNumber(); got != int64(step+1) {
					t.Errorf("the step is %d, want %d", got, step+1)
				}
			}
			got, err := client.Pull(ctx, Request{Table: "a", Keys: []int64{9, 7, -4, 9, 1}}, Request{Table: "b", Keys: []int64{7, 8}})
			if err != nil {
				t.Fatal(err)
			}
			if s := fmt.Sprint(got[0].Shape(), got[0].Float32s()); s != "[5 2] [15 18 9 12 3 6 15 18 0 0]" {
				t.Errorf("rows of a: %s", s)
			}
			if s := fmt.Sprint(got[1].Float32s()); s != "[2 5 8 5 5 5]" {
				t.Errorf("rows of b: %s", s)
			}
			bags, err := client.Pull(ctx, Request{Table: "a", Keys: []int64{9, 7, 9, -4}, Offsets: []int64{0, 0, 3}})
			if err != nil {
				t.Fatal(err)
			}
			if s := fmt.Sprint(bags[0].Shape(), bags[0].Float32s()); s != "[3 2] [0 0 39 48 3 6]" {
				t.Errorf("bags of a: %s", s)
			}
		})
	}
}
