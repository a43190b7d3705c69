// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

var pythons = flag.String("pythons", strings.ReplaceAll(os.Getenv("COHORT_TEST_PYTHONS"), ":", ","), "Python programs that have PyTorch, separated by commas, beside those that are found")

func init() {
	roles["gloo"], roles["gloowait"], roles["kinds"], roles["differs"] = roleGloo, roleGlooWait, roleKinds, roleDiffers
	roles["client"] = roleClient
}

// roleGloo is a rank of Cohort's that does what testdata/reduce.py does.
func roleGloo(string) int {
	ctx, cancel := context.WithTimeout(context.Background(), loaded.Allow(time.Minute))
	defer cancel()
	g, err := dist.Init(ctx, dist.WithBackend("gloo"))
	if err != nil {
		say("%v", err)
		return 1
	}
	defer g.Close()
	x := tensor.Full(float64(g.Rank()), 3)
	if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
		say("%v", err)
		return 1
	}
	if err := g.Barrier(ctx); err != nil {
		say("%v", err)
		return 1
	}
	say("sum %v of %d, agent %s", x.Float32s()[0], g.Size(), envvar.UseAgentStore.Text())
	return 0
}

// roleClient is a client of PyTorch's store that does not serve one, after its environment.
func roleClient(string) int {
	roleEnv("")
	ctx, cancel := context.WithTimeout(context.Background(), loaded.Allow(20*time.Second))
	defer cancel()
	c, err := store.DialPyTorch(ctx, net.JoinHostPort(envvar.MasterAddr.Text(), envvar.MasterPort.Text()))
	if err != nil {
		say("%v", err)
		return 1
	}
	defer c.Close()
	if err := c.Set(ctx, "key/"+rank(), []byte("value")); err != nil {
		say("%v", err)
		return 1
	}
	v, err := c.Get(ctx, "key/"+rank())
	say("the store has %s, %v", v, err)
	return 0
}

// torches are the Python programs of this machine that have PyTorch.
func torches(t *testing.T) (found []string) {
	if testing.Short() {
		t.Skip("PyTorch takes seconds to start: not with -short")
	}
	candidates := []string{"python3", "/usr/bin/python3"}
	if *pythons != "" {
		candidates = append(candidates, strings.Split(*pythons, ",")...)
	}
	for _, c := range candidates {
		path, err := exec.LookPath(c)
		if err != nil || slices.Contains(found, path) {
			continue
		}
		if exec.CommandContext(t.Context(), path, "-c", "import torch.distributed").Run() == nil {
			found = append(found, path)
		}
	}
	if len(found) == 0 {
		t.Skip("no Python here has PyTorch (apt-get install python3-torch): its scripts are not launched")
	}
	return found
}

// TestPyTorchJobs: PyTorch's ranks meet in the agent's store, also with Go ranks of another
// program, and once more after a failure.
func TestPyTorchJobs(t *testing.T) {
	script := filepath.Join("testdata", "reduce.py")
	for _, python := range torches(t) {
		go0 := self(t, 1, "gloo")
		for name, c := range map[string]struct {
			cfg  Config
			want string
		}{
			"restart":  {Config{Program: script, Args: []string{"--fail"}, NumRanks: 2, MaxRestarts: 1}, "sum 1 of 2, agent True"},
			"rank 0":   {Config{Program: script, NumRanks: 2, AgentStore: StoreByRank0}, "sum 1 of 2, agent False"},
			"python":   {Config{Program: python, Args: []string{script}, NumRanks: 2}, "sum 1 of 2, agent True"},
			"alone":    {Config{Program: script, NumRanks: 1}, "sum 0 of 1, agent True"},
			"client":   {Config{Program: filepath.Join("testdata", "client.py"), NumRanks: 1}, "the store has b'1' for 1, agent True"},
			"Go last":  {Config{Programs: []Program{{script, nil, 1}, {go0.Program, nil, 1}}}, "sum 1 of 2, agent True"},
			"Go first": {Config{Programs: []Program{{go0.Program, nil, 1}, {script, nil, 1}}}, "sum 1 of 2, agent False"},
		} {
			t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_")+"/"+name, func(t *testing.T) {
				t.Parallel()
				var out, errs output
				cfg := c.cfg
				cfg.Stdout, cfg.Stderr = &out, &errs
				cfg.Env = append(slices.Clone(go0.Env), envvar.PythonExec.Assign(python))
				ctx, cancel := context.WithTimeout(t.Context(), loaded.Allow(time.Minute))
				defer cancel()
				if err := Run(ctx, cfg); err != nil {
					t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
				}
				if n := strings.Count(out.String(), c.want); n != max(cfg.NumRanks, len(cfg.Programs))*(cfg.MaxRestarts+1) {
					t.Errorf("%d ranks said %q:\n%s%s", n, c.want, out.String(), errs.String())
				}
				if notice := strings.Contains(errs.String(), "cohort: PyTorch's store at 127.0.0.1:"); notice != strings.Contains(c.want, "True") {
					t.Errorf("the launcher says of the store:\n%s", errs.String())
				}
			})
		}
	}
}

