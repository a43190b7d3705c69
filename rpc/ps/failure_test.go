// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// memory is a journal in memory.
type memory struct {
	mu      sync.Mutex
	id      uint64
	entries [][]byte
	state   []byte
	at      uint64
	records map[string][]rows.Record
	full    error // what Append returns
	deaf    error // what Snapshot returns
	tries   int   // snapshots that were begun
}

func (m *memory) ID() uint64 { return m.id }

func (m *memory) Recover(restore func([]byte) ([]*rows.Table, error), entry func(uint64, []byte) error) error {
	if m.state != nil {
		tables, err := restore(m.state)
		if err != nil {
			return err
		}
		for _, t := range tables {
			for _, r := range m.records[t.Schema().Name] {
				if _, err := t.Put(r); err != nil {
					return err
				}
			}
		}
	}
	for i, e := range m.entries {
		if lsn := uint64(i + 1); lsn > m.at {
			if err := entry(lsn, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memory) Append(entries ...[]byte) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full != nil {
		return 0, m.full
	}
	for _, e := range entries {
		m.entries = append(m.entries, bytes.Clone(e))
	}
	return uint64(len(m.entries) - len(entries) + 1), nil
}

func (m *memory) Unsaved() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := int64(0)
	for _, e := range m.entries[m.at:] {
		n += int64(len(e))
	}
	return n
}

func (m *memory) Snapshot(_ context.Context, lsn uint64, state []byte, tables []*rows.Table) error {
	records := map[string][]rows.Record{}
	for _, t := range tables {
		err := t.Scan(0, func(r rows.Record) error {
			r.Row, r.State = bytes.Clone(r.Row), bytes.Clone(r.State)
			records[t.Schema().Name] = append(records[t.Schema().Name], r)
			return nil
		})
		if err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tries++; m.deaf != nil {
		return m.deaf
	}
	m.at, m.state, m.records = lsn, bytes.Clone(state), records
	return nil
}

// kill ends a server and its agent.
func (c *cluster) kill(i int) {
	c.t.Helper()
	if err := errors.Join(c.agents[i].Close(), c.servers[i].Close()); err != nil {
		c.t.Fatal(err)
	}
}

func one(table string, key int64, values ...float32) Gradient {
	return Gradient{table, []int64{key}, tensor.FromFloat32(values, 1, len(values))}
}

func (c *cluster) pullOne(client *Client, table string, key int64) []float32 {
	c.t.Helper()
	r, err := client.Pull(c.t.Context(), Request{Table: table, Keys: []int64{key}})
	if err != nil {
		c.t.Fatal(err)
	}
	return r[0].Float32s()
}

// A server that is killed comes back with what it has acknowledged, from its log and from a
// snapshot, in each consistency, and its clients go on.
func TestServerComesBack(t *testing.T) {
	for _, how := range []Consistency{Synchronous(), Bounded(1), Asynchronous(), Asynchronous().Batched(1, false)} {
		for _, snapshot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", how, snapshot), func(t *testing.T) {
				c := start(t, 1)
				c.kill(0)
				j := &memory{id: 7}
				c.serve(0, 1, WithJournal(j))
				client := c.dial("worker", WithWorker(0, 1, how), WithTables(exact("a", 1)))
				for round := range 4 {
					if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
						t.Fatal(err)
					}
					if snapshot && round == 1 {
						if err := client.Snapshot(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					c.kill(0)
					c.serve(0, 1, WithJournal(j))
				}
				if got := c.pullOne(client, "a", 5); got[0] != 4 {
					t.Errorf("after 4 pushes of 1 the row is %v", got)
				}
				if next := client.StepNumber(); next != 4 {
					t.Errorf("the worker's step is %d", next)
				}
				// A worker that is started again goes on where the servers are.
				again := c.dial("again", WithWorker(0, 1, how))
				if next := again.StepNumber(); next != 4 {
					t.Errorf("the step of a worker that was started again is %d", next)
				}
			})
		}
	}
}

