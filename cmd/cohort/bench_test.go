// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
)

// cohortProcess runs a command line in a process of its own.
func cohortProcess(t *testing.T, args string) (stdout string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(args)...)
	cmd.Env = append(os.Environ(), cliMain+"=1")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cohort %s: %v\n%s", args, err, errs.String())
	}
	return string(out)
}

// TestBench: every bench prints its objects, one a line, once for all ranks.
func TestBench(t *testing.T) {
	type fields = map[string]any
	for _, tt := range []struct {
		args  string
		lines int
		want  fields // of the first line
	}{
		{"gemm --shapes 8,16x4x2 --layouts nn,tn --time 1ms --threads 1", 4, fields{"bench": "gemm", "case": "8x8x8", "threads": 1.}},
		{"gemm --shapes 2x8x4x2 --dtype bfloat16 --time 1ms --threads 1", 1, fields{"bench": "gemm", "case": "2x8x4x2", "dtype": "bfloat16"}},
		{"step --model mlp --batch 1 --steps 1 --threads 3", 1, fields{"bench": "step", "case": "mlp", "dtype": "float32", "threads": 3., "params": 1863690.}},
		{"step --model mlp --batch 1 --steps 1 --threads 1 --dtype bfloat16", 1, fields{"bench": "step", "case": "mlp", "dtype": "bfloat16", "threads": 1.}},
		{"ddp --ranks 1 --steps 1", 1, fields{"bench": "ddp", "case": "mlp", "ranks": 1., "threads": 1.}},
		{"ddp --ranks 2 --steps 1", 1, fields{"bench": "ddp", "case": "mlp", "ranks": 2., "threads": 1.}},
		{"shard --model mlp --batch 1 --ranks 2 --steps 1", 1, fields{"bench": "shard", "case": "ddp", "model": "mlp", "ranks": 2., "threads": 1., "sent_bytes": 7454784., "predicted_sent_bytes": 7454784.}},
		// A quarter of the 53178584 bytes that a rank has under ddp, and the counts of the optimizer.
		{"shard --strategy fsdp --batch 1 --ranks 4 --steps 1", 1, fields{"case": "fsdp", "model": "gpt", "state_bytes": 13294808.}},
		{"shard --model llama --strategy hsdp --batch 1 --ranks 4 --steps 1", 1, fields{"case": "hsdp", "ranks": 4.}},
		{"shard --model mlp --strategy single --batch 1 --ranks 1 --steps 1 --threads 2", 1, fields{"case": "single", "threads": 2., "state_bytes": 14909520., "predicted_state_bytes": 14909520., "sent_bytes": 0.}},
		{"collectives --ranks 2 --bytes 4,64 --ops all_reduce,sendrecv,barrier --reps 2", 9, fields{"bench": "collectives", "case": "all_reduce", "ranks": 2., "bytes": 4., "backend": "native", "memory": "shared"}},
		{"collectives --ranks 3 --transport tcp --bytes 8 --ops barrier,all_gather --memory private --reps 2", 2,
			fields{"case": "all_gather", "ranks": 3., "transport": "tcp", "memory": "private"}},
		{"collectives --transport unix --ops all_to_all,gather --bytes 1K --memory private --reps 2", 2, fields{"case": "all_to_all", "transport": "unix", "bytes": 1024.}},
		{"collectives --transport tls --ops scatter --bytes 64 --memory private --reps 2", 1, fields{"case": "scatter", "transport": "tls"}},
		{"collectives --dtype int64 --ops broadcast,raw_socket --bytes 64 --memory shared --reps 2", 2, fields{"case": "broadcast", "dtype": "int64", "bytes": 64.}},
		{"form --ranks 3", 1, fields{"bench": "form", "case": "processes", "ranks": 3., "transport": "shm"}},
		{"form --ranks 50 --kind goroutines", 1, fields{"bench": "form", "case": "goroutines", "ranks": 50., "transport": "goroutines"}},
		{"launch --ranks 3 --reps 2", 1, fields{"bench": "launch", "case": "cohort", "ranks": 3.}},
		{"collectives --ops late --late-by 1ms", 2, fields{"case": "late_all_reduce", "bytes": 1048576., "memory": "shared"}},
		{"store --clients 1,4 --time 10ms", 12, fields{"bench": "store", "case": "set", "clients": 1., "connections": 1., "bytes": 64.}},
		{"store --wire pytorch --clients 1 --time 10ms", 3, fields{"bench": "store", "case": "set_wait", "transport": "tcp, PyTorch's wire"}},
		{"security --bytes 64,100000 --reps 3", 14, fields{"bench": "security", "case": "connect", "transport": "bare"}},
		{"loader --model cnn --pairs 2 --steps 1 --workers 2 --threads 1", 1, fields{"bench": "loader", "case": "cnn", "workers": 2., "pairs": 2., "batch": 64.}},
		{"security --cases refuse --reps 2", 2, fields{"case": "refuse", "transport": "token"}},
		{"ckpt --bytes 256K --ranks 2 --reps 1 --cases memcpy,disk,save,load,reshard,async_block", 6, fields{"bench": "ckpt", "case": "memcpy", "ranks": 2., "bytes": 262144.}},
		{"store --clients 6 --processes 3 --connections own --ops add --time 10ms", 1, fields{"case": "add", "clients": 6., "connections": 6.}},
	} {
		out := cohortProcess(t, "bench "+tt.args+" --json")
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if len(lines) != tt.lines {
			t.Errorf("cohort bench %s printed %d lines, want %d:\n%s", tt.args, len(lines), tt.lines, out)
		}
		for i, line := range lines {
			var got fields
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Errorf("cohort bench %s printed %q: %v", tt.args, line, err)
				continue
			}
			if us, ok := got["median_us"].(float64); !ok || us <= 0 {
				t.Errorf("cohort bench %s: no median in %s", tt.args, line)
			}
			checkPredicted(t, tt.args, got)
			for k, v := range tt.want {
				if i == 0 && got[k] != v {
					t.Errorf("cohort bench %s: %s is %v, want %v", tt.args, k, got[k], v)
				}
			}
		}
	}
	out := cohortProcess(t, "bench ddp --ranks 2 --steps 1")
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, " 2 ranks ") {
		t.Errorf("the text for people is %q", out)
	}
}

