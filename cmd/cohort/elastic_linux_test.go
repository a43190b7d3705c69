// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

var elastic = flag.Bool("elastic", false, "play jobs on network namespaces (TestElastic; half a minute and root)")

// machines are network namespaces on one bridge, in a namespace of its own.
type machines struct {
	t     *testing.T
	hub   string
	names []string
}

func (m *machines) ip(args ...string) {
	m.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		m.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (m *machines) addr(i int) string { return fmt.Sprintf("10.213.8.%d", i+1) }

// newMachines makes n of them; where this user may not, the test is skipped.
func newMachines(t *testing.T, n int) *machines {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("there is no ip (Debian: iproute2)")
	}
	removeMachines()
	m := &machines{t: t, hub: fmt.Sprintf("cohort-%d-hub", os.Getpid())}
	if out, err := exec.Command("ip", "netns", "add", m.hub).CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %s", out)
	}
	t.Cleanup(func() {
		for _, name := range append(m.names, m.hub) {
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	})
	m.ip("-n", m.hub, "link", "add", "br0", "type", "bridge")
	m.ip("-n", m.hub, "link", "set", "br0", "up")
	m.ip("-n", m.hub, "addr", "add", "10.213.8.254/24", "dev", "br0")
	m.ip("-n", m.hub, "link", "set", "lo", "up")
	for i := range n {
		name := fmt.Sprintf("cohort-%d-%d", os.Getpid(), i)
		m.ip("netns", "add", name)
		m.names = append(m.names, name)
		port := fmt.Sprintf("port%d", i)
		m.ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", m.hub)
		m.ip("-n", name, "addr", "add", m.addr(i)+"/24", "dev", "eth0")
		m.ip("-n", name, "link", "set", "lo", "up")
		m.ip("-n", name, "link", "set", "eth0", "up")
		m.ip("-n", m.hub, "link", "set", port, "master", "br0")
		m.ip("-n", m.hub, "link", "set", port, "up")
	}
	return m
}

// removeMachines removes the namespaces of tests that were killed, or that ran out of time: those
// do not clean up.
func removeMachines() {
	left, _ := filepath.Glob("/run/netns/cohort-*-*")
	for _, path := range left {
		name := filepath.Base(path)
		pid, err := strconv.Atoi(strings.Split(name, "-")[1])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = exec.Command("ip", "netns", "del", name).Run()
			_ = os.RemoveAll(filepath.Join("/etc/netns", name))
		}
	}
}

// cut takes a machine off the network, or puts it back.
func (m *machines) cut(i int, off bool) {
	state := "up"
	if off {
		state = "down"
	}
	m.ip("-n", m.hub, "link", "set", fmt.Sprintf("port%d", i), state)
}

// in calls f in a network namespace: processes that it starts are there.
func (m *machines) in(name string, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		m.t.Fatal(err)
	}
	defer home.Close()
	there, err := os.Open("/run/netns/" + name)
	if err != nil {
		m.t.Fatal(err)
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
	}()
	f()
}

// elasticJob is a training run whose agents are on machines.
type elasticJob struct {
	*machines
	text   string
	token  string
	flags  []string
	train  []string
	agents []*job
	seen   []int // bytes of each agent's standard error that have been looked at
}

// agent starts the agent of machine i.
func (e *elasticJob) agent(i int) {
	args := append([]string{"run"}, e.flags...)
	args = append(append(args, os.Args[0]), e.train...)
	for len(e.agents) <= i {
		e.agents, e.seen = append(e.agents, nil), append(e.seen, 0)
	}
	e.in(e.names[i], func() { e.agents[i] = start(e.t, []string{envvar.Token.Assign(e.token)}, args...) })
	e.seen[i] = 0
}

