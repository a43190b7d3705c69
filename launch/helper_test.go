// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/leftover"
	"github.com/cohort-ml/cohort/internal/transport"
)

// The test binary is its own agent and its own worker: in a process with
// testRole set, TestMain plays that role and runs no test. testMark, with a value
// of its own for each test, is in the environment of every process of a test.
const (
	testRole = "LAUNCH_TEST_ROLE"
	testMark = "LAUNCH_TEST_MARK"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(testRole); role != "" {
		name, arg, _ := strings.Cut(role, ":")
		// A worker that plays the agent again would start workers, and they too.
		if starts := name == "agent" || name == "build"; starts && IsRank() {
			fmt.Fprintf(os.Stderr, "a rank must not play %s\n", name)
			os.Exit(4)
		}
		os.Exit(roles[name](arg))
	}
	// With the race detector, each process would linger for a second at its end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	tmp := leftover.Dir()
	os.Setenv("TMPDIR", tmp)
	os.Exit(leftover.Check(tmp, m.Run()))
}

// roles are what a process of a test does, by name. Files with roles of their own add
// them in an init function.
var roles = map[string]func(arg string) int{}

func init() {
	maps.Copy(roles, map[string]func(arg string) int{
		"agent":    roleAgent,
		"spawner":  roleSpawner,
		"build":    roleBuild,
		"env":      roleEnv,
		"hello":    roleHello,
		"exit":     roleExit,
		"burst":    roleBurst,
		"wait":     roleWait,
		"deaf":     roleDeaf,
		"news":     roleNews,
		"parent":   roleParent,
		"daemons":  roleDaemons,
		"tty":      roleTTY,
		"reduce":   roleReduce,
		"late":     roleLate,
		"survive":  roleSurvive,
		"fault":    roleFault,
		"brittle":  roleBrittle,
		"final":    roleFinal,
		"words":    roleWords,
		"print":    rolePrint,
		"greedy":   roleGreedy,
		"phoenix":  rolePhoenix,
		"ends":     roleEnds,
		"save":     roleSave,
		"panicker": func(string) int { panic("boom") },
	})
}

func rank() string { return os.Getenv("RANK") }

// say prints one line in one write.
func say(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

// parted is a token as the agent does not know it.
func parted(token string) string {
	var parts []string
	for part := range slices.Chunk([]byte(token), endDigits-1) {
		parts = append(parts, string(part))
	}
	return strings.Join(parts, "-")
}

func roleEnv(string) int {
	for _, kv := range os.Environ() {
		if k, v, _ := strings.Cut(kv, "="); k == "COHORT_TOKEN" && len(v) == 64 {
			say("%s", kv) // the agent covers it
			kv = k + "=" + parted(v)
		}
		say("%s", kv)
	}
	return 0
}

func roleHello(string) int {
	say("hello from %s", rank())
	fmt.Fprintf(os.Stderr, "warning from %s, no line end", rank())
	return 0
}

// roleExit: "RANK=CODE" ends that rank with that code, others with 0.
func roleExit(arg string) int {
	r, code, _ := strings.Cut(arg, "=")
	n, _ := strconv.Atoi(code)
	if r != rank() {
		return 0
	}
	fmt.Fprintln(os.Stderr, "first line")
	fmt.Fprintln(os.Stderr, "reason of the end")
	return n
}

// roleBurst writes the given number of bytes in numbered lines.
func roleBurst(arg string) int {
	size, _ := strconv.Atoi(arg)
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%s %d %s\n", rank(), i, strings.Repeat("x", i%300))
	}
	if _, err := os.Stdout.Write(b.Bytes()); err != nil {
		return 1
	}
	return 0
}

// roleWait says that it is ready and waits for a signal's default action.
func roleWait(string) int {
	say("ready %d", os.Getpid())
	time.Sleep(time.Minute)
	return 9
}

// roleDeaf says which signals it gets and does nothing about them.
func roleDeaf(string) int {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for s := range ch {
			say("ignored %s", signalName(s.(syscall.Signal)))
		}
	}()
	return roleWait("")
}

// roleNews, of one rank, ends with code 9; others wait for news of that, print it and
// end with code 1.
func roleNews(failing string) int {
	if rank() == failing {
		return 9
	}
	r, err := agentpipe.Open()
	if err != nil || r == nil {
		say("no pipe: %v", err)
		return 3
	}
	say("ready %d", os.Getpid())
	e, err := r.Next()
	say("news: %v, %v", e, err)
	return 1
}

