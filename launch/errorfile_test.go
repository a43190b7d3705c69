// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/errorfile"
)

// roleWords: "go" returns an error of a Go main, "py" writes what torchrun's
// @record writes, "text" the plain form, "junk" something else, "token" the job's
// token; "late" writes at once and ends a while after the others. Rank 0 waits.
func roleWords(arg string) int {
	path := os.Getenv("TORCHELASTIC_ERROR_FILE")
	if rank() == "0" && arg != "late" {
		return roleWait("")
	}
	text := ""
	switch arg {
	case "go":
		Record(errors.New("matrix is singular"), "main.solve\n\tsolve.go:7")
		return 7
	case "py":
		text = fmt.Sprintf(`{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback:\n  File x\nValueError: boom\n", "timestamp": "%d"}}}`, time.Now().Unix())
		fmt.Fprintln(os.Stderr, "ValueError: boom")
	case "text":
		text = fmt.Sprintf(`{"message": "out of beans", "timestamp": %d}`, time.Now().Unix())
	case "junk":
		text = "\x00\x01"
	case "token":
		text = fmt.Sprintf(`{"message": "the token is %s"}`, os.Getenv("COHORT_TOKEN"))
	case "late":
		at := time.Now()
		if rank() == "1" { // it knew first and ends last
			at = at.Add(-3 * time.Second)
			defer time.Sleep(100 * time.Millisecond)
		}
		text = fmt.Sprintf(`{"message": "rank %s", "timestamp": %d}`, rank(), at.Unix())
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		say("%v", err)
	}
	return 7
}

// roleGreedy: rank 1 takes memory until it is stopped.
func roleGreedy(string) int {
	if rank() != "1" {
		return roleWait("")
	}
	var hold [][]byte
	for range 4096 {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		hold = append(hold, b)
	}
	return len(hold) & 1
}

// TestModuleNotFound: the report says which Python has looked for a module that is not
// there, and how to take another.
func TestModuleNotFound(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here")
	}
	for module, want := range map[string]bool{"no_such_module_there_is": true, "os; raise ValueError": false} {
		script := filepath.Join(t.TempDir(), "train.py")
		if err := os.WriteFile(script, []byte("import "+module+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs output
		var text strings.Builder
		var e *Error
		err := Run(t.Context(), Config{Program: script, NumRanks: 1, LeaveSignals: true, Stdout: &out, Stderr: &errs})
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		e.Report(&text)
		if got := strings.Contains(text.String(), "\n  "+python+" ran it: PYTHON_EXEC names another Python\n"); got != want {
			t.Errorf("import %s: the interpreter is named: %v, want %v:\n%s", module, got, want, text.String())
		}
	}
}

func TestErrorFiles(t *testing.T) {
	for arg, want := range map[string][]string{
		"go":    {"its error", "| matrix is singular", "| main.solve", "solve.go:7"},
		"py":    {"its error", "| Traceback:", "|   File x", "| ValueError: boom"},
		"text":  {"its error", "| out of beans"},
		"junk":  {"cannot be read", "not the JSON"},
		"token": {"the token is " + strings.Repeat("*", 64)},
	} {
		t.Run(arg, func(t *testing.T) {
			outer := filepath.Join(t.TempDir(), "outer.json")
			t.Setenv("TORCHELASTIC_ERROR_FILE", outer)
			dir := t.TempDir()
			cfg := self(t, 2, "words:"+arg)
			cfg.Stdout, cfg.Stderr, cfg.FailGrace, cfg.Logs.Dir = &output{}, &output{}, 1, dir
			job := ended(t, Run(t.Context(), cfg))
			var b strings.Builder
			job.Report(&b)
			for _, w := range append(want, "rank 1 exited with code 7", "/attempt_0/1/error.json") {
				if !strings.Contains(b.String(), w) {
					t.Errorf("the report lacks %q:\n%s", w, b.String())
				}
			}
			if line := job.Error(); !strings.HasSuffix(line, ": "+firstLine(job.Failures[0].Message)) || strings.Contains(line, "\n") {
				t.Errorf("in a line: %q", line)
			}
			if strings.Count(b.String(), "ValueError: boom") > 1 {
				t.Errorf("said twice:\n%s", b.String())
			}
			if !strings.HasPrefix(job.Failures[0].ErrorFile, dir) || job.Failures[1].ErrorFile != "" || !job.Failures[1].Stopped {
				t.Errorf("%+v", job.Failures)
			}
			// Who has launched this launcher gets the file, with the code where it has a place.
			e, raw, err := errorfile.Read(outer)
			if err != nil {
				t.Fatal(err)
			}
			if arg == "junk" {
				if !strings.Contains(e.Message, "rank 1 of 2 exited with code 7") {
					t.Errorf("handed on %+v", e)
				}
			} else if e.Message != job.Failures[0].Message {
				t.Errorf("handed on %+v", e)
			}
			if got := strings.Contains(string(raw), `"errorCode":7`); got != (arg == "go" || arg == "py") {
				t.Errorf("handed on %s", raw)
			}
		})
	}
}

// Without a directory of logs the words are in the report, and no file stays.
func TestErrorFilesGo(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cfg := self(t, 2, "words:py")
	cfg.Stdout, cfg.Stderr, cfg.FailGrace = &output{}, &output{}, 1
	job := ended(t, Run(t.Context(), cfg))
	if job.Failures[0].Message != "ValueError: boom" || job.Failures[0].ErrorFile != "" || job.Failures[0].Raised.IsZero() {
		t.Errorf("%+v", job.Failures[0])
	}
	if left, _ := filepath.Glob(os.Getenv("TMPDIR") + "/*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestExitBySignalIsHandedOn(t *testing.T) {
	outer := filepath.Join(t.TempDir(), "outer.json")
	t.Setenv("TORCHELASTIC_ERROR_FILE", outer)
	raw := []byte(`{"message": {"message": "m", "extraInfo": {}}}`)
	passErrorFileOn(&Error{Failures: []Failure{{Signal: syscall.SIGKILL, Code: -1, raw: raw}}})
	if b, err := os.ReadFile(outer); err != nil || !strings.Contains(string(b), `"errorCode":-9`) {
		t.Errorf("%s, %v", b, err)
	}
}
