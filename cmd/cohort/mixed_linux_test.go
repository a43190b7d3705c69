// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// mixedJob is a job of PyTorch's ranks and Go ranks on several nodes.
type mixedJob struct {
	t      *testing.T
	python string
	dir    string // what its ranks are told in files
	token  string
	agent  string // TORCHELASTIC_USE_AGENT_STORE
	nodes  []*job
	seen   []int // bytes of each one's standard output that have been looked at
}

// torches are the Python programs of this machine that have PyTorch.
func torches(t *testing.T) (found []string) {
	if testing.Short() {
		t.Skip("PyTorch takes seconds to start: not with -short")
	}
	candidates := append([]string{"python3", "/usr/bin/python3"}, filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS"))...)
	for _, c := range candidates {
		path, err := exec.LookPath(c)
		if err == nil && !slices.Contains(found, path) && exec.CommandContext(t.Context(), path, "-c", "import torch.distributed").Run() == nil {
			found = append(found, path)
		}
	}
	if len(found) == 0 {
		t.Skip("no Python here has PyTorch (apt-get install python3-torch): no job of both kinds is launched")
	}
	return found
}

func newMixedJob(t *testing.T, python string) *mixedJob {
	return &mixedJob{t: t, python: python, dir: t.TempDir(), token: transport.NewToken().Text(), agent: "True"}
}

// goes and torch are programs of one rank for the command line.
func (m *mixedJob) goes() string { return fmt.Sprintf("1:'%s' %s '%s'", os.Args[0], glooRank, m.dir) }
func (m *mixedJob) torch() string {
	return fmt.Sprintf("1:'%s' '%s'", filepath.Join("testdata", "mixed.py"), m.dir)
}

// launch starts the launcher of node i.
func (m *mixedJob) launch(i int, flags []string, programs ...string) {
	m.t.Helper()
	args := append([]string{"run"}, flags...)
	for _, p := range programs {
		args = append(args, "--program", p)
	}
	for len(m.nodes) <= i {
		m.nodes, m.seen = append(m.nodes, nil), append(m.seen, 0)
	}
	m.nodes[i], m.seen[i] = start(m.t, []string{envvar.Token.Assign(m.token), envvar.PythonExec.Assign(m.python)}, args...), 0
}

// met waits until all ranks of these nodes, two on each, have met once more.
func (m *mixedJob) met(what string, attempt int, nodes ...int) {
	m.t.Helper()
	n := 2 * len(nodes)
	want := regexp.MustCompile(fmt.Sprintf(`(?s)^.*?(?:(?:python|go) \d+: met %d(?:\.0)? of %d, agent %s, attempt %d\n.*?){2}`, n, n, m.agent, attempt))
	for _, i := range nodes {
		m.nodes[i].await(m.t, fmt.Sprintf("%s: two ranks of %d on node %d", what, n, i), func(stdout string) bool {
			return want.MatchString(stdout[m.seen[i]:])
		})
		stdout, _ := m.nodes[i].output()
		m.seen[i] += len(want.FindString(stdout[m.seen[i]:]))
	}
}

// says waits until a launcher has said something.
func (m *mixedJob) says(i int, want string) {
	m.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		_, stderr := m.nodes[i].output()
		if regexp.MustCompile(want).MatchString(stderr) {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("node %d does not say %s, but\n%s", i, want, stderr)
		}
	}
}

// rank returns the process of a rank, and the node that has it.
func (m *mixedJob) rank(rank int) (pid, node int) {
	m.t.Helper()
	for i, j := range m.nodes {
		if pids := j.processes(rank); len(pids) > 0 {
			return pids[0], i
		}
	}
	m.t.Fatalf("no node has rank %d", rank)
	return 0, 0
}

// kill has a rank's process killed.
func (m *mixedJob) kill(rank int) {
	m.t.Helper()
	pid, _ := m.rank(rank)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
}

// stranger is refused where the store is served.
func (m *mixedJob) stranger(n *machines) {
	m.t.Helper()
	pid, first := m.rank(0)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		m.t.Fatal(err)
	}
	port := regexp.MustCompile(`\x00MASTER_PORT=(\d+)\x00`).FindSubmatch(b)
	n.in(n.hub, func() {
		c, err := net.Dial("tcp", net.JoinHostPort(n.addr(first), string(port[1])))
		if err != nil {
			m.t.Error(err)
			return
		}
		c.Close()
	})
	m.says(first, `PyTorch's store at \S+ put out 10\.213\.8\.254:\d+: its host is not one of this job's`)
}

// tell makes a file that ranks look for.
func (m *mixedJob) tell(name string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// end has the job end well on these nodes. The rank of PyTorch's on the last one uses the
// store once more when all ranks of the first one have gone.
func (m *mixedJob) end(nodes ...int) {
	m.t.Helper()
	_, first := m.rank(0)
	m.tell("stop")
	for deadline := time.Now().Add(2 * time.Minute); len(m.nodes[first].processes(0))+len(m.nodes[first].processes(1)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatal("the ranks of the first node do not end")
		}
	}
	m.tell("late")
	all := ""
	for _, i := range nodes {
		code := m.nodes[i].wait(m.t)
		stdout, stderr := m.nodes[i].output()
		if all += stdout; code != 0 {
			m.t.Errorf("node %d ends with code %d:\n%s\n%s", i, code, stdout, stderr)
		}
	}
	if !strings.Contains(all, "late: yes") {
		m.t.Errorf("the last node did not reach the store:\n%s", all)
	}
}

