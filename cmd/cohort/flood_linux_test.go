// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/flood"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/tensor"
)

// floodSize makes TestJobUnderAttack flood each listener with so many connections,
// in every way, and print a table:
//
//	go test ./cmd/cohort -run TestJobUnderAttack/flood -flood 10000 -v
var floodSize = flag.Int("flood", 0, "how many strangers TestJobUnderAttack puts at each listener (default: 1000, in few ways)")

// floodRank is the argument that makes the test's own program a rank that does as its
// standard input says.
const floodRank = "flood-rank"

// floodFiles is the variable that gives such a rank a limit of descriptors.
const floodFiles = "COHORT_CLI_TEST_FILES"

// runFloodRank is such a rank. It writes a line for each order that is done.
func runFloodRank() int {
	if n, err := strconv.ParseUint(os.Getenv(floodFiles), 10, 64); err == nil {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			fmt.Println("failed:", err)
			return 1
		}
	}
	ctx := context.Background()
	g, err := dist.Init(ctx)
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println("formed")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		if g, err = obey(ctx, g, orders.Text()); err != nil {
			fmt.Println("failed:", err)
			return 1
		}
		fmt.Println(orders.Text())
	}
	return 0
}

func obey(ctx context.Context, g *dist.Group, order string) (*dist.Group, error) {
	what, number, _ := strings.Cut(order, " ")
	n, _ := strconv.Atoi(number)
	switch what {
	case "reduce": // so often
		for range max(n, 1) {
			x := tensor.Full(1, 1000)
			if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
				return nil, err
			}
			if got := x.Float32s()[999]; got != float32(g.Size()) {
				return nil, fmt.Errorf("a sum of %v over %d ranks", got, g.Size())
			}
		}
		return g, nil
	case "lose": // that rank, and go on without it
		var lost *dist.RankError
		if err := g.Barrier(ctx); !errors.As(err, &lost) || lost.Rank != n {
			return nil, fmt.Errorf("the loss of rank %d is told as: %w", n, err)
		}
		var rest []int
		for r := range g.Size() {
			if r != n {
				rest = append(rest, r)
			}
		}
		left, err := g.NewGroup(ctx, rest)
		if err != nil {
			return nil, err
		}
		return obey(ctx, left, "reduce 1")
	}
	return nil, fmt.Errorf("the order %q", order)
}

// puppet is a process of this test that does as it is told.
type puppet struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // that it writes; closed at its end
	mu    sync.Mutex
	err   bytes.Buffer
}

func (p *puppet) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.Write(b)
}

func (p *puppet) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

// animate starts this test's program.
func animate(t *testing.T, env []string, args ...string) *puppet {
	t.Helper()
	p := &puppet{cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 100)}
	p.cmd.Env = append(append(os.Environ(), cliMain+"=1", "GORACE=atexit_sleep_ms=0"), env...)
	p.cmd.Stderr = p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.in, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
	}()
	t.Cleanup(func() { p.end() })
	return p
}

func (p *puppet) end() {
	p.in.Close()
	_ = p.cmd.Process.Kill()
	for range p.lines {
	}
	_ = p.cmd.Wait()
}

// says waits for a line that begins so and returns it.
func (p *puppet) says(t *testing.T, begin string, limit time.Duration) string {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			if strings.HasPrefix(line, begin) {
				return line
			}
			if !ok || strings.HasPrefix(line, "failed:") {
				t.Fatalf("want %q: %q; standard error:\n%s", begin, line, p.stderr())
			}
		case <-timer.C:
			t.Fatalf("no %q within %v; standard error:\n%s", begin, limit, p.stderr())
		}
	}
}

func (p *puppet) tell(t *testing.T, order string) {
	t.Helper()
	if _, err := io.WriteString(p.in, order+"\n"); err != nil {
		t.Fatal(err)
	}
}

// strangers is a flood of some listeners.
type strangers []*puppet

// attackAll floods all endpoints, each from a process of its own.
func attackAll(t *testing.T, of flood.Order, at []endpoint) (all strangers) {
	t.Helper()
	if of.Num == 0 {
		return nil
	}
	for _, e := range at {
		of.Network, of.Address = e.network, e.address
		all = append(all, animate(t, nil, of.Args()...))
	}
	for _, p := range all {
		p.says(t, "full", loaded.Allow(20*time.Second))
	}
	return all
}