// TestTorchrun: PyTorch's launcher starts a Go rank beside one of PyTorch's, which meet in
// the store of that launcher.
func TestTorchrun(t *testing.T) {
	script, err := filepath.Abs(filepath.Join("testdata", "reduce.py"))
	if err != nil {
		t.Fatal(err)
	}
	for i, python := range torches(t) {
		place := fmt.Sprint(i % 2) // of the Go rank
		t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_")+"/"+place, func(t *testing.T) {
			t.Parallel()
			port := heldPort(t)
			goes := self(t, 1, "gloo")
			ctx, cancel := context.WithTimeout(t.Context(), loaded.Allow(time.Minute))
			defer cancel()
			// Debian's 1.13 takes underscores alone, and without -r and -t ends with an error.
			cmd := exec.CommandContext(ctx, python, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--monitor_interval", "0.1", "--master_port", fmt.Sprint(port),
				"--no_python", "-r", "1", "-t", "1", "--log_dir", t.TempDir(),
				"sh", "-c", `if [ "$RANK" = "$0" ]; then exec "$1"; fi; exec "$2" -u "$3"`, place, goes.Program, python, script)
			cmd.Env = goes.Env
			text, err := cmd.CombinedOutput()
			if n := strings.Count(string(text), "sum 1 of 2, agent True"); err != nil || n != 2 {
				t.Errorf("%d ranks have the sum, %v:\n%s", n, err, text)
			}
		})
	}
}

// roleGlooWait is a rank of Cohort's that does what testdata/stopped.py does, and waits for
// 2 seconds.
func roleGlooWait(string) int {
	return ExitCode(dist.Main(func(ctx context.Context, g *dist.Group) error {
		for range 5 {
			if err := g.AllReduce(ctx, tensor.Zeros(3), dist.Sum); err != nil {
				return err
			}
		}
		return nil
	}, dist.WithBackend("gloo"), dist.WithTimeout(loaded.Allow(2*time.Second)))(context.Background()))
}

// TestStoppedPyTorchRank: the report names a rank of PyTorch's that was stopped, though
// those that waited for it know their neighbours alone.
func TestStoppedPyTorchRank(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("who is stopped is known on Linux only")
	}
	for _, python := range torches(t) {
		t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_"), func(t *testing.T) {
			t.Parallel()
			var out, errs output
			cfg := self(t, 4, "gloowait")
			cfg.Programs, cfg.Program, cfg.NumRanks, cfg.Direct = []Program{{filepath.Join("testdata", "stopped.py"), nil, 2}, {cfg.Program, nil, 2}}, "", 0, false
			cfg.Stdout, cfg.Stderr, cfg.FailGrace = &out, &errs, 500*time.Millisecond
			cfg.Env = append(cfg.Env, envvar.PythonExec.Assign(python), envvar.RecorderDir.Assign(t.TempDir()))
			ctx, cancel := context.WithTimeout(t.Context(), loaded.Allow(time.Minute))
			defer cancel()
			var e *Error
			if err := Run(ctx, cfg); !errors.As(err, &e) || !strings.Contains(err.Error(), "rank 1 (pid ") || !strings.Contains(err.Error(), "had been stopped (SIGSTOP)") {
				t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
			}
			var text strings.Builder
			e.Report(&text)
			if strings.Contains(text.String(), "had not come") || strings.Contains(text.String(), "kept the others waiting") ||
				!strings.Contains(text.String(), "whether ranks 0-1 called it is not known: there is no dump (PyTorch's ranks keep none)") {
				t.Errorf("the report is\n%s", text.String())
			}
		})
	}
}

