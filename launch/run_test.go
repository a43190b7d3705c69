// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRunOutput(t *testing.T) {
	checkLeaks(t, func() {
		var out, errs output
		cfg := self(t, 3, "hello")
		cfg.Stdout, cfg.Stderr = &out, &errs
		if err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		got := lines(out.String())
		slices.Sort(got)
		if want := []string{"[rank0] hello from 0", "[rank1] hello from 1", "[rank2] hello from 2"}; !slices.Equal(got, want) {
			t.Errorf("standard output %q, want %q", got, want)
		}
		got = lines(errs.String())
		slices.Sort(got)
		if len(got) != 3 || got[2] != "[rank2] warning from 2, no line end" {
			t.Errorf("standard error %q", got)
		}
	})
}

func TestRunEnvironment(t *testing.T) {
	var out output
	cfg := self(t, 2, "env")
	cfg.Stdout = &out
	cfg.RunID = "job7"
	cfg.Env = append(cfg.Env, "RANK=99", "COHORT_SPAWN=5", "TORCHELASTIC_ERROR_FILE=/outer", "THING=lost", "THING=kept", "COHORT_TOKEN=", "COHORT_NODE_ID=", "COHORT_NUM_THREADS=", "OMP_NUM_THREADS=")
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	env0, env1 := envOf(out.String(), "[rank0] "), envOf(out.String(), "[rank1] ")
	want := map[string]string{
		"RANK": "1", "LOCAL_RANK": "1", "ROLE_RANK": "1", "GROUP_RANK": "0", "ROLE_NAME": "default",
		"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1",
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": env0["MASTER_PORT"],
		"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "job7",
		"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_ERROR_FILE": env1["TORCHELASTIC_ERROR_FILE"], "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
		"OMP_NUM_THREADS": "1", "COHORT_AGENT_FD": "3", "COHORT_NUM_THREADS": strconv.Itoa(max(1, numCores()/2)),
		"COHORT_TOKEN": env0["COHORT_TOKEN"], "COHORT_NODE_ID": env0["COHORT_NODE_ID"], "COHORT_JOB": env0["COHORT_JOB"],
		"THING": "kept",
	}
	for k, v := range want {
		if got, ok := env1[k]; !ok || got != v {
			t.Errorf("rank 1 has %s=%q, want %q", k, got, v)
		}
	}
	if v, ok := env1["COHORT_SPAWN"]; ok {
		t.Errorf("a rank of Run has COHORT_SPAWN=%s of its launcher", v)
	}
	if ok, _ := regexp.MatchString(`/job7_[0-9a-f]{8}/attempt_0/1/error.json$`, env1["TORCHELASTIC_ERROR_FILE"]); !ok {
		t.Errorf("error file %q", env1["TORCHELASTIC_ERROR_FILE"])
	} else if _, err := os.Stat(filepath.Dir(env1["TORCHELASTIC_ERROR_FILE"])); err == nil {
		t.Errorf("the directory of error files is still there, though nobody has asked for it")
	}
	if env0["RANK"] != "0" {
		t.Errorf("rank 0 has RANK=%q", env0["RANK"])
	}
	if !strings.Contains(out.String(), "[rank0] COHORT_TOKEN="+strings.Repeat("*", 64)+"\n") {
		t.Errorf("the token is not covered in\n%s", out.String())
	}
	if len(env0["COHORT_TOKEN"]) != len(parted(strings.Repeat("0", 64))) || env0["COHORT_NODE_ID"] == "" || env0["COHORT_JOB"] == "" {
		t.Errorf("token %q, node %q, job %q", env0["COHORT_TOKEN"], env0["COHORT_NODE_ID"], env0["COHORT_JOB"])
	}
	if port, err := strconv.Atoi(env0["MASTER_PORT"]); err != nil || port < 1024 {
		t.Errorf("MASTER_PORT=%q", env0["MASTER_PORT"])
	}
}

