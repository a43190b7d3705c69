// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
)

var crashes = flag.Int("crashes", 6, "number of histories of processes in TestCrashes")

// events are what happens in a history.
var events = []string{"kill server", "kill worker", "cut", "slow disk", "full disk", "snapshot", "kill all servers"}

// history is the servers and workers of a play.
type history struct {
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	dir     string
	token   string
	mode    string
	how     string // consistency of workers that make steps, "" for those that do not
	stderr  *lockedBuffer
	relays  []*relay
	servers []*process
	workers []*process
	lives   []int
	counts  map[string]int

	mu     sync.Mutex
	moved  chan struct{} // closed at each answer
	pushes map[pushID]*outcome
}

type pushID struct{ worker, life, push int }

// outcome is what a worker said of a push.
type outcome struct {
	yes     bool
	refused int // the server that refused it, -1 for none
}

// relay is the address of a server for the workers. Its connections can be cut.
type relay struct {
	l net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
	wait  sync.WaitGroup
}

func newRelay(t *testing.T) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, conns: map[net.Conn]bool{}}
	r.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			to := r.to
			r.mu.Unlock()
			d, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			r.mu.Lock()
			r.conns[c], r.conns[d] = true, true
			r.mu.Unlock()
			for _, pair := range [][2]net.Conn{{c, d}, {d, c}} {
				r.wait.Go(func() {
					buf := make([]byte, 4096)
					for {
						n, err := pair[0].Read(buf)
						if n > 0 {
							if _, werr := pair[1].Write(buf[:n]); werr != nil {
								err = werr
							}
						}
						if err != nil {
							break
						}
					}
					c.Close()
					d.Close()
					r.mu.Lock()
					delete(r.conns, c)
					delete(r.conns, d)
					r.mu.Unlock()
				})
			}
		}
	})
	return r
}

// cut closes all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

func (r *relay) close() {
	r.l.Close()
	r.cut()
	r.wait.Wait()
}

// startServer starts a server, which goes on from its directory.
func (h *history) startServer(i int) {
	h.t.Helper()
	ready := make(chan string, 1)
	h.servers[i] = start(h.t, h, func(line string) { ready <- line }, "-role=server", "-index="+fmt.Sprint(i), "-servers="+fmt.Sprint(len(h.servers)), "-mode="+h.mode, "-dir="+h.dirOf(i))
	select {
	case addr := <-ready:
		h.relays[i].mu.Lock()
		h.relays[i].to = addr
		h.relays[i].mu.Unlock()
	case <-h.servers[i].done:
		h.t.Fatalf("server %d did not come back: %s", i, h.stderr)
	}
}

func (h *history) dirOf(i int) string { return filepath.Join(h.dir, fmt.Sprint(i)) }

func (h *history) addrs() string {
	var all []string
	for _, r := range h.relays {
		all = append(all, r.l.Addr().String())
	}
	return strings.Join(all, ",")
}

func (h *history) startWorker(w int) {
	life := h.lives[w]
	h.lives[w]++
	h.workers[w] = start(h.t, h, func(line string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		var n, server int
		id := func() pushID {
			if h.how != "" {
				return pushID{w, 0, n} // whichever life tries it
			}
			return pushID{w, life, n}
		}
		if _, err := fmt.Sscanf(line, "try %d", &n); err == nil {
			if o := h.pushes[id()]; o != nil && o.yes {
				h.t.Errorf("worker %d was told that step %d is kept, and is to make it again", w, n)
			}
			h.pushes[id()] = &outcome{refused: -1}
			return
		}
		if _, err := fmt.Sscanf(line, "yes %d", &n); err == nil {
			h.pushes[id()].yes = true
			h.counts["acknowledged"]++
		} else if _, err := fmt.Sscanf(line, "no %d %d", &server, &n); err == nil {
			h.pushes[id()].refused = server
			h.counts["refused"]++
		}
		close(h.moved)
		h.moved = make(chan struct{})
	}, "-role=worker", "-index="+fmt.Sprint(w), "-life="+fmt.Sprint(life), "-servers="+fmt.Sprint(len(h.servers)), "-addrs="+h.addrs(), "-draw="+fmt.Sprint(h.seed), "-workers="+fmt.Sprint(len(h.workers)), "-how="+h.how)
}

