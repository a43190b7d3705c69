// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func of(values ...string) *Fingerprint {
	f := &Fingerprint{}
	for i := 0; i < len(values); i += 3 {
		f.Set(values[i], values[i+1], values[i+2])
	}
	return f
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name                 string
		section, key         string
		expected, found      string
		kind                 Kind // "" for no finding
		saysE, saysF, mended string
	}{
		{"equal", System, "libc", "glibc 2.36", "glibc 2.36", "", "", "", ""},
		{"kernels are told", System, "kernel", "6.1", "6.2", "", "", "", ""},
		{"a package", Packages, "numpy", "2.4.6", "2.4.5", Must, "2.4.6", "2.4.5", "python3 -m pip install --no-deps numpy==2.4.6"},
		{"a package too few", Packages, "numpy", "2.4.6", "", Must, "2.4.6", "", "python3 -m pip install --no-deps numpy==2.4.6"},
		{"a package too many", Packages, "numpy", "", "2.4.6", Must, "", "2.4.6", "python3 -m pip uninstall -y numpy"},
		{"a build of conda", Packages, "numpy", "2.4.6 conda py311_0 conda-forge/linux-64", "2.4.6 conda py311_1 conda-forge/linux-64", Must, "", "", "conda install -p '' numpy=2.4.6=py311_0"},
		{"a package of git", Packages, "x", "1 from git+https://h/x@abc", "1", Must, "", "", "python3 -m pip install 'x @ git+https://h/x@abc'"},
		{"a variable", Variables, "NCCL_ALGO", "Ring", "Tree", Must, "Ring", "Tree", "export NCCL_ALGO=Ring"},
		{"a variable too many", Variables, "OMP_NUM_THREADS", "", "4", Warn, "", "4", "unset OMP_NUM_THREADS"},
		{"a value for the shell", Variables, "NCCL_X", "a b'c", "", Must, "", "", `export NCCL_X='a b'\''c'`},
		{"an interface's name", Variables, "NCCL_SOCKET_IFNAME", "eth0", "eth1", Warn, "", "", "export NCCL_SOCKET_IFNAME=eth0"},
		{"files", Limits, "open_files", "65536", "1024", Warn, "", "", "ulimit -n 65536  # or in /etc/security/limits.conf"},
		{"more files", Limits, "open_files", "1024", "65536", "", "", "", ""},
		{"no limit", Limits, "address_space", "unlimited", "4294967296", Must, "", "", "ulimit -v unlimited  # or in /etc/security/limits.conf"},
		{"a limit in KiB", Limits, "stack", "8388608", "4194304", Warn, "", "", "ulimit -s 8192  # or in /etc/security/limits.conf"},
		{"memory that hardly differs", Memory, "total", "1000000", "990000", "", "", "", ""},
		{"less memory", Memory, "total", "1000000", "500000", Warn, "", "", ""},
		{"a key that one system cannot tell", Memory, "shm", "1000", "", "", "", "", ""},
		{"features", CPU, "features", "avx avx2 avx512f", "avx avx2 fma", Warn, "with avx512f, without fma", "without avx512f, with fma", "let the virtual machine pass all features of its processor on (QEMU: -cpu host), or use equal machines"},
		{"MTU", Network, "mtu.eth0", "9000", "1500", Warn, "", "", "ip link set dev eth0 mtu 9000"},
		{"sysctl", Network, "tcp_rmem", "4096 131072 6291456", "4096 87380 6291456", Warn, "", "", "sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'"},
		{"a clock that is nearly right", Clock, "offset", "0.1", "7", "", "", "", ""},
		{"a clock that is wrong", Clock, "offset", "0.1", "700", Warn, "", "", "apt-get install chrony && chronyc makestep  # or another service that keeps the clock"},
		{"a secret", Variables, "COHORT_X_TOKEN", Masked, "", Must, Masked, "", "set COHORT_X_TOKEN as on the other nodes"},
		{"an unknown key", System, "new", "a", "b", "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Both have packages: else they are not compared.
			e, f := of(Packages, "pip", "1", c.section, c.key, c.expected), of(Packages, "pip", "1", c.section, c.key, c.found)
			all := Diff(e, f)
			if c.kind == "" {
				if len(all) != 0 {
					t.Fatalf("found %+v, want nothing", all)
				}
				return
			}
			if len(all) != 1 {
				t.Fatalf("%d findings, want 1: %+v", len(all), all)
			}
			g := all[0]
			if g.Kind != c.kind || g.Mend != c.mended || g.What() != c.section+"."+c.key || g.Why == "" {
				t.Errorf("got %+v, want kind %s, mend %q", g, c.kind, c.mended)
			}
			if c.saysE != "" && g.Expected != c.saysE || c.saysF != "" && g.Found != c.saysF {
				t.Errorf("it says %q and %q, want %q and %q", g.Expected, g.Found, c.saysE, c.saysF)
			}
		})
	}
}

