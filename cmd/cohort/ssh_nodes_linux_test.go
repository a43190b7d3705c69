// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
)

// hostAgents returns the agents that run from copies in a directory.
func hostAgents(cache string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), cache) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// nothingLeft waits until neither agents nor ranks of a job are there.
func (s *sshHosts) nothingLeft(t *testing.T, what string, j *job) {
	t.Helper()
	j.gone(t)
	for deadline := time.Now().Add(30 * time.Second); len(hostAgents(s.cache)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: agents %v are still there", what, hostAgents(s.cache))
		}
	}
}

// TestRunOnHosts plays jobs on two machines that real servers of ssh serve: training with a
// copied binary, Ctrl-C, a launcher that is killed, a host that is cut off, and training that
// goes on with one host more. Nothing is left each time.
func TestRunOnHosts(t *testing.T) {
	if !*elastic {
		t.Skip("go test ./cmd/cohort -run TestRunOnHosts -elastic -v, as root")
	}
	m := newMachines(t, 3)
	var addrs []string
	for i := range 2 {
		addrs = append(addrs, m.addr(i+1)+":2222")
	}
	s := newSSHHosts(t, []string{"a", "b"}, addrs, func(i int, start func()) { m.in(m.names[i+1], start) })
	work := t.TempDir()
	out := filepath.Join(work, "run")
	run := func(more ...string) (j *job) {
		m.in(m.names[0], func() {
			j = start(t, nil, append([]string{"run", "--copy", "--remote-dir", work, "--ssh", s.command() + " -o ServerAliveInterval=1 -o ServerAliveCountMax=2", "--shutdown-timeout", "5"}, more...)...)
		})
		return j
	}
	e := &elasticJob{text: writeText(t)}

	began := time.Now()
	j := run(append([]string{"--hosts", "a:2,b", os.Args[0]}, e.command(out, 20)...)...)
	if code := j.wait(t); code != 0 {
		stdout, stderr := j.output()
		t.Fatalf("training: code %d\n%s\n%s", code, stdout, stderr)
	}
	if got := losses(t, j); len(got) != 20 {
		t.Errorf("%d losses, want 20", len(got))
	}
	t.Logf("training with copies ended after %v", time.Since(began).Round(time.Millisecond))
	s.nothingLeft(t, "training", j)

	began = time.Now()
	j = run("--hosts", "a,b", "/bin/sh", "-c", "echo up $RANK of $WORLD_SIZE; exec sleep 600")
	up := func(stdout string) bool {
		return strings.Contains(stdout, "up 0 of 2") && strings.Contains(stdout, "up 1 of 2")
	}
	j.await(t, "both ranks", up)
	t.Logf("ranks of two hosts ran after %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	_ = j.cmd.Process.Signal(syscall.SIGINT)
	if code := j.wait(t); code != 1 {
		t.Errorf("Ctrl-C: code %d, want 1", code)
	}
	s.nothingLeft(t, "Ctrl-C", j)
	t.Logf("Ctrl-C ended all after %v", time.Since(began).Round(time.Millisecond))

	j = run("--hosts", "a,b", "/bin/sh", "-c", "echo up $RANK of $WORLD_SIZE; exec sleep 600")
	j.await(t, "both ranks", up)
	began = time.Now()
	_ = j.cmd.Process.Kill()
	s.nothingLeft(t, "kill -9", j)
	t.Logf("after kill -9 all had ended after %v", time.Since(began).Round(time.Millisecond))

	j = run("--hosts", "a,b", "/bin/sh", "-c", "echo up $RANK of $WORLD_SIZE; exec sleep 600")
	j.await(t, "both ranks", up)
	began = time.Now()
	m.cut(2, true)
	if code := j.wait(t); code != 1 {
		t.Errorf("cut off: code %d, want 1", code)
	}
	if _, stderr := j.output(); !strings.Contains(stderr, "host b: the connection has ended") {
		t.Errorf("cut off: %s", stderr)
	}
	t.Logf("the job without host b ended after %v", time.Since(began).Round(time.Millisecond))
	m.cut(2, false)
	s.nothingLeft(t, "cut off", j)

	// The same directory: it goes on from step 20.
	j = run(append([]string{"--hosts", "b,a", "--nnodes", "1:2", os.Args[0]}, e.command(out, 40)...)...)
	if code := j.wait(t); code != 0 {
		stdout, stderr := j.output()
		t.Fatalf("training goes on: code %d\n%s\n%s", code, stdout, stderr)
	}
	got := losses(t, j)
	if _, again := got[20]; again || len(got) != 20 {
		t.Errorf("%d losses, want those of steps 21 to 40", len(got))
	}
	if _, err := os.Stat(checkpoint.Path(out, 40)); err != nil {
		t.Error(err)
	}
	s.nothingLeft(t, "training goes on", j)
}
