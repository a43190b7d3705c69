// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxPackages bounds the packages of an environment.
const maxPackages = 8000

// environment is a Python environment as its files describe it.
type environment struct {
	executable string
	prefix     string // of the environment
	base       string // of the interpreter from which it was made
	kind       string // venv, conda, system
	version    string
	system     bool // packages of the base are seen too
	user       bool // packages of the user are seen too
}

// collectPython reads an environment without starting Python.
func (f *Fingerprint) collectPython(path string, environ []string) {
	env, ok := findPython(path, environ)
	if !ok {
		return
	}
	f.Set(Python, "executable", env.executable)
	f.Set(Python, "prefix", env.prefix)
	f.Set(Python, "kind", env.kind)
	f.Set(Python, "version", env.version)
	f.Set(Python, "implementation", env.implementation())
	found := map[string]string{}
	for _, dir := range env.places(environ) {
		for name, version := range readSitePackages(dir) {
			if _, there := found[name]; !there { // the earlier directory is imported
				found[name] = version
			}
		}
	}
	for name, version := range readCondaMeta(filepath.Join(env.prefix, "conda-meta")) {
		found[name] = version
	}
	if len(found) > maxPackages {
		f.Set(Python, "packages", "more than can be compared")
		return
	}
	for name, version := range found {
		f.Set(Packages, name, version)
	}
}

func variable(environ []string, name string) string {
	for _, e := range slices.Backward(environ) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// findPython finds the environment that an interpreter belongs to.
func findPython(path string, environ []string) (*environment, bool) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, false
	}
	if filepath.Base(filepath.Dir(path)) == "shims" {
		path = throughPyenv(path, environ)
	}
	name := filepath.Base(path)
	if st, err := os.Stat(path); err != nil || st.IsDir() || !strings.HasPrefix(name, "python") && !strings.HasPrefix(name, "pypy") {
		return nil, false
	}
	env := &environment{executable: path}
	bin := filepath.Dir(path)
	cfg, inBin := filepath.Join(filepath.Dir(bin), "pyvenv.cfg"), filepath.Join(bin, "pyvenv.cfg")
	if _, err := os.Stat(inBin); err == nil {
		cfg = inBin
	}
	if text := readFile(cfg); text != "" {
		env.kind, env.prefix, env.user = "venv", filepath.Dir(cfg), false
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(line, "=")
			value = strings.TrimSpace(value)
			switch strings.ToLower(strings.TrimSpace(key)) {
			case "home":
				env.base = filepath.Dir(value)
			case "version", "version_info":
				env.version = shortVersion(value)
			case "include-system-site-packages":
				env.system = strings.EqualFold(value, "true")
			}
		}
		env.user = env.system
	} else {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, false
		}
		env.kind, env.prefix, env.user = "system", filepath.Dir(filepath.Dir(real)), true
		if isDir(filepath.Join(filepath.Dir(bin), "conda-meta")) {
			env.prefix = filepath.Dir(bin)
		}
		if isDir(filepath.Join(env.prefix, "conda-meta")) {
			env.kind = "conda"
		}
		env.base = env.prefix
	}
	if env.version == "" || strings.Count(env.version, ".") < 2 {
		if v := env.versionByFiles(path); v != "" {
			env.version = v
		}
	}
	return env, env.version != ""
}

var versionNumber = regexp.MustCompile(`^\d+\.\d+(\.\d+)?((a|b|rc)\d+)?\+?`)

// shortVersion cuts 3.11.7.final.0 to 3.11.7.
func shortVersion(text string) string { return versionNumber.FindString(text) }