// leave ends the flood and returns what it came to.
func (all strangers) leave(t *testing.T) (sum flood.Stats) {
	for _, p := range all {
		p.in.Close()
		var s flood.Stats
		line := p.says(t, "made", loaded.Allow(20*time.Second))
		if _, err := fmt.Sscanf(line, "made %d closed %d failed %d bytes %d", &s.Made, &s.Closed, &s.Failed, &s.Bytes); err != nil {
			t.Fatal(err)
		}
		sum.Made, sum.Closed, sum.Failed, sum.Bytes = sum.Made+s.Made, sum.Closed+s.Closed, sum.Failed+s.Failed, sum.Bytes+s.Bytes
		p.end()
	}
	return sum
}

// floodCase is a way of flooding a job.
type floodCase struct {
	transport string
	by        string
	order     flood.Order
	files     int // limit of descriptors of the ranks, 0: the system's
}

// phases are the times that a job's phases took.
type phases struct {
	form, link, run, lose time.Duration
	stats                 flood.Stats
}

const floodRanks = 4

// floodLimit is how long a phase may take at most: more than five times what is promised.
const floodLimit = 2 * time.Minute

// floodJob runs a job under a flood through all its phases.
func floodJob(t *testing.T, c floodCase) (p phases) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s, %s, %d files: forming %v, linking %v, 200 all-reduces %v, a loss %v", c.transport, c.by, c.files, p.form, p.link, p.run, p.lose)
		}
	}()
	master := freeEndpoint(t)
	_, port, _ := net.SplitHostPort(master)
	env := []string{envvar.Token.Assign(transport.NewToken().Text()), envvar.Transport.Assign(c.transport), envvar.MasterAddr.Assign("127.0.0.1"),
		envvar.MasterPort.Assign(port), envvar.WorldSize.Assign(strconv.Itoa(floodRanks)), envvar.NodeID.Assign("node")}
	if c.files > 0 {
		env = append(env, floodFiles+"="+strconv.Itoa(c.files))
	}
	var ranks []*puppet
	begin := func(r int) {
		ranks = append(ranks, animate(t, append(env, envvar.Rank.Assign(strconv.Itoa(r))), floodRank))
	}
	all := func(order string, of []*puppet) time.Duration {
		t.Helper()
		began := time.Now()
		for _, r := range of {
			if order != "formed" {
				r.tell(t, order)
			}
		}
		for _, r := range of {
			r.says(t, order, floodLimit)
		}
		return time.Since(began)
	}

	begin(0)
	awaitPort(t, master)
	var told bytes.Buffer // by all ranks
	defer func() {
		if t.Failed() {
			t.Logf("standard error of the ranks:\n%s", told.String())
		}
	}()
	at := endpoint{"tcp", master}
	s := attackAll(t, c.order, []endpoint{at})
	for r := 1; r < floodRanks; r++ {
		begin(r)
	}
	p.form = all("formed", ranks)
	p.add(s.leave(t))

	var pids []int
	for _, r := range ranks {
		pids = append(pids, r.cmd.Process.Pid)
	}
	var places []endpoint
	for _, of := range listeners(t, pids) {
		for _, e := range of {
			if e.network == "tcp" || c.order.User != 0 {
				places = append(places, e)
			}
		}
	}
	s = attackAll(t, c.order, places)
	p.link = all("reduce 1", ranks)
	p.run = all("reduce 200", ranks)
	_ = ranks[floodRanks-1].cmd.Process.Kill()
	p.lose = all("lose "+strconv.Itoa(floodRanks-1), ranks[:floodRanks-1])
	for by := time.Now().Add(loaded.Allow(20 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		told.Reset()
		for _, r := range ranks {
			told.WriteString(r.stderr())
		}
		// With numbers it is said a second after the first stranger, if one comes then.
		if c.order.Num == 0 || strings.Contains(told.String(), " connections to ") {
			break
		}
		if time.Now().After(by) {
			t.Errorf("no rank has said a word about the flood:\n%s", told.String())
			break
		}
	}
	p.add(s.leave(t))
	if p.stats.Bytes > 0 {
		t.Errorf("strangers got %d bytes", p.stats.Bytes)
	}
	t.Logf("%s %s: %v; the ranks said\n%s", c.transport, c.by, p.stats, told.String())
	for _, r := range ranks {
		r.end()
	}
	return p
}