// roleDiffers is a rank of Cohort's beside testdata/differs.py that reduces 7 numbers, or
// leaves early.
func roleDiffers(how string) int {
	return ExitCode(dist.Main(func(ctx context.Context, g *dist.Group) error {
		if err := g.AllReduce(ctx, tensor.Zeros(1), dist.Sum); err != nil || how == "leaves" {
			return err
		}
		return g.AllReduce(ctx, tensor.Zeros(7), dist.Sum)
	}, dist.WithBackend("gloo"))(context.Background()))
}

// TestRanksThatDiffer: the report begins with the Go rank that says how the calls differ,
// not with PyTorch's "connection closed", and says who had left before.
func TestRanksThatDiffer(t *testing.T) {
	for _, python := range torches(t) {
		for how, want := range map[string]string{
			"size":   `: rank [23] exited with code 1\n  likely cause: rank [23] .*\n  its error:\n    \| .*: rank \d (?:\([^()]*\) )?failed: it .* but .* \(this rank's call: all_reduce sum of 7 float32\)\n`,
			"leaves": `(?s): rank [01] exited with code 1\n.*  before: rank [23] \(pid \d+\) had ended with code 0, \S+ earlier\n`,
		} {
			t.Run(strings.ReplaceAll(strings.Trim(python, "/"), "/", "_")+"/"+how, func(t *testing.T) {
				t.Parallel()
				var out, errs output
				cfg := self(t, 4, "differs:"+how)
				cfg.Programs, cfg.Program, cfg.NumRanks, cfg.Direct = []Program{{filepath.Join("testdata", "differs.py"), nil, 2}, {cfg.Program, nil, 2}}, "", 0, false
				cfg.Stdout, cfg.Stderr = &out, &errs
				cfg.Env = append(cfg.Env, envvar.PythonExec.Assign(python), envvar.RecorderDir.Assign(t.TempDir()))
				ctx, cancel := context.WithTimeout(t.Context(), loaded.Allow(time.Minute))
				defer cancel()
				var e *Error
				if err := Run(ctx, cfg); !errors.As(err, &e) {
					t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
				}
				var text strings.Builder
				e.Report(&text)
				if !regexp.MustCompile(want).MatchString(text.String()) {
					t.Errorf("the report is\n%s\nwant %s", text.String(), want)
				}
			})
		}
	}
}

// roleKinds does in the store what a rank of PyTorch 2.6 does when it comes (rank 0) or one
// of 1.13 or 2.5 (rank 1), and waits; others are Cohort's.
func roleKinds(other string) int {
	rank := envvar.Rank.Text()
	if rank > "1" {
		return roleGloo("")
	}
	generation, key := store.PyTorch2, "default_pg/0//cpu//0/0"
	switch rank + " " + other {
	case "1 1.13":
		generation, key = store.PyTorch1, "/worker/attempt_0/default_pg/0/0/rank_1"
	case "1 2.5":
		key = "/worker/attempt_0/default_pg/0//cpu//0/1"
	}
	c, err := store.DialPyTorch(context.Background(), net.JoinHostPort(envvar.MasterAddr.Text(), envvar.MasterPort.Text()), store.WithGeneration(generation))
	if err != nil {
		say("%v", err)
		return 1
	}
	_, err = c.Join(context.Background())
	// The Go rank has a second from when both have shown themselves: it is there first.
	for n := int64(0); err == nil && strconv.FormatInt(n, 10) != envvar.WorldSize.Text(); time.Sleep(10 * time.Millisecond) {
		n, err = c.Add(context.Background(), "\x00pytorch:init/", 0)
	}
	if err == nil {
		err = c.Set(context.Background(), key, []byte("here"))
	}
	if err != nil {
		say("%v", err)
		return 1
	}
	time.Sleep(time.Minute)
	return 1
}