// TestCompare: what most nodes have is expected.
func TestCompare(t *testing.T) {
	node := func(name string, values ...string) Node { return Node{name, of(values...)} }
	nodes := []Node{
		node("a", Packages, "torch", "2.14", Limits, "open_files", "1024", Variables, "NCCL_ALGO", "Ring"),
		node("b", Packages, "torch", "2.15", Limits, "open_files", "65536"),
		node("c", Packages, "torch", "2.15", Limits, "open_files", "65536"),
	}
	all := Compare(nodes)
	if len(all) != 3 || !Stops(all) {
		t.Fatalf("found %+v, want torch, the variable and the open files of a", all)
	}
	for _, f := range all {
		if f.Node != "a" {
			t.Errorf("%s names %s, want a: %+v", f.What(), f.Node, f)
		}
	}
	// Of two nodes, the one with the worse number is named.
	for _, order := range [][]Node{{nodes[0], nodes[1]}, {nodes[1], nodes[0]}} {
		for _, f := range Compare(order) {
			if f.Key == "open_files" && f.Node != "a" {
				t.Errorf("%+v, want node a", f)
			}
		}
	}
	if all := Compare([]Node{nodes[1], nodes[2]}); len(all) != 0 {
		t.Errorf("equal nodes: %+v", all)
	}
	// Programs of other names may differ, as in a job of Go and Python.
	program := func(name, kind, hash string) Node {
		return node(name+hash, Program, "name", name, Program, "kind", kind, Program, "sha256", hash)
	}
	for _, c := range []struct {
		nodes []Node
		want  int
	}{
		{[]Node{program("train.py", "python", "1"), program("rank", "go", "2")}, 0},
		{[]Node{program("train.py", "python", "1"), program("rank", "go", "2"), program("rank", "go", "3")}, 1},
		{[]Node{program("sh", "other", "1"), program("sh", "other", "2")}, 1},
	} {
		all := Compare(c.nodes)
		if len(all) != c.want || len(all) > 0 && Stops(all) != (c.nodes[len(c.nodes)-1].Name[:2] != "sh") {
			t.Errorf("%+v: %+v, want %d findings", c.nodes, all, c.want)
		}
	}
	if nodes[1].Print.Digest() != nodes[2].Print.Digest() || nodes[0].Print.Digest() == nodes[1].Print.Digest() {
		t.Error("digests do not tell equal nodes from others")
	}
}