// await waits until there are more acknowledged pushes (and, if full, refused ones).
func (h *history) await(more int, full bool) {
	h.t.Helper()
	have := func() int {
		if full {
			return h.counts["acknowledged"] + h.counts["refused"]
		}
		return h.counts["acknowledged"]
	}
	h.mu.Lock()
	want, moved := have()+more, h.moved
	h.mu.Unlock()
	late := time.After(loaded.Allow(30 * time.Second))
	for {
		select {
		case <-moved:
		case <-late:
			h.t.Fatalf("no push came through: %s", h.stderr)
		}
		h.mu.Lock()
		enough := have() >= want
		moved = h.moved
		h.mu.Unlock()
		if enough {
			return
		}
	}
}

// leave makes the workers, which have been killed, leave: then the servers apply the steps that wait
// for one of them.
func (h *history) leave() {
	h.t.Helper()
	how, err := ps.ParseConsistency(h.how)
	if err != nil {
		h.t.Fatal(err)
	}
	for w := range h.workers {
		c, end := h.client(ps.WithWorker(w, len(h.workers), how), ps.WithTables(tables()...))
		if err := c.Leave(h.t.Context()); err != nil {
			h.t.Errorf("worker %d leaves: %v", w, err)
		}
		end()
	}
}

// client is one of the test itself.
func (h *history) client(opts ...ps.Option) (*ps.Client, func()) {
	h.t.Helper()
	agent, err := rpc.Init(h.t.Context(), "test", rpc.WithToken(h.token))
	if err != nil {
		h.t.Fatal(err)
	}
	var to []string
	for _, r := range h.relays {
		to = append(to, r.to)
	}
	c, err := ps.Dial(h.t.Context(), agent, ps.At(to...), append(opts, ps.WithTimeout(loaded.Allow(30*time.Second)))...)
	if err != nil {
		agent.Close()
		h.t.Fatal(err)
	}
	return c, func() { c.Close(); agent.Close() }
}

func (h *history) event(what string) {
	h.t.Helper()
	s, w := h.r.IntN(len(h.servers)), h.r.IntN(len(h.workers))
	h.counts[what]++
	switch what {
	case "kill server":
		h.servers[s].kill()
		h.startServer(s)
	case "kill all servers":
		for _, p := range h.servers {
			p.kill()
		}
		for i := range h.servers {
			h.startServer(i)
		}
	case "kill worker":
		h.workers[w].kill()
		h.startWorker(w)
	case "cut":
		h.relays[s].cut()
	case "slow disk":
		diskState(h.t, h.dirOf(s), "slow")
		h.await(2, true)
		if h.r.IntN(2) == 0 {
			h.servers[s].kill()
			h.startServer(s)
		}
		diskState(h.t, h.dirOf(s), "")
	case "full disk":
		diskState(h.t, h.dirOf(s), "full")
		h.await(1+h.r.IntN(4), true)
		c, end := h.client() // reads go on
		if _, err := c.Pull(h.t.Context(), ps.Request{Table: "sum", Keys: []int64{0, 1, 2, 3, 4, 5, 6, 7}}); err != nil {
			h.t.Errorf("a pull beside a full disk: %v", err)
		}
		end()
		diskState(h.t, h.dirOf(s), "")
	case "snapshot":
		c, end := h.client()
		defer end()
		if err := c.Snapshot(h.t.Context()); err != nil {
			h.t.Errorf("a snapshot: %v", err)
		}
	}
}