// throughPyenv finds the interpreter behind a script of pyenv.
func throughPyenv(path string, environ []string) string {
	root := filepath.Dir(filepath.Dir(path))
	chosen := variable(environ, "PYENV_VERSION")
	if dir, err := os.Getwd(); err == nil && chosen == "" {
		for ; ; dir = filepath.Dir(dir) {
			if chosen = readFile(filepath.Join(dir, ".python-version")); chosen != "" || dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if chosen == "" {
		chosen = readFile(filepath.Join(root, "version"))
	}
	for _, v := range strings.FieldsFunc(chosen, func(c rune) bool { return c == ':' || c == '\n' || c == ' ' }) {
		if real := filepath.Join(root, "versions", v, "bin", filepath.Base(path)); filepath.IsLocal(v) && exists(real) {
			return real
		}
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var (
	patchLevel = regexp.MustCompile(`#define\s+PY_VERSION\s+"([^"]+)"`)
	inName     = regexp.MustCompile(`(\d+\.\d+)t?$`)
)

// versionByFiles finds the version where no file of the environment says it: in the headers,
// in the name of the interpreter, or in the interpreter itself.
func (env *environment) versionByFiles(path string) string {
	found, _ := filepath.Glob(filepath.Join(env.prefix, "conda-meta", "python-[0-9]*.json"))
	for _, p := range found {
		if name, version, _ := condaPackage(p); name == "python" {
			v, _, _ := strings.Cut(version, " ")
			return v
		}
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	minor := inName.FindString(filepath.Base(real))
	for _, base := range []string{env.base, env.prefix} {
		headers, _ := filepath.Glob(filepath.Join(base, "include", "python"+minor+"*", "patchlevel.h"))
		for _, h := range headers {
			if m := patchLevel.FindStringSubmatch(readFile(h)); m != nil {
				return m[1]
			}
		}
	}
	if minor != "" {
		if v := versionInBinary(real, minor); v != "" {
			return v
		}
		libs, _ := filepath.Glob(filepath.Join(env.base, "lib", "*", "libpython"+minor+".so.1.0"))
		more, _ := filepath.Glob(filepath.Join(env.base, "lib", "libpython"+minor+".so.1.0"))
		for _, lib := range append(libs, more...) {
			if v := versionInBinary(lib, minor); v != "" {
				return v
			}
		}
	}
	return minor
}

// versionInBinary finds a text such as 3.11.2 between zeros in a file.
func versionInBinary(path, minor string) string {
	if st, err := os.Stat(path); err != nil || st.Size() > 64<<20 {
		return ""
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if m := regexp.MustCompile(`\x00(` + regexp.QuoteMeta(strings.TrimSuffix(minor, "t")) + `\.\d+(?:(?:a|b|rc)\d+)?\+?)\x00`).FindSubmatch(b); m != nil {
		return string(m[1])
	}
	return ""
}

func (env *environment) implementation() string {
	real, err := filepath.EvalSymlinks(env.executable)
	if err == nil && strings.Contains(filepath.Base(real), "pypy") {
		return "PyPy"
	}
	if strings.HasSuffix(inName.FindString(filepath.Base(real)), "t") {
		return "CPython free-threaded"
	}
	return "CPython"
}

// places returns the directories of packages in the order in which Python looks into them.
func (env *environment) places(environ []string) []string {
	parts := strings.SplitN(env.version, ".", 3)
	if len(parts) < 2 {
		return nil
	}
	minor := "python" + parts[0] + "." + parts[1]
	if strings.HasSuffix(env.implementation(), "threaded") {
		minor += "t"
	}
	var dirs []string
	add := func(paths ...string) {
		for _, p := range paths {
			if p != "" && !slices.Contains(dirs, p) && isDir(p) {
				dirs = append(dirs, p)
			}
		}
	}
	add(filepath.SplitList(variable(environ, "PYTHONPATH"))...)
	if home := variable(environ, "HOME"); env.user && home != "" && variable(environ, "PYTHONNOUSERSITE") == "" {
		base := variable(environ, "PYTHONUSERBASE")
		if base == "" {
			base = filepath.Join(home, ".local")
		}
		add(filepath.Join(base, "lib", minor, "site-packages"))
	}
	prefixes := []string{env.prefix}
	if env.system && env.base != "" {
		prefixes = append(prefixes, env.base)
	}
	for _, p := range prefixes {
		for _, lib := range []string{"lib", "lib64"} {
			add(filepath.Join(p, lib, minor, "site-packages"))
		}
		if p == "/usr" { // Debian
			add("/usr/local/lib/"+minor+"/dist-packages", "/usr/lib/python3/dist-packages", "/usr/lib/"+minor+"/dist-packages")
		}
	}
	return dirs
}

var separators = regexp.MustCompile(`[-_.]+`)

// normal writes the name of a package as pip compares it.
func normal(name string) string { return strings.ToLower(separators.ReplaceAllString(name, "-")) }

// readSitePackages returns the packages in a directory and their versions.
func readSitePackages(dir string) map[string]string {
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var name, version string
		switch filepath.Ext(e.Name()) {
		case ".dist-info":
			name, version = metadata(filepath.Join(path, "METADATA"))
			if from := origin(filepath.Join(path, "direct_url.json")); from != "" && version != "" {
				version += " " + from
			}
		case ".egg-info":
			if st, err := os.Stat(path); err == nil && st.IsDir() {
				path = filepath.Join(path, "PKG-INFO")
			}
			name, version = metadata(path)
		default:
			continue
		}
		if name == "" || version == "" {
			continue
		}
		name = normal(name)
		if was, there := out[name]; there && was != version {
			version = was + " and " + version // a broken installation
		}
		out[name] = version
	}
	return out
}

// metadata reads the name and version at the beginning of a file METADATA.
func metadata(path string) (name, version string) {
	file, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 0; lines.Scan() && n < 200 && (name == "" || version == ""); n++ {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if !ok && lines.Text() == "" {
			break
		}
		switch key {
		case "Name":
			name = strings.TrimSpace(value)
		case "Version":
			version = strings.TrimSpace(value)
		}
	}
	if len(name) > maxName || len(version) > maxName {
		return "", ""
	}
	return name, version
}

// origin says where a package came from if that was no index: the text of direct_url.json
// in short.
func origin(path string) string {
	var u struct {
		URL string `json:"url"`
		VCS *struct {
			Kind   string `json:"vcs"`
			Commit string `json:"commit_id"`
		} `json:"vcs_info"`
		Dir *struct {
			Editable bool `json:"editable"`
		} `json:"dir_info"`
	}
	text := readFile(path)
	if text == "" || json.Unmarshal([]byte(text), &u) != nil || u.URL == "" {
		return ""
	}
	switch {
	case u.VCS != nil:
		return "from " + u.VCS.Kind + "+" + maskURL(u.URL) + "@" + u.VCS.Commit
	case u.Dir != nil && u.Dir.Editable:
		return "editable"
	case u.Dir != nil:
		return "from a directory"
	case strings.HasPrefix(u.URL, "file:"):
		return "" // a wheel that somebody has downloaded: the same package
	}
	return "from " + maskURL(u.URL)
}

// readCondaMeta returns the packages that conda has installed.
func readCondaMeta(dir string) map[string]string {
	out := map[string]string{}
	found, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, path := range found {
		if name, version, ok := condaPackage(path); ok {
			out[name] = version
		}
	}
	return out
}

var channelToken = regexp.MustCompile(`/t/[^/]+/`)

// condaPackage reads a file of conda-meta: the name, and version, build and channel.
func condaPackage(path string) (name, version string, ok bool) {
	var p struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Build   string `json:"build"`
		Channel string `json:"channel"`
		Subdir  string `json:"subdir"`
	}
	if json.Unmarshal([]byte(readFile(path)), &p) != nil || p.Name == "" || p.Version == "" {
		return "", "", false
	}
	version = p.Version + " conda " + p.Build
	channel := strings.TrimSuffix(channelToken.ReplaceAllString(maskURL(p.Channel), "/"), "/")
	channel = strings.TrimSuffix(channel, "/"+p.Subdir)
	channel = strings.TrimPrefix(channel, "https://conda.anaconda.org/")
	if channel != "" {
		version += " " + channel
		if p.Subdir != "" {
			version += "/" + p.Subdir
		}
	}
	return strings.ToLower(p.Name), version, true
}
