// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// roleFinal ends its last rank in the way that arg names; the others wait.
func roleFinal(arg string) int {
	say("attempt %s", os.Getenv("TORCHELASTIC_RESTART_COUNT"))
	if size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE")); rank() != strconv.Itoa(size-1) {
		return roleWait("")
	}
	kind, rest, _ := strings.Cut(arg, ":")
	code, _ := strconv.Atoi(rest)
	switch kind {
	case "final":
		Record(fmt.Errorf("my own: %w", Final(errors.New("the data are not there"))), "")
		return 1
	case "plain":
		Record(errors.New("the data are not there"), "")
		return 1
	case "flag":
		flags := flag.NewFlagSet("prog", flag.ExitOnError)
		for i := range 40 { // whose text leaves no room for what came before it
			flags.Int(fmt.Sprint("size", i), 0, "a size")
		}
		_ = flags.Parse([]string{"-sise", "3"})
	case "panic":
		fmt.Fprintln(os.Stderr, "usage: none")
		var list []int
		_ = list[code+1]
	}
	return code
}

// TestFinal: an end that would come again is not tried again, and any other is.
func TestFinal(t *testing.T) {
	const restarts = 2
	for arg, final := range map[string]bool{
		"final": true, "plain": false, "flag": true, "panic": false,
		"code:1": false, "code:2": false, "code:3": false, "code:64": true, "code:66": true, "code:78": true, "code:127": true, "code:130": false,
	} {
		t.Run(arg, func(t *testing.T) {
			var out, errs output
			cfg := self(t, 2, "final:"+arg)
			cfg.MaxRestarts, cfg.FailGrace = restarts, 1 // a nanosecond
			cfg.Stdout, cfg.Stderr = &out, &errs
			var err error
			checkLeaks(t, func() { err = Run(t.Context(), cfg) })
			want := restarts + 1
			if final {
				want = 1
			}
			var job *Error
			if n := strings.Count(out.String(), "[rank1] attempt"); !errors.As(err, &job) || n != want || job.Final() != final || job.Restartable() == final {
				t.Fatalf("%d attempts, want %d: %v", n, want, err)
			}
			var report bytes.Buffer
			job.Report(&report)
			if told := strings.Contains(report.String(), "the 2 restarts that are left are not used: rank 1 would end in the same way again"); told != final {
				t.Errorf("told %v, want %v:\n%s", told, final, report.String())
			}
		})
	}
}

// TestFinalPython: so do Python's programs end that argparse or a missing module ends.
func TestFinalPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	for name, text := range map[string]string{
		"argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args(['--lrr', '1'])\n",
		"module":   "import no_such_module\n",
	} {
		script := filepath.Join(t.TempDir(), "train_"+name+".py")
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := Config{Program: script, NumRanks: 1, MaxRestarts: 3, Env: append(os.Environ(), "PYTHON_EXEC="+python), Stdout: &output{}, Stderr: &output{}}
		var job *Error
		if err := Run(t.Context(), cfg); !errors.As(err, &job) || !job.Final() || job.Attempt != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

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
	port := heldPort(t)
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

// TestRestartIsNew: in every attempt the ranks meet anew, at another port, and reduce,
// though the rank that died in the one before had not left.
func TestRestartIsNew(t *testing.T) {
	var out, errs output
	cfg := self(t, 3, "phoenix")
	cfg.Stdout, cfg.Stderr, cfg.MaxRestarts = &out, &errs, 3
	cfg.Env = append(cfg.Env, "COHORT_RECORDER_DIR="+t.TempDir())
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	for _, want := range []string{"[rank2] attempt 0: 3", "[rank0] attempt 1: 3", "[rank1] attempt 2: 3"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if n := strings.Count(errs.String(), "was killed by SIGKILL"); n < 2 {
		t.Errorf("%d ranks were told to be killed:\n%s", n, errs.String())
	}
}
