// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// gated is a journal whose writes wait while the gate is closed.
type gated struct {
	memory
	gate    chan struct{}
	waiting chan struct{} // a write is at the gate
}

func newGated() *gated {
	g := &gated{memory: memory{id: 9}, gate: make(chan struct{}), waiting: make(chan struct{}, 1)}
	close(g.gate)
	return g
}

func (g *gated) Append(entries ...[]byte) (uint64, error) {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	select {
	case <-gate:
	default:
		g.waiting <- struct{}{}
		<-gate
	}
	return g.memory.Append(entries...)
}

// hold closes the gate, and makes the writer stand before it until open is called.
func (g *gated) hold(t *testing.T, c *Client) (open func()) {
	g.mu.Lock()
	gate := make(chan struct{})
	g.gate = gate
	g.mu.Unlock()
	pushed := make(chan error, 1)
	go func() { pushed <- c.Push(t.Context(), one("hold", 1, -1)) }()
	<-g.waiting
	return func() {
		close(gate)
		if err := <-pushed; err != nil {
			t.Error(err)
		}
	}
}

// queued waits until as many requests stand before the writer.
func (c *cluster) queued(n int) {
	waiting := func() int {
		t := &c.servers[0].turns
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.waiting)
	}
	for waiting() < n {
		time.Sleep(time.Millisecond) // of a bubble
	}
}

// A table that the server cannot make is refused, and the log does not have it: the server
// goes on, and comes back.
func TestTableThatCannotBe(t *testing.T) {
	c := start(t, 1)
	c.kill(0)
	j := &memory{id: 7}
	c.serve(0, 1, WithJournal(j)) // and no directory for rows on disk
	client := c.dial("worker", WithWorker(0, 1, Asynchronous()), WithTables(exact("a", 1)))
	cold := exact("cold", 1)
	cold.Memory = 1 << 20
	_, err := Dial(t.Context(), c.agent("other"), c.at, WithTables(exact("b", 1), cold))
	if KindOf(err) != KindTable || !strings.Contains(err.Error(), `server 0, table "cold"`) {
		t.Errorf("a table with rows on disk, at a server without a directory: %v", err)
	}
	for range 2 {
		if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
			t.Fatal(err)
		}
		c.kill(0)
		c.serve(0, 1, WithJournal(j))
	}
	if got := c.pullOne(client, "a", 5); got[0] != 2 {
		t.Errorf("the row is %v, want 2", got)
	}
	if n := len(c.servers[0].Tables()); n != 1 {
		t.Errorf("the server has %d tables, want 1", n)
	}
	if _, err := Serve(t.Context(), c.agent("new"), 0, 1, WithTables(cold), WithJournal(&memory{id: 8})); KindOf(err) != KindTable {
		t.Errorf("a server with such a table: %v", err)
	}
	c.kill(0)
	c.serve(0, 1, WithJournal(j), WithDir(t.TempDir()+"/not/yet"), WithTables(cold))
}

// A request that was right when it came, and is wrong when its turn comes, is refused: the
// log has only what can be applied.
func TestTurns(t *testing.T) {
	t.Run("a reader pushes while synchronous workers come", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGated()
			c := start(t, 1, WithJournal(g), WithTables(exact("hold", 1), exact("a", 1)))
			reader, other := c.dial("reader"), c.dial("other")
			open := g.hold(t, other)
			dialed := make(chan *Client)
			go func() { dialed <- c.dial("worker", WithWorker(0, 1, Synchronous())) }()
			c.queued(1)
			pushed := make(chan error)
			go func() { pushed <- reader.Push(t.Context(), one("a", 5, -1)) }()
			c.queued(2)
			open()
			worker := <-dialed
			if err := <-pushed; KindOf(err) != KindSettings {
				t.Errorf("the push of the reader: %v", err)
			}
			if got := c.pullOne(worker, "a", 5); got[0] != 0 {
				t.Errorf("the refused push was applied: %v", got)
			}
		})
	})
	t.Run("two clients are the same worker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGated()
			c := start(t, 1, WithJournal(g), WithTables(exact("hold", 1), exact("a", 1)))
			var clients []*Client
			for i := range 2 {
				clients = append(clients, c.dial(fmt.Sprint("one", i), WithWorker(0, 2, Synchronous())))
			}
			open := g.hold(t, c.dial("two", WithWorker(1, 2, Synchronous())))
			pushed := make(chan error, 2)
			for i, client := range clients {
				go func() { pushed <- client.Push(t.Context(), one("a", 5, -1)) }()
				c.queued(i + 1)
			}
			open()
			refused := 0
			for range clients {
				if err := <-pushed; KindOf(err) == KindOrder {
					refused++
				} else if err != nil {
					t.Error(err)
				}
			}
			if got := c.pullOne(c.dial("reader"), "a", 5); got[0] != 1 || refused != 1 {
				t.Errorf("%d of 2 pushes for one step of one worker were refused, and the row is %v; want 1 and 1", refused, got)
			}
		})
	})
}

// A worker whose push failed may go on. Its next push is another one for the servers, also
// if they have the one that failed.
func TestPushAfterFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, 1)
		how := Asynchronous().Batched(2, false)
		c.dial("late", WithWorker(1, 3, how), WithTables(exact("a", 1)))
		client := c.dial("worker", WithWorker(0, 3, how), WithTables(exact("a", 1)), WithTimeout(5*time.Second))
		_, err := client.Update(t.Context(), one("a", 5, -1))
		if KindOf(err) != KindWaiting || !strings.Contains(err.Error(), "for a push of any of worker 0 (as worker), whose next step is 1, worker 1 (as late), whose next step is 0, worker 2 (it has never come)") {
			t.Fatalf("an update that waits for another worker: %v", err)
		}
		got, err := client.Update(t.Context(), one("a", 5, -10))
		if err != nil || got[0].Item() != 11 {
			t.Errorf("the update of both pushes: %v, %v; want 11", got, err)
		}
	})
}

