// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lockedPackage = `[[packages]]
name = "alpha"
version = "1.0"
marker = "sys_platform == 'linux'"
index = "https://h.example/simple/"
wheels = [{ url = "https://h.example/a.whl", hashes = { sha256 = "00000000000000000000000000000000aa" } }]
[[packages]]
name = "beta"
archive = { url = "https://h.example/b.tar.gz", hashes = { sha512 = "00000000000000000000000000000000bb" } }
`

func TestPylock(t *testing.T) {
	got, err := requirementsOfPylock([]byte("lock-version = \"1.0\"\n" + lockedPackage))
	want := "--extra-index-url https://h.example/simple\n" +
		"alpha==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:00000000000000000000000000000000aa\n" +
		"beta @ https://h.example/b.tar.gz \\\n    --hash=sha512:00000000000000000000000000000000bb\n"
	if err != nil || got != want {
		t.Errorf("%s%v, want\n%s", got, err, want)
	}
	for _, c := range []struct{ text, want string }{
		{"a = [", "line 1, column "},
		{"lock-version = \"2.0\"\n" + lockedPackage, `lock-version is "2.0"`},
		{"lock-version = \"1.0\"\n", "it locks 0 packages"},
		{"lock-version = \"1.0\"\n[[packages]]\nname = \"-r x\"\n", "which is none"},
		{"lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nversion = \"1\\n--index-url x\"\n", "which is none"},
		{"lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nversion = \"1\"\n", "no file with a hash"},
		{"lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\nversion = \"1\"\nmarker = \"x\\ny\"\n", "has the condition"},
		{"lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\n[packages.vcs]\ntype = \"git\"\n", "version control system"},
		{"lock-version = \"1.0\"\n[[packages]]\nname = \"a\"\n[packages.archive]\nurl = \"https://h/a b\"\n", "has the address"},
	} {
		if _, err := requirementsOfPylock([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

// FuzzPylock: a line of the list is a package, a hash, or an index.
func FuzzPylock(f *testing.F) {
	f.Add("lock-version = \"1.0\"\n" + lockedPackage)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := requirementsOfPylock([]byte(text))
		if err != nil {
			return
		}
		for line := range strings.Lines(list) {
			line = strings.TrimRight(line, "\\ \n")
			switch {
			case strings.HasPrefix(line, "    --hash=sha"), strings.HasPrefix(line, "--extra-index-url http"), lockedName.MatchString(strings.FieldsFunc(line+"=", func(c rune) bool { return c == '=' || c == ' ' })[0]):
			default:
				t.Errorf("line %q of %q", line, text)
			}
		}
	})
}

// TestEnvCreateRefuses: what cannot be made is one message, before anything starts.
func TestEnvCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"poetry.lock":     {"x", "of a tool that Cohort does not know"},
		"uv.lock":         {"version = 1\n", "pyproject.toml of its project"},
		"pylock.toml":     {"lock-version = \"9\"\n", "lock-version is"},
		"a.toml":          {"[cpu]\nmodel = \"x\"\n", "neither a section python nor a Go program"},
		"environment.yml": {"name: x\n", "cannot read it: give --tool conda"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, errs := cohort("env", "create", path, "--prefix", filepath.Join(dir, "new"), "--tool", "pip", "--dry-run")
		if code != exitUsage || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: code %d, %q, want %q", name, code, errs, c.want)
		}
	}
	python := venv(t, filepath.Join(dir, "v"), "numpy-2.4.6")
	for name, want := range map[string]string{"a.txt": "numpy==2.4.6\n", "a.yml": "name: cohort\nchannels:\n  - conda-forge\n  - nodefaults\ndependencies:\n  - python=3.11.7\n  - pip\n  - pip:\n      - numpy==2.4.6\n"} {
		path := filepath.Join(dir, "out", name)
		code, _, errs := cohort("env", "export", path, "--python", python)
		if text, err := os.ReadFile(path); code != 0 || err != nil || string(text) != want {
			t.Errorf("%s: code %d %s, %v\n%s", name, code, errs, err, text)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-", "--form", "explicit", "--python", python}, "conda has installed nothing"},
		{[]string{"-", "--form", "pip"}, "--form pip: give one of"},
		{[]string{"-", "--hashes"}, "--hashes is for --form requirements"},
	} {
		if code, _, errs := cohort(append([]string{"env", "export"}, c.args...)...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: code %d, %s, want %q", c.args, code, errs, c.want)
		}
	}
}
