// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var beServer = flag.String("rpc-server", "", "be the agent of TestKilledServer that meets the other one in this file: for itself")

// TestServerProcess is the main of a process that TestKilledServer starts.
func TestServerProcess(t *testing.T) {
	if *beServer == "" {
		t.Skip("not a test of its own: TestKilledServer starts it")
	}
	a, err := processServer(t.Context(), *beServer, 1)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until this process is killed, or its parent has ended
	a.Close()
}

func processServer(ctx context.Context, path string, rank int) (*Agent, error) {
	s, err := store.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return Init(ctx, fmt.Sprintf("w%d", rank), WithToken(agenttest.Token), WithStore(s, rank, 2), WithListen("127.0.0.1:0"), serveBasics())
}

// TestKilledServer: whatever waits for a process that is killed fails at once, also
// in the middle of a large tensor.
func TestKilledServer(t *testing.T) {
	for _, kind := range agenttest.Transports {
		if kind == "pipe" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Setenv("COHORT_TRANSPORT", kind)
			path := t.TempDir() + "/store"
			server := agenttest.Begin(t, "-test.run=^TestServerProcess$", "-rpc-server="+path)
			a, err := processServer(t.Context(), path, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			server.Await(t, "ready")
			p := a.Peer("w1")
			if _, err := noop.Call(t.Context(), p, struct{}{}); err != nil {
				t.Fatal(err)
			}
			if got := p.Transport(); got != kind {
				t.Errorf("the transport is %q, want %q", got, kind)
			}
			fs := []*Future[struct{}]{wait.Async(t.Context(), p, struct{}{})}
			large := make(chan error, 1)
			x := tensor.Zeros(8 << 20)
			go func() {
				for {
					if _, err := echo.Call(t.Context(), p, x); err != nil {
						large <- err
						return
					}
				}
			}()
			time.Sleep(30 * time.Millisecond) // somewhere in the large one
			began := time.Now()
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			_, err = fs[0].Wait(t.Context())
			for _, err := range []error{err, <-large} {
				if k := KindOf(err); k != KindLost && k != KindUnreachable {
					t.Errorf("a call under way: %v", err)
				}
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v to notice", took)
			}
			if _, err := noop.Call(t.Context(), p, struct{}{}); KindOf(err) != KindUnreachable {
				t.Errorf("a call after it: %v", err)
			}
		})
	}
}
