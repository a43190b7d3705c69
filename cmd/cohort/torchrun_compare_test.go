// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// The same command lines under torchrun and under cohort run: the environment
// of the ranks, the files, what teed streams show, and the exit codes.
//
// What torchrun 2.15 does is in testdata/torchrun_runs.json. Where there is a
// torchrun (in PATH),
//
//	go test ./cmd/cohort -run TestBesideTorchrun -torchrun          # compares it, live
//	go test ./cmd/cohort -run TestBesideTorchrun -torchrun -update  # and writes the file
var (
	liveTorchrun = flag.Bool("torchrun", false, "run torchrun too (some seconds a case)")
	updateRuns   = flag.Bool("update", false, "with -torchrun: write testdata/torchrun_runs.json")
)

const runsFile = "testdata/torchrun_runs.json"

// besideCase is a command line. LOGS in args is a directory for logs, SCRATCH one that
// scripts may write to, as $1. The program is a shell script.
type besideCase struct {
	name, args, script string
	env                []string
	signal             syscall.Signal // sent to the launcher once SCRATCH has a file ready-N of every rank
	shows              bool           // compare the standard output too
}

const (
	prints = `echo apple $RANK; echo plum $RANK; echo pear $RANK >&2`
	dumps  = `env > "$1/env-$RANK"`
	waits  = `trap 'echo term > "$1/got-TERM-$RANK"; exit 0' TERM; trap 'echo int > "$1/got-INT-$RANK"; exit 0' INT; trap 'echo usr > "$1/got-USR1-$RANK"; exit 0' USR1; : > "$1/ready-$RANK"; while :; do sleep 0.05; done`
)

