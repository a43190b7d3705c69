// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/journal"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// The test starts itself as servers and workers.
var (
	role    = flag.String("role", "", "be a server or a worker of a test")
	dir     = flag.String("dir", "", "of a server")
	mode    = flag.String("mode", "", "of a server's log")
	index   = flag.Int("index", 0, "of a server, or of a worker")
	life    = flag.Int("life", 0, "of a worker: how often it was started before")
	servers = flag.Int("servers", 1, "number of servers")
	addrs   = flag.String("addrs", "", "of the servers")
	draw    = flag.Uint64("draw", 0, "seed of a worker")
	workers = flag.Int("workers", 0, "of a worker that makes steps: number of workers")
	how     = flag.String("how", "", "of a worker that makes steps: the consistency")
)

func TestMain(m *testing.M) {
	flag.Parse()
	switch *role {
	case "server":
		exit(beServer())
	case "worker":
		exit(beWorker())
	}
	tensor.CPU() // its threads live as long as the process
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, *role, *index, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The tables: sums of whole numbers, which SGD with the learning rate -1 adds exactly, and a ledger
// with a key for each push and server.
func tables() []rows.Schema {
	exact := rows.Optimizer{Kind: rows.SGD, LR: 1}
	return []rows.Schema{{Name: "sum", Width: 2, Optimizer: exact}, {Name: "ledger", Width: 1, Optimizer: exact}}
}

const sumKeys = 24

// diskOf is the file that says how the disk of a server is: "", "slow" or "full".
func diskOf(dir string) string { return dir + ".disk" }

func beServer() error {
	o := journal.Options{Mode: journal.Mode(*mode), Server: *index, Servers: *servers, Job: "histories", SegmentBytes: 20_000, Keep: 1}
	o.Around = func(op journal.Op, do func() error) error {
		switch state, _ := os.ReadFile(diskOf(*dir)); string(state) {
		case "full":
			if op.Kind == "write" || op.Kind == "create" {
				return &os.PathError{Op: op.Kind, Path: op.Path, Err: syscall.ENOSPC}
			}
		case "slow":
			time.Sleep(15 * time.Millisecond)
		}
		if op.Kind == "sync" && *mode != string(journal.Disk) {
			return nil
		}
		return do()
	}
	j, err := journal.Open(*dir, o)
	if err != nil {
		return err
	}
	agent, err := rpc.Init(context.Background(), fmt.Sprint("server", *index), rpc.WithListen("127.0.0.1:0"))
	if err != nil {
		return err
	}
	s, err := ps.Serve(context.Background(), agent, *index, *servers, ps.WithJob("histories"), ps.WithTables(tables()...), ps.WithJournal(j), ps.WithLogLimit(30_000))
	if err != nil {
		return err
	}
	fmt.Println(s.Addr())
	io.Copy(io.Discard, os.Stdin) // until the test ends
	return s.Err()
}

// ledgerKey is the key of a push in the ledger of a server.
func ledgerKey(r *ps.Routing, worker, life, push, server int) int64 {
	for j := int64(0); ; j++ {
		key := int64(worker)<<40 | int64(life)<<32 | int64(push)<<12 | j
		if r.ServerOf(key, 0) == server {
			return key
		}
	}
}

// drawPush returns the keys of a push and what it adds to them.
func drawPush(seed uint64, worker, life, push int) (keys []int64, adds []float32) {
	r := rand.New(rand.NewPCG(seed, uint64(worker)<<40|uint64(life)<<32|uint64(push)))
	for _, k := range r.Perm(sumKeys)[:1+r.IntN(8)] {
		keys = append(keys, int64(k))
	}
	slices.Sort(keys)
	for range keys {
		adds = append(adds, float32(1+r.IntN(5)), float32(-r.IntN(3)))
	}
	return keys, adds
}

// gradient is the gradient by which SGD adds values.
func gradient(table string, keys []int64, adds []float32, width int) ps.Gradient {
	g := make([]float32, len(adds))
	for i, x := range adds {
		g[i] = -x
	}
	return ps.Gradient{Table: table, Keys: keys, Grads: tensor.FromFloat32(g, len(keys), width)}
}

// beWorker pushes until it is killed. It says what it tries and what became of it. Without -how
// each push of each life is another one. With it the worker makes steps: a life goes on at the step
// that the servers expect, and pushes for a step what a life before it would have pushed.
func beWorker() error {
	ctx := context.Background()
	agent, err := rpc.Init(ctx, fmt.Sprintf("worker%d-%d", *index, *life))
	if err != nil {
		return err
	}
	routing, err := ps.NewRouting(*servers)
	if err != nil {
		return err
	}
	opts := []ps.Option{ps.WithJob("histories"), ps.WithTables(tables()...), ps.WithTimeout(30 * time.Second)}
	if *how != "" {
		consistency, err := ps.ParseConsistency(*how)
		if err != nil {
			return err
		}
		opts = append(opts, ps.WithWorker(*index, *workers, consistency))
		*life = 0
	}
	dial := func() (*ps.Client, error) { return ps.Dial(ctx, agent, ps.At(strings.Split(*addrs, ",")...), opts...) }
	c, err := dial()
	if err != nil {
		return err
	}
	go func() { io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	say := func(what string, n int) { os.Stdout.WriteString(what + " " + strconv.Itoa(n) + "\n") }
	for n := 0; ; n++ {
		if *how != "" {
			n = int(c.StepNumber())
			if _, err := c.Pull(ctx, ps.Request{Table: "sum", Keys: []int64{0, 1, 2, 3}}); err != nil {
				return err
			}
		}
		keys, adds := drawPush(*draw, *index, *life, n)
		var ledger []int64
		ones := make([]float32, *servers)
		for s := range *servers {
			ledger = append(ledger, ledgerKey(routing, *index, *life, n, s))
			ones[s] = 1
		}
		slices.Sort(ledger)
		say("try", n)
		err := c.Push(ctx, gradient("sum", keys, adds, 2), gradient("ledger", ledger, ones, 1))
		switch {
		case err == nil:
			say("yes", n)
		case ps.KindOf(err) == ps.KindStorage:
			var e *ps.Error
			errors.As(err, &e)
			say("no "+strconv.Itoa(e.Server), n)
			if *how != "" { // the servers that have not refused the step do not want it again
				c.Close()
				if c, err = dial(); err != nil {
					return err
				}
			}
		default:
			return err
		}
	}
}

// process is a server or a worker.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{} // its output has ended
}

// start starts the test as a server or a worker. Each line of its output goes to line.
func start(t *testing.T, h *history, line func(string), args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envvar.Token.Assign(h.token), envvar.Transport.Assign("tcp"), "GOMAXPROCS=1")
	p.cmd.Stderr = h.stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		for s := bufio.NewScanner(out); s.Scan(); {
			line(s.Text())
		}
	}()
	return p
}

// kill ends the process at once and waits for all that it has said.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
	p.cmd.Wait()
}

// lockedBuffer keeps what processes complain of.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func diskState(t *testing.T, dir, state string) {
	t.Helper()
	part := diskOf(dir) + ".part"
	if err := os.WriteFile(part, []byte(state), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(part, diskOf(dir)); err != nil {
		t.Fatal(err)
	}
}
