// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/transport"
)

func cohort(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestBadCommandLines(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ args, want string }{
		{"rum", "unknown command rum for cohort: did you mean run?"},
		{"quite-else", "unknown command quite-else for cohort (cohort --help"},
		{"env x", "unknown command x for cohort env"},
		{"env variables x", `cohort env variables takes no argument, got "x"`},
		{"env diff a", "env diff needs two FILEs, got 1 arguments"},
		{"run", "needs a program"},
		{"run --nproc-per-nod 2 true", "unknown flag --nproc-per-nod for cohort run: did you mean --nproc-per-node?"},
		{"run --zzzzzzzzzzzzz true", "unknown flag --zzzzzzzzzzzzz for cohort run (cohort run --help"},
		{"run -q true", "unknown flag 'q' in -q for cohort run (cohort run --help"},
		{"run -mqr 3 true", "unknown flag 'q' in -qr for cohort run"},
		{"run --nproc-per-node", "needs an argument"},
		{"run --nproc-per-node two true", "--nproc-per-node two: give a number"},
		{"run --nproc-per-node 0 true", "--nproc-per-node 0: give a number of at least 1"},
		{"run --nproc-per-node xpu true", "--nproc-per-node xpu: Intel's"},
		{"run --nproc-per-node 1000000 true", "1000000 ranks on a machine of"},
		{"run --nnodes 0 true", "--nnodes 0: give the number of machines"},
		{"run --nnodes 3:2 true", "--nnodes 3:2: give the number of machines"},
		{"run --nnodes 1:2:3 true", "--nnodes 1:2:3: give the number of machines"},
		{"run --nnodes 1:4 true", "--nnodes 1:4 and --rdzv-backend static contradict each other"},
		{"run --node-rank 1 true", "--node-rank 1 and --nnodes 1:1 contradict each other: the ranks of machines are 0 to 0"},
		{"run --node-rank -1 true", "--node-rank -1: ranks begin with 0"},
		{"run --standalone --nnodes 2 true", "--standalone and --nnodes 2 contradict each other"},
		{"run --max-restarts -3 true", "--max-restarts -3: give 0 or more"},
		{"run --max-restarts x true", "--max-restarts"},
		{"run --master-port 0 true", "--master-port 0: ports are"},
		{"run --master_port " + port + " true", "master port " + port + " on 127.0.0.1 is in use"},
		{"run --master-addr 192.0.2.1 true", "not an address of this machine"},
		{"run --rdzv-backend c10d --local-addr 192.0.2.1 true", "not an address of this machine"},
		{"run -m --no-python true", "--module and --no-python contradict each other"},
		{"run -m --run_path true", "--module and --run-path contradict each other"},
		{"run --rdzv-backend zoo true", "--rdzv-backend zoo: there are static, c10d, etcd"},
		{"run --rdzv-backend c10d --rdzv-endpoint 192.0.2.77:29400 true", `"192.0.2.77" is not this machine`},
		{"run --rdzv_endpoint localhost:http true", `port "http"`},
		{"run --rdzv-endpoint localhost:29400 --master-port 29500 true", "--rdzv-endpoint localhost:29400 is not what --master-port 29500 say"},
		{"run --rdzv-conf a true", `--rdzv-conf a: "a" is no key=value`},
		{"run --rdzv-conf a=1,=2 true", `"=2" is no key=value`},
		{"run --log-dir " + script + " true", "log directory " + script + " is, or is below, a file"},
		{"run -r 7 true", `--redirects "7": neither a number nor rank:number: give 0 (none), 1 (stdout)`},
		{"run --tee 0:3,1:x true", `--tee "0:3,1:x": "x" is not 0 to 3`},
		{"run --local_ranks_filter 0,a true", "--local-ranks-filter 0,a: give local ranks"},
		{"run --numa-binding nodes true", "--numa-binding nodes: there are node, socket, exclusive and core-complex"},
		{"run --logs-specs mine true", "--logs-specs is a flag of torchrun"},
		{"run --event-log-handler console true", "only null"},
		{"run --start-method thread true", "--start-method thread: there are spawn, fork and forkserver"},
		{"run --signals-to-handle SIGTERM,SIGWHAT true", `--signals-to-handle SIGTERM,SIGWHAT: "SIGWHAT" is no signal`},
		{"run --shutdown-timeout -1 true", "--shutdown-timeout -1: give a number of seconds"},
		{"run --monitor-interval -1 true", "--monitor-interval -1: give a number of seconds"},
		{"run no-such-program", "not in PATH"},
		{"run ./no/such", "program ./no/such does not exist"},
		{"run " + script, "is not executable"},
	}
	for _, tt := range tests {
		code, out, errs := cohort(strings.Fields(tt.args)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, tt.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("cohort %s: code %d, printed %q and %q, want code 2 and one line with %q", tt.args, code, out, errs, tt.want)
		}
	}
}

func TestRun(t *testing.T) {
	code, out, errs := cohort("run", "--nproc_per_node=2", "--standalone", "--nnodes=1:1", "--max_restarts=0",
		"sh", "-c", "echo rank $RANK of $WORLD_SIZE: $1", "--", "--nproc-per-node")
	if code != 0 || errs != "" {
		t.Errorf("code %d, standard error %q", code, errs)
	}
	for _, want := range []string{"[rank0] rank 0 of 2: --nproc-per-node\n", "[rank1] rank 1 of 2: --nproc-per-node\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("standard output %q lacks %q", out, want)
		}
	}
	code, _, errs = cohort("run", "--nproc-per-node", "2", "sh", "-c", `echo no luck >&2; exit $((7 * RANK))`)
	if code != exitFailed || !strings.Contains(errs, "rank 1 exited with code 7") || !strings.Contains(errs, "    | no luck\n") {
		t.Errorf("code %d, standard error %q", code, errs)
	}
}

