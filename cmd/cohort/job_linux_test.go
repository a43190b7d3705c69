// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// cliMark marks the processes of a job, with a value of its own for each.
const cliMark = "COHORT_CLI_TEST_MARK"

// job is a cohort command in a process of its own.
type job struct {
	cmd    *exec.Cmd
	mark   string
	ended  chan struct{}
	mu     sync.Mutex
	stdout bytes.Buffer
	stderr bytes.Buffer
	more   chan struct{} // closed and replaced when there is more output
}

// stream is where a job's output goes.
type stream struct {
	j   *job
	buf *bytes.Buffer
}

func (s stream) Write(b []byte) (int, error) {
	s.j.mu.Lock()
	defer s.j.mu.Unlock()
	close(s.j.more)
	s.j.more = make(chan struct{})
	return s.buf.Write(b)
}

func (j *job) output() (stdout, stderr string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.stdout.String(), j.stderr.String()
}

// start runs a cohort command; env is added to the environment.
func start(t *testing.T, env []string, args ...string) *job {
	t.Helper()
	return startWith(t, env, nil, args...)
}

// startWith is start with a file as the standard output, where it is not nil.
func startWith(t *testing.T, env []string, stdout *os.File, args ...string) *job {
	t.Helper()
	j := &job{mark: cliMark + "=" + strconv.FormatUint(rand.Uint64(), 36), ended: make(chan struct{}), more: make(chan struct{})}
	j.cmd = exec.Command(os.Args[0], args...)
	j.cmd.Env = append(os.Environ(), cliMain+"=1", j.mark, "GORACE=atexit_sleep_ms=0", "TMPDIR="+t.TempDir())
	j.cmd.Env = append(j.cmd.Env, env...)
	j.cmd.Stdout, j.cmd.Stderr = stream{j, &j.stdout}, stream{j, &j.stderr}
	if stdout != nil {
		j.cmd.Stdout = stdout
	}
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	j.cmd.WaitDelay = time.Minute
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func(ended chan struct{}) {
		_ = j.cmd.Wait()
		close(ended)
	}(j.ended)
	t.Cleanup(func() {
		_ = j.cmd.Process.Kill()
		<-j.ended
		for _, pid := range j.processes(-1) {
			t.Errorf("process %d is left over", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return j
}

// startHeld is start, with an output that is read up to the first step only, until goOn
// is called: the job stops soon after that, as its pipes are full, and serves its ports.
func startHeld(t *testing.T, env []string, args ...string) (j *job, goOn func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4<<10); err != nil {
		t.Fatal(err)
	}
	j = startWith(t, env, w, args...)
	w.Close()
	held, over := make(chan struct{}), j.ended
	j.ended = make(chan struct{}) // once all has been read, too
	go func() {
		defer close(j.ended)
		defer r.Close()
		buf := make([]byte, 4<<10)
		for n, err := r.Read(buf); err == nil; n, err = r.Read(buf) {
			_, _ = stream{j, &j.stdout}.Write(buf[:n])
			if stdout, _ := j.output(); strings.Contains(stdout, `"loss"`) {
				<-held
			}
		}
		<-over
	}()
	goOn = sync.OnceFunc(func() { close(held) })
	t.Cleanup(goOn) // before the job is waited for
	return j, goOn
}

// wait returns the exit code.
func (j *job) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-j.ended:
		return j.cmd.ProcessState.ExitCode()
	case <-time.After(2 * time.Minute):
		_, stderr := j.output()
		t.Fatalf("%v does not end; standard error:\n%s", j.cmd.Args[1:], stderr)
		return 0
	}
}

// await waits until the standard output satisfies a condition.
func (j *job) await(t *testing.T, what string, done func(stdout string) bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		j.mu.Lock()
		ok, more := done(j.stdout.String()), j.more
		j.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-more:
		case <-j.ended:
			if stdout, stderr := j.output(); !done(stdout) {
				t.Fatalf("ended before there was %s:\n%s\n%s", what, stdout, stderr)
			}
			return
		case <-deadline:
			stdout, stderr := j.output()
			t.Fatalf("no %s:\n%s\n%s", what, stdout, stderr)
		}
	}
}

// environs returns the environments of the job's processes, by pid.
func (j *job) environs() map[int][]string {
	found := make(map[int][]string)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // ended, or somebody else's
		}
		env := strings.Split(string(text), "\x00")
		if slices.Contains(env, j.mark) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			found[pid] = env
		}
	}
	return found
}

// processes returns the job's processes: those of a rank, or all (-1).
func (j *job) processes(rank int) (pids []int) {
	for pid, env := range j.environs() {
		if rank < 0 || slices.Contains(env, envvar.Rank.Assign(strconv.Itoa(rank))) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// gone waits for the end of all processes of a job. They may take a moment to
// vanish after the one that was waited for.
func (j *job) gone(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		left := j.processes(-1)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes %v are still there", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// steps returns the losses by step in the output of --json.
func steps(t *testing.T, stdout string) map[int]float64 {
	t.Helper()
	losses := map[int]float64{}
	for line := range strings.Lines(stdout) {
		if !strings.HasSuffix(line, "\n") {
			break // killed in the middle of it
		}
		var v struct {
			Step int
			Loss *float64
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("standard output has %q: %v", line, err)
		}
		if v.Loss != nil {
			losses[v.Step] = *v.Loss
		}
	}
	return losses
}

// writeText makes a text to train on.
func writeText(t *testing.T) string {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	var words []string
	for range 200 {
		words = append(words, strconv.FormatUint(r.Uint64N(1<<24), 36))
	}
	var b strings.Builder
	for b.Len() < 30_000 {
		b.WriteString(strings.Join([]string{words[r.IntN(200)], words[r.IntN(200)], words[r.IntN(200)], words[r.IntN(200)]}, " ") + "\n")
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tiny are the arguments of a run of some milliseconds a step.
func tiny(data, out string, more ...string) []string {
	args := strings.Fields("train lm --ranks 2 --vocab 300 --context 32 --width 32 --heads 2 --layers 1 --batch 4 --eval-tokens 256 --sample-tokens 4")
	return append(append(args, "--data", data, "--out", out), more...)
}

// newSharedMemory lists the named segments of this machine that are not among
// before. Other programs make some too, for a moment: what stays counts.
func newSharedMemory(t *testing.T, before []string) (stay []string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stay = slices.DeleteFunc(sharedMemory(t), func(name string) bool { return slices.Contains(before, name) })
		if len(stay) == 0 || time.Now().After(deadline) {
			return stay
		}
	}
}

// sharedMemory lists the named segments of this machine.
func sharedMemory(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