// A push that was applied, but whose answer was lost, is repeated and not applied again.
func TestRepeatedPush(t *testing.T) {
	c := start(t, 1)
	client := c.dial("worker", WithWorker(0, 1, Asynchronous()), WithTables(exact("a", 1)))
	r := client.remotes[0]
	args := pushArgs{Client: r.name(), Worker: 0, Number: 1, Pushes: []pushItem{
		{Parts: []pushPart{{Table: "a", Keys: tensor.FromInt64([]int64{5}), Grads: tensor.Full(-1, 1, 1)}}},
		{Step: 1, Parts: []pushPart{{Table: "a", Keys: tensor.FromInt64([]int64{5}), Grads: tensor.Full(-2, 1, 1)}}},
	}}
	for range 3 {
		if _, err := pushMethod.Call(t.Context(), r.opened(), args); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.pullOne(client, "a", 5); got[0] != 3 {
		t.Errorf("after pushes of 1 and 2, both repeated, the row is %v", got)
	}
	args.Number = 2 // the first of the two is known, the second is not
	if _, err := pushMethod.Call(t.Context(), r.opened(), args); err != nil {
		t.Fatal(err)
	}
	if got := c.pullOne(client, "a", 5); got[0] != 5 {
		t.Errorf("the row is %v, want 5", got)
	}
	args.Number = 9
	if _, err := pushMethod.Call(t.Context(), r.opened(), args); KindOf(err) != KindOrder {
		t.Errorf("a gap in the numbers: %v", err)
	}
}

// Clients refuse a server that came back without what it had acknowledged.
func TestOldData(t *testing.T) {
	for what, restart := range map[string]func(j *memory) []Option{
		"no journal":    func(*memory) []Option { return nil },
		"another one":   func(*memory) []Option { return []Option{WithJournal(&memory{id: 8})} },
		"an older copy": func(j *memory) []Option { return []Option{WithJournal(&memory{id: 7, entries: j.entries[:2]})} },
	} {
		t.Run(what, func(t *testing.T) {
			c := start(t, 1)
			c.kill(0)
			j := &memory{id: 7}
			c.serve(0, 1, WithJournal(j))
			client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(exact("a", 1)))
			for range 2 {
				if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
					t.Fatal(err)
				}
			}
			c.kill(0)
			c.serve(0, 1, restart(j)...)
			_, err := client.Pull(t.Context(), Request{Table: "a", Keys: []int64{5}})
			if KindOf(err) != KindHistory || !strings.Contains(err.Error(), "server 0") || !strings.Contains(err.Error(), "push 2") {
				t.Errorf("the pull: %v", err)
			}
		})
	}
}

// A push that cannot be kept is refused and not applied; pulls are answered meanwhile.
func TestFullDisk(t *testing.T) {
	c := start(t, 1)
	c.kill(0)
	j := &memory{id: 7}
	c.serve(0, 1, WithJournal(j))
	client := c.dial("worker", WithWorker(0, 1, Asynchronous()), WithTables(exact("a", 1)))
	j.mu.Lock()
	j.full = errors.New("no space left")
	j.mu.Unlock()
	err := client.Push(t.Context(), one("a", 5, -1))
	if KindOf(err) != KindStorage || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a push that cannot be kept: %v", err)
	}
	if got := c.pullOne(client, "a", 5); got[0] != 0 {
		t.Errorf("the refused push was applied: %v", got)
	}
	j.mu.Lock()
	j.full = nil
	j.mu.Unlock()
	if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
		t.Fatal(err)
	}
	if got := c.pullOne(client, "a", 5); got[0] != 1 {
		t.Errorf("the row is %v, want 1", got)
	}
}

// A pull that waits for a worker names it when the deadline passes, and does not wait for
// one that has left.
func TestWaitNamesWorkers(t *testing.T) {
	for _, how := range []Consistency{Synchronous(), Bounded(2)} {
		t.Run(how.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, 2)
				var clients []*Client
				for w := range 3 {
					clients = append(clients, c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, 3, how), WithTables(exact("a", 1)), WithTimeout(10*time.Second)))
				}
				ctx := t.Context()
				step := func(w int) {
					if err := clients[w].Push(ctx, one("a", 5, -1)); err != nil {
						t.Fatal(err)
					}
				}
				for range how.Bound + 1 {
					step(0)
					step(2)
				}
				began := time.Now()
				_, err := clients[0].Pull(ctx, Request{Table: "a", Keys: []int64{5}})
				if KindOf(err) != KindWaiting || !strings.Contains(err.Error(), "worker 1 (as worker1), whose next step is 0") || strings.Contains(err.Error(), "worker 2") {
					t.Errorf("a pull that waits for worker 1: %v", err)
				}
				if took := time.Since(began); took < 8*time.Second || took > 10*time.Second {
					t.Errorf("it waited %v of 10 s", took)
				}
				pulled := make(chan error)
				go func() {
					_, err := clients[0].Pull(ctx, Request{Table: "a", Keys: []int64{5}})
					pulled <- err
				}()
				synctest.Wait()
				step(1)
				if err := <-pulled; err != nil {
					t.Errorf("the pull after the push of the slowest worker: %v", err)
				}
				if err := clients[1].Leave(ctx); err != nil {
					t.Fatal(err)
				}
				for range 5 {
					step(0)
					step(2)
				}
				want := float32(3 + 2*how.Bound + 10)
				if got := c.pullOne(clients[0], "a", 5); got[0] != want {
					t.Errorf("the row is %v, want %v", got, want)
				}
			})
		})
	}
}

// Whoever waits for a push that is refused is told so, at once.
func TestRefusedPushFailsAll(t *testing.T) {
	c := start(t, 2)
	var clients []*Client
	for w := range 2 {
		clients = append(clients, c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, 2, Synchronous()), WithTables(exact("users", 2))))
	}
	if err := clients[0].Push(t.Context(), one("users", 5, -1, 2)); err != nil {
		t.Fatal(err)
	}
	pulled := make(chan error, 1)
	go func() {
		_, err := clients[0].Pull(t.Context(), Request{Table: "users", Keys: []int64{5}})
		pulled <- err
	}()
	bad := clients[1].Push(t.Context(), one("users", 5, 1, float32(math.NaN())))
	for who, err := range map[string]error{"the worker": bad, "the other": <-pulled} {
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindValues || e.Table != "users" || e.Worker != 1 || e.First != 5 || e.Server < 0 {
			t.Errorf("%s: %v", who, err)
		}
	}
}

