// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

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
		port, err := FreePort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
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
	port, err := FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
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

func TestFailureLine(t *testing.T) {
	f := Failure{Rank: 3, Host: "h", PID: 7, Code: 1, Message: "no data"}
	if got, want := f.Line(), "rank 3 exited with code 1 (pid 7, host h): no data"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
