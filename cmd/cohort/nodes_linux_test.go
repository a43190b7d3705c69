// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// freeEndpoint is an address at which nobody listens, nor will by chance until the test
// ends.
func freeEndpoint(t *testing.T) string {
	t.Helper()
	p, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Addr()
}

// listening waits until somebody listens at an address.
func listening(t *testing.T, addr string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody listens at %s", addr)
		}
	}
}

// noStore is an address at which something else than a store answers.
func noStore(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0) // a reset, as of a program that is rude
			c.Close()
		}
	}()
	return l.Addr().String()
}

const showPlace = `echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $GROUP_RANK/$GROUP_WORLD_SIZE role $ROLE_RANK/$ROLE_WORLD_SIZE restarts $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS id $TORCHELASTIC_RUN_ID store $TORCHELASTIC_USE_AGENT_STORE"`

// TestNodes: two agents of this machine meet in every way, and each starts the
// ranks that are its own.
func TestNodes(t *testing.T) {
	token := envvar.Token.Assign(transport.NewToken().Text())
	static, c10d, etcdAt := freeEndpoint(t), freeEndpoint(t), freeEndpoint(t)
	_, port, _ := net.SplitHostPort(static)
	for _, c := range []struct {
		name  string
		flags string
	}{
		{"static", "--nnodes 2 --master-port " + port},
		{"c10d", "--nnodes 2:2 --rdzv-backend c10d --rdzv-endpoint " + c10d},
		{"file", "--nnodes 2:2 --rdzv-backend file --rdzv-endpoint " + filepath.Join(t.TempDir(), "meeting")},
		{"etcd", "--nnodes 2:2 --rdzv-backend etcd --rdzv-endpoint " + etcdAt},
		{"c10d in a file", "--nnodes 2 --rdzv-backend c10d --rdzv-conf store_type=file --rdzv-endpoint " + filepath.Join(t.TempDir(), "meeting")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "etcd" {
				startEtcd(t, etcdAt, freeEndpoint(t), func(start func()) { start() })
			}
			var jobs []*job
			for node := range 2 {
				args := append([]string{"run"}, strings.Fields(c.flags)...)
				args = append(args, "--rdzv-id", "two", "--max-restarts", "2", "--nproc-per-node", strconv.Itoa(node+1))
				if c.name == "static" {
					args = append(args, "--node-rank", strconv.Itoa(node))
				}
				jobs = append(jobs, start(t, []string{token}, append(args, "/bin/sh", "-c", showPlace)...))
			}
			all := ""
			for i, j := range jobs {
				code := j.wait(t)
				stdout, stderr := j.output()
				if all += stdout; code != 0 || strings.Count(stdout, "\n") != i+1 {
					t.Errorf("agent %d: code %d, %q, %q", i, code, stdout, stderr)
				}
			}
			for _, want := range []string{"rank 0/3 ", "rank 1/3 ", "rank 2/3 ", "node 0/2 ", "node 1/2 ", "local 1/2", "role 2/3 restarts 0/2 id two store False"} {
				if !strings.Contains(all, want) {
					t.Errorf("no %q in\n%s", want, all)
				}
			}
			if c.name == "static" && !strings.Contains(all, "rank 0/3 local 0/1 node 0/2") {
				t.Errorf("node 0 is not the one with --node-rank 0:\n%s", all)
			}
		})
	}
}

// TestNodesRestart: ranks of all nodes start again when one of them fails, until
// the restarts are used up; each agent then ends with code 1 and says who failed.
func TestNodesRestart(t *testing.T) {
	token, at := envvar.Token.Assign(transport.NewToken().Text()), freeEndpoint(t)
	var jobs []*job
	// Rank 1 fails when rank 0 has said that it runs.
	script := `n=$TORCHELASTIC_RESTART_COUNT; echo "attempt $n"
if [ $RANK = 0 ]; then : >"$0/$n"; exec sleep 60; fi
until [ -e "$0/$n" ]; do sleep 0.02; done; exit 7`
	dir := t.TempDir()
	for range 2 {
		jobs = append(jobs, start(t, []string{token}, "run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", at, "--max-restarts", "1",
			"/bin/sh", "-c", script, dir))
	}
	said := false
	for i, j := range jobs {
		code := j.wait(t)
		stdout, stderr := j.output()
		if code != 1 || !strings.Contains(stdout, "attempt 0") || !strings.Contains(stdout, "attempt 1") || strings.Contains(stdout, "attempt 2") || !strings.Contains(stderr, "rank 1") {
			t.Errorf("agent %d: code %d\n%s\n%s", i, code, stdout, stderr)
		}
		said = said || strings.Contains(stderr, "rank 1 exited with code 7")
	}
	if !said {
		t.Error("no agent says that rank 1 exited with code 7")
	}
}

