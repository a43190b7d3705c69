// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ownModule finds the block of the main page that is for a module of one's own.
var ownModule = regexp.MustCompile("(?ms)^```shell\n(go mod edit .*?)^```$")

// TestTutorialsOwnModule: the main page's lines make the command a tool of a module
// beside a clone, with all that its go.sum needs.
func TestTutorialsOwnModule(t *testing.T) {
	if !*runDocs {
		t.Skip("on demand: -docs")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := ownModule.FindSubmatch(page)
	if m == nil {
		t.Fatal("the main page has no such lines")
	}
	beside := t.TempDir()
	if err := os.Symlink(root, filepath.Join(beside, "cohort")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(beside, "app")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  "module example.com/app\n\ngo 1.26\n",
		"main.go": "package main\n\nimport \"github.com/cohort-ml/cohort/tensor\"\n\nfunc main() { println(tensor.Zeros(2).NumElems()) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "GOFLAGS=-buildvcs=false -trimpath")
	runScript(t, dir, env, string(m[1])+"go run github.com/cohort-ml/cohort/cmd/cohort version\ngo run .\ngo mod tidy -diff\n")
}

// TestTutorialsVersion: of a release, the command can be run and installed by its
// version, from a proxy, without a module of one's own.
func TestTutorialsVersion(t *testing.T) {
	if !*runDocs {
		t.Skip("on demand: -docs")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	const version = "v0.0.1"
	proxy := filepath.Join(t.TempDir(), "github.com", "cohort-ml", "cohort", "@v")
	if err := os.MkdirAll(proxy, 0o755); err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && nested == nil || rel == ".git" || rel == "out" || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || rel == ".git" || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := w.Create("github.com/cohort-ml/cohort@" + version + "/" + filepath.ToSlash(rel))
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		version + ".info": []byte(`{"Version":"` + version + `"}`), version + ".mod": gomod, version + ".zip": packed.Bytes(), "list": []byte(version + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(proxy, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	// What is in the cache already need not be had again, and nothing is left in it.
	had := filepath.Join(strings.TrimSpace(string(out)), "cache", "download")
	served := strings.TrimSuffix(proxy, filepath.Join("github.com", "cohort-ml", "cohort", "@v"))
	env := append(os.Environ(), "GOPROXY=file://"+filepath.ToSlash(served)+",file://"+filepath.ToSlash(had), "GONOSUMDB=*", "GOFLAGS=-modcacherw -trimpath",
		"GOMODCACHE="+t.TempDir(), "GOBIN="+t.TempDir())
	runScript(t, t.TempDir(), env, "go run github.com/cohort-ml/cohort/cmd/cohort@"+version+" version\ngo install github.com/cohort-ml/cohort/cmd/cohort@latest\n\"$GOBIN\"/cohort version | grep "+version+"\n")
}

// TestTutorialsPythonClient: installing the Python client leaves its sources as they were.
func TestTutorialsPythonClient(t *testing.T) {
	if !*runDocs {
		t.Skip("on demand: -docs")
	}
	dir := filepath.Join(t.TempDir(), "python")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "clients", "python"))); err != nil {
		t.Fatal(err)
	}
	list := func() (names []string) {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before, into := list(), t.TempDir()
	pip := exec.CommandContext(t.Context(), "python3", "-m", "pip", "install", "--no-deps", "--target", into, dir)
	if out, err := pip.CombinedOutput(); err != nil {
		t.Skipf("there is no pip, or no network for what it builds with: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(into, "cohort", "client.py")); err != nil {
		t.Error(err)
	}
	if after := list(); !slices.Equal(before, after) {
		t.Errorf("%q became %q", before, after)
	}
}