func TestRunKeepsGivenValues(t *testing.T) {
	token := strings.Repeat("ab", 32)
	var out output
	cfg := self(t, 1, "env")
	cfg.Stdout = &out
	cfg.Env = append(cfg.Env, "COHORT_TOKEN="+token, "COHORT_NODE_ID=n7", "COHORT_NUM_THREADS=3", "OMP_NUM_THREADS=5")
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	env := envOf(out.String(), "[rank0] ")
	for k, v := range map[string]string{"COHORT_TOKEN": parted(token), "COHORT_NODE_ID": "n7", "COHORT_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"} {
		if env[k] != v {
			t.Errorf("%s=%q, want %q", k, env[k], v)
		}
	}

	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var second output
	cfg.Stdout = &second
	cfg.Env = append(cfg.Env, "COHORT_TOKEN=", "COHORT_TOKEN_FILE="+path)
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if got := envOf(second.String(), "[rank0] ")["COHORT_TOKEN"]; got != parted(token) {
		t.Errorf("the token is %q, its file has %q", got, token)
	}
}

// 20 MB at once from each of two ranks: every line whole, none lost, in order.
func TestRunBurst(t *testing.T) {
	const size = 20 << 20
	var out bytes.Buffer
	cfg := self(t, 2, "burst:"+strconv.Itoa(size))
	cfg.Stdout = &out
	start := time.Now()
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Logf("2 × %d MiB in %v", size>>20, time.Since(start).Round(time.Millisecond))
	var next, bytesOf [2]int
	for line := range strings.Lines(out.String()) {
		head, rest, _ := strings.Cut(line, "] ")
		who, rest, _ := strings.Cut(rest, " ")
		no, xs, _ := strings.Cut(rest, " ")
		r, i := int(who[0]-'0'), 0
		if r < 2 {
			i = next[r]
		}
		if head != "[rank"+who || r > 1 || no != strconv.Itoa(i) || len(xs) != i%300+1 {
			t.Fatalf("line %v is %q", next, line)
		}
		next[r]++
		bytesOf[r] += len(line) - len("[rank0] ")
	}
	if bytesOf[0] < size || bytesOf[1] < size {
		t.Errorf("%v bytes arrived, at least %d were written by each", bytesOf, size)
	}
}

func TestRunFailure(t *testing.T) {
	checkLeaks(t, func() {
		cfg := self(t, 3, "exit:1=42")
		cfg.FailGrace = time.Minute // the others are to end by themselves
		cfg.Stdout, cfg.Stderr = &output{}, &output{}
		err := ended(t, Run(t.Context(), cfg))
		if len(err.Failures) != 1 || ExitCode(err) != 1 {
			t.Fatalf("failures %+v, code %d", err.Failures, ExitCode(err))
		}
		f := err.Failures[0]
		if f.Rank != 1 || f.LocalRank != 1 || f.Code != 42 || f.Signal != 0 || f.PID == 0 || f.Host == "" || f.Stopped ||
			!slices.Equal(f.Tail, []string{"first line", "reason of the end"}) {
			t.Errorf("failure %+v", f)
		}
		var report strings.Builder
		err.Report(&report)
		for _, want := range []string{"rank 1 exited with code 42", "local rank 1", "host " + f.Host, "pid " + strconv.Itoa(f.PID), "    | reason of the end\n"} {
			if !strings.Contains(report.String(), want) {
				t.Errorf("the report lacks %q:\n%s", want, &report)
			}
		}
	})
}

// kill -9 of one rank: the other hears of it, with the signal, and ends by itself.
func TestRunRankKilled(t *testing.T) {
	var out output
	cfg := self(t, 2, "news")
	cfg.Stdout = &out
	cfg.FailGrace = time.Minute
	result := make(chan error, 1)
	go func() { result <- Run(t.Context(), cfg) }()
	out.await(t, 2, "ready")
	var pid int
	for _, line := range lines(out.String()) {
		if v, ok := strings.CutPrefix(line, "[rank1] ready "); ok {
			pid, _ = strconv.Atoi(v)
		}
	}
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := ended(t, <-result)
	if d := time.Since(start); d > soon {
		t.Errorf("the job took %v to end", d)
	}
	if want := fmt.Sprintf("pid %d) ended by signal: killed, <nil>", pid); !strings.Contains(out.String(), "[rank0] news: rank 1 (host ") || !strings.Contains(out.String(), want) {
		t.Errorf("rank 0 heard:\n%s", out.String())
	}
	if len(err.Failures) != 2 || err.Failures[0].Rank != 1 || err.Failures[0].Signal != syscall.SIGKILL || err.Failures[1].Rank != 0 || err.Failures[1].Code != 1 {
		t.Errorf("failures %+v", err.Failures)
	}
	if !strings.Contains(err.Error(), "rank 1 of 2 was killed by SIGKILL") {
		t.Errorf("error %q", err)
	}
}