// TestTwoPyTorches: ranks of two PyTorch that cannot meet in one job are named, by the Go
// ranks and by the agent that serves the store, and nobody waits for long.
func TestTwoPyTorches(t *testing.T) {
	for _, c := range []struct {
		n           int
		other, want string
	}{
		{2, "1.13", "stopped: rank 1 with PyTorch 1.13, rank 0 with PyTorch 2.6 or later came (a Go rank counts as one of the PyTorch that it found): ranks of two PyTorch releases cannot be in one group; use one release for all Python ranks"},
		{2, "2.5", "stopped: rank 1 with PyTorch 2.2 to 2.5, rank 0 with PyTorch 2.6 or later came (a Go rank counts as one of the PyTorch that it found): ranks of two PyTorch releases cannot be in one group; use one release for all Python ranks"},
		{3, "1.13", "rank 0 failed: it runs PyTorch 2, and others run PyTorch 1.13, which cannot be in one group"},
	} {
		t.Run(fmt.Sprint(c.n, " ", c.other), func(t *testing.T) {
			t.Parallel()
			want := c.want
			var out, errs output
			cfg := self(t, c.n, "kinds:"+c.other)
			cfg.Stdout, cfg.Stderr, cfg.AgentStore = &out, &errs, StoreByAgent
			ctx, cancel := context.WithTimeout(t.Context(), loaded.Allow(30*time.Second))
			defer cancel()
			err := Run(ctx, cfg)
			if all := fmt.Sprint(err, "\n", out.String(), errs.String()); err == nil || ctx.Err() != nil || !strings.Contains(all, want) {
				t.Errorf("%s\nwant %q", all, want)
			}
		})
	}
}

// TestAgentStore: the agent has the master's port while the ranks run, however many, for
// clients that do not serve a store themselves, and what is no rank of PyTorch's is told of.
func TestAgentStore(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(strconv.Itoa(n), func(t *testing.T) { testAgentStore(t, n) })
	}
}

func testAgentStore(t *testing.T, n int) {
	var out, errs output
	cfg := self(t, n, "client")
	cfg.Stdout, cfg.Stderr, cfg.AgentStore = &out, &errs, StoreByAgent
	cfg.MasterPort = heldPort(t) // so that nobody else listens there when the job has ended
	cfg.Env = append(cfg.Env, "COHORT_TOKEN=", "COHORT_NODE_ID=")
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	env := envOf(out.String(), fmt.Sprintf("[rank%d] ", n-1))
	if got := strings.Count(out.String(), "the store has value, <nil>"); got != n {
		t.Errorf("%d of %d ranks found the store:\n%s", got, n, out.String())
	}
	if env["TORCHELASTIC_USE_AGENT_STORE"] != "True" {
		t.Errorf("the ranks were told %q", env["TORCHELASTIC_USE_AGENT_STORE"])
	}
	if c, err := net.Dial("tcp", net.JoinHostPort(env["MASTER_ADDR"], env["MASTER_PORT"])); err == nil {
		c.Close()
		t.Error("the store is still served")
	}
	if !strings.Contains(errs.String(), "PyTorch's store at 127.0.0.1:"+env["MASTER_PORT"]) {
		t.Errorf("nothing was said of the store: %s", errs.String())
	}
}

func TestPrograms(t *testing.T) {
	for text, want := range map[string]string{
		"2:train.py":                     "{train.py [] 2}",
		"1:./a b c":                      "{./a [b c] 1}",
		`3:x 'a b' "c 'd" e"f g"h ''`:    "{x [a b c 'd ef gh ] 3}",
		"train.py":                       "there is no number of ranks",
		"two:x":                          `"two" is no number of ranks`,
		"0:x":                            `"0" is no number of ranks`,
		"2:":                             "there is no program",
		"2:x 'y":                         "a quote (') is not closed",
		"99999999999999999999999999:./a": "is no number of ranks",
	} {
		p, err := ParseProgram(text)
		got := fmt.Sprint(p)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || err == nil && got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	one := []Program{{Path: "x", NumRanks: 1}}
	for want, cfg := range map[string]Config{
		"contradict":          {Program: "y", Programs: one},
		"leave out the first": {NumRanks: 3, Programs: one},
		"a module":            {Module: true, Programs: one},
		"0 ranks of program":  {Programs: []Program{{Path: "x"}}},
		"has no name":         {Programs: []Program{{NumRanks: 1}}},
		"is not in PATH":      {Programs: []Program{{Path: os.Args[0], NumRanks: 1}, {Path: "no-such-program", NumRanks: 1}}},
	} {
		if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || ExitCode(err) != 2 {
			t.Errorf("%v, want %q before anything starts", err, want)
		}
	}
}