func TestBatchedUpdates(t *testing.T) {
	for _, mean := range []bool{false, true} {
		c := start(t, 2)
		c.workers(4, Asynchronous().Batched(4, mean), []rows.Schema{exact("a", 2)}, func(w int, client *Client) error {
			for round := range 3 {
				got, err := client.Update(t.Context(), Gradient{"a", []int64{-1, 5, int64(100 + w)}, tensor.Full(-4, 3, 2)})
				if err != nil {
					return err
				}
				each := float32(4 * (round + 1))
				want := []float32{4 * each, 4 * each, 4 * each, 4 * each, each, each}
				if mean {
					want = []float32{each, each, each, each, each / 4, each / 4}
				}
				if !slices.Equal(got[0].Float32s(), want) {
					return fmt.Errorf("round %d: the new rows are %v, want %v", round, got[0].Float32s(), want)
				}
			}
			return nil
		})
	}
}

// A batch that lacks pushes goes on when the workers that lack have left.
func TestBatchWithoutThoseWhoLeft(t *testing.T) {
	c := start(t, 1)
	left := make(chan struct{})
	c.workers(2, Asynchronous().Batched(2, false), []rows.Schema{exact("a", 1)}, func(w int, client *Client) error {
		if w == 1 {
			defer close(left)
			return client.Leave(t.Context())
		}
		<-left
		got, err := client.Update(t.Context(), one("a", 1, -3))
		if err == nil && got[0].Item() != 3 {
			err = fmt.Errorf("the row is %v", got[0].Float32s())
		}
		return err
	})
}

func TestWorkersDisagree(t *testing.T) {
	c := start(t, 2, WithTables(exact("a", 2)), WithWorkers(2, Bounded(3)), WithJob("mine"))
	for what, opts := range map[string][]Option{
		"the job has 2 workers, not 3":     {WithWorker(0, 3, Bounded(3))},
		"consistency is bounded:3":         {WithWorker(0, 2, Bounded(4))},
		`belong to job "mine"`:             {WithJob("other")},
		`table "a"`:                        {WithTables(exact("a", 3))},
		"is an option of Serve":            {WithJournal(&memory{})},
		"worker 2 of 2":                    {WithWorker(2, 2, Bounded(3))},
		"want synchronous, bounded:STEPS ": {WithWorker(0, 2, Consistency{Mode: "eventual"})},
	} {
		_, err := Dial(t.Context(), c.agent("client"+fmt.Sprint(len(what))), c.at, opts...)
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("want an error with %q, got: %v", what, err)
		}
	}
	if _, err := Dial(t.Context(), c.agent("swapped"), At(c.servers[1].Addr(), c.servers[0].Addr())); KindOf(err) != KindSettings {
		t.Errorf("servers in the wrong order: %v", err)
	}
	if _, err := Dial(t.Context(), c.agent("few"), At(c.servers[0].Addr())); KindOf(err) != KindSettings {
		t.Errorf("one server of two: %v", err)
	}
}

// A server that comes back elsewhere is found in the store.
func TestStore(t *testing.T) {
	mem := store.NewMemory()
	j := &memory{id: 3}
	c := &cluster{t: t, net: rpc.NewNetwork(), servers: make([]*Server, 1), agents: make([]*rpc.Agent, 1), at: InStore(mem, 1)}
	dialed := make(chan *Client)
	go func() { dialed <- c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(exact("a", 1))) }()
	c.serve(0, 1, WithJournal(j), WithStore(mem))
	client := <-dialed
	if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
		t.Fatal(err)
	}
	c.kill(0)
	s, err := Serve(t.Context(), c.agent("elsewhere"), 0, 1, WithJournal(j), WithStore(mem))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := c.pullOne(client, "a", 5); got[0] != 1 {
		t.Errorf("the row is %v, want 1", got)
	}
}

// Rows that no push has changed for long leave their table, and begin again.
func TestEviction(t *testing.T) {
	c := start(t, 1)
	c.kill(0)
	j := &memory{id: 3}
	c.serve(0, 1, WithJournal(j))
	a := exact("a", 1)
	a.Evict.Steps = 8
	client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(a))
	if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := client.Push(t.Context(), one("a", 6, -1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if got := []float32{c.pullOne(client, "a", 5)[0], c.pullOne(client, "a", 6)[0]}; !slices.Equal(got, []float32{0, 20}) {
			t.Errorf("the rows are %v, want [0 20]", got)
		}
		c.kill(0) // and so it is when the log is read again
		c.serve(0, 1, WithJournal(j))
	}
}
