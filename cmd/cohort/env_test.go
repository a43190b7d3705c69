// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// venv makes the files of a Python environment, with packages such as numpy-2.4.6.
func venv(t *testing.T, dir string, packages ...string) (python string) {
	t.Helper()
	files := map[string]string{"pyvenv.cfg": "home = /usr/bin\nversion = 3.11.7\n", "bin/python": "#!/bin/sh\n"}
	for _, p := range packages {
		name, version, _ := strings.Cut(p, "-")
		files["lib/python3.11/site-packages/"+p+".dist-info/METADATA"] = "Name: " + name + "\nVersion: " + version + "\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "bin/python")
}

// TestEnvFiles: what export writes fits the node, and a change is named with its mending.
func TestEnvFiles(t *testing.T) {
	t.Setenv("NCCL_ALGO", "Ring")
	t.Setenv("HF_TOKEN", "a-secret")
	dir := t.TempDir()
	python := venv(t, filepath.Join(dir, "v"), "numpy-2.4.6", "torch-2.15.0")
	file, other := filepath.Join(dir, "a.toml"), filepath.Join(dir, "b.toml")
	export := func(file string) {
		t.Helper()
		if code, _, errs := cohort("env", "export", file, "--python", python); code != 0 {
			t.Fatal(errs)
		}
	}
	export(file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); strings.Contains(s, "a-secret") || !strings.Contains(s, `NCCL_ALGO = "Ring"`) || !strings.Contains(s, `numpy = "2.4.6"`) {
		t.Errorf("the file shows a secret, or lacks a variable or package:\n%s", s)
	}
	if code, out, errs := cohort("env", "verify", file, "--python", python); code != 0 || !strings.Contains(out, "this node has the environment of") {
		t.Errorf("verify on the same node: code %d\n%s%s", code, out, errs)
	}
	if code, _, errs := cohort("env", "export", file, "--python", python); code != exitUsage || !strings.Contains(errs, "--force") {
		t.Errorf("a file that exists: code %d, %s", code, errs)
	}

	t.Setenv("NCCL_ALGO", "Tree")
	venv(t, filepath.Join(dir, "v"), "numpy-2.4.5")
	if err := os.RemoveAll(filepath.Join(dir, "v/lib/python3.11/site-packages/numpy-2.4.6.dist-info")); err != nil {
		t.Fatal(err)
	}
	code, out, errs := cohort("env", "verify", file, "--python", python)
	for _, want := range []string{"packages.numpy", "2.4.5", "-m pip install --no-deps numpy==2.4.6", "variables.NCCL_ALGO", "export NCCL_ALGO=Ring"} {
		if !strings.Contains(out, want) {
			t.Errorf("verify does not say %q:\n%s", want, out)
		}
	}
	if code != exitDiffers || !strings.Contains(errs, "2 differences that must not be") {
		t.Errorf("verify: code %d, %s", code, errs)
	}
	export(other)
	if code, out, _ := cohort("env", "diff", file, other, "--json"); code != exitDiffers || strings.Count(out, `"kind":"must"`) != 2 {
		t.Errorf("diff: code %d\n%s", code, out)
	}
	if code, out, _ := cohort("env", "diff", file, file); code != 0 || !strings.Contains(out, "do not differ") {
		t.Errorf("diff of equal files: code %d\n%s", code, out)
	}
}

func TestBadEnvFiles(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"syntax":   {"[cpu\n", "syntax:1:"},
		"section":  {"[nonsense]\na = \"b\"\n", "is none of a fingerprint"},
		"list":     {"[cpu]\nmodel = [1]\n", "cpu.model is no text"},
		"flat":     {"a = 1\n", "flat:1:5"},
		"empty":    {"", "has no section"},
		"binary":   {"\x00\x01", "is no text"},
		"too-long": {strings.Repeat("# comment\n", 300_000), "it is no file of an environment"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := cohort("env", "verify", path); code != exitUsage || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: code %d, %q, want %q", name, code, errs, c.want)
		}
	}
	if code, _, errs := cohort("env", "verify", filepath.Join(dir, "none")); code != exitUsage || !strings.Contains(errs, "does not exist") {
		t.Errorf("a missing file: code %d, %s", code, errs)
	}
	wide := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(wide, []byte("\xff\xfea\x00=\x00"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := cohort("env", "create", wide, "--prefix", filepath.Join(dir, "new")); code != exitUsage || !strings.Contains(errs, "is UTF-16") {
		t.Errorf("a list in UTF-16: code %d, %s", code, errs)
	}
	for name := range foreignFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("[project]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := cohort("env", "create", filepath.Join(dir, name), "--prefix", filepath.Join(dir, "new"), "--dry-run"); code != exitUsage || !strings.Contains(errs, "and give that") {
			t.Errorf("%s: code %d, %s", name, code, errs)
		}
	}
	if code, _, errs := cohort("env", "--python", "/bin/true"); code != exitUsage || !strings.Contains(errs, "no Python interpreter") {
		t.Errorf("no interpreter: code %d, %s", code, errs)
	}
}
