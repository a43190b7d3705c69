// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Step is a command that makes a part of an environment.
type Step struct {
	Env  []string // added to the environment
	Args []string
}

// Tools are the tools that make Python environments, in the order of preference.
func Tools() []string { return []string{"uv", "pip", "mamba", "micromamba", "conda"} }

// packageName is the name of a package. What begins with a dash would be a flag of a command.
var packageName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// modulePath is the path of a package of Go.
var modulePath = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~/-]*$`)

// versionOfModule is a version that go install takes.
var versionOfModule = regexp.MustCompile(`^v\d+\.\d+\.\d+[0-9A-Za-z.+-]*$`)

// checkNames reports a package whose name is none.
func (f *Fingerprint) checkNames() error {
	for _, name := range f.Keys(Packages) {
		if !packageName.MatchString(name) {
			return fmt.Errorf("package %.60q has a name that is none: remove its line", name)
		}
		if value := f.Get(Packages, name); strings.HasPrefix(value, "-") {
			return fmt.Errorf("package %s has the version %.60q, which is none: correct its line", name, value)
		}
	}
	return nil
}

// isConda says whether a tool makes environments of conda.
func isConda(tool string) bool {
	return strings.HasSuffix(tool, "conda") || strings.HasSuffix(tool, "mamba")
}

// HasConda says whether conda has installed a package of the environment.
func (f *Fingerprint) HasConda() bool {
	return slices.ContainsFunc(f.Keys(Packages), func(name string) bool { return condaSpec(name, f.Get(Packages, name)) != "" })
}

// condaSpec returns name=version=build of a package of conda, "" for another one.
func condaSpec(name, value string) string {
	words := strings.Fields(value)
	if len(words) < 3 || words[1] != "conda" {
		return ""
	}
	return name + "=" + words[0] + "=" + words[2]
}

// channels returns the channels of conda's packages.
func (f *Fingerprint) channels() []string {
	var out []string
	for _, name := range f.Keys(Packages) {
		if words := strings.Fields(f.Get(Packages, name)); len(words) == 4 && words[1] == "conda" {
			channel := words[3]
			if i := strings.LastIndexByte(channel, '/'); i > 0 {
				channel = channel[:i] // without the platform
			}
			if !slices.Contains(out, channel) {
				out = append(out, channel)
			}
		}
	}
	return out
}

// Requirements returns the packages that pip installs, in the form of a file
// requirements.txt: a line NAME==VERSION for each.
func (f *Fingerprint) Requirements() (string, error) {
	if err := f.checkNames(); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range f.Keys(Packages) {
		value := f.Get(Packages, name)
		version, rest, _ := strings.Cut(value, " ")
		switch {
		case condaSpec(name, value) != "":
		case rest == "":
			fmt.Fprintf(&b, "%s==%s\n", name, version)
		case rest == "editable" || rest == "from a directory":
			return "", fmt.Errorf("package %s %s was installed from a directory, which this file does not have: remove its line, and install it by hand", name, version)
		case strings.HasPrefix(rest, "from ") && !strings.Contains(rest, "***"):
			fmt.Fprintf(&b, "%s @ %s\n", name, strings.TrimPrefix(rest, "from "))
		default:
			return "", fmt.Errorf("package %s %q cannot be installed from what the file says: remove its line, and install it by hand", name, value)
		}
	}
	return b.String(), nil
}

// Recreate returns the commands that make the Python environment of f in the directory dir.
// The file requirements has the text of [Fingerprint.Requirements]. The interpreter python is
// used by pip alone.
func (f *Fingerprint) Recreate(tool, dir, python, requirements string) ([]Step, error) {
	version := f.Get(Python, "version")
	if version == "" {
		return nil, errors.New("the file has no python.version: export it with --python")
	}
	if err := f.checkNames(); err != nil {
		return nil, err
	}
	if f.HasConda() && !isConda(tool) {
		return nil, fmt.Errorf("the environment has packages of conda, and %s cannot install them: give --tool conda or mamba", tool)
	}
	inside := filepath.Join(dir, "bin", "python")
	switch {
	case isConda(tool):
		args := []string{tool, "create", "-y", "-p", dir}
		for _, c := range f.channels() {
			args = append(args, "-c", c)
		}
		if !f.HasConda() {
			args = append(args, "python="+version, "pip")
		}
		for _, name := range f.Keys(Packages) {
			if spec := condaSpec(name, f.Get(Packages, name)); spec != "" {
				args = append(args, spec)
			}
		}
		return []Step{{Args: args}, pipStep(inside, requirements)}, nil
	case tool == "uv":
		return []Step{
			{Args: []string{"uv", "venv", "--python", version, dir}},
			{Args: []string{"uv", "pip", "install", "--python", inside, "--no-deps", "-r", requirements}},
		}, nil
	case tool == "pip":
		return []Step{{Args: []string{python, "-m", "venv", dir}}, pipStep(inside, requirements)}, nil
	}
	return nil, fmt.Errorf("the tool %q is unknown: give one of %s", tool, strings.Join(Tools(), ", "))
}

func pipStep(python, requirements string) Step {
	return Step{Args: []string{python, "-m", "pip", "install", "--no-deps", "-r", requirements}}
}

// Surplus returns the command that removes the packages of a new environment that f has not:
// those that venv brings along.
func (f *Fingerprint) Surplus(tool, dir string, found *Fingerprint) (Step, bool) {
	var names []string
	for _, name := range found.Keys(Packages) {
		if f.Get(Packages, name) == "" && RuleOf(Packages, name).Kind != Told && condaSpec(name, found.Get(Packages, name)) == "" {
			names = append(names, name)
		}
	}
	inside := filepath.Join(dir, "bin", "python")
	args := []string{inside, "-m", "pip", "uninstall", "-y"}
	if tool == "uv" {
		args = []string{"uv", "pip", "uninstall", "--python", inside}
	}
	return Step{Args: append(args, names...)}, len(names) > 0
}

// Install returns the command that installs the Go program of f into dir/bin.
func (f *Fingerprint) Install(dir string) (Step, error) {
	name, version := f.Get(Program, "package"), f.Get(Program, "version")
	if version == "" || strings.HasPrefix(version, "(") || strings.Contains(version, "+dirty") {
		return Step{}, fmt.Errorf("the program %s was built from files, not from a version of its module: copy the binary, or build it by go install %s@VERSION and export again", f.Get(Program, "name"), name)
	}
	if !modulePath.MatchString(name) || !versionOfModule.MatchString(version) {
		return Step{}, fmt.Errorf("the file names the program %.80q of version %.40q, which go install does not take: correct program.package and program.version", name, version)
	}
	bin, err := filepath.Abs(filepath.Join(dir, "bin"))
	if err != nil {
		return Step{}, err
	}
	env := []string{"GOBIN=" + bin}
	if v := f.Get(Program, "go"); strings.HasPrefix(v, "go1") && !strings.Contains(v, " ") {
		env = append(env, "GOTOOLCHAIN="+v)
	}
	return Step{Env: env, Args: []string{"go", "install", name + "@" + version}}, nil
}

// CollectPython reads a Python environment alone.
func CollectPython(python string, environ []string) *Fingerprint {
	f := &Fingerprint{}
	f.collectPython(python, environ)
	return f
}

// CollectProgram reads a program alone.
func CollectProgram(path string) *Fingerprint {
	f := &Fingerprint{}
	f.collectProgram(path)
	return f
}

// Only returns the sections of f that are named.
func (f *Fingerprint) Only(sections ...string) *Fingerprint {
	out := &Fingerprint{}
	for _, s := range sections {
		for _, key := range f.Keys(s) {
			out.Set(s, key, f.Get(s, key))
		}
	}
	return out
}
