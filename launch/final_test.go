// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// roleFinal ends its last rank in the way that arg names; the others wait.
func roleFinal(arg string) int {
	say("attempt %s", os.Getenv("TORCHELASTIC_RESTART_COUNT"))
	if size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE")); rank() != strconv.Itoa(size-1) {
		return roleWait("")
	}
	kind, rest, _ := strings.Cut(arg, ":")
	code, _ := strconv.Atoi(rest)
	switch kind {
	case "final":
		Record(fmt.Errorf("my own: %w", Final(errors.New("the data are not there"))), "")
		return 1
	case "plain":
		Record(errors.New("the data are not there"), "")
		return 1
	case "flag":
		flags := flag.NewFlagSet("prog", flag.ExitOnError)
		for i := range 40 { // whose text leaves no room for what came before it
			flags.Int(fmt.Sprint("size", i), 0, "a size")
		}
		_ = flags.Parse([]string{"-sise", "3"})
	case "panic":
		fmt.Fprintln(os.Stderr, "usage: none")
		var list []int
		_ = list[code+1]
	}
	return code
}

// TestFinal: an end that would come again is not tried again, and any other is.
func TestFinal(t *testing.T) {
	const restarts = 2
	for arg, final := range map[string]bool{
		"final": true, "plain": false, "flag": true, "panic": false,
		"code:1": false, "code:2": false, "code:3": false, "code:64": true, "code:66": true, "code:78": true, "code:127": true, "code:130": false,
	} {
		t.Run(arg, func(t *testing.T) {
			var out, errs output
			cfg := self(t, 2, "final:"+arg)
			cfg.MaxRestarts, cfg.FailGrace = restarts, 1 // a nanosecond
			cfg.Stdout, cfg.Stderr = &out, &errs
			var err error
			checkLeaks(t, func() { err = Run(t.Context(), cfg) })
			want := restarts + 1
			if final {
				want = 1
			}
			var job *Error
			if n := strings.Count(out.String(), "[rank1] attempt"); !errors.As(err, &job) || n != want || job.Final() != final || job.Restartable() == final {
				t.Fatalf("%d attempts, want %d: %v", n, want, err)
			}
			var report bytes.Buffer
			job.Report(&report)
			if told := strings.Contains(report.String(), "the 2 restarts that are left are not used: rank 1 would end in the same way again"); told != final {
				t.Errorf("told %v, want %v:\n%s", told, final, report.String())
			}
		})
	}
}

// TestFinalPython: so do Python's programs end that argparse or a missing module ends.
func TestFinalPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	for name, text := range map[string]string{
		"argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args(['--lrr', '1'])\n",
		"module":   "import no_such_module\n",
	} {
		script := filepath.Join(t.TempDir(), "train_"+name+".py")
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := Config{Program: script, NumRanks: 1, MaxRestarts: 3, Env: append(os.Environ(), "PYTHON_EXEC="+python), Stdout: &output{}, Stderr: &output{}}
		var job *Error
		if err := Run(t.Context(), cfg); !errors.As(err, &job) || !job.Final() || job.Attempt != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
