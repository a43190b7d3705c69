// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
)

var beUser = flag.String("rref-user", "", "be the agent RANK:SOCKET of TestKilledUser: for itself")

// processLease is short, for its end is waited for.
const processLease = 1500 * time.Millisecond

func processPeers(socket string) []PeerAddr {
	peers := make([]PeerAddr, 3)
	for r := range peers {
		peers[r] = PeerAddr{Name: fmt.Sprintf("w%d", r), Addr: fmt.Sprintf("unix:%s.%d", socket, r)}
	}
	return peers
}

func processAgent(ctx context.Context, rank int, socket string, hold chan<- *RRef[int]) (*Agent, error) {
	return Init(ctx, fmt.Sprintf("w%d", rank), append(refHandlers(hold),
		WithToken(agenttest.Token), WithPeers(processPeers(socket)), WithLease(processLease))...)
}

// TestUserProcess is the main of a process that TestKilledUser starts. Agent 1
// leaves three values at agent 0 and passes one of the references to agent 2. Both
// keep what they have until they are killed.
func TestUserProcess(t *testing.T) {
	if *beUser == "" {
		t.Skip("not a test of its own: TestKilledUser starts it")
	}
	var rank int
	var socket string
	if _, err := fmt.Sscanf(*beUser, "%d:%s", &rank, &socket); err != nil {
		t.Fatal(err)
	}
	hold := make(chan *RRef[int], 16)
	a, err := processAgent(t.Context(), rank, socket, hold)
	if err != nil {
		t.Fatal(err)
	}
	var refs []*RRef[int]
	if rank == 1 {
		for i := range 3 {
			r, err := refAdd.Remote(t.Context(), a.Peer("w0"), [2]int{i, 10})
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, r)
		}
		if _, err := refKeep.Call(t.Context(), a.Peer("w2"), refs[2]); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("ready")
	// Each line asks what has become of a reference; the end, that of the parent, ends it.
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_, err := refs[0].ToHere(t.Context())
		fmt.Println("kind", KindOf(err))
	}
	runtime.KeepAlive(refs)
	a.Close()
}

func startUser(t *testing.T, rank int, socket string) *agenttest.Process {
	t.Helper()
	_ = os.Remove(fmt.Sprintf("%s.%d", socket, rank)) // a killed process leaves its socket
	p := agenttest.Begin(t, "-test.run=^TestUserProcess$", "-test.v", fmt.Sprintf("-rref-user=%d:%s", rank, socket))
	p.Await(t, "ready")
	return p
}

// A killed process's references are released within the lease; what it has passed on
// stays. References to a killed process's values become errors.
func TestKilledUser(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	t.Parallel()
	socket := t.TempDir() + "/s"
	a, err := processAgent(t.Context(), 0, socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	second := startUser(t, 2, socket)
	first := startUser(t, 1, socket)
	agenttest.Eventually(t, "w1 has three references, w2 one", func() bool {
		by := a.References().By
		return by["w1"] == 3 && by["w2"] == 1
	})
	there, err := refAdd.Remote(t.Context(), a.Peer("w2"), [2]int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * processLease) // in which they beat
	if r := a.References(); r.By["w1"] != 3 || r.By["w2"] != 1 || r.Values != 3 {
		t.Fatalf("while its users live: %+v", r)
	}
	killed := time.Now()
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "the references of w1 have gone", func() bool {
		r := a.References()
		return r.Values == 1 && r.By["w1"] == 0
	})
	if took := time.Since(killed); took > processLease+10*time.Second {
		t.Errorf("the references of a killed process were released after %v, the lease is %v", took, processLease)
	} else {
		t.Logf("the references of a killed process were released after %v of a lease of %v", took, processLease)
	}
	if v, err := there.ToHere(t.Context()); err != nil || v != 3 {
		t.Errorf("a value of w2: %d, %v, want 3", v, err)
	}
	if err := second.Kill(); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "nothing is left", func() bool { r := a.References(); return r.Values == 0 && r.Held == 0 })
	if _, err := there.ToHere(t.Context()); KindOf(err) != KindGone {
		t.Errorf("a value of a killed process: %v, want kind %q", err, KindGone)
	}

	// Processes under the names of the dead have references of their own.
	startUser(t, 2, socket)
	first = startUser(t, 1, socket)
	agenttest.Eventually(t, "w1 has three references again", func() bool { return a.References().By["w1"] == 3 })
	fmt.Fprintln(first.In, "?")
	if got := first.Await(t, "kind"); got != "kind " {
		t.Errorf("a reference to a live value: %q", got)
	}
	// One that is stopped for longer than the lease finds its references lost.
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "the references of the stopped w1 have gone", func() bool { return a.References().By["w1"] == 0 })
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(first.In, "?")
	if got := first.Await(t, "kind"); got != "kind "+string(KindGone) {
		t.Errorf("a reference after an absence: %q, want kind %q", got, KindGone)
	}
}