// A rank that does not care gets SIGTERM after FailGrace, SIGKILL after Grace.
func TestRunFailureOthersAreEnded(t *testing.T) {
	for _, role := range []string{"wait", "deaf"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			var out output
			cfg := self(t, 2, role)
			cfg.Stdout = &out
			cfg.FailGrace = 50 * time.Millisecond
			if role == "deaf" {
				cfg.Grace = 200 * time.Millisecond
			}
			result := make(chan error, 1)
			go func() { result <- Run(t.Context(), cfg) }()
			out.await(t, 2, "ready")
			pid := out.numbers("ready")[0]
			_ = syscall.Kill(pid, syscall.SIGKILL)
			err := ended(t, <-result)
			want := map[string]syscall.Signal{"wait": syscall.SIGTERM, "deaf": syscall.SIGKILL}[role]
			if len(err.Failures) != 2 || err.Failures[0].PID != pid || err.Failures[0].Stopped || !err.Failures[1].Stopped || err.Failures[1].Signal != want {
				t.Errorf("failures %+v, want the second stopped by %v", err.Failures, want)
			}
		})
	}
}

func TestRunCancel(t *testing.T) {
	checkLeaks(t, func() {
		var out output
		cfg := self(t, 2, "wait")
		cfg.Stdout = &out
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		go func() { out.await(t, 2, "ready"); cancel(enough) }()
		err := ended(t, Run(ctx, cfg))
		if !errors.Is(err, enough) || err.Error() != "stopped: enough" {
			t.Errorf("error %v", err)
		}
		for _, f := range err.Failures {
			if !f.Stopped || f.Signal != syscall.SIGTERM {
				t.Errorf("failure %+v", f)
			}
		}
	})
}

// What workers leave running is ended with the job, wherever it has gone.
func TestRunOrphans(t *testing.T) {
	kinds := []string{"group"}
	if runtime.GOOS == "linux" {
		kinds = append(kinds, "daemon", "hidden")
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, Config{NumRanks: 2, Exclusive: true}, "parent:"+kind)
			if code, _ := a.end(t); code != 0 {
				t.Errorf("exit code %d\n%s", code, a.errs.String())
			}
			if !strings.Contains(a.errs.String(), "processes that the ranks had left running") {
				t.Errorf("nothing is said of the orphans: %q", a.errs.String())
			}
			pids := a.out.numbers("child")
			if len(pids) != 2 {
				t.Fatalf("output %q", a.out.String())
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, 0); err == nil {
					t.Errorf("process %d is left", pid)
				}
			}
		})
	}
}

