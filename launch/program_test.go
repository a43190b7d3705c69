// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func resolved(t *testing.T, cfg Config) (*program, error) {
	t.Helper()
	cfg.NumRanks = 1
	if cfg.Stderr == nil {
		cfg.Stderr = &output{}
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return resolve(t.Context(), &cfg, &builder{job: "test", sig: &signals{}})
}

func TestResolveErrors(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	writeFiles(t, dir, map[string]string{"plain": "#!/bin/sh\n", "here": ""})
	writeFiles(t, dir+"/empty", nil)
	writeFiles(t, dir, map[string]string{"lost": "#! /no/such/shell -e\n", "dos": "#!/bin/sh\r\necho\r\n"})
	for _, name := range []string{"here", "lost", "dos"} {
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		cfg  Config
		want string
	}{
		{Config{Program: "./nothing"}, "program ./nothing does not exist"},
		{Config{Program: "nothing.py"}, "program nothing.py does not exist"},
		{Config{Program: "nothing.go"}, "program nothing.go does not exist"},
		{Config{Program: "no-such-program"}, "program no-such-program is not in PATH"},
		{Config{Program: "here"}, "give ./here"},
		{Config{Program: "./lost"}, "program ./lost: its first line names /no/such/shell as its interpreter: stat /no/such/shell: no such file"},
		{Config{Program: "./dos"}, "its lines end with CR LF"},
		{Config{Program: "./plain"}, "program ./plain is not executable: chmod +x"},
		{Config{Program: "empty"}, "directory empty has no Go files"},
		{Config{Program: "./empty", Direct: true}, "program ./empty is a directory"},
		{Config{Program: "m", Module: true, Env: []string{"PYTHON_EXEC=/no/python"}}, "PYTHON_EXEC=/no/python"},
	}
	for _, tt := range tests {
		_, err := resolved(t, tt.cfg)
		var bad *ConfigError
		if !errors.As(err, &bad) || bad.Field != "Program" || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.cfg.Program, err, tt.want)
		}
	}
}

func TestResolveArguments(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	writeFiles(t, dir, map[string]string{"train.py": "", "prog": ""})
	if err := os.Chmod("prog", 0o755); err != nil {
		t.Fatal(err)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	py := "PYTHON_EXEC=" + sh // stands for an interpreter
	tests := []struct {
		cfg  Config
		path string
		argv []string
	}{
		{Config{Program: "sh", Args: []string{"-c", "true"}}, sh, []string{"sh", "-c", "true"}},
		{Config{Program: "./prog", Args: []string{"x"}}, "./prog", []string{"./prog", "x"}},
		{Config{Program: "./prog", Dir: "/"}, dir + "/prog", []string{"./prog"}},
		{Config{Program: "train.py", Args: []string{"--n", "1"}, Env: []string{py}}, sh, []string{sh, "-u", "train.py", "--n", "1"}},
		{Config{Program: "train.py", Dir: "/", Env: []string{py}}, sh, []string{sh, "-u", dir + "/train.py"}},
		{Config{Program: "pkg.mod", Module: true, Env: []string{py}}, sh, []string{sh, "-u", "-m", "pkg.mod"}},
	}
	for _, tt := range tests {
		p, err := resolved(t, tt.cfg)
		if err != nil {
			t.Errorf("%s: %v", tt.cfg.Program, err)
		} else if p.path != tt.path || !slices.Equal(p.argv, tt.argv) {
			t.Errorf("%s: runs %s %q, want %s %q", tt.cfg.Program, p.path, p.argv, tt.path, tt.argv)
		}
	}
}

// TestInterpreters: a command that is Python, or runs it, is a Python program.
func TestInterpreters(t *testing.T) {
	for line, want := range map[string]bool{
		"/usr/bin/python3 -m pkg": true, "venv/bin/python train.py": true, "/opt/bin/python3.13t": true, "pypy3": true,
		"/usr/bin/python3-config": false, "pythonic": false, "./gorank": false, "/opt/python/train": false,
		"/usr/bin/env python3 train.py": true, "env -S A=b venv/bin/python -u": true, "uv run --with torch train.py --lr 1": true,
		"uv run -q python -m pkg": true, "poetry run python3.12 train": true, "conda run -n torch python train": true,
		"env A=b ./gorank": false, "uv": false, "./gorank --script train.py": false, "cohort train lm --data corpus.py": false, "": false,
	} {
		if got := runsPython(strings.Fields(line)); got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
	dir := t.TempDir()
	for line, want := range map[string]bool{
		"/usr/bin/env python3": true, "/usr/bin/env -S uv run train.py": true, " /bin/python3 -u": true, "/bin/sh": false, "": false,
	} {
		if _, err := os.Stat("/bin/python3"); strings.Contains(line, "/bin/python3") && err != nil {
			continue
		}
		writeFiles(t, dir, map[string]string{"train": "#!" + line + "\n"})
		if err := os.Chmod(filepath.Join(dir, "train"), 0o755); err != nil {
			t.Fatal(err)
		}
		if p, err := resolved(t, Config{Program: filepath.Join(dir, "train")}); err != nil || p.byItself != want {
			t.Errorf("#!%s: %v, %v, want %v", line, p, err, want)
		}
	}
}

// A text file without an interpreter line is found out only by the kernel.
func TestStartError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	checkLeaks(t, func() {
		err := Run(t.Context(), Config{Program: path, NumRanks: 2, LeaveSignals: true})
		if job := ended(t, err); job.StartErr == nil || !strings.Contains(err.Error(), "start rank 0") || !strings.Contains(err.Error(), "neither a program of this system") {
			t.Errorf("error %v", err)
		}
	})
}

func TestBuildGo(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"go.mod": "module example.com/prog\n\ngo 1.26\n"})
	writeFiles(t, dir+"/lib", map[string]string{"lib.go": "package lib\n"})
	writeFiles(t, dir+"/bad", map[string]string{"bad.go": "package main\n\nfunc main() { undefined() }\n"})
	writeFiles(t, dir+"/cmd", map[string]string{"main.go": "package main\n\nimport \"os\"\n\nfunc main() { println(\"args\", len(os.Args)) }\n"})

	for program, want := range map[string]string{"/lib": "is not a main package", "/bad": "undefined: undefined"} {
		_, err := resolved(t, Config{Program: dir + program})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", program, err, want)
		}
	}
	for _, program := range []string{"/cmd", "/cmd/main.go"} {
		var errs output
		err := Run(t.Context(), Config{
			Program: dir + program, Args: []string{"a", "b"}, NumRanks: 2, LeaveSignals: true,
			Stdout: &output{}, Stderr: &errs,
		})
		if err != nil {
			t.Error(err)
		}
		got := lines(errs.String())
		slices.Sort(got)
		if want := []string{"[rank0] args 3", "[rank1] args 3", "cohort: building " + dir + program}; !slices.Equal(got, want) {
			t.Errorf("%s wrote %q, want %q", program, got, want)
		}
	}
	if left, _ := filepath.Glob(tmp + "/cohort-run-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLocalRankInArguments(t *testing.T) {
	var out output
	err := Run(t.Context(), Config{
		Program: "echo", Args: []string{"shard-${local_rank}.txt"}, NumRanks: 2, LeaveSignals: true, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	got := lines(out.String())
	slices.Sort(got)
	if want := []string{"[rank0] shard-0.txt", "[rank1] shard-1.txt"}; !slices.Equal(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
}