// checkPredicted compares what a bench has measured with what it has predicted: a rank is a process
// of its own here, so its memory is too.
func checkPredicted(t *testing.T, args string, got map[string]any) {
	t.Helper()
	for name, within := range map[string]float64{"state_bytes": 0.05, "peak_bytes": 0.1, "sent_bytes": 0} {
		measured, ok := got[name].(float64)
		predicted, _ := got["predicted_"+name].(float64)
		if ok && math.Abs(measured-predicted) > within*predicted {
			t.Errorf("cohort bench %s: %s is %.0f, predicted was %.0f", args, name, measured, predicted)
		}
	}
}

func TestBenchProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	cohortProcess(t, "bench gemm --shapes 8 --time 1ms --cpuprofile "+file)
	if st, err := os.Stat(file); err != nil || st.Size() == 0 {
		t.Errorf("no profile: %v", err)
	}
}

func TestBadBenchCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"gem":                                    "unknown bench gem for cohort bench: did you mean gemm?",
		"gemm x":                                 "takes no argument",
		"gemm --shapes 3x4":                      `shape "3x4"`,
		"gemm --dtype float16":                   `--dtype "float16"`,
		"gemm --layouts tt":                      `no layout "tt"`,
		"gemm --threads -1":                      "--threads: ",
		"step --model bert":                      `no model "bert": want one of mlp, gpt`,
		"step --dtype float8":                    `no dtype "float8"`,
		"step --steps 0":                         "0 steps",
		"step --thread 1":                        "did you mean --threads?",
		"ckpt --cases prove":                     `no case "prove"`,
		"ckpt --bytes 1,2":                       "want one size",
		"ckpt --bytes 8":                         "a state of 8 bytes",
		"ckpt --reps 0":                          "0 repetitions",
		"ddp --ranks 0":                          "0 ranks",
		"ddp --ranks 1000000":                    "1000000 ranks on a machine of",
		"ddp --steps 0":                          "0 steps",
		"shard --strategy zero":                  `no strategy "zero"`,
		"shard --model cnn":                      `no model "cnn"`,
		"shard --ranks 0":                        "0 ranks",
		"form --kind threads":                    `--kind is "threads", want processes or goroutines`,
		"store --wire gloo":                      `no wire "gloo"`,
		"store --wire pytorch --ops set":         "leave set out of --ops",
		"store --addr 127.0.0.1:1":               "--wire pytorch",
		"form --ranks 0":                         "0 ranks",
		"collectives --ranks 1":                  "at least 2 ranks",
		"collectives --ranks 0":                  "0 ranks",
		"collectives --backend nccl":             `no backend "nccl": want one of native, gloo`,
		"collectives --transport pipe":           `no transport "pipe"`,
		"collectives --ops all_to_none":          `no operation "all_to_none"`,
		"collectives --bytes 6":                  "6 bytes",
		"collectives --bytes many":               "invalid argument",
		"collectives --memory hbm":               `no memory "hbm"`,
		"collectives --dtype complex64":          `no dtype "complex64"`,
		"collectives --late-by 1h":               "late by 1h0m0s",
		"collectives --ranks 3 --ops raw_socket": "between 2 ranks, not 3",
		"security --cases shake":                 `no case "shake"`,
		"security --links rope":                  `no link "rope"`,
		"security --bytes 0":                     "0 bytes",
		"security --reps -1":                     "-1 repetitions",
		"store --clients 0":                      "0 clients",
		"store --clients 5 --processes 2":        "5 clients cannot be shared out over 2 processes",
		"store --ops push":                       `no operation "push"`,
		"store --connections many":               `no kind of connections "many"`,
		"store --bytes 0":                        "values of 0 bytes",
		"store --time 0s":                        "rounds of 0s",
		"store --processes 0":                    "0 processes",
	} {
		code, out, errs := cohort(strings.Fields("bench " + args)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("cohort bench %s: code %d, printed %q and %q, want code 2 and one line with %q", args, code, out, errs, want)
		}
	}
	_, _, errs := cohort("bench", "gemm", "--shapes", "8", "--cpuprofile", filepath.Join(t.TempDir(), "no", "such"))
	if !strings.Contains(errs, "--cpuprofile") {
		t.Errorf("a profile that cannot be written gives %q", errs)
	}
}

// TestLaunchIsQuick: two ranks are started, reduce and have ended in less than 0.3 s
// of a machine that does nothing else. The least of several counts.
func TestLaunchIsQuick(t *testing.T) {
	var r struct {
		Min    float64 `json:"min_us"`
		Median float64 `json:"median_us"`
	}
	out := cohortProcess(t, "bench launch --reps 9 --json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	t.Logf("median %.0f ms, least %.0f ms", r.Median/1000, r.Min/1000)
	if limit := loaded.Allow(300 * time.Millisecond); r.Min <= 0 || r.Min > float64(limit.Microseconds()) {
		t.Errorf("least time %.0f ms, want at most %v", r.Min/1000, limit)
	}
}