func (p *phases) add(s flood.Stats) {
	p.stats.Made, p.stats.Closed, p.stats.Failed, p.stats.Bytes = p.stats.Made+s.Made, p.stats.Closed+s.Closed, p.stats.Failed+s.Failed, p.stats.Bytes+s.Bytes
}

// awaitPort waits until somebody listens at an address.
func awaitPort(t *testing.T, address string) {
	t.Helper()
	for by := time.Now().Add(loaded.Allow(20 * time.Second)); ; time.Sleep(time.Millisecond) {
		nc, err := net.Dial("tcp", address)
		if err == nil {
			nc.Close()
			return
		}
		if time.Now().After(by) {
			t.Fatal(err)
		}
	}
}

// testFloods: strangers who hold as many connections as they can to every listener of a
// job, and replace at once those that are closed, neither end it nor make it late,
// whatever it is about to do.
func testFloods(t *testing.T) {
	const other = 12345 // a user of this host
	silent := flood.Config{Num: 1000}
	cases := []floodCase{
		{"tcp", "one source", flood.Order{Config: silent}, 1024},
		{"auto", "another user", flood.Order{Config: silent, User: other}, 0},
	}
	if n := *floodSize; n > 0 {
		cases = nil
		silent.Num = n
		many, byte1 := silent, silent
		many.Sources = flood.Sources(100)
		byte1.Say = []byte{0xc0}
		tlsByte := silent
		tlsByte.Say = []byte{22, 3, 1}
		for _, kind := range []string{"tcp", "tls"} {
			say := map[string]flood.Config{"tcp": byte1, "tls": tlsByte}[kind]
			for _, files := range []int{0, 1024} {
				cases = append(cases, floodCase{kind, "silent, 1 source", flood.Order{Config: silent}, files},
					floodCase{kind, "silent, 100 sources", flood.Order{Config: many}, files},
					floodCase{kind, "a byte, 1 source", flood.Order{Config: say}, files})
			}
		}
		cases = append(cases, floodCase{"unix", "another user", flood.Order{Config: silent, User: other}, 0},
			floodCase{"auto", "another user", flood.Order{Config: silent, User: other}, 0})
	}
	rest := map[string]phases{}
	var table strings.Builder
	row := func(c floodCase, by string, p phases) {
		files := "all"
		if c.files > 0 {
			files = strconv.Itoa(c.files)
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %d | %.2f | %.2f | %.2f | %.2f |\n", c.transport, files, by, p.stats.Made, p.form.Seconds(), p.link.Seconds(), p.run.Seconds(), p.lose.Seconds())
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s, %s, %d files", c.transport, c.by, c.files), func(t *testing.T) {
			if c.order.User != 0 && os.Geteuid() != 0 {
				t.Skip("only root can become another user")
			}
			quiet, ok := rest[c.transport]
			if !ok {
				quiet = floodJob(t, floodCase{transport: c.transport, by: "nobody"})
				rest[c.transport] = quiet
				row(floodCase{transport: c.transport}, "nobody", quiet)
			}
			p := floodJob(t, c)
			row(c, c.by, p)
			// What an attacker may cost; the strangers compute on a processor of the job's.
			allowed := loaded.Allow(2 * time.Second)
			for what, d := range map[string][2]time.Duration{"forming": {p.form, quiet.form}, "linking": {p.link, quiet.link}, "a loss": {p.lose, quiet.lose}} {
				if d[0] > d[1]+allowed {
					t.Errorf("%s takes %v under a flood and %v without, %v more are allowed", what, d[0], d[1], allowed)
				}
			}
		})
	}
	t.Logf("seconds:\n| ranks talk over | descriptors | strangers | connections | forming | linking | 200 all-reduces | a loss |\n|---|---|---|---|---|---|---|---|\n%s", table.String())
}

// runFloodPart runs this program as a part of the flood's tests, if its arguments say so.
func runFloodPart(args []string) (done bool, code int) {
	switch {
	case len(args) == 1 && args[0] == floodRank:
		return true, runFloodRank()
	case len(args) == 2 && args[0] == flood.Argument:
		return true, flood.Main(args[1])
	}
	return false, 0
}
