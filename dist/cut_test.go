// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// machines are network namespaces, one a rank, at a switch that can cut the
// lines between them without a word to either side.
type machines struct {
	name  string
	ports []string
}

var numMachines atomic.Int64

// newMachines makes n of them, or skips the test where that is not allowed.
func newMachines(t *testing.T, n int) *machines {
	t.Helper()
	for _, tool := range []string{"ip", "bridge", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces want root")
	}
	m := &machines{name: fmt.Sprintf("cohort-cut-%d-%d", os.Getpid(), numMachines.Add(1))}
	hub := m.name + "-switch"
	t.Cleanup(func() {
		for i := range n {
			_ = exec.Command("ip", "netns", "del", m.machine(i)).Run()
		}
		_ = exec.Command("ip", "netns", "del", hub).Run()
	})
	must := func(args ...string) {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no networks of its own: %v: %v: %s", args, err, out)
		}
	}
	must("ip", "netns", "add", hub)
	must("ip", "-n", hub, "link", "add", "sw", "type", "bridge")
	must("ip", "-n", hub, "link", "set", "sw", "up")
	for i := range n {
		port := fmt.Sprintf("port%d", i)
		m.ports = append(m.ports, port)
		must("ip", "netns", "add", m.machine(i))
		must("ip", "link", "add", "line", "netns", m.machine(i), "type", "veth", "peer", "name", port, "netns", hub)
		must("ip", "-n", m.machine(i), "addr", "add", m.addr(i)+"/24", "dev", "line")
		must("ip", "-n", m.machine(i), "link", "set", "lo", "up")
		must("ip", "-n", m.machine(i), "link", "set", "line", "up")
		must("ip", "-n", hub, "link", "set", port, "master", "sw")
		must("ip", "-n", hub, "link", "set", port, "up")
	}
	return m
}

func (m *machines) machine(i int) string { return fmt.Sprintf("%s-%d", m.name, i) }
func (m *machines) addr(i int) string    { return fmt.Sprintf("10.213.9.%d", i+1) }

// enter returns the command that starts a rank on its machine, which has a host
// name of its own: of a process of the same host that computes, beats may come late.
func (m *machines) enter(rank int) []string {
	named := fmt.Sprintf(`echo %s >/proc/sys/kernel/hostname && exec "$0"`, m.machine(rank))
	return []string{"ip", "netns", "exec", m.machine(rank), "unshare", "--uts", "sh", "-c", named}
}

// tune sets a value of the system on all machines.
func (m *machines) tune(t *testing.T, name, value string) {
	t.Helper()
	for i := range m.ports {
		if out, err := exec.Command("ip", "netns", "exec", m.machine(i), "sh", "-c", "echo "+value+" >/proc/sys/"+name).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
}

// cut cuts the lines between two machines, or those of one to all.
func (m *machines) cut(t *testing.T, ports ...int) {
	t.Helper()
	m.set(t, "on", "0", ports) // a port that forwards nothing; the machine's end stays up
}

// mend undoes a cut.
func (m *machines) mend(t *testing.T, ports ...int) {
	t.Helper()
	m.set(t, "off", "3", ports)
}

func (m *machines) set(t *testing.T, isolated, state string, ports []int) {
	t.Helper()
	for _, p := range ports {
		args := []string{"bridge", "-n", m.name + "-switch", "link", "set", "dev", m.ports[p], "isolated", isolated}
		if len(ports) == 1 {
			args = []string{"bridge", "-n", m.name + "-switch", "link", "set", "dev", m.ports[p], "state", state}
		}
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
}

// TestCutLine cuts lines without a word to either side, while data goes over
// them: that to one rank, to the hub, or between two that both reach the hub.
func TestCutLine(t *testing.T) {
	const limit = DefaultSilence
	for _, tc := range []struct {
		name  string
		ports []int
		says  [3]string // what the ranks say
	}{
		{"a rank", []int{2}, [3]string{"rank 2 ", "rank 2 ", "rank 0 "}},
		{"the hub", []int{0}, [3]string{"rank ", "rank 0 ", "rank 0 "}},
		{"between two", []int{1, 2}, [3]string{"the line between the two is cut", "the line between the two is cut", "the line between the two is cut"}},
	} {
		for _, kind := range []string{"tcp", "tls"} {
			if !*silenceTable && (kind == "tls" || tc.name == "a rank") {
				continue // to be quick
			}
			t.Run(tc.name+"/"+kind, func(t *testing.T) {
				t.Parallel() // most of it is waiting
				m := newMachines(t, 3)
				ps := startRanksBy(t, 3, "stopped", m.enter,
					envvar.MasterAddr.Assign(m.addr(0)), envvar.MasterPort.Assign("29500"), rankNodes+"=abc",
					envvar.Transport.Assign(kind), envvar.Silence.Assign(limit.String()))
				for _, p := range ps {
					p.saidLine(t, "ready", time.Minute)
				}
				m.cut(t, tc.ports...)
				begun := time.Now() // for the command may have taken long to start
				var took []time.Duration
				for r, p := range ps {
					said := p.saidLine(t, "failed at ", time.Minute)
					var at int64
					if _, err := fmt.Sscanf(said, "%d:", &at); err != nil {
						t.Fatalf("rank %d said %q", r, said)
					}
					took = append(took, time.Duration(at-begun.UnixNano()))
					if !strings.Contains(said, tc.says[r]) || !strings.Contains(said, "nothing was heard of it for") {
						t.Errorf("rank %d does not say %q: %s", r, tc.says[r], said)
					}
				}
				t.Logf("noticed after %v to %v", slices.Min(took).Round(time.Millisecond), slices.Max(took).Round(time.Millisecond))
				if allowed, most := limit+longestPause(t, limit)+loaded.Allow(500*time.Millisecond), slices.Max(took); most > allowed {
					t.Errorf("a rank heard of it after %v, want %v at most", most, allowed)
				}
			})
		}
	}
}

// tcpRTOMaxMS is Linux's TCP_RTO_MAX_MS, which is no constant on other systems.
const tcpRTOMaxMS = 44

// longestPause returns how long the system may pause before it tries a line again. An outage
// that ends just before the limit is noticed after such a pause only, so the ranks wait for
// one more ([WithSilence]). What comes on top are two periods of the heartbeat: one for the
// beat after the pause, and one until the heartbeat looks. They are 250 ms long.
func longestPause(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	if unix.SetsockoptInt(socket, unix.IPPROTO_TCP, tcpRTOMaxMS, 1000) != nil {
		return limit // before Linux 6.15 the pauses double without a bound
	}
	return max(time.Second, limit/3)
}