// round waits until the ranks of all these machines have started in a round of as
// many nodes, and the first step of it is done; it returns when.
func (e *elasticJob) round(what string, since time.Time, hosts ...int) {
	e.t.Helper()
	want := fmt.Sprintf(" of %d, with ranks ", len(hosts))
	var started time.Duration
	for _, i := range hosts {
		at, found := e.awaitErr(i, want)
		if !found {
			e.dump()
			e.t.Fatalf("%s: no round of %d nodes on machine %d", what, len(hosts), i)
		}
		started = max(started, at.Sub(since))
	}
	// Whoever has rank 0 prints the steps.
	before := e.steps()
	for deadline := time.Now().Add(20 * time.Second); e.steps() == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.dump()
			e.t.Fatalf("%s: no step after the round began", what)
		}
	}
	took := time.Since(since)
	e.t.Logf("%s: ranks on %d nodes started after %v, next step after %v", what, len(hosts), started.Round(time.Millisecond), took.Round(time.Millisecond))
	if took > 5*time.Second {
		e.t.Errorf("%s: absorbed in %v, want 5s at most", what, took)
	}
}

// awaitErr waits for a text on the standard error of an agent, behind what has
// been looked at.
func (e *elasticJob) awaitErr(i int, want string) (time.Time, bool) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		_, stderr := e.agents[i].output()
		if at := strings.Index(stderr[e.seen[i]:], want); at >= 0 {
			e.seen[i] += at + len(want)
			return time.Now(), true
		}
	}
	return time.Time{}, false
}

// steps counts the steps that have been printed anywhere.
func (e *elasticJob) steps() int {
	n := 0
	for _, j := range e.agents {
		if j != nil {
			stdout, _ := j.output()
			n += strings.Count(stdout, `"loss"`)
		}
	}
	return n
}

// losses are those of each step, the last time that it was done, as printed.
func losses(t *testing.T, jobs ...*job) map[int]float64 {
	out := map[int]float64{}
	for _, j := range jobs {
		stdout, _ := j.output()
		for line := range strings.Lines(stdout) {
			_, text, ok := strings.Cut(line, "{")
			var v struct {
				Step int
				Loss *float64
			}
			if ok && json.Unmarshal([]byte("{"+text), &v) == nil && v.Loss != nil {
				out[v.Step] = *v.Loss
			}
		}
	}
	return out
}

func (e *elasticJob) dump() {
	for i, j := range e.agents {
		if j != nil {
			_, stderr := j.output()
			e.t.Logf("machine %d:\n%s", i, stderr)
		}
	}
}

// worker returns the process of a rank of machine i.
func (e *elasticJob) worker(i int) int {
	agent := e.agents[i].cmd.Process.Pid
	for _, pid := range e.agents[i].processes(-1) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if parent, _ := strconv.Atoi(f[1]); parent == agent && pid != agent {
			return pid
		}
	}
	e.t.Fatalf("machine %d has no ranks", i)
	return 0
}

// TestElastic plays a training run on four machines of which two begin: one is
// added, a rank is killed, an agent is killed, a machine is cut off, and comes back.
// The job ends well, each change is absorbed within five seconds, the order of
// samples is that of a run without all this, and so are the losses.
// With etcd, the machine whose agent decides, and which came first, is killed too.
func TestElastic(t *testing.T) {
	if !*elastic {
		t.Skip("go test ./cmd/cohort -run TestElastic -elastic -v, as root")
	}
	t.Run("c10d", func(t *testing.T) { playElastic(t, false) })
	t.Run("etcd", func(t *testing.T) { playElastic(t, true) })
}

