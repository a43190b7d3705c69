// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPins(t *testing.T) {
	got := Pins("\ufeffmarked==1\n" + `# a list
--extra-index-url https://h/simple
-r other.txt
NumPy==2.4.6  # remark
torch[cuda] == 2.15.0+cpu \
    --hash=sha256:00 \
    --hash=sha256:11
colorama==0.4.6 ; sys_platform == 'win32'
a>=1,<2
b==1.*
c @ https://h/c.whl
zope.interface===5
`)
	want := []Pin{{"marked", "1", false}, {"numpy", "2.4.6", false}, {"torch", "2.15.0+cpu", false}, {"colorama", "0.4.6", true}, {"zope-interface", "5", false}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	explicit := ExplicitPins("# platform: linux-64\n@EXPLICIT\nhttps://conda.anaconda.org/conda-forge/linux-64/python-dateutil-2.9.0-py_1.conda#0123\nhttps://h/x\n")
	if want := []Pin{{"python-dateutil", "2.9.0 conda py_1", false}}; !slices.Equal(explicit, want) {
		t.Errorf("%+v, want %+v", explicit, want)
	}
}

func TestCheckPins(t *testing.T) {
	f := of(Python, "version", "3.11.7", Packages, "a", "1.0", Packages, "b", "2.0+cpu", Packages, "d", "3 conda h_1 conda-forge/linux-64")
	for _, c := range []struct {
		pin  Pin
		want string
	}{
		{Pin{"a", "1", false}, ""},
		{Pin{"a", "1.0.0", false}, ""},
		{Pin{"a", "1.1", false}, "a 1.1 1.0"},
		{Pin{"b", "2", false}, ""},
		{Pin{"b", "2+cu128", false}, "b 2+cu128 2.0+cpu"},
		{Pin{"c", "3", false}, "c 3 "},
		{Pin{"c", "3", true}, ""},
		{Pin{"d", "3", false}, ""},
		{Pin{"d", "3 conda h_1", false}, ""},
		{Pin{"d", "3 conda h_2", false}, "d 3 conda h_2 3 conda h_1"},
	} {
		found := f.CheckPins([]Pin{c.pin})
		got := ""
		for _, x := range found {
			got += x.Key + " " + x.Expected + " " + x.Found
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.pin, got, c.want)
		}
	}
	if found := of(Python, "version", "3.11.7").CheckPins([]Pin{{"a", "1", false}}); len(found) != 1 {
		t.Errorf("an empty environment: %+v", found)
	}
}

// TestCondaForms: the files of conda-meta that py-rattler 0.28 writes have these keys.
func TestCondaForms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "conda-meta"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "conda-meta", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a-1-h_0.json", `{"name":"a","version":"1","build":"h_0","channel":"https://conda.anaconda.org/t/tk-1/conda-forge","subdir":"linux-64","url":"https://me:pw@h/t/tk-123/conda-forge/linux-64/a-1-h_0.conda","md5":"0123"}`)
	text, err := CondaExplicit(dir)
	if want := "# platform: linux-64\n@EXPLICIT\nhttps://***@h/conda-forge/linux-64/a-1-h_0.conda#0123\n"; err != nil || text != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
	if found := ExplicitPins(text); len(found) != 1 || found[0] != (Pin{"a", "1 conda h_0", false}) {
		t.Errorf("what is written is read as %+v", found)
	}
	write("b.json", `{"name":"b"}`)
	if _, err := CondaExplicit(dir); err == nil || !strings.Contains(err.Error(), "b.json does not say") {
		t.Errorf("no address: %v", err)
	}
	if _, err := CondaExplicit(t.TempDir()); err == nil {
		t.Error("no package")
	}
	f := of(Python, "version", "3.11.7", Packages, "python", "3.11.7 conda h_1 conda-forge/linux-64", Packages, "x", "1 from https://h/x.whl", Packages, "pip", "26", Packages, "y", "on")
	got, err := f.EnvironmentYML("on")
	want := "name: 'on'\nchannels:\n  - conda-forge\n  - nodefaults\ndependencies:\n  - python=3.11.7=h_1\n  - pip=26\n  - pip:\n      - 'x @ https://h/x.whl'\n      - y==on\n"
	if err != nil || got != want {
		t.Errorf("%s%v, want\n%s", got, err, want)
	}
}

// TestNamesAreQuoted: a name or value of another node ends no word of a command.
func TestNamesAreQuoted(t *testing.T) {
	const evil = `a; touch /tmp/x $(id) "'` + "`"
	quoted := Quote(evil)
	expected, found := &Fingerprint{}, &Fingerprint{}
	for _, r := range Rules() {
		key := strings.ReplaceAll(r.Key, "*", evil)
		expected.Set(r.Section, key, evil+"1")
		found.Set(r.Section, key, evil+"2")
	}
	found.Set(CPU, "quota_file", evil)
	found.Set(Memory, "limit_file", evil)
	found.Set(Limits, "pids_file", evil)
	for _, f := range Diff(expected, found) {
		bare := strings.ReplaceAll(f.Mend, strings.Trim(quoted, "'"), "")
		command := strings.ContainsAny(f.Mend, "=>|") || strings.HasPrefix(f.Mend, "ip ") || strings.HasPrefix(f.Mend, "ulimit")
		if command && strings.Contains(bare, "touch") {
			t.Errorf("%s: %s", f.What(), f.Mend)
		}
	}
	for _, f := range []*Fingerprint{of(Python, "version", "3", Packages, "-r", "1"), of(Python, "version", "3", Packages, "a", "-1"), of(Python, "version", "3", Packages, "a b", "1")} {
		if _, err := f.Requirements(); err == nil {
			t.Errorf("%v has requirements", f.Map())
		}
		if _, err := f.Recreate("uv", "d", "", "r"); err == nil {
			t.Errorf("%v is made", f.Map())
		}
	}
	for _, f := range []*Fingerprint{of(Program, "package", "-toolexec=/x", Program, "version", "v1.0.0"), of(Program, "package", "p", Program, "version", "v1.0.0 -x")} {
		if s, err := f.Install("d"); err == nil {
			t.Errorf("%v is installed by %v", f.Map(), s.Args)
		}
	}
}

// FuzzPins: what is pinned stands in the list.
func FuzzPins(f *testing.F) {
	f.Add("a==1 \\\n --hash=sha256:0 ; x\n")
	f.Add("@EXPLICIT\nhttps://h/a-1-0.conda\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range Pins(text) {
			if !strings.Contains(text, p.Version) || !packageName.MatchString(p.Name) {
				t.Errorf("%q: %+v", text, p)
			}
		}
		for _, p := range ExplicitPins(text) {
			if v, build, _ := strings.Cut(p.Version, " conda "); !strings.Contains(text, v) || !strings.Contains(text, build) {
				t.Errorf("%q: %+v", text, p)
			}
		}
	})
}
