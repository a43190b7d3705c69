// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSecretIsCovered(t *testing.T) {
	token := strings.Repeat("0a", 31) + "0f"
	s := newSecret(token)
	hidden := strings.Repeat(string(cover), len(token))
	for in, want := range map[string]string{
		"":                               "",
		"nothing":                        "nothing",
		token:                            hidden,
		"a " + token + token + " b\n":    "a " + hidden + hidden + " b\n",
		"T=" + strings.ToUpper(token):    "T=" + hidden,
		token[:63]:                       token[:63],
		"0" + token[1:] + "0a0a" + token: hidden + "0a0a" + hidden,
	} {
		b := []byte(in)
		s.hide(b)
		if string(b) != want {
			t.Errorf("%q becomes %q, want %q", in, b, want)
		}
	}
	newSecret("").hide([]byte("x"))
}

// A program that fails and shows its environment, on either stream, leaves the
// token in no output and no report; nor do the arguments of any process have it.
func TestTokenIsNotInOutputOrReport(t *testing.T) {
	token := strings.Repeat("c0ffee01", 8)
	var stdout, stderr output
	cfg := self(t, 2, "exit")
	cfg.Program, cfg.Direct, cfg.Args = "sh", false, []string{"-c", `env; env >&2; cat /proc/$$/cmdline /proc/$PPID/cmdline | tr '\0' ' '; exit 3`}
	cfg.Stdout, cfg.Stderr, cfg.FailGrace = &stdout, &stderr, time.Minute // both are to print all
	cfg.Env = append(cfg.Env, "COHORT_TOKEN="+token)
	err := Run(t.Context(), cfg)
	var job *Error
	if !errors.As(err, &job) {
		t.Fatal(err)
	}
	var report bytes.Buffer
	job.Report(&report)
	all := stdout.String() + stderr.String() + report.String() + err.Error()
	if strings.Contains(all, token) {
		t.Errorf("the token is in\n%s", all)
	}
	if n := strings.Count(all, "COHORT_TOKEN="+strings.Repeat(string(cover), 64)); n < 4 {
		t.Errorf("the token was shown and covered %d times in\n%s", n, all)
	}
}

// A compiler that the launcher starts does not get the token.
func TestBuildDoesNotGetTheToken(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"p/main.go": "package main\n\nfunc main() {}\n", "bin/go": "#!/bin/sh\nenv > " + dir + "/env\nexit 1\n"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	var out output
	cfg := Config{Program: filepath.Join(dir, "p"), NumRanks: 1, Stdout: &out, Stderr: &out, Env: append(os.Environ(), "COHORT_TOKEN="+strings.Repeat("ab", 32), "THING=kept")}
	if err := Run(t.Context(), cfg); err == nil {
		t.Fatal("built by nothing")
	}
	env, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil || !bytes.Contains(env, []byte("THING=kept")) || bytes.Contains(env, []byte("abababab")) {
		t.Errorf("%v: the compiler's environment is\n%s", err, env)
	}
}