func playElastic(t *testing.T, withEtcd bool) {
	m := newMachines(t, 5)
	out := filepath.Join(t.TempDir(), "run")
	const steps = 1200
	e := &elasticJob{
		machines: m, text: writeText(t), token: transport.NewToken().Text(),
		flags: []string{"--nnodes", "2:4", "--rdzv-id", "elastic", "--max-restarts", "1", "--shutdown-timeout", "3"},
	}
	e.train = e.command(out, steps)
	if withEtcd {
		const at = "10.213.8.254:2379"
		startEtcd(t, at, "10.213.8.254:2380", func(start func()) { m.in(m.hub, start) })
		e.flags = append(e.flags, "--rdzv-backend", "etcd", "--rdzv-endpoint", at)
	} else {
		e.flags = append(e.flags, "--rdzv-backend", "c10d", "--rdzv-endpoint", m.addr(0)+":29400")
	}
	began := time.Now()
	e.agent(0)
	e.agent(1)
	e.round("two begin", began, 0, 1)
	now := time.Now()
	e.agent(2)
	e.round("one is added", now, 0, 1, 2)
	now = time.Now()
	_ = syscall.Kill(e.worker(1), syscall.SIGKILL)
	e.round("a rank is killed", now, 0, 1, 2)
	now = time.Now()
	_ = e.agents[1].cmd.Process.Kill()
	e.round("an agent is killed", now, 0, 2)
	now = time.Now()
	e.agent(3)
	e.round("another is added", now, 0, 2, 3)
	now = time.Now()
	m.cut(2, true)
	e.round("one is cut off", now, 0, 3)
	now = time.Now()
	m.cut(2, false)
	e.round("it comes back", now, 0, 2, 3)
	left := []int{0, 2, 3}
	if withEtcd {
		now = time.Now()
		_ = e.agents[0].cmd.Process.Kill()
		left = []int{2, 3}
		e.round("the first is killed", now, left...)
	}
	for _, i := range left {
		if code := e.agents[i].wait(t); code != 0 {
			e.dump()
			t.Fatalf("machine %d ends with code %d", i, code)
		}
	}
	t.Logf("the job ended after %v", time.Since(began).Round(time.Millisecond))
	report, err := data.CheckOrder(filepath.Join(out, "order"), data.CheckOptions{Steps: steps})
	if err == nil {
		err = report.Err()
	}
	if err != nil || report.Steps != steps {
		t.Errorf("the order of samples: %v\n%v", err, report)
	} else {
		t.Logf("%v", report)
	}
	if _, err := os.Stat(checkpoint.Path(out, steps)); err != nil {
		t.Error(err)
	}
	// The same run on one machine, without all this.
	plain := start(t, nil, append([]string{"run", "--nproc-per-node", "2", os.Args[0]}, e.command(out+"-plain", steps)...)...)
	if code := plain.wait(t); code != 0 {
		t.Fatalf("the plain run ends with code %d", code)
	}
	got, want := losses(t, e.agents...), losses(t, plain)
	var sum, wanted float64
	const last = 200
	for step := steps - last + 1; step <= steps; step++ {
		sum, wanted = sum+got[step]/last, wanted+want[step]/last
	}
	if len(got) != steps || len(want) != steps || !(math.Abs(sum-wanted) < 0.02*wanted) {
		t.Errorf("%d and %d losses; those of the last %d steps are %.4f on average, those of a plain run %.4f", len(got), len(want), last, sum, wanted)
	} else {
		t.Logf("the losses of the last %d steps are %.4f on average, those of a plain run %.4f", last, sum, wanted)
	}
}

// command is a training run of some seconds.
func (e *elasticJob) command(out string, steps int) []string {
	args := strings.Fields("train lm --json --vocab 300 --context 32 --width 96 --heads 2 --layers 2 --eval-tokens 256 --sample-tokens 4 --eval-every 100000 --save-every 100")
	return append(args, "--data", e.text, "--out", out, "--steps", strconv.Itoa(steps))
}

// startEtcd starts an etcd that serves clients, and peers, at these addresses;
// start calls the function that it is given where the process is to be.
func startEtcd(t *testing.T, client, peer string, start func(start func()), args ...string) {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("there is no etcd on the PATH (Debian: etcd-server)")
	}
	if !strings.Contains(client, "://") {
		client = "http://" + client
	}
	peer = "http://" + peer
	cmd := exec.Command(exe, append([]string{"--data-dir", t.TempDir(), "--name", "test", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "test=" + peer}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	start(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}