func TestMask(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"HF_TOKEN", "abc", Masked},
		{"COHORT_TOKEN", "00", Masked},
		{"AWS_SECRET_ACCESS_KEY", "x", Masked},
		{"NCCL_DEBUG", "INFO", "INFO"},
		{"TOKENIZERS_PARALLELISM", "false", "false"},
		{"HF_ENDPOINT", "https://me:pw@host/x", "https://***@host/x"},
		{"https_proxy", "http://me:p%40ss@proxy:3128", "http://***@proxy:3128"},
		{"HF_ENDPOINT", "https://host/x?api_token=abc&y=1", "https://host/x?api_token=***&y=1"},
		{"HF_HOME", "hf_abcdefghijklmnopqrstuvwxyz", Masked},
		{"NCCL_X", "-----BEGIN PRIVATE KEY-----", Masked},
		{"TORCH_X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9", Masked},
		{"OMP_NUM_THREADS", "4", "4"},
	} {
		if got := Mask(c.name, c.value); got != c.want {
			t.Errorf("Mask(%s, %s) = %q, want %q", c.name, c.value, got, c.want)
		}
	}
	f := &Fingerprint{}
	f.collectVariables([]string{"NCCL_DEBUG=INFO", "COHORT_TOKEN=secret", "RANK=3", "HOME=x", "MY_A=1", "MY_B=2", "PYTHONPATH="}, []string{"MY_*"})
	if got, want := f.Map()[Variables], map[string]string{"NCCL_DEBUG": "INFO", "MY_A": "1", "MY_B": "2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("variables %v, want %v", got, want)
	}
}

