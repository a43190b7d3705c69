// SPDX-License-Identifier: Apache-2.0

// Package agenttest is what the tests of package rpc and of those above it have in
// common: agents of one process that are connected in each of the ways there are,
// and agents that are processes of their own. It knows package rpc by what the tests
// hand in, for rpc's own tests use it, too.
package agenttest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Token is that of the agents of tests.
const Token = "5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c"

// Pipe is the transport between agents of one process.
const Pipe = "pipe"

// Transports are the ways in which agents of tests are connected.
var Transports = []string{Pipe, "shm", "unix", "tcp", "tls"}

// Over runs a test over every transport.
func Over(t *testing.T, f func(t *testing.T, transport string)) {
	for _, kind := range Transports {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

// Start makes n agents, which meet by transport, all at once, and closes them at the
// end of the test. All but Pipe are chosen by the environment, so that such a test
// cannot be parallel.
func Start[A io.Closer](t testing.TB, transport string, n int, start func(ctx context.Context, rank int) (A, error)) []A {
	t.Helper()
	if transport != Pipe {
		t.Setenv("COHORT_TRANSPORT", transport)
		t.Setenv("COHORT_ENCRYPT", "")
	}
	all, errs := make([]A, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { all[r], errs[r] = start(context.Background(), r) })
	}
	wg.Wait()
	for r, a := range all {
		if errs[r] == nil {
			t.Cleanup(func() {
				if err := a.Close(); err != nil {
					t.Errorf("close of %v: %v", a, err)
				}
			})
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return all
}

// Eventually waits until something is so. It collects garbage meanwhile: what has been
// dropped may be what is waited for.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after 30 s: %s", what)
		}
		runtime.GC()
	}
}

// A Process is the test's program once more, until the end of the test kills it.
type Process struct {
	*os.Process
	In  io.Writer
	out *bufio.Scanner
}

// Begin starts the test's program with args.
func Begin(t testing.TB, args ...string) *Process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // which closes the pipes
	})
	return &Process{cmd.Process, in, bufio.NewScanner(out)}
}

// Await reads up to a line that begins so, and returns it.
func (p *Process) Await(t testing.TB, begin string) string {
	t.Helper()
	var said []string
	for p.out.Scan() {
		line := p.out.Text()
		if strings.HasPrefix(line, begin) {
			return line
		}
		said = append(said, line)
	}
	t.Fatalf("process %d has ended:\n%s", p.Pid, strings.Join(said, "\n"))
	return ""
}