// roleParent starts children that outlive it or are in the way, as arg says:
// "group" in its process group, "daemon" in a session of its own, "hidden" a
// daemon without the environment; then it exits with 0, or waits ("…+wait").
func roleParent(arg string) int {
	kinds, wait := strings.CutSuffix(arg, "+wait")
	for kind := range strings.SplitSeq(kinds, ",") {
		cmd := exec.Command("/bin/sh", "-c", "trap '' TERM INT; sleep 60 & exec sleep 61")
		switch kind {
		case "daemon":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		case "hidden":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			cmd.Env = []string{"PATH=/usr/bin:/bin"}
		}
		if err := cmd.Start(); err != nil {
			say("%v", err)
			return 3
		}
		say("child %d", cmd.Process.Pid)
	}
	if wait {
		return roleWait("")
	}
	return 0
}

// roleDaemons starts many short processes and leaves them to whom they fall.
func roleDaemons(string) int {
	if err := exec.Command("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.01 &); done").Run(); err != nil {
		say("%v", err)
		return 3
	}
	return roleWait("")
}

// roleTTY says which of its streams are terminals, and how it ended.
func roleTTY(string) int {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT)
	isTTY := func(f *os.File) bool {
		_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		return err == nil
	}
	say("rank %s terminals %v %v", rank(), isTTY(os.Stdout), isTTY(os.Stderr))
	if s := <-ch; rank() == "0" {
		say("saved after %v", s)
	}
	return 0
}

// roleAgent runs a job as cohort run does. Its argument is a Config in JSON, its
// workers play the role in LAUNCH_TEST_WORKER.
func roleAgent(arg string) int {
	given := struct {
		Config
		Look   time.Duration
		Joined bool // with other machines, of which there are none yet
	}{Look: lookPatience}
	if err := json.Unmarshal([]byte(arg), &given); err != nil {
		say("%v", err)
		return 3
	}
	cfg := given.Config
	lookPatience = given.Look
	cfg.Program, cfg.Direct = os.Args[0], true
	cfg.Env = append(os.Environ(), testRole+"="+os.Getenv("LAUNCH_TEST_WORKER"))
	if given.Joined {
		cfg.Nodes = joined{}
	}
	err := Run(context.Background(), cfg)
	var job *Error
	if errors.As(err, &job) {
		job.Report(os.Stderr)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return ExitCode(err)
}

// joined makes one attempt on this host.
type joined struct{}

func (joined) Run(ctx context.Context, h *Host) error {
	port, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		return err
	}
	defer port.Close()
	return h.Run(ctx, Attempt{MasterPort: port.Port()})
}

// roleBuild runs a Go package directory on two ranks.
func roleBuild(dir string) int {
	_ = os.Unsetenv(testRole)
	err := Run(context.Background(), Config{Program: dir, NumRanks: 2})
	return ExitCode(err)
}

// roleSpawner is a user's program with two calls of Spawn.
func roleSpawner(arg string) int {
	say("before, rank %q", rank())
	first := Spawn(context.Background(), 2, func(ctx context.Context) error {
		say("first main, rank %s of %s", rank(), os.Getenv("WORLD_SIZE"))
		return nil
	})
	if first != nil {
		say("first: %v", first)
	}
	err := Spawn(context.Background(), 3, func(ctx context.Context) error {
		say("second main, rank %s of %s", rank(), os.Getenv("WORLD_SIZE"))
		switch {
		case arg == "fail" && rank() == "2":
			return errors.New("rank 2 has had enough")
		case arg == "panic":
			panic("out of range")
		case arg == "wait":
			say("ready %d", os.Getpid())
			<-ctx.Done()
			say("saved, because %v", context.Cause(ctx))
		}
		return nil
	})
	say("after")
	if err != nil {
		say("second: %v", err)
	}
	return ExitCode(err)
}

// self is the configuration of a job of n workers that play a role. The mark is
// checked when the test ends: no process may be left.
func self(t *testing.T, n int, role string) Config {
	t.Helper()
	return Config{
		Program: os.Args[0], Direct: true, NumRanks: n, LeaveSignals: true,
		Env: append(os.Environ(), testRole+"="+role, testMark+"="+newMark(t)),
	}
}

// heldPort returns a port of this machine that is kept until the test ends.
func heldPort(t *testing.T) int {
	t.Helper()
	p, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Port()
}