// TestRunAsTorchrun: command lines that torchrun takes on one machine work; what they
// say that one machine has no use for is told.
func TestRunAsTorchrun(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	show := []string{"sh", "-c", "echo $MASTER_ADDR:$MASTER_PORT $ROLE_NAME $TORCHELASTIC_RUN_ID"}
	for args, want := range map[string]string{
		"--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:29400 --rdzv-id=456": "[rank0] 127.0.0.1:[0-9]+ default 456\n",
		"--rdzv_backend c10d --rdzv_endpoint " + name + " --role trainer":              "[rank0] 127.0.0.1:[0-9]+ trainer none\n",
		"--rdzv-endpoint 127.0.0.2:0 --monitor-interval 0.1 --start-method fork":       "[rank0] 127.0.0.2:[0-9]+ default none\n",
		"--standalone --rdzv-backend c10d --rdzv-conf timeout=9":                       "[rank0] 127.0.0.1:[0-9]+ default [A-Z0-9]{26}\n",
		"--rdzv-backend c10d --local-addr 127.0.0.3":                                   "[rank0] 127.0.0.3:[0-9]+ default none\n",
	} {
		code, out, errs := cohort(append(append([]string{"run"}, strings.Fields(args)...), show...)...)
		if ok, err := regexp.MatchString("^"+strings.ReplaceAll(want, "[rank0]", `\[rank0\]`)+"$", out); code != 0 || strings.Count(errs, "\n") != strings.Count(errs, " has no effect ") || err != nil || !ok {
			t.Errorf("cohort run %s: code %d, printed %q and %q, want %q", args, code, out, errs, want)
		}
	}
}

// A token file has the job's token, if nobody else can read it.
func TestRunTokenFile(t *testing.T) {
	t.Setenv("COHORT_TOKEN", strings.Repeat("ef", 32)) // the flag counts
	path := filepath.Join(t.TempDir(), "token")
	token := strings.Repeat("ab", 32)
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--token-file", path, "sh", "-c", `echo "$COHORT_TOKEN" | tr ab cd`}
	if code, out, errs := cohort(args...); code != 0 || out != "[rank0] "+strings.Repeat("cd", 32)+"\n" {
		t.Errorf("code %d, printed %q and %q", code, out, errs)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs := cohort(args...)
	if code != exitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "chmod 600 "+path) || !strings.Contains(errs, "--token-file: ") || strings.Contains(errs, "COHORT_TOKEN_FILE") || strings.Contains(errs, token) {
		t.Errorf("readable by others: code %d, printed %q and %q", code, out, errs)
	}
}

func TestToken(t *testing.T) {
	_, a, _ := cohort("token")
	code, b, _ := cohort("token")
	if code != 0 || a == b || len(a) != 65 || strings.Trim(a, "0123456789abcdef\n") != "" {
		t.Errorf("tokens %q and %q, code %d", a, b, code)
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	code, out, errs := cohort("token", "--file", path)
	token, err := transport.ReadTokenFile(path)
	if code != 0 || out != "" || errs != "" || err != nil {
		t.Errorf("code %d, printed %q and %q; %v", code, out, errs, err)
	}
	code, _, errs = cohort("token", "--file", path)
	if again, err := transport.ReadTokenFile(path); code != exitUsage || !strings.Contains(errs, "the file exists") || !strings.Contains(errs, "cohort run --token-file") || err != nil || !again.Equal(token) {
		t.Errorf("a file that is there: code %d, %q, %v", code, errs, err)
	}
}

func TestEnv(t *testing.T) {
	t.Setenv("COHORT_NODE_ID", "n7")
	t.Setenv("COHORT_TOKEN", "hush-hush")
	code, out, _ := cohort("env", "variables")
	if code != 0 || strings.Contains(out, "hush-hush") {
		t.Errorf("code %d, printed\n%s", code, out)
	}
	for _, want := range []string{"COHORT_NODE_ID ", " n7 ", "MASTER_PORT "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestHelp(t *testing.T) {
	code, out, _ := cohort("--help")
	if code != 0 {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{"run ", "env ", "token "} {
		if !strings.Contains(out, "\n  "+want) {
			t.Errorf("the help does not list %q:\n%s", want, out)
		}
	}
}

// TestRunSurvivors: with the flag, the rank that is left goes on, and the code is its.
func TestRunSurvivors(t *testing.T) {
	args := []string{"--nproc-per-node", "2", "sh", "-c", `[ "$RANK" = 1 ] && exit 3; sleep "$1"; echo went on`, "sh"}
	code, out, errs := cohort(append(append([]string{"run", "--survivors"}, args...), "1.3")...)
	if code != 0 || out != "[rank0] went on\n" || !strings.Contains(errs, "ended well without 1 of its 2 ranks: rank 1 exited with code 3, and the others went on") {
		t.Errorf("code %d, printed %q and\n%s", code, out, errs)
	}
	if code, out, _ := cohort(append(append([]string{"run"}, args...), "60")...); code != 1 || out != "" {
		t.Errorf("without the flag: code %d, printed %q", code, out)
	}
}