func besideCases() []besideCase {
	return []besideCase{
		{name: "environment", args: "--nproc-per-node 2 --rdzv-id job7 --role actor --max-restarts 3 --log-dir LOGS", script: dumps},
		{name: "environment, standalone", args: "--standalone --nproc_per_node 2", script: dumps},
		{name: "environment, one rank", args: "--log_dir LOGS", script: dumps},
		{name: "environment, no log directory", args: "--nproc-per-node 2 --log-dir /dev/null", script: dumps},
		{name: "environment, variables", args: "--log-dir LOGS", script: dumps, env: []string{"PET_NPROC_PER_NODE=2", "PET_RDZV_ID=fromenv", "PET_ROLE=actor", "OMP_NUM_THREADS=3", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0"}},
		{name: "environment, virtual local rank", args: "--nproc-per-node 2 --virtual-local-rank --signals-to-handle SIGTERM", script: dumps, env: []string{"CUDA_VISIBLE_DEVICES=4,7"}},
		{name: "local rank in arguments", args: "--nproc-per-node 2", script: `echo "$2" > "$1/argument-$RANK"`},
		{name: "redirect all", args: "--nproc-per-node 2 --log-dir LOGS -r 3", script: prints, shows: true},
		{name: "redirect some", args: "--nproc-per-node 2 --log-dir LOGS --redirects 0:1,1:3", script: prints},
		{name: "tee", args: "--nproc-per-node 2 --log-dir LOGS -t 3 --role actor", script: prints, shows: true},
		{name: "redirect all and tee one", args: "--nproc-per-node 2 --log-dir LOGS -r 3 -t 1:1", script: prints, shows: true},
		{name: "tee with filters", args: "--nproc-per-node 2 --log-dir LOGS --tee 3 --duplicate-stdout-filters plum,cherry --duplicate-stderr-filters pear --log-line-prefix-template ${role_name}-${rank}-${local_rank}-${other}> ", script: prints, shows: true},
		{name: "local ranks filter", args: "--nproc-per-node 2 --log-dir LOGS --tee 3 --local-ranks-filter 1 --duplicate-stdout-filters apple", script: prints, shows: true},
		{name: "no files", args: "--nproc-per-node 2 --log-dir /dev/null --redirects 0", script: `: > "$1/ran-$RANK"`},
		{name: "one fails", args: "--nproc-per-node 2 --log-dir LOGS", script: `[ $RANK = 1 ] && exit 7; sleep 60`},
		{name: "all fail", args: "--nproc-per-node 2 --log-dir LOGS", script: `exit 9`},
		{name: "killed", args: "--nproc-per-node 2 --log-dir LOGS", script: `[ $RANK = 1 ] && sh -c 'kill -9 $PPID'; sleep 60`}, // torchrun makes $ of $$
		{name: "restarts", args: "--nproc-per-node 2 --log-dir LOGS --max-restarts 3 -r 1", script: `echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 3; exit 0`},
		{name: "restarts used up", args: "--nproc-per-node 1 --log-dir LOGS --max-restarts 1 -r 1", script: `echo $TORCHELASTIC_RESTART_COUNT; exit 3`},
		{name: "error file", args: "--nproc-per-node 2 --log-dir LOGS", script: `[ $RANK = 0 ] && sleep 60; printf '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "a\\nb", "timestamp": "1763634466"}}}' > $TORCHELASTIC_ERROR_FILE; exit 5`,
			env: []string{"TORCHELASTIC_ERROR_FILE=SCRATCH/outer.json"}},
		{name: "SIGTERM", args: "--nproc-per-node 2 --log-dir LOGS", script: waits, signal: syscall.SIGTERM},
		{name: "SIGINT", args: "--nproc-per-node 2 --log-dir LOGS", script: waits, signal: syscall.SIGINT},
		{name: "SIGUSR1", args: "--nproc-per-node 2 --log-dir LOGS --signals-to-handle SIGTERM,SIGUSR1", script: waits, signal: syscall.SIGUSR1},
		{name: "unknown flag", args: "--nproc-per-nodes 2", script: `exit 0`},
		{name: "no number", args: "--max-restarts two", script: `exit 0`},
		{name: "no choice", args: "--start-method thread", script: `exit 0`},
	}
}

// observation is what can be seen of a run from outside.
type observation struct {
	Code int
	// Env is what each rank had in its environment that the launcher's had not, or had otherwise.
	Env map[string]map[string]string `json:",omitempty"`
	// Files are what is below LOGS and SCRATCH. Names of runs are without what is random.
	Files map[string]string `json:",omitempty"`
	// Shown is the standard output, in order of the alphabet.
	Shown []string `json:",omitempty"`
}

var (
	runName   = regexp.MustCompile(`/([^/]+)_[a-z0-9_]{8}/attempt_`)
	runDir    = regexp.MustCompile(`^logs/([^/]+)_[a-z0-9_]{8}$`)
	errorFile = regexp.MustCompile(`^.*/([^/]+/attempt_)`)
)

// observe runs a case under a launcher.
func observe(t *testing.T, launcher []string, c besideCase) observation {
	t.Helper()
	dir := t.TempDir()
	scratch, logs := filepath.Join(dir, "scratch"), filepath.Join(dir, "logs")
	for _, d := range []string{scratch, logs, filepath.Join(dir, "tmp")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fill := strings.NewReplacer("LOGS", logs, "SCRATCH", scratch)
	args := strings.Split(fill.Replace(c.args), " ")
	for i := 0; i+1 < len(args); i++ { // the blank at the end of a template
		if args[i+1] == "" {
			args = slices.Delete(args, i+1, i+2)
			args[i] += " "
		}
	}
	args = append(slices.Concat(launcher[1:], args), "--no-python", "sh", "-c", c.script, "sh", scratch, "${local_rank}")
	cmd := exec.Command(launcher[0], args...)
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(k, "PET_") || strings.HasPrefix(k, "TORCH") || strings.HasPrefix(k, "COHORT_") || k == "OMP_NUM_THREADS" || k == "CUDA_VISIBLE_DEVICES"
	})
	env = append(env, "TMPDIR="+filepath.Join(dir, "tmp"), "PYTHONWARNINGS=ignore")
	for _, kv := range c.env {
		env = append(env, fill.Replace(kv))
	}
	// Cases run side by side: the one port that torchrun takes by default is not enough.
	port, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	cmd.Env = append(slices.Clone(env), cliMain+"=1")
	if filepath.Base(launcher[0]) == "torchrun" {
		cmd.Env = append(slices.Clone(env), envvar.PET("master-port").Assign(strconv.Itoa(port.Port())))
	}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(100*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if c.signal != 0 {
		for n := 0; n < 2; time.Sleep(20 * time.Millisecond) {
			ready, _ := filepath.Glob(scratch + "/ready-*")
			n = len(ready)
		}
		_ = cmd.Process.Signal(c.signal)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	o := observation{Code: cmd.ProcessState.ExitCode(), Env: map[string]map[string]string{}, Files: map[string]string{}}
	if t.Failed() || testing.Verbose() {
		t.Logf("%s: code %d\n%s%s", launcher[0], o.Code, out.String(), errs.String())
	}
	before := map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		before[k] = v
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "tmp" {
			return fs.SkipDir
		}
		name, _ := filepath.Rel(dir, path)
		name = runName.ReplaceAllString(name, "/${1}_*/attempt_")
		if d.IsDir() {
			if m := runDir.FindStringSubmatch(name); m != nil {
				name = "logs/" + m[1] + "_*"
			}
			o.Files[name+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rank, isEnv := strings.CutPrefix(name, "scratch/env-")
		if !isEnv {
			text := string(b)
			if strings.Contains(name, "/filtered_") { // of all ranks, as they come
				text = strings.Join(slices.Sorted(strings.SplitAfterSeq(text, "\n")), "")
			}
			var v any
			if strings.HasSuffix(name, ".json") && json.Unmarshal(b, &v) == nil {
				again, _ := json.Marshal(v) // keys in order
				text = string(again)
			}
			o.Files[name] = text
			return nil
		}
		o.Env[rank] = map[string]string{}
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			if old, ok := before[k]; !ok || old != v {
				o.Env[rank][k] = v
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.shows {
		o.Shown = strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		slices.Sort(o.Shown)
	}
	return o
}

// alike makes equal what torchrun and cohort run do differently on purpose, or may
// choose freely; what is left has to be equal.
func (o observation) alike(c besideCase) observation {
	for rank, env := range o.Env {
		out := map[string]string{}
		for k, v := range env {
			switch {
			case strings.HasPrefix(k, "COHORT_"), strings.HasPrefix(k, "PET_"), k == "PWD", k == "_", k == "SHLVL", k == "OLDPWD":
				continue // Cohort's own, and the shell's
			case strings.HasPrefix(k, "TORCHINDUCTOR_"), strings.HasPrefix(k, "KMP_"), k == "LD_LIBRARY_PATH":
				continue // of importing torch
			case k == "MASTER_PORT": // a free one, not 29500
				v = "a port"
			case k == "MASTER_ADDR" && strings.Contains(c.args, "standalone"): // 127.0.0.1, not this machine's name
				v = "this machine"
			case k == "TORCHELASTIC_USE_AGENT_STORE": // rank 0 hosts the store, not the launcher
				v = "either"
			case k == "TORCHELASTIC_RUN_ID" && strings.Contains(c.args, "standalone"):
				v = "random"
			case k == "TORCHELASTIC_ERROR_FILE" && v != "":
				v = errorFile.ReplaceAllString(runName.ReplaceAllString(v, "/${1}_*/attempt_"), "…/$1")
				if strings.Contains(c.args, "standalone") {
					v = v[strings.Index(v, "/attempt_"):]
				}
			}
			out[k] = v
		}
		o.Env[rank] = out
	}
	return o
}

func TestBesideTorchrun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	golden := map[string]observation{}
	if b, err := os.ReadFile(runsFile); err == nil {
		if err := json.Unmarshal(b, &golden); err != nil {
			t.Fatal(err)
		}
	}
	torchrun, err := exec.LookPath("torchrun")
	if *liveTorchrun && err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	live := map[string]observation{}
	t.Run("cases", func(t *testing.T) {
		for _, c := range besideCases() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				want, ok := golden[c.name]
				if *liveTorchrun {
					want, ok = observe(t, []string{torchrun}, c).alike(c), true
					mu.Lock()
					live[c.name] = want
					mu.Unlock()
				}
				if !ok {
					t.Skipf("%s does not say what torchrun does", runsFile)
				}
				got := observe(t, []string{self, "run"}, c).alike(c)
				if got.Code != want.Code {
					t.Errorf("exit code %d, under torchrun %d", got.Code, want.Code)
				}
				for what, pair := range map[string][2]any{
					"environment": {got.Env, want.Env}, "files": {got.Files, want.Files}, "output": {got.Shown, want.Shown},
				} {
					if g, w := fmt.Sprint(pair[0]), fmt.Sprint(pair[1]); g != w && !reflect.DeepEqual(pair[0], pair[1]) {
						t.Errorf("%s:\n%s\nunder torchrun:\n%s", what, pretty(pair[0]), pretty(pair[1]))
					}
				}
			})
		}
	})
	if *updateRuns && *liveTorchrun {
		if err := os.WriteFile(runsFile, []byte(pretty(live)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func pretty(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}
