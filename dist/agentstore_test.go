// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// servePyTorch serves PyTorch's store, and returns what says so to ranks.
func servePyTorch(t *testing.T) (env []string) {
	t.Helper()
	s, err := store.ListenPyTorch("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return []string{envvar.MasterPort.Assign(port)}
}

// TestAgentStore: where a launcher other than cohort run serves PyTorch's store, native
// ranks meet there, and demand the token of each other as ever.
func TestAgentStore(t *testing.T) {
	env := append(servePyTorch(t), envvar.UseAgentStore.Assign("True"), envvar.AgentFD.Assign(""))
	for _, kind := range []string{"auto", "tcp"} {
		for r, p := range startRanks(t, 3, "oracle", append(env, envvar.Transport.Assign(kind), envvar.RunID.Assign(kind))...) {
			if err := p.await(t, time.Minute); err != nil {
				t.Errorf("%s: rank %d: %v\n%s", kind, r, err, p.output())
			}
		}
	}
	for r, p := range startRanks(t, 2, "barrier", append(env, envvar.RunID.Assign("none"), envvar.Token.Assign(""))...) {
		if err := p.await(t, time.Minute); err == nil || !strings.Contains(p.output(), string(envvar.Token)) {
			t.Errorf("without a token: rank %d: %v\n%s", r, err, p.output())
		}
	}
}

// TestAgentStoreOfCohortRun: that one is for PyTorch's ranks, and who comes to it as a
// native rank has forgotten to say so.
func TestAgentStoreOfCohortRun(t *testing.T) {
	env := append(servePyTorch(t), envvar.UseAgentStore.Assign("True"))
	for r, p := range startRanks(t, 2, "barrier", env...) {
		err := p.await(t, time.Minute)
		if out := p.output(); err == nil || !strings.Contains(out, `dist.WithBackend("gloo")`) || strings.Count(out, "\n") != 1 {
			t.Errorf("rank %d: %v\n%s", r, err, out)
		}
	}
}

// TestForgottenBackend: a native rank that comes to a store of PyTorch's hears of the other
// backend, be it served by a Cohort program or by PyTorch, which hangs up.
func TestForgottenBackend(t *testing.T) {
	ours, err := store.ListenPyTorch("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var hangs sync.WaitGroup
	hangs.Go(func() {
		for {
			c, err := theirs.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	})
	defer hangs.Wait()
	defer theirs.Close()
	quiet, err := net.Listen("tcp", "127.0.0.1:0") // whose connections wait to be taken
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	for name, addr := range map[string]string{"ours": ours.Addr(), "theirs": theirs.Addr().String(), "theirs, quiet": quiet.Addr().String()} {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if name == "theirs, quiet" {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), waitLimit()) // in which it is connected
		}
		_, err := Init(ctx, WithURL("tcp://"+addr+"?rank=1&world_size=2"))
		cancel()
		if err == nil || !strings.Contains(err.Error(), `dist.WithBackend("gloo")`) || name == "ours" && strings.Contains(err.Error(), "token differs") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
	}
}

// TestTorchrun has each PyTorch's torchrun start native ranks.
func TestTorchrun(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, p *python) {
		if p.old() {
			t.Skip("the torchrun of PyTorch 1.13 does not run with every Python that Debian has it for")
		}
		cmd := exec.CommandContext(t.Context(), p.path, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "2",
			"--master_addr", "127.0.0.1", "--master_port", strings.TrimPrefix(freeAddr(t), "127.0.0.1:"), "--no_python", os.Args[0])
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "COHORT_") || strings.HasPrefix(v, "TORCH") })
		cmd.Env = append(cmd.Env, rankMain+"=oracle", envvar.Token.Assign(transport.NewToken().Text()))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
