// SPDX-License-Identifier: Apache-2.0

package mpirank

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

// keeps has this test binary be a keeper: its value is the grace.
const keeps = "MPIRANK_TEST_KEEPS"

func TestMain(m *testing.M) {
	if grace, err := time.ParseDuration(os.Getenv(keeps)); err == nil {
		k := Keeper{Command: os.Args[1:], Grace: grace}
		code, by, err := k.Run(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
		Exit(code, by)
	}
	os.Exit(m.Run())
}

// kept is a keeper that a test has started, as hydra starts it: in a session of its own.
type kept struct {
	t    *testing.T
	cmd  *exec.Cmd
	rank int // process
	out  *bufio.Reader
	says bytes.Buffer // on stderr; valid after ends
}

// keep starts a keeper of a rank that is a shell, and waits until the rank has printed its
// number.
func keep(t *testing.T, grace, script string) *kept {
	t.Helper()
	k := &kept{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0], "/bin/sh", "-c", "echo $$; "+script)}
	k.cmd.Env = append(os.Environ(), keeps+"="+grace, "PMI_RANK=3", "PMI_SIZE=4")
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	k.cmd.Stderr = &k.says
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	k.cmd.Stdout = w
	err = k.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	k.out = bufio.NewReader(r)
	line, err := k.out.ReadString('\n')
	if err == nil {
		k.rank, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		t.Fatalf("the rank has printed %q: %v", line, err)
	}
	return k
}

// ends waits for the end of the keeper, and says how it has ended and how long it took.
func (k *kept) ends() (string, time.Duration) {
	begun := time.Now()
	_ = k.cmd.Wait()
	return k.cmd.ProcessState.String(), time.Since(begun)
}

// gone waits until nobody has the keeper's output open, and the rank has ended.
func (k *kept) gone() string {
	k.t.Helper()
	rest, err := io.ReadAll(k.out)
	if err != nil {
		k.t.Fatal(err)
	}
	k.awaitRank()
	return string(rest)
}

// awaitRank waits until the rank has ended.
func (k *kept) awaitRank() {
	k.t.Helper()
	for limit := time.Now().Add(loaded.Allow(5 * time.Second)); syscall.Kill(k.rank, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			k.t.Fatalf("process %d of the rank still exists", k.rank)
		}
	}
}

// TestKeeper: a keeper ends as its rank does. If the rank ends badly, the keeper stays for its
// grace.
func TestKeeper(t *testing.T) {
	const grace = 300 * time.Millisecond
	for _, c := range []struct {
		script, ends string
		badly        bool
	}{
		{"exit 0", "exit status 0", false},
		{"exit 7", "exit status 7", true},
		{"kill -KILL $$", "signal: killed", true},
		{"kill -SEGV $$", "exit status 139", true},
		{"kill -TERM $$", "signal: terminated", true},
	} {
		t.Run(c.script, func(t *testing.T) {
			k := keep(t, grace.String(), c.script)
			ends, took := k.ends()
			if ends != c.ends {
				t.Errorf("the keeper: %s, want %s", ends, c.ends)
			}
			if c.badly && took < grace-50*time.Millisecond {
				t.Errorf("the keeper ended after %v, want %v", took, grace)
			}
			if want := fmt.Sprintf("cohort: rank 3 (host %s, pid %d) died: killed;", hostname(t), k.rank); strings.Contains(c.script, "KILL") != strings.Contains(k.says.String(), want) {
				t.Errorf("the keeper has said %q, and of a killed rank it says %q", k.says.String(), want)
			}
			k.gone()
		})
	}
}

func hostname(t *testing.T) string {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// TestKilledKeeper: the rank of a keeper that was killed, as hydra kills it, goes on for its
// grace, and then is killed.
func TestKilledKeeper(t *testing.T) {
	k := keep(t, "300ms", "sleep 0.1; echo still there; exec sleep 1000")
	if err := syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	k.ends()
	if said := k.gone(); said != "still there\n" {
		t.Errorf("the rank has said %q", said)
	}
}

// TestSignals: the rank gets the signals of its keeper.
func TestSignals(t *testing.T) {
	for _, c := range []struct{ trap, send string }{{"USR1", "USR1"}, {"TERM", "TERM"}, {"INT", "INT"}} {
		k := keep(t, "300ms", "trap 'echo "+c.trap+"; exit 0' "+c.trap+"; echo ready; while :; do sleep 0.01; done")
		if line, err := k.out.ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		if err := k.cmd.Process.Signal(map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT}[c.send]); err != nil {
			t.Fatal(err)
		}
		if ends, _ := k.ends(); ends != "exit status 0" {
			t.Errorf("%s: %s", c.send, ends)
		}
		if said := k.gone(); said != c.trap+"\n" {
			t.Errorf("%s: the rank has said %q", c.send, said)
		}
	}
}

// TestEndOfGrace: a signal that ends the job also ends a grace.
func TestEndOfGrace(t *testing.T) {
	k := keep(t, "1h", "exit 5")
	k.awaitRank()
	if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if ends, _ := k.ends(); ends != "exit status 5" {
		t.Error(ends)
	}
}

// TestNoProgram: a rank that cannot start is an error at once.
func TestNoProgram(t *testing.T) {
	k := Keeper{Command: []string{"/nowhere/program"}, Grace: time.Hour}
	if _, _, err := k.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "start the rank: ") {
		t.Error(err)
	}
}