// TestMixedNodes: each of two nodes has programs of its own, PyTorch's and Go's, whose ranks
// all meet in the store of the first node's agent, and again after one has been killed;
// the store is there until the last of them has ended.
func TestMixedNodes(t *testing.T) {
	for _, python := range torches(t) {
		t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_"), func(t *testing.T) {
			t.Parallel()
			m := newMixedJob(t, python)
			_, port, _ := net.SplitHostPort(freeEndpoint(t))
			flags := func(node int) []string {
				return []string{"--nnodes", "2", "--node-rank", strconv.Itoa(node), "--master-port", port, "--max-restarts", "1"}
			}
			m.launch(0, flags(0), m.torch(), m.goes())
			m.launch(1, flags(1), m.goes(), m.torch())
			m.met("at first", 0, 0, 1)
			m.kill(3)
			m.met("again", 1, 0, 1)
			m.says(0, `the ranks of this node are stopped: .*rank 3 was killed by SIGKILL`)
			m.says(1, `failed: rank 3 was killed by SIGKILL`)
			m.end(0, 1)
		})
	}
}

// TestMixedElastic plays jobs of both kinds on network namespaces. In the first a machine is
// added, a rank of PyTorch's and a Go rank are killed, then the first machine's launcher,
// which serves the store, and another one leaves; who is no node of the job does not get
// into the store. In the second a machine is cut off, and comes back. In the third rank 0 is
// Go's, and serves the store.
func TestMixedElastic(t *testing.T) {
	if !*elastic {
		t.Skip("go test ./cmd/cohort -run TestMixedElastic -elastic -v, as root")
	}
	for _, python := range torches(t) {
		play := func(meeting string, play func(m *mixedJob, n *machines, agent func(i int))) {
			t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_")+"/"+meeting, func(t *testing.T) {
				n, m := newMachines(t, 4), newMixedJob(t, python)
				file := filepath.Join(t.TempDir(), "meeting")
				play(m, n, func(i int) {
					flags, programs := "--nnodes 2:3 --max-restarts 2 --shutdown-timeout 3 --rdzv-conf last_call_timeout=0 ", []string{m.torch(), m.goes()}
					switch meeting {
					case "file":
						flags += "--rdzv-backend file --local-addr " + n.addr(i) + " --rdzv-endpoint " + file
					case "c10d":
						flags += "--rdzv-backend c10d --rdzv-endpoint " + n.addr(0)
					case "static":
						flags = fmt.Sprintf("--nnodes 2 --node-rank %d --master-addr %s", i, n.addr(0))
						slices.Reverse(programs)
					}
					n.in(n.names[i], func() { m.launch(i, strings.Fields(flags), programs...) })
				})
			})
		}
		play("file", func(m *mixedJob, n *machines, agent func(i int)) {
			agent(0)
			agent(1)
			m.met("two begin", 0, 0, 1)
			agent(2)
			m.met("one is added", 0, 0, 1, 2)
			m.stranger(n)
			m.kill(2)
			m.met("a rank of PyTorch's is killed", 1, 0, 1, 2)
			for i := range 3 {
				m.says(i, `rank 2 was killed by SIGKILL`)
			}
			m.kill(5)
			m.met("a Go rank is killed", 2, 0, 1, 2)
			_, first := m.rank(0)
			second := 1 - first
			_ = m.nodes[first].cmd.Process.Kill()
			m.met("the first machine's launcher is killed", 2, second, 2)
			m.says(second, fmt.Sprintf(`(lost:|nothing has been heard of) \S+ \(agent pid %d\)`, m.nodes[first].cmd.Process.Pid))
			agent(3)
			m.met("another is added", 2, second, 2, 3)
			_ = m.nodes[2].cmd.Process.Signal(syscall.SIGTERM)
			m.met("one leaves", 2, second, 3)
			m.end(second, 3)
		})
		play("c10d", func(m *mixedJob, n *machines, agent func(i int)) {
			agent(0)
			agent(1)
			m.met("two begin", 0, 0, 1)
			agent(2)
			m.met("one is added", 0, 0, 1, 2)
			n.cut(2, true)
			m.met("one is cut off", 0, 0, 1)
			n.cut(2, false)
			m.met("it comes back", 0, 0, 1, 2)
			m.end(0, 1, 2)
		})
		play("static", func(m *mixedJob, n *machines, agent func(i int)) {
			m.agent = "False"
			agent(0)
			agent(1)
			m.met("both", 0, 0, 1)
			m.kill(3)
			for i := range 2 {
				if code := m.nodes[i].wait(m.t); code != 1 {
					m.t.Errorf("node %d ends with code %d", i, code)
				}
				m.says(i, `rank 3 was killed by SIGKILL`)
			}
		})
	}
}