// A program that runs an agent among other things keeps its own children.
func TestRunLeavesOtherChildren(t *testing.T) {
	other, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Kill(); _, _ = other.Wait() }()
	cfg := self(t, 1, "parent:group,daemon")
	cfg.Stdout, cfg.Stderr = &output{}, &output{}
	later := make(chan *os.Process, 1)
	go func() {
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Env: []string{}})
		if err != nil {
			t.Error(err)
		}
		later <- p
	}()
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	p := <-later
	defer func() { _ = p.Kill(); _, _ = p.Wait() }()
	for _, p := range []*os.Process{other, p} {
		if err := p.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("a child of the caller: %v", err)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	busy := l.Addr().(*net.TCPAddr).Port
	tests := []struct {
		change func(*Config)
		field  string
		want   string
	}{
		{func(c *Config) { c.Program = "" }, "Program", "no program"},
		{func(c *Config) { c.NumRanks = 0 }, "NumRanks", "0 ranks"},
		{func(c *Config) { c.NumRanks = 1 << 30 }, "NumRanks", "1073741824 ranks on a machine of"},
		{func(c *Config) { c.MasterPort = busy }, "MasterPort", fmt.Sprintf("port %d on 127.0.0.1 is in use", busy)},
		{func(c *Config) { c.MasterPort = 70000 }, "MasterPort", "1 to 65535"},
		{func(c *Config) { c.MasterAddr = "192.0.2.1" }, "MasterAddr", "not an address of this machine"},
		{func(c *Config) { c.Dir = "/no/such" }, "Dir", "/no/such"},
		{func(c *Config) { c.Env = append(c.Env, "COHORT_TOKEN=short") }, "Env", "COHORT_TOKEN"},
		{func(c *Config) { c.Env = append(c.Env, "COHORT_TOKEN=", "COHORT_TOKEN_FILE=/no/such") }, "Env", "COHORT_TOKEN_FILE: open /no/such"},
	}
	for _, tt := range tests {
		cfg := self(t, 1, "exit:none")
		tt.change(&cfg)
		err := Run(t.Context(), cfg)
		var bad *ConfigError
		if !errors.As(err, &bad) || bad.Field != tt.field || !strings.Contains(err.Error(), tt.want) || ExitCode(err) != 2 {
			t.Errorf("error %v, want a ConfigError of %s with %q", err, tt.field, tt.want)
		}
	}
}

// 64 ranks; one is killed; all are gone soon.
func TestRunMany(t *testing.T) {
	if testing.Short() {
		t.Skip("64 processes")
	}
	var out output
	cfg := self(t, min(64, maxRanksPerCore*numCores()), "news")
	cfg.Stdout = &out
	result := make(chan error, 1)
	go func() { result <- Run(t.Context(), cfg) }()
	out.await(t, cfg.NumRanks, "ready")
	start := time.Now()
	_ = syscall.Kill(out.numbers("ready")[7], syscall.SIGKILL)
	err := ended(t, <-result)
	t.Logf("%d ranks ended %v after the kill of one", cfg.NumRanks, time.Since(start).Round(time.Millisecond))
	if len(err.Failures) != cfg.NumRanks || err.Failures[0].Signal != syscall.SIGKILL {
		t.Errorf("%d failures, the first %+v", len(err.Failures), err.Failures[0])
	}
}

// TestManyRanks: of 64 ranks in an all-reduce that one of them keeps waiting, one is
// killed. All are gone within two seconds (more where it takes long to start them), and nothing
// of them is left: no process, no
// named shared memory, no file but the dumps that the report names. (Sockets of ranks have
// names that end with them.)
func TestManyRanks(t *testing.T) {
	const ranks = "64"
	tmp := t.TempDir()
	segments := func() []string {
		names, _ := filepath.Glob("/dev/shm/*")
		return names
	}
	before := segments()
	begin := time.Now()
	a := startProcess(t, `agent:{"NumRanks":`+ranks+`}`, "LAUNCH_TEST_WORKER=reduce:5+polite", "TMPDIR="+tmp)
	a.out.await(t, 64, "ready")
	up := time.Since(begin)
	pid := a.out.numbers("[rank40] ready")[0]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code, took := a.end(t)
	t.Logf("%s ranks were there after %v, and gone %v after one was killed", ranks, up, took)
	if code != 1 || took > 2*time.Second+5*up {
		t.Errorf("exit code %d after %v", code, took)
	}
	if report := a.errs.String(); !strings.Contains(report, "rank 40 was killed by SIGKILL") {
		t.Errorf("the report does not name the rank:\n%s", report)
	}
	if left := marked(a.mark); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	eventually(t, func() string { // other programs of the machine have some, for a moment
		left := slices.DeleteFunc(segments(), func(s string) bool { return slices.Contains(before, s) })
		return strings.Join(left, ", ")
	})
	files, _ := filepath.Glob(tmp + "/*")
	if files = slices.DeleteFunc(files, func(s string) bool { return strings.Contains(a.errs.String(), s) }); len(files) > 0 {
		t.Errorf("files left: %v", files)
	}
}