func newMark(t *testing.T) string {
	mark := randomHex(8)
	t.Cleanup(func() { waitGone(t, mark) })
	return mark
}

// marked lists the live processes whose environment has a mark.
func marked(mark string) (out []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err == nil && bytes.Contains(env, []byte(mark)) {
			cmdline, _ := os.ReadFile(filepath.Dir(f) + "/cmdline")
			out = append(out, filepath.Base(filepath.Dir(f))+" "+string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return out
}

func waitGone(t *testing.T, mark string) {
	t.Helper()
	eventually(t, func() string {
		if left := marked(mark); len(left) > 0 {
			return "processes left: " + strings.Join(left, "; ")
		}
		return ""
	})
}

// soon is what a busy machine may take for what takes a fraction of a second: well
// below defaultPatience.grace.
const soon = 15 * time.Second

// eventually polls until nothing is wrong, for at most a minute.
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		w := wrong()
		if w == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("after a minute: %s", w)
			return
		}
	}
}

// output collects what a job writes, and lets a test wait for a text in it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await waits until text has been written n times.
func (o *output) await(t *testing.T, n int, text string) {
	t.Helper()
	eventually(t, func() string {
		if s := o.String(); strings.Count(s, text) < n {
			return fmt.Sprintf("not %d times %q in the output:\n%s", n, text, s)
		}
		return ""
	})
	if t.Failed() {
		t.FailNow()
	}
}

// numbers returns the numbers behind a word at the ends of lines: `ready 123`.
func (o *output) numbers(word string) (out []int) {
	for line := range strings.Lines(o.String()) {
		if _, v, ok := strings.Cut(line, word+" "); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// process is an agent in a process of its own.
type process struct {
	*exec.Cmd
	out, errs output
	mark      string
}

func startProcess(t *testing.T, role string, env ...string) *process {
	t.Helper()
	p := &process{mark: newMark(t)}
	p.Cmd = exec.Command(os.Args[0], "-test.run=none")
	p.Env = append(append(os.Environ(), testRole+"="+role, testMark+"="+p.mark), env...)
	p.Stdout, p.Stderr = &p.out, &p.errs
	p.WaitDelay = time.Minute
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

func startAgent(t *testing.T, cfg Config, workerRole string) *process {
	t.Helper()
	b, err := json.Marshal(struct {
		NumRanks             int
		Exclusive, PassRank0 bool
		Notice               Notice
		Grace, FailGrace     time.Duration
	}{cfg.NumRanks, cfg.Exclusive, cfg.PassRank0, cfg.Notice, cfg.Grace, cfg.FailGrace})
	if err != nil {
		t.Fatal(err)
	}
	return startProcess(t, "agent:"+string(b), "LAUNCH_TEST_WORKER="+workerRole)
}

// end waits for the process and returns its exit code and how long it took.
func (p *process) end(t *testing.T) (code int, took time.Duration) {
	t.Helper()
	start := time.Now()
	err := p.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("somebody still holds the output: %v", marked(p.mark))
	}
	return p.ProcessState.ExitCode(), time.Since(start)
}

// checkLeaks compares goroutines and descriptors before and after f.
func checkLeaks(t *testing.T, f func()) {
	t.Helper()
	ch := make(chan os.Signal, 1) // the first Notify starts a goroutine that stays
	signal.Notify(ch, syscall.SIGCHLD)
	signal.Stop(ch)
	count := func() (goroutines, fds int) {
		names, _ := filepath.Glob("/proc/self/fd/*")
		return runtime.NumGoroutine(), len(names)
	}
	g0, fd0 := count()
	f()
	eventually(t, func() string {
		if g, fd := count(); g > g0 || fd > fd0 {
			return fmt.Sprintf("%d goroutines and %d descriptors more than before", g-g0, fd-fd0)
		}
		return ""
	})
}

// ended returns the *Error of a job.
func ended(t *testing.T, err error) *Error {
	t.Helper()
	var job *Error
	if !errors.As(err, &job) {
		t.Fatalf("error %v (%T), want *Error", err, err)
	}
	return job
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

func envOf(text, prefix string) map[string]string {
	m := map[string]string{}
	for _, line := range lines(text) {
		if kv, ok := strings.CutPrefix(line, prefix); ok {
			k, v, _ := strings.Cut(kv, "=")
			m[k] = v
		}
	}
	return m
}
