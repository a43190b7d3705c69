// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/transport"
)

// roleBrittle: "N" fails, on the last rank, in the first N attempts.
func roleBrittle(arg string) int {
	n, _ := strconv.Atoi(arg)
	restarts, _ := strconv.Atoi(os.Getenv("TORCHELASTIC_RESTART_COUNT"))
	size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	say("attempt %d of %s, port %s", restarts, os.Getenv("TORCHELASTIC_MAX_RESTARTS"), os.Getenv("MASTER_PORT"))
	if restarts >= n {
		return 0
	}
	if rank() == strconv.Itoa(size-1) {
		return 3
	}
	return roleWait("")
}

func TestRestarts(t *testing.T) {
	tests := []struct{ failures, restarts, attempts, code int }{
		{0, 2, 1, 0}, {1, 2, 2, 0}, {2, 2, 3, 0}, {3, 2, 3, 1}, {1, 0, 1, 1},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d failures, %d restarts", tt.failures, tt.restarts), func(t *testing.T) {
			var out, errs output
			cfg := self(t, 2, fmt.Sprint("brittle:", tt.failures))
			cfg.MaxRestarts, cfg.FailGrace = tt.restarts, 1 // a nanosecond
			cfg.Stdout, cfg.Stderr = &out, &errs
			var err error
			checkLeaks(t, func() { err = Run(t.Context(), cfg) })
			if code := ExitCode(err); code != tt.code {
				t.Errorf("exit code %d: %v", code, err)
			}
			ports := map[string]bool{}
			for i := range tt.attempts {
				line := fmt.Sprintf("[rank1] attempt %d of %d, port ", i, tt.restarts)
				_, rest, ok := strings.Cut(out.String(), line)
				if !ok {
					t.Fatalf("no %q in\n%s", line, out.String())
				}
				ports[firstLine(rest)] = true
			}
			if tt.attempts > 2 && len(ports) < 2 { // each is chosen at random: two may be the same
				t.Errorf("ports %v in %d attempts", ports, tt.attempts)
			}
			if n := strings.Count(out.String(), "[rank1] attempt"); n != tt.attempts {
				t.Errorf("%d attempts:\n%s", n, out.String())
			}
			if n := strings.Count(errs.String(), "starting all ranks again"); n != tt.attempts-1 {
				t.Errorf("%d restarts were told:\n%s", n, errs.String())
			}
			var job *Error
			if errors.As(err, &job) && (job.Attempt != tt.attempts-1 || job.Failures[0].Rank != 1 || job.Failures[0].Code != 3) {
				t.Errorf("%+v", job)
			}
		})
	}
}

// A signal ends the job, restarts or not, also one that comes between attempts.
func TestRestartsEndWithSignal(t *testing.T) {
	h, err := Open(t.Context(), func() Config {
		cfg := self(t, 2, "wait")
		cfg.LeaveSignals, cfg.Signals, cfg.Stdout, cfg.Stderr = false, []syscall.Signal{syscall.SIGTERM}, &output{}, &output{}
		return cfg
	}())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, stop := h.Idle(t.Context())
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	job := ended(t, context.Cause(ctx))
	if job.Signal != syscall.SIGTERM || job.Restartable() {
		t.Errorf("between attempts: %+v", job)
	}
	stop()
	port, err := FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	// The signal is what the attempt begins with.
	job = ended(t, h.Run(t.Context(), Attempt{MasterAddr: "127.0.0.1", MasterPort: port}))
	if job.Signal != syscall.SIGTERM || job.Restartable() || len(job.Failures) != 2 || job.Failures[0].Signal != syscall.SIGTERM {
		t.Errorf("in an attempt: %+v", job)
	}
	ctx, stop = h.Idle(t.Context())
	stop()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("the signal is still there: %v", cause)
	}
}

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

// What happens elsewhere is told to the workers, what happens here to the caller.
func TestAttemptNews(t *testing.T) {
	var out output
	cfg := self(t, 2, "news")
	cfg.Stdout, cfg.Stderr, cfg.FailGrace = &out, &output{}, time.Minute // both are to print it
	h, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	port, err := FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	news := make(chan agentpipe.Event, 1)
	news <- agentpipe.Event{Kind: agentpipe.KindExited, Rank: 7, PID: 4711, Host: "far", Code: 9}
	close(news)
	var failed []int
	job := ended(t, h.Run(t.Context(), Attempt{
		FirstRank: 2, WorldSize: 8, MasterPort: port, News: news,
		OnFailure: func(f Failure) { failed = append(failed, f.Rank) },
	}))
	for _, r := range []string{"2", "3"} {
		if want := "[rank" + r + "] news: rank 7 (host far, pid 4711) exited with code 9"; !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if slices.Sort(failed); !slices.Equal(failed, []int{2, 3}) || len(job.Failures) != 2 || !job.Restartable() {
		t.Errorf("told of %v, failures %+v", failed, job.Failures)
	}
}

func TestParseSignals(t *testing.T) {
	for text, want := range map[string]string{
		"SIGTERM,SIGINT,SIGHUP,SIGQUIT": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
		"usr1, SIGTERM ,TERM":           "SIGUSR1,SIGTERM",
	} {
		if got, err := ParseSignals(text); err != nil || signalNames(got) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"": "no signal", "SIGTERM,": "no signal", "SIGWHAT": "no signal", "SIGKILL": "cannot be handled", "SIGCHLD": "for itself"} {
		if got, err := ParseSignals(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
