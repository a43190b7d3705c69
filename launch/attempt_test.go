// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/transport"
)

// A host in the middle of others: ranks, roles and nodes are those of the attempt.
func TestAttemptAmongOthers(t *testing.T) {
	var out, errs output
	cfg := self(t, 2, "env")
	cfg.Stdout, cfg.Stderr, cfg.MaxRestarts, cfg.Role = &out, &errs, 5, "actor"
	h, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	a := Attempt{
		Number: 3, NodeRank: 2, NumNodes: 4, FirstRank: 4, WorldSize: 8,
		FirstRoleRank: 1, RoleWorldSize: 3, MasterAddr: "10.0.0.1", MasterPort: 12345, NodeAddrs: "10.0.0.1,node2,127.0.0.1,node4", AgentStore: true,
	}
	if err := h.Run(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	env := envOf(out.String(), "[rank5] ")
	for k, want := range map[string]string{
		"RANK": "5", "LOCAL_RANK": "1", "ROLE_RANK": "2", "GROUP_RANK": "2", "ROLE_NAME": "actor",
		"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "4",
		"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "12345", "COHORT_NODE_ADDRS": a.NodeAddrs,
		"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": transport.InterfaceOf("127.0.0.1"),
		"TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_MAX_RESTARTS": "5",
	} {
		if env[k] != want {
			t.Errorf("%s=%q, want %q", k, env[k], want)
		}
	}
	for _, bad := range []Attempt{
		{FirstRank: 7, WorldSize: 8, MasterPort: 1}, {FirstRank: -1, MasterPort: 1}, {Number: -1, MasterPort: 1},
		{NodeRank: 1, NumNodes: 1, MasterPort: 1}, {RoleWorldSize: 1, MasterPort: 1}, {},
	} {
		if job := ended(t, h.Run(t.Context(), bad)); job.StartErr == nil || job.Restartable() {
			t.Errorf("%+v: %v", bad, job)
		}
	}
}

// TestAttemptTells: the agent tells its worker of another one that has failed, and whoever
// made the attempt of both.
func TestAttemptTells(t *testing.T) {
	var out output
	cfg := self(t, 2, "news:3")
	cfg.Stdout, cfg.Stderr, cfg.FailGrace = &out, &output{}, time.Minute // rank 2 is to end by itself
	h, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	port := heldPort(t)
	var failed []int
	job := ended(t, h.Run(t.Context(), Attempt{
		FirstRank: 2, WorldSize: 8, MasterPort: port,
		OnFailure: func(f Failure) { failed = append(failed, f.Rank) },
	}))
	if want := "[rank2] news: rank 3 (host " + hostName() + ", pid "; !strings.Contains(out.String(), want) || !strings.Contains(out.String(), ") exited with code 9") {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	if !slices.Equal(failed, []int{3, 2}) || len(job.Failures) != 2 || job.Failures[0].Rank != 3 || !job.Restartable() {
		t.Errorf("told of %v, failures %+v", failed, job.Failures)
	}
}

// TestAttemptKill: an attempt whose Kill is closed is over at once, though its
// workers take no notice of SIGTERM, and the next one can begin.
func TestAttemptKill(t *testing.T) {
	var out output
	cfg := self(t, 2, "wait")
	cfg.Program, cfg.Args = "/bin/sh", []string{"-c", `trap "" TERM; echo ready; while :; do sleep 0.05; done`}
	cfg.Direct, cfg.Grace, cfg.Stdout, cfg.Stderr = true, time.Hour, &out, &output{}
	h, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for range 2 {
		port := heldPort(t)
		ctx, stop := context.WithCancelCause(t.Context())
		kill := make(chan struct{})
		before := strings.Count(out.String(), "ready")
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx, Attempt{MasterPort: port, Kill: kill}) }()
		for strings.Count(out.String(), "ready") < before+2 {
			time.Sleep(time.Millisecond)
		}
		why := errors.New("the nodes have changed")
		stop(why)
		close(kill)
		var job *Error
		if err := <-ended; !errors.As(err, &job) || !errors.Is(err, why) || job.Restartable() || len(job.Failures) != 2 || job.Failures[0].Signal != syscall.SIGKILL {
			t.Errorf("%+v", err)
		}
	}
}

// TestAttemptOnSignal: whoever makes attempts hears of a signal when it comes, not
// when the workers have ended.
func TestAttemptOnSignal(t *testing.T) {
	var out output
	cfg := self(t, 1, "wait")
	goOn := filepath.Join(t.TempDir(), "go-on")
	cfg.Program, cfg.Args = "/bin/sh", []string{"-c", `trap 'until [ -e "$0" ]; do sleep 0.02; done; exit 0' TERM; echo ready; while :; do sleep 0.02; done`, goOn}
	cfg.Direct, cfg.LeaveSignals, cfg.Stdout, cfg.Stderr = true, false, &out, &output{}
	h, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	port := heldPort(t)
	heard := make(chan syscall.Signal, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- h.Run(t.Context(), Attempt{MasterPort: port, OnSignal: func(s syscall.Signal) { heard <- s }})
	}()
	for !strings.Contains(out.String(), "ready") {
		time.Sleep(time.Millisecond)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-heard:
		if s != syscall.SIGTERM {
			t.Errorf("heard of %v", s)
		}
		if err := os.WriteFile(goOn, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	case err := <-ended:
		t.Fatalf("the attempt ended before: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("an attempt that was stopped by a signal ended well")
	}
}