func TestJSONAndLimits(t *testing.T) {
	f := of(Packages, "a.b", `x"y\z`, Network, "mtu.eth0", "1500")
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var g Fingerprint
	if err := json.Unmarshal(b, &g); err != nil || !reflect.DeepEqual(f.Map(), g.Map()) {
		t.Fatalf("%v after JSON, want %v (%v)", g.Map(), f.Map(), err)
	}
	want := "# a file\n\n[network]\n\"mtu.eth0\" = \"1500\"\n\n[packages]\n\"a.b\" = \"x\\\"y\\\\z\"\n"
	if got := string(f.TOML("a file")); got != want {
		t.Errorf("TOML:\n%s\nwant:\n%s", got, want)
	}
	for text, want := range map[string]string{
		`{"nonsense":{"a":"b"}}`:                            "section",
		`{"cpu":{"":"b"}}`:                                  "key of 0 bytes",
		`{"cpu":{"a\nb":"b"}}`:                              "control characters",
		`{"cpu":{"a":3}}`:                                   "no fingerprint",
		`{"cpu":{"a":"` + strings.Repeat("x", 9000):         "no fingerprint",
		`{"cpu":{"a":"` + strings.Repeat("x", 9000) + `"}}`: "9000 bytes",
	} {
		if err := json.Unmarshal([]byte(text), &g); err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "JSON") {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

// write makes a tree of files.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPythonEnvironments(t *testing.T) {
	site := "lib/python3.11/site-packages/"
	meta := func(name, version string) string {
		return "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n\nText\nName: other\n"
	}
	for _, c := range []struct {
		name   string
		files  map[string]string
		python string
		want   map[string]string // of the section packages
		about  map[string]string // of the section python
	}{
		{"venv", map[string]string{
			"v/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n",
			"v/bin/python": "",
			"v/" + site + "Foo_Bar-1.0.dist-info/METADATA":  meta("Foo_Bar", "1.0+cpu"),
			"v/" + site + "ed-2.dist-info/METADATA":         meta("ed", "2"),
			"v/" + site + "ed-2.dist-info/direct_url.json":  `{"url":"file:///src/ed","dir_info":{"editable":true}}`,
			"v/" + site + "git-3.dist-info/METADATA":        meta("git", "3"),
			"v/" + site + "git-3.dist-info/direct_url.json": `{"url":"https://u:p@h/git","vcs_info":{"vcs":"git","commit_id":"abc"}}`,
			"v/" + site + "old-4.egg-info/PKG-INFO":         meta("old", "4"),
			"v/" + site + "broken-5.dist-info/RECORD":       "",
			"v/" + site + "twice-1.dist-info/METADATA":      meta("twice", "1"),
			"v/" + site + "twice-2.dist-info/METADATA":      meta("twice", "2"),
		}, "v/bin/python", map[string]string{"foo-bar": "1.0+cpu", "ed": "2 editable", "git": "3 from git+https://***@h/git@abc", "old": "4", "twice": "1 and 2"},
			map[string]string{"version": "3.11.7", "kind": "venv"}},
		{"uv", map[string]string{
			"v/pyvenv.cfg": "home = /usr/bin\nimplementation = CPython\nuv = 0.9\nversion_info = 3.11.2\n",
			"v/bin/python": "", "v/" + site + "a-1.dist-info/METADATA": meta("a", "1"),
		}, "v/bin/python", map[string]string{"a": "1"}, map[string]string{"version": "3.11.2", "kind": "venv"}},
		{"conda", map[string]string{
			"c/bin/python3.11":                           "",
			"c/conda-meta/python-3.11.9-h1_0.json":       `{"name":"python","version":"3.11.9","build":"h1_0","channel":"https://conda.anaconda.org/conda-forge/linux-64","subdir":"linux-64"}`,
			"c/conda-meta/numpy-2.0-py311_0.json":        `{"name":"numpy","version":"2.0","build":"py311_0","channel":"https://x/t/tk-secret/main/linux-64","subdir":"linux-64"}`,
			"c/" + site + "numpy-2.0.dist-info/METADATA": meta("numpy", "2.0"),
			"c/" + site + "p-1.dist-info/METADATA":       meta("p", "1"),
		}, "c/bin/python3.11", map[string]string{"python": "3.11.9 conda h1_0 conda-forge/linux-64", "numpy": "2.0 conda py311_0 https://x/main/linux-64", "p": "1"},
			map[string]string{"version": "3.11.9", "kind": "conda"}},
		{"pyenv", map[string]string{
			"p/shims/python3": "#!/bin/sh\n", "p/version": "3.11.7\n",
			"p/versions/3.11.7/bin/python3":                        "",
			"p/versions/3.11.7/bin/python3.11":                     "",
			"p/versions/3.11.7/include/python3.11/patchlevel.h":    "#define PY_VERSION              \"3.11.7\"\n",
			"p/versions/3.11.7/" + site + "a-1.dist-info/METADATA": meta("a", "1"),
			"p/versions/3.11.7/" + site + "b.egg-info":             meta("b", "2"),
		}, "p/shims/python3", map[string]string{"a": "1", "b": "2"}, map[string]string{"version": "3.11.7", "kind": "system"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, c.files)
			if c.name == "pyenv" { // python3 is a link there
				link := filepath.Join(dir, "p/versions/3.11.7/bin/python3")
				if err := os.Remove(link); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("python3.11", link); err != nil {
					t.Fatal(err)
				}
			}
			f := &Fingerprint{}
			f.collectPython(filepath.Join(dir, c.python), nil)
			if got := f.Map()[Packages]; !reflect.DeepEqual(got, c.want) {
				t.Errorf("packages %v, want %v", got, c.want)
			}
			for key, want := range c.about {
				if got := f.Get(Python, key); got != want {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
		})
	}
}

// TestCollect: this machine has a fingerprint, and the same one again.
func TestCollect(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Program: self, Environ: []string{"NCCL_DEBUG=INFO"}}
	a, b := Collect(t.Context(), o), Collect(t.Context(), o)
	if all := Diff(a, b); len(all) != 0 {
		t.Errorf("a node differs from itself: %+v", all)
	}
	for _, want := range [][2]string{{Program, "sha256"}, {Program, "go"}, {Cohort, "go"}, {System, "arch"}, {CPU, "kernels"}, {Variables, "NCCL_DEBUG"}} {
		if a.Get(want[0], want[1]) == "" {
			t.Errorf("%s.%s is missing", want[0], want[1])
		}
	}
	if _, err := FromMap(a.Map()); err != nil {
		t.Error(err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"cpu":{"model":"x"},"packages":{"a":"1 conda b c/d"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Fingerprint
		if json.Unmarshal(b, &g) != nil {
			return
		}
		other := of(Packages, "a", "1", CPU, "features", "avx", Limits, "stack", "1")
		Diff(&g, other)
		Diff(other, &g)
		if all := Diff(&g, &g); len(all) != 0 {
			t.Errorf("%v differs from itself", g.Map())
		}
		g.TOML()
	})
}

// TestCompareClocks: a node is named whose clock is wrong by more than the time that the
// answers took.
func TestCompareClocks(t *testing.T) {
	asked := time.Unix(1000, 0)
	got := asked.Add(500 * time.Millisecond)
	nodes := []Node{{"a", of()}, {"b", of()}, {"c", of()}}
	at := func(d time.Duration) time.Time { return asked.Add(d) }
	for _, c := range []struct {
		answers []time.Time
		want    string
	}{
		{[]time.Time{at(0), at(200 * time.Millisecond), at(500 * time.Millisecond)}, ""},
		{[]time.Time{at(0), at(90 * time.Second), at(0)}, "b"},
		{[]time.Time{at(0), at(0), at(-5 * time.Second)}, "c"},
		{[]time.Time{at(0), at(time.Hour), at(time.Hour)}, "a"},
		{[]time.Time{at(0), at(-time.Hour)}, "b"},
	} {
		all := CompareClocks(nodes[:len(c.answers)], c.answers, asked, got)
		named := ""
		for _, f := range all {
			named += f.Node
		}
		if named != c.want {
			t.Errorf("%v: %q is named, want %q", c.answers, named, c.want)
		}
	}
}

// TestRecreate: the commands that make an environment again.
func TestRecreate(t *testing.T) {
	f := of(Python, "version", "3.11.7", Packages, "numpy", "2.4.6", Packages, "x", "1 from git+https://h/x@abc")
	text, err := f.Requirements()
	if want := "numpy==2.4.6\nx @ git+https://h/x@abc\n"; err != nil || text != want {
		t.Errorf("requirements %q (%v), want %q", text, err, want)
	}
	conda := of(Python, "version", "3.11.7", Packages, "python", "3.11.7 conda h0_1 conda-forge/linux-64", Packages, "y", "2")
	lines := func(f *Fingerprint, tool string) string {
		steps, err := f.Recreate(tool, "d", "python3", "r.txt")
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, s := range steps {
			all = append(all, strings.Join(s.Args, " "))
		}
		return strings.Join(all, "; ")
	}
	for _, c := range []struct {
		f          *Fingerprint
		tool, want string
	}{
		{f, "uv", "uv venv --python 3.11.7 d; uv pip install --python d/bin/python --no-deps -r r.txt"},
		{f, "pip", "python3 -m venv d; d/bin/python -m pip install --no-deps -r r.txt"},
		{conda, "mamba", "mamba create -y -p d -c conda-forge python=3.11.7=h0_1; d/bin/python -m pip install --no-deps -r r.txt"},
		{conda, "pip", "the environment has packages of conda, and pip cannot install them: give --tool conda or mamba"},
		{of(), "uv", "the file has no python.version: export it with --python"},
	} {
		if got := lines(c.f, c.tool); got != c.want {
			t.Errorf("%s: %q, want %q", c.tool, got, c.want)
		}
	}
	for _, bad := range []string{"1 editable", "1 from https://***@h/x.whl", "1 and 2"} {
		if _, err := of(Packages, "z", bad).Requirements(); err == nil || !strings.Contains(err.Error(), "install it by hand") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	step, ok := f.Surplus("pip", "d", of(Packages, "numpy", "2.4.6", Packages, "setuptools", "65", Packages, "pip", "23"))
	if got := strings.Join(step.Args, " "); !ok || got != "d/bin/python -m pip uninstall -y setuptools" {
		t.Errorf("surplus %q", got)
	}
	if _, err := of(Program, "package", "p", Program, "version", "(devel)").Install("d"); err == nil {
		t.Error("a program without a version is installed")
	}
	if s, err := of(Program, "package", "h/p", Program, "version", "v1.2.3", Program, "go", "go1.26.0").Install("d"); err != nil || strings.Join(s.Args, " ") != "go install h/p@v1.2.3" || len(s.Env) != 2 {
		t.Errorf("install %+v (%v)", s, err)
	}
}