// check compares all rows with what the workers said.
func (h *history) check() {
	h.t.Helper()
	c, end := h.client()
	defer end()
	routing, err := ps.NewRouting(len(h.servers))
	if err != nil {
		h.t.Fatal(err)
	}
	want := make([]float64, 2*sumKeys)
	var ids []pushID
	var ledger []int64
	for id := range h.pushes {
		ids = append(ids, id)
		for s := range h.servers {
			ledger = append(ledger, ledgerKey(routing, id.worker, id.life, id.push, s))
		}
	}
	sums := make([]int64, sumKeys)
	for k := range sums {
		sums[k] = int64(k)
	}
	got, err := c.Pull(h.t.Context(), ps.Request{Table: "ledger", Keys: ledger}, ps.Request{Table: "sum", Keys: sums})
	if err != nil {
		h.t.Fatal(err)
	}
	times := got[0].Float32s()
	for i, id := range ids {
		o := h.pushes[id]
		keys, adds := drawPush(h.seed, id.worker, id.life, id.push)
		for s := range h.servers {
			n := times[i*len(h.servers)+s]
			switch {
			case n != 0 && n != 1:
				h.t.Errorf("push %v is applied %g times on server %d", id, n, s)
			case o.yes && n == 0:
				h.t.Errorf("push %v was acknowledged, and server %d has lost it", id, s)
			case o.refused == s && n != 0:
				h.t.Errorf("push %v was refused by server %d, and is there", id, s)
			}
			for j, k := range keys {
				if routing.ServerOf(k, 0) == s {
					want[2*k] += float64(n * adds[2*j])
					want[2*k+1] += float64(n * adds[2*j+1])
				}
			}
		}
	}
	for i, x := range got[1].Float32s() {
		if float64(x) != want[i] {
			h.t.Errorf("key %d has %g, and its pushes add up to %g", i/2, x, want[i])
		}
	}
}

// play plays one history.
func play(t *testing.T, seed uint64, total map[string]int) {
	r := rand.New(rand.NewPCG(seed, 24))
	h := &history{t: t, r: r, seed: seed, dir: t.TempDir(), mode: []string{"os", "os", "disk"}[r.IntN(3)], token: token(r),
		stderr: new(lockedBuffer), servers: make([]*process, 1+r.IntN(3)), workers: make([]*process, 1+r.IntN(3)),
		counts: map[string]int{}, moved: make(chan struct{}), pushes: map[pushID]*outcome{}}
	h.how = []string{"", "synchronous", "bounded:1"}[r.IntN(3)]
	total["histories "+cmp.Or(h.how, "asynchronous")]++
	h.lives = make([]int, len(h.workers))
	defer func() {
		for _, p := range append(h.workers, h.servers...) {
			if p != nil {
				p.kill()
			}
		}
		for _, relay := range h.relays {
			relay.close()
		}
	}()
	for i := range h.servers {
		h.relays = append(h.relays, newRelay(t))
		h.startServer(i)
	}
	for w := range h.workers {
		h.startWorker(w)
	}
	for range 3 + r.IntN(4) {
		h.await(1+r.IntN(20), false)
		h.event(events[r.IntN(len(events))])
	}
	h.await(3, false)
	for _, p := range h.workers {
		p.kill()
	}
	if h.how != "" {
		h.leave()
	}
	h.check()
	h.event("kill all servers")
	h.check()
	if t.Failed() {
		t.Logf("history %d: %d servers, %d workers, log %s, %s: %v\n%s", seed, len(h.servers), len(h.workers), h.mode, h.how, h.counts, h.stderr)
	}
	total["pushes"] += len(h.pushes)
	for what, n := range h.counts {
		total[what] += n
	}
}

func token(r *rand.Rand) string {
	return fmt.Sprintf("%016x%016x%016x%016x", r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64())
}

// TestCrashes plays random histories of servers and workers: kills, cut connections, slow and full
// disks, and snapshots. Then each push that a worker was told is kept must be there once, on each
// server; no other may be there twice; and the sums of the rows must be those of the pushes.
func TestCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts many processes")
	}
	seed := seeded.Of(t)
	total := map[string]int{}
	begun := time.Now()
	for n := range *crashes {
		ok := t.Run(fmt.Sprint(n), func(t *testing.T) { play(t, seed+uint64(n), total) })
		if !ok {
			t.Fatalf("history %d failed: play it alone with -seed %d -crashes 1", n, seed+uint64(n))
		}
	}
	text := fmt.Sprintf("| histories | %d |\n", *crashes)
	for _, what := range append([]string{"histories synchronous", "histories bounded:1", "histories asynchronous", "pushes", "acknowledged", "refused"}, events...) {
		text += fmt.Sprintf("| %s | %d |\n", what, total[what])
	}
	t.Logf("in %v:\n%s", time.Since(begun).Round(time.Second), text)
}