// Whoever waits for a batch is told which workers it lacks.
func TestBatchNamesWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, 1)
		how := Asynchronous().Batched(3, true)
		var clients []*Client
		for w := range 3 {
			clients = append(clients, c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, 3, how), WithTables(exact("a", 1)), WithTimeout(5*time.Second)))
		}
		ended := make(chan error)
		for _, w := range []int{0, 2} {
			go func() {
				_, err := clients[w].Update(t.Context(), one("a", 5, -1))
				ended <- err
			}()
		}
		for range 2 {
			if err := <-ended; KindOf(err) != KindWaiting || !strings.Contains(err.Error(), "waited 4.5s for worker 1 (as worker1)") || strings.Contains(err.Error(), "worker 2 (") {
				t.Errorf("an update without worker 1: %v", err)
			}
		}
	})
}

// A step that no row can note is refused, and the server goes on.
func TestGiantStep(t *testing.T) {
	c := start(t, 1)
	client := c.dial("worker", WithWorker(0, 1, Asynchronous()), WithTables(exact("a", 1)))
	args := pushArgs{Client: 1, Worker: 0, Number: 1, Pushes: []pushItem{{Step: 1 << 32, Parts: []pushPart{{Table: "a", Keys: tensor.FromInt64([]int64{5}), Grads: tensor.Full(-1, 1, 1)}}}}}
	if _, err := pushMethod.Call(t.Context(), client.remotes[0].opened(), args); KindOf(err) != KindOrder {
		t.Errorf("a push for step 2^32: %v", err)
	}
	if err := client.Begin(t.Context(), 1<<32); KindOf(err) != KindOrder {
		t.Errorf("a beginning at step 2^32: %v", err)
	}
	if err := client.Push(t.Context(), one("a", 5, -1)); err != nil {
		t.Fatal(err)
	}
}

// The answers of pushes say how many keys wait for more pushes.
func TestWaitingKeys(t *testing.T) {
	for _, how := range []Consistency{Synchronous(), Asynchronous()} {
		c := start(t, 2)
		a := exact("a", 1)
		a.Admit = 3
		client := c.dial("worker", WithWorker(0, 1, how), WithTables(a))
		for push, want := range []int64{3, 6, 6, 7} {
			keys, grads := []int64{1, 2, 3}, tensor.Full(-1, 3, 1)
			if push == 3 {
				keys, grads = []int64{1, 2, 3, 4}, tensor.Full(-1, 4, 1)
			}
			if err := client.Push(t.Context(), Gradient{"a", keys, grads}); err != nil {
				t.Fatal(err)
			}
			if got := client.Waiting(); got != want {
				t.Errorf("%s: after push %d, %d keys have waited, want %d", how, push, got, want)
			}
		}
	}
}

// Counts of a request that would make the server take much memory are refused before.
func TestGiantRequests(t *testing.T) {
	c := start(t, 1)
	wide := rows.Schema{Name: "wide", Width: 1 << 20}
	client := c.dial("worker", WithWorker(0, 1, Synchronous()), WithTables(wide))
	keys := make([]int64, 1<<10)
	call := func(p pullPart) {
		t.Helper()
		_, err := pullMethod.Call(t.Context(), client.remotes[0].opened(), pullArgs{Worker: -1, Parts: []pullPart{p}})
		if KindOf(err) != KindKeys || !strings.Contains(err.Error(), "pull fewer keys") {
			t.Errorf("a pull of 4 GiB: %v", err)
		}
	}
	call(pullPart{Table: "wide", Keys: tensor.FromInt64(keys)})
	call(pullPart{Table: "wide", Keys: tensor.FromInt64(nil, 0), Offsets: tensor.FromInt64(keys)})
}

// Pushes of one worker may fill a batch. The other worker's fill one too, though its client
// has one request under way at a time: nobody waits for what a client holds back.
func TestBatchOfOneWorker(t *testing.T) {
	for _, servers := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			c := start(t, servers)
			how := Asynchronous().Batched(2, false)
			var clients []*Client
			for w := range 2 {
				clients = append(clients, c.dial(fmt.Sprintf("worker%d", w), WithWorker(w, 2, how), WithTables(exact("a", 1)), WithTimeout(5*time.Second)))
			}
			keys := []int64{1, 2, 3, 4, 5, 6, 7, 8}
			for _, w := range []int{0, 0, 0, 1, 1, 1} { // behind the first, the next two of worker 0 wait together
				grad := Gradient{"a", keys[:len(keys)-w], tensor.Full(-1, len(keys)-w, 1)}
				if err := errors.Join(clients[w].Add(grad), clients[w].Step(t.Context())); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			for w, client := range clients {
				if err := client.Flush(t.Context()); err != nil {
					t.Errorf("%d servers, worker %d: %v", servers, w, err)
				}
			}
			got, err := clients[0].Pull(t.Context(), Request{Table: "a", Keys: keys})
			if err != nil || !slices.Equal(got[0].Float32s(), []float32{6, 6, 6, 6, 6, 6, 6, 3}) {
				t.Errorf("%d servers: the rows are %v, %v", servers, got, err)
			}
		})
	}
}