// TestNodeLeaves: an agent that gets SIGTERM leaves, and the other goes on alone.
func TestNodeLeaves(t *testing.T) {
	token, at := envvar.Token.Assign(transport.NewToken().Text()), filepath.Join(t.TempDir(), "meeting")
	var jobs []*job
	for range 2 {
		jobs = append(jobs, start(t, []string{token}, "run", "--nnodes", "1:2", "--rdzv-backend", "file", "--rdzv-endpoint", at,
			"/bin/sh", "-c", `echo "of $WORLD_SIZE"; if [ $WORLD_SIZE = 1 ]; then exit 0; fi; exec sleep 20`))
	}
	for _, j := range jobs {
		j.await(t, "both ranks", func(stdout string) bool { return strings.Contains(stdout, "of 2") })
	}
	if err := jobs[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := jobs[0].wait(t); code != 1 {
		t.Errorf("who left ended with code %d, want 1", code)
	}
	if code := jobs[1].wait(t); code != 0 {
		_, stderr := jobs[1].output()
		t.Errorf("who stayed ended with code %d:\n%s", code, stderr)
	}
}

// TestNodeWaitsInVain: who still looks for the store ends when it is asked to.
func TestNodeWaitsInVain(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	j := start(t, []string{envvar.Token.Assign(transport.NewToken().Text())}, "run", "--nnodes", "2", "--node-rank", "1", "--master-port", port, "true")
	c, err := silent.Accept() // from here on it waits for an answer
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := j.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := j.wait(t); code != 1 {
		t.Errorf("code %d, want 1", code)
	}
	if _, stderr := j.output(); !strings.Contains(stderr, "stopped by SIGTERM") {
		t.Errorf("standard error %q", stderr)
	}
}

// TestNodesAgain: one job follows the other at the same endpoint, on each node as
// soon as the one before has ended there.
func TestNodesAgain(t *testing.T) {
	token, at := envvar.Token.Assign(transport.NewToken().Text()), freeEndpoint(t)
	_, port, _ := net.SplitHostPort(at)
	for _, flags := range []string{"--rdzv-backend c10d --rdzv-endpoint " + at, "--rdzv-id other --master-port " + port} {
		var nodes sync.WaitGroup
		for node := range 2 {
			nodes.Go(func() {
				for range 4 {
					// One that fails leaves the other alone: not for ten minutes.
					args := append([]string{"run", "--nnodes", "2", "--rdzv-conf", "join_timeout=30"}, strings.Fields(flags)...)
					if strings.Contains(flags, "--master-port") {
						args = append(args, "--node-rank", strconv.Itoa(node))
					}
					j := start(t, []string{token}, append(args, "true")...)
					if <-j.ended; j.cmd.ProcessState.ExitCode() != 0 {
						_, stderr := j.output()
						t.Errorf("%s, node %d: code %d: %s", flags, node, j.cmd.ProcessState.ExitCode(), stderr)
						return
					}
				}
			})
		}
		nodes.Wait()
	}
}

// TestNodesRefused: what cannot work is one message that says what to do, before
// anything has started.
func TestNodesRefused(t *testing.T) {
	mine, other := envvar.Token.Assign(transport.NewToken().Text()), envvar.Token.Assign(transport.NewToken().Text())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	_, takenPort, _ := net.SplitHostPort(taken.Addr().String())
	serving := freeEndpoint(t)
	served := start(t, []string{mine}, "run", "--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint", serving, "--rdzv-id", "served", "true")
	static := freeEndpoint(t)
	_, port, _ := net.SplitHostPort(static)
	node0 := start(t, []string{mine}, "run", "--nnodes", "3", "--node-rank", "0", "--master-port", port, "true")
	listening(t, serving)
	listening(t, static)
	for _, c := range []struct {
		name, flags string
		env         string
		want        []string
	}{
		{"no token", "--nnodes 2", envvar.Token.Assign(""), []string{"--nnodes 2", "cohort token --file token.txt", "--token-file token.txt"}},
		{"no token for etcd", "--rdzv-backend etcd --rdzv-endpoint 10.0.0.1", envvar.Token.Assign(""), []string{"--rdzv-backend etcd", "--token-file token.txt"}},
		{"another token", "--nnodes 2:3 --rdzv-backend c10d --rdzv-id served --rdzv-endpoint " + serving, other, []string{"wrong token", serving, "--token-file"}},
		{"another job", "--nnodes 2:3 --rdzv-backend c10d --rdzv-id mine --rdzv-endpoint " + serving, mine, []string{`"served"`, `"mine"`, "--rdzv-id served"}},
		{"other numbers", "--nnodes 1:3 --rdzv-backend c10d --rdzv-id served --rdzv-endpoint " + serving, mine, []string{"--nnodes 2:3", "--nnodes 1:3"}},
		{"other restarts", "--nnodes 2:3 --max-restarts 4 --rdzv-backend c10d --rdzv-id served --rdzv-endpoint " + serving, mine, []string{"--max-restarts 0", "has 4"}},
		{"nobody there", "--nnodes 2:3 --rdzv-backend c10d --rdzv-conf is_host=false,read_timeout=0.5 --rdzv-endpoint " + freeEndpoint(t), mine, []string{"out of reach", "is the endpoint right"}},
		{"port in use", "--nnodes 2 --node-rank 0 --master-port " + takenPort, mine, []string{"port in use", takenPort, "another port"}},
		{"no node rank", "--nnodes 2 --master-addr 192.0.2.1", mine, []string{"192.0.2.1:29500", "node 0", "no address of this machine", "if it is another node", "--node-rank"}},
		{"no store", "--nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint " + noStore(t), mine, []string{"no store", "is the endpoint right", "another program"}},
		{"rank taken", "--nnodes 3 --node-rank 0 --rdzv-conf read_timeout=1 --master-port " + port, mine, []string{"port in use"}},
		{"no endpoint", "--nnodes 2:3 --rdzv-backend c10d", mine, []string{"--rdzv-endpoint HOST:PORT"}},
		{"no path", "--nnodes 2:3 --rdzv-backend file", mine, []string{"--rdzv-endpoint PATH"}},
		{"a path that cannot be", "--nnodes 2:3 --rdzv-backend file --rdzv-endpoint /nowhere/at/all", mine, []string{"/nowhere/at/all", "no such file"}},
		{"a setting that is none", "--nnodes 2:3 --rdzv-backend c10d --rdzv-conf last_cal_timeout=3 --rdzv-endpoint " + serving, mine, []string{"last_cal_timeout=3", "last_call_timeout"}},
		{"a time that is none", "--nnodes 2:3 --rdzv-backend c10d --rdzv-conf join_timeout=soon --rdzv-endpoint " + serving, mine, []string{"join_timeout=soon", "seconds"}},
		{"a name that is none", "--nnodes 2:3 --rdzv-id a/b --rdzv-backend c10d --rdzv-endpoint " + serving, mine, []string{`--rdzv-id "a/b"`}},
		{"other signs of life", "--nnodes 2:3 --rdzv-conf keep_alive_interval=5 --rdzv-backend c10d --rdzv-id served --rdzv-endpoint " + serving, mine, []string{"2.5s", "25s", "keep_alive_interval", "give all nodes the same"}},
		{"too many", "--nnodes 2:70000 --rdzv-backend c10d --rdzv-endpoint " + serving, mine, []string{"--nnodes 2:70000", "65536"}},
		{"a name for a terminal", "--nnodes 2:3 --rdzv-id \x1b[2J --rdzv-backend c10d --rdzv-endpoint " + serving, mine, []string{`--rdzv-id "\x1b[2J"`}},
		{"a name that is no text", "--nnodes 2:3 --rdzv-id a\xff --rdzv-backend c10d --rdzv-endpoint " + serving, mine, []string{`--rdzv-id "a\xff"`}},
		{"a role for a terminal", "--nnodes 2:3 --role \x1b[2J --rdzv-backend c10d --rdzv-endpoint " + serving, mine, []string{`--role "\x1b[2J"`}},
		{"survivors", "--nnodes 2 --survivors", mine, []string{"--survivors", "--nnodes 2", "contradict"}},
		{"too few", "--nnodes 2 --rdzv-backend file --rdzv-conf join_timeout=0.5 --rdzv-endpoint " + filepath.Join(t.TempDir(), "lonely"), mine, []string{"1 of at least 2 nodes came within 500ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run"}, strings.Fields(c.flags)...)
			j := start(t, []string{c.env, envvar.TokenFile.Assign("")}, append(args, "/bin/sh", "-c", "echo started")...)
			code := j.wait(t)
			stdout, stderr := j.output()
			if code != 2 || strings.Contains(stdout, "started") {
				t.Errorf("code %d, want 2; standard output %q", code, stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in %q", want, stderr)
				}
			}
		})
	}
	t.Cleanup(func() {
		for _, j := range []*job{served, node0} {
			_ = j.cmd.Process.Signal(os.Interrupt)
			<-j.ended
		}
		if _, stderr := served.output(); !strings.Contains(stderr, "turned away a connection to "+serving+" from 127.0.0.1: the job's token was not proven") {
			t.Errorf("who waits is not told of the other token: %q", stderr)
		}
	})
}
