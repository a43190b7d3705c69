// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// TestEnvCreate: an environment that is made from a file has the same fingerprint, by each tool
// that is installed. The packages are wheels that the test makes.
func TestEnvCreate(t *testing.T) {
	dir := t.TempDir()
	for _, w := range []string{"alpha 1.0", "alpha 2.0", "beta 1.0"} {
		name, version, _ := strings.Cut(w, " ")
		wheel(t, dir, name, version)
	}
	for name, value := range map[string]string{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": dir, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": dir, "UV_OFFLINE": "1"} {
		t.Setenv(name, value)
	}
	list := filepath.Join(dir, "list.txt")
	if err := os.WriteFile(list, []byte("alpha==1.0\nbeta==1.0\nalpha==2.0 ; sys_platform == 'win32'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"pip", "uv"} {
		if !have(tool) {
			t.Logf("there is no %s", tool)
			continue
		}
		first := filepath.Join(dir, tool+"-first")
		code, out, errs := cohort("env", "create", list, "--prefix", first, "--tool", tool)
		if code != 0 && strings.Contains(errs, "ensurepip") {
			t.Skip("python3 has no venv")
		}
		if code != 0 || !strings.Contains(out, "has the versions that the file pins (3)") {
			t.Fatalf("%s: code %d\n%s%s", tool, code, out, errs)
		}
		file := filepath.Join(dir, tool+".toml")
		if code, _, errs := cohort("env", "export", file, "--python", filepath.Join(first, "bin/python")); code != 0 {
			t.Fatal(errs)
		}
		keep := []string{fingerprint.Python, fingerprint.Packages}
		f, err := readEnvFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if f.Get(fingerprint.Packages, "alpha") != "1.0" {
			t.Errorf("%v", f.Map())
		}
		// What venv brings along is no wheel of this test.
		text := f.Only(keep...)
		for _, name := range []string{"pip", "setuptools", "wheel"} {
			if tool == "uv" {
				text.Set(fingerprint.Packages, name, "")
			}
		}
		if err := os.WriteFile(file, text.TOML(), 0o644); err != nil {
			t.Fatal(err)
		}
		second := filepath.Join(dir, tool+"-second")
		if code, out, errs := cohort("env", "create", file, "--prefix", second, "--tool", tool); code != 0 || !strings.Contains(out, "has the Python and the") {
			t.Fatalf("%s: code %d\n%s%s", tool, code, out, errs)
		}
		found := fingerprint.CollectPython(filepath.Join(second, "bin/python"), nil)
		if differ := fingerprint.Diff(text, found.Only(keep...)); len(differ) > 0 {
			t.Errorf("%s: %s", tool, fingerprint.Table(differ))
		}
	}
}
