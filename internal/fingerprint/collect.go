// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// Options say what is read.
type Options struct {
	// Program is the path of the program that is run, a binary or a script. It may be empty.
	Program string
	// Python is the path of the interpreter that runs the program; "" for none.
	Python string
	// Environ is the environment, as of os.Environ.
	Environ []string
	// More are names of further variables, or beginnings of names with a star behind them.
	More []string
	// Root is the directory that holds the system's files, for tests; "" is /.
	Root string
}

// source reads the files of a system.
type source struct{ root string }

func (s source) path(p string) string {
	if s.root == "" || s.root == "/" {
		return p
	}
	return filepath.Join(s.root, p)
}

// maxFile bounds what is read of one file.
const maxFile = 16 << 20

// read returns the text of a file without blanks around it, "" if it cannot be read.
func (s source) read(p string) string { return readFile(s.path(p)) }

func readFile(p string) string {
	f, err := os.Open(p)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// glob returns the sorted paths that fit a pattern.
func (s source) glob(pattern string) []string {
	found, _ := filepath.Glob(s.path(pattern))
	return found
}

// ActivePython returns the interpreter of the Python environment that an environment, as of
// os.Environ, has made active; "" if there is none.
func ActivePython(environ []string) string {
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := variable(environ, name); dir != "" {
			return filepath.Join(dir, "bin", "python")
		}
	}
	return ""
}

// Collect reads the fingerprint of this node. What cannot be read is left out.
func Collect(ctx context.Context, o Options) *Fingerprint {
	s := source{o.Root}
	f := &Fingerprint{}
	f.collectCohort()
	f.Set(System, "os", runtime.GOOS)
	f.Set(System, "arch", runtime.GOARCH)
	if host, err := os.Hostname(); err == nil {
		f.Set(System, "host", host)
	}
	f.collectSystem(s)
	f.collectNetwork(ctx, s)
	f.collectClock(s)
	f.collectGPU(ctx, s)
	if o.Program != "" {
		f.collectProgram(o.Program)
	}
	if o.Python != "" {
		f.collectPython(o.Python, o.Environ)
	}
	f.collectVariables(o.Environ, o.More)
	return f
}

// collectCohort describes this binary.
func (f *Fingerprint) collectCohort() {
	f.Set(Cohort, "go", runtime.Version())
	if info, ok := debug.ReadBuildInfo(); ok {
		f.Set(Cohort, "version", versionOf(info, "github.com/cohort-ml/cohort"))
		f.Set(Cohort, "revision", revision(info))
	}
	if path, err := os.Executable(); err == nil {
		f.Set(Cohort, "sha256", hashFile(path))
	}
}

// versionOf returns the version of a module in a program.
func versionOf(info *debug.BuildInfo, module string) string {
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		if d.Path == module {
			if d.Replace != nil {
				return d.Version + " => " + d.Replace.Path + " " + d.Replace.Version
			}
			return d.Version
		}
	}
	return ""
}

// revision returns the commit of a build, with the word changed if files had changed since.
func revision(info *debug.BuildInfo) string {
	text := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text = s.Value + text
		case s.Key == "vcs.modified" && s.Value == "true":
			text += " changed"
		}
	}
	return strings.TrimSpace(text)
}

// collectProgram describes the program that is run.
func (f *Fingerprint) collectProgram(path string) {
	f.Set(Program, "name", filepath.Base(path))
	f.Set(Program, "path", path)
	f.Set(Program, "sha256", hashFile(path))
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		kind := "other"
		if strings.HasSuffix(path, ".py") {
			kind = "python"
		}
		f.Set(Program, "kind", kind)
		return
	}
	f.Set(Program, "kind", "go")
	f.Set(Program, "package", info.Path)
	f.Set(Program, "module", info.Main.Path)
	f.Set(Program, "version", info.Main.Version)
	f.Set(Program, "sum", info.Main.Sum)
	f.Set(Program, "revision", revision(info))
	f.Set(Program, "go", info.GoVersion)
	f.Set(Program, "cohort", versionOf(info, "github.com/cohort-ml/cohort"))
	var deps []string
	for _, d := range info.Deps {
		text := d.Path + " " + d.Version + " " + d.Sum
		if d.Replace != nil {
			text += " => " + d.Replace.Path + " " + d.Replace.Version + " " + d.Replace.Sum
		}
		deps = append(deps, text)
	}
	slices.Sort(deps)
	sum := sha256.Sum256([]byte(strings.Join(deps, "\n")))
	f.Set(Program, "dependencies", hex.EncodeToString(sum[:]))
}

// hashFile returns the SHA-256 of a file, "" if it cannot be read.
func hashFile(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
