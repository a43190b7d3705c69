// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// creation is what cohort env create makes.
type creation struct {
	prefix, tool, python string
	dryRun               bool
}

func newEnvCreateCommand() *cobra.Command {
	var c creation
	cmd := &cobra.Command{
		Use:   "create FILE --prefix DIR",
		Short: "Rebuild the environment of a file: Python's packages, or a Go program",
		Long: `Make the Python environment of FILE in the new directory DIR, by a tool that is installed:
uv, pip, mamba, micromamba or conda. FILE is one of cohort env export; or a list of pip,
such as requirements.txt, also with hashes; or a pylock.toml; or a uv.lock beside its
pyproject.toml, for which uv is needed; or a file environment.yml, or an explicit list of
conda, for which conda or mamba is needed.

After that, the environment is read. It is compared with a FILE of cohort env export: it is
equal, or the command fails and says what differs. Of another FILE, the versions are
compared that it pins.

If the program of FILE is a Go program that was installed from a version of its module,
it is installed into DIR/bin by go install, and its hash is compared.`,
		Example: `  cohort env create job.toml --prefix .venv
  cohort env create requirements.txt --prefix .venv --tool uv`,
		Args: numArgs(1, "a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&c.prefix, "prefix", "", "the new `DIR` of the environment")
	flags.StringVar(&c.tool, "tool", "", "what installs packages (default: the first of these that is installed and can)")
	oneOf(flags, "tool", fingerprint.Tools()...)
	flags.StringVar(&c.python, "python", "", "`INTERPRETER` from which pip makes the environment (default: one of FILE's version in PATH)")
	flags.BoolVar(&c.dryRun, "dry-run", false, "print the commands, and run none")
	return cmd
}

func (c *creation) run(cmd *cobra.Command, file string) error {
	switch entries, err := os.ReadDir(c.prefix); {
	case c.prefix == "":
		return usageError{errors.New("env create needs --prefix DIR, a new directory")}
	case err == nil && len(entries) > 0:
		return usageError{fmt.Errorf("--prefix %s: the directory is not empty: name a new one", c.prefix)}
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return usageError{fmt.Errorf("--prefix: %w", err)}
	}
	if c.tool != "" && !slices.Contains(fingerprint.Tools(), c.tool) {
		return usageError{fmt.Errorf("--tool %s: give one of %s", c.tool, strings.Join(fingerprint.Tools(), ", "))}
	}
	text, err := readBounded(file)
	if err != nil {
		return usageError{err}
	}
	name := filepath.Base(file)
	switch {
	case foreignFiles[name] != "":
		return usageError{fmt.Errorf("%s %s, and give that", file, foreignFiles[name])}
	case name == "uv.lock":
		return c.project(cmd, file)
	case filepath.Ext(file) == ".lock":
		return usageError{fmt.Errorf("%s is a lock file of a tool that Cohort does not know: write a pylock.toml or a requirements.txt with that tool, and give that", file)}
	case strings.HasPrefix(name, "pylock.") && filepath.Ext(file) == ".toml":
		lines, err := requirementsOfPylock(text)
		if err != nil {
			return usageError{fmt.Errorf("%s: %w", file, err)}
		}
		return c.converted(cmd, lines)
	case filepath.Ext(file) != ".toml":
		return c.list(cmd, file, string(text))
	}
	f, err := readEnvFile(file)
	if err != nil {
		return usageError{err}
	}
	isGo := f.Get(fingerprint.Program, "kind") == "go"
	if !f.Has(fingerprint.Python) && !isGo {
		return usageError{fmt.Errorf("%s has neither a section python nor a Go program: export it with --python or --program", file)}
	}
	if f.Has(fingerprint.Python) {
		if err := c.packages(cmd, f); err != nil {
			return err
		}
	}
	if isGo {
		return c.program(cmd, f)
	}
	return nil
}

// foreignFiles are files of projects that look like a list and are none.
var foreignFiles = map[string]string{
	"pyproject.toml": "says what a project wants, and not the versions: write a list of them by uv export or pip freeze",
	"Pipfile":        "says what a project wants, and not the versions: write a list of them by pipenv requirements",
	"conda-lock.yml": "has the packages of several platforms: write the list of one by conda-lock render --kind explicit",
}

// have says whether a tool is installed.
func have(tool string) bool {
	if tool == "pip" {
		tool = "python3"
	}
	_, err := exec.LookPath(tool)
	return err == nil
}

// choose sets the tool, of those that fit.
func (c *creation) choose(fits func(tool string) bool, need string) error {
	if c.tool != "" {
		if !have(c.tool) {
			return usageError{fmt.Errorf("--tool %s is not installed: it is not in PATH", c.tool)}
		}
		return nil
	}
	for _, tool := range fingerprint.Tools() {
		if fits(tool) && have(tool) {
			c.tool = tool
			return nil
		}
	}
	return usageError{fmt.Errorf("none of the tools that can install it is in PATH: install %s", need)}
}

func condaTool(tool string) bool {
	return strings.HasSuffix(tool, "conda") || strings.HasSuffix(tool, "mamba")
}

// packages makes the Python environment of a fingerprint.
func (c *creation) packages(cmd *cobra.Command, f *fingerprint.Fingerprint) error {
	need := "uv or pip"
	if f.HasConda() {
		need = "conda, mamba or micromamba"
	}
	if err := c.choose(func(tool string) bool { return condaTool(tool) == f.HasConda() }, need); err != nil {
		return err
	}
	python, err := c.interpreter(f.Get(fingerprint.Python, "version"))
	if err != nil {
		return usageError{err}
	}
	lines, err := f.Requirements()
	if err != nil {
		return usageError{err}
	}
	requirements, remove, err := temporaryList(lines)
	if err != nil {
		return err
	}
	defer remove()
	steps, err := f.Recreate(c.tool, c.prefix, python, requirements)
	if err != nil {
		return usageError{err}
	}
	if err := c.carryOut(cmd, steps...); err != nil || c.dryRun {
		return err
	}
	read := func() *fingerprint.Fingerprint {
		return fingerprint.CollectPython(filepath.Join(c.prefix, "bin", "python"), nil)
	}
	found := read()
	if step, ok := f.Surplus(c.tool, c.prefix, found); ok {
		if err := c.carryOut(cmd, step); err != nil {
			return err
		}
		found = read()
	}
	expected := f.Only(fingerprint.Python, fingerprint.Packages)
	return tellDifferences(cmd, fingerprint.Verify(expected, found), false, fmt.Sprintf("%s has the Python and the %d packages of the file", c.prefix, len(f.Keys(fingerprint.Packages))))
}

// interpreter finds the Python from which pip makes an environment.
func (c *creation) interpreter(version string) (string, error) {
	if c.tool != "pip" {
		return "", nil
	}
	parts := strings.SplitN(version, ".", 3)
	candidates := []string{c.python}
	if c.python == "" {
		candidates = []string{"python3", "python"}
		if len(parts) > 1 {
			candidates = append([]string{"python" + parts[0] + "." + parts[1]}, candidates...)
		}
	}
	found := ""
	for _, name := range candidates {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		have := fingerprint.CollectPython(path, os.Environ()).Get(fingerprint.Python, "version")
		if have == version {
			return path, nil
		}
		found += fmt.Sprintf(", %s is %s", name, have)
	}
	return "", fmt.Errorf("the file asks for Python %s, and none is there%s: give --python INTERPRETER, or --tool uv, which brings it along", version, found)
}

// program installs the Go program of a fingerprint.
func (c *creation) program(cmd *cobra.Command, f *fingerprint.Fingerprint) error {
	step, err := f.Install(c.prefix)
	if err != nil {
		return usageError{err}
	}
	if err := c.carryOut(cmd, step); err != nil || c.dryRun {
		return err
	}
	path := filepath.Join(c.prefix, "bin", f.Get(fingerprint.Program, "name"))
	all := fingerprint.Verify(f.Only(fingerprint.Program), fingerprint.CollectProgram(path))
	return tellDifferences(cmd, all, false, path+" is the program of the file")
}

// temporaryList writes a list of pip to a file of its own, until remove is called.
func temporaryList(lines string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "cohort-env-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}

// converted makes an environment of a list of pip that this command has made.
func (c *creation) converted(cmd *cobra.Command, lines string) error {
	requirements, remove, err := temporaryList(lines)
	if err != nil {
		return err
	}
	defer remove()
	return c.list(cmd, requirements, lines)
}

// project makes the environment of a project that uv has locked.
func (c *creation) project(cmd *cobra.Command, file string) error {
	dir := filepath.Dir(file)
	if _, err := os.Stat(filepath.Join(dir, "pyproject.toml")); err != nil {
		return usageError{fmt.Errorf("%s needs the pyproject.toml of its project beside it, or give a list that uv export has written", file)}
	}
	if err := c.choose(func(tool string) bool { return tool == "uv" }, "uv"); err != nil {
		return err
	}
	if c.tool != "uv" {
		return usageError{fmt.Errorf("%s is a lock file of uv, and %s cannot read it: give --tool uv, or a list that uv export has written", file, c.tool)}
	}
	prefix, err := filepath.Abs(c.prefix)
	if err != nil {
		return usageError{err}
	}
	args := []string{"uv", "sync", "--frozen", "--project", dir}
	if c.python != "" {
		args = append(args, "--python", c.python)
	}
	return c.carryOut(cmd, fingerprint.Step{Env: []string{"UV_PROJECT_ENVIRONMENT=" + prefix}, Args: args})
}

// list makes an environment of a list that is not Cohort's.
func (c *creation) list(cmd *cobra.Command, file, text string) error {
	steps, pins, err := c.listSteps(file, text)
	if err != nil {
		return err
	}
	if err := c.carryOut(cmd, steps...); err != nil || c.dryRun {
		return err
	}
	found := fingerprint.CollectPython(filepath.Join(c.prefix, "bin", "python"), nil)
	return tellDifferences(cmd, found.CheckPins(pins), false, fmt.Sprintf("%s has the versions that the file pins (%d)", c.prefix, len(pins)))
}

// listSteps returns the commands that install a list, and the versions that it pins.
func (c *creation) listSteps(file, text string) ([]fingerprint.Step, []fingerprint.Pin, error) {
	var conda []string
	var pins []fingerprint.Pin
	switch ext := filepath.Ext(file); {
	case ext == ".yml" || ext == ".yaml":
		conda = []string{"env", "create", "-y", "-p", c.prefix, "-f", file}
	case strings.Contains(text, "\n@EXPLICIT") || strings.HasPrefix(text, "@EXPLICIT"):
		conda, pins = []string{"create", "-y", "-p", c.prefix, "--file", file}, fingerprint.ExplicitPins(text)
	}
	if conda != nil {
		if err := c.choose(condaTool, "conda, mamba or micromamba"); err != nil {
			return nil, nil, err
		}
		if !condaTool(c.tool) {
			return nil, nil, usageError{fmt.Errorf("%s is a list of conda, and %s cannot read it: give --tool conda or mamba", file, c.tool)}
		}
		return []fingerprint.Step{{Args: append([]string{c.tool}, conda...)}}, pins, nil
	}
	if err := c.choose(func(tool string) bool { return !condaTool(tool) }, "uv or pip"); err != nil {
		return nil, nil, err
	}
	pins = fingerprint.Pins(text)
	inside := filepath.Join(c.prefix, "bin", "python")
	switch c.tool {
	case "uv":
		venv := []string{"uv", "venv", c.prefix}
		if c.python != "" {
			venv = append(venv, "--python", c.python)
		}
		return []fingerprint.Step{{Args: venv}, {Args: []string{"uv", "pip", "install", "--python", inside, "-r", file}}}, pins, nil
	case "pip":
		python := c.python
		if python == "" {
			python = "python3"
		}
		return []fingerprint.Step{{Args: []string{python, "-m", "venv", c.prefix}}, {Args: []string{inside, "-m", "pip", "install", "-r", file}}}, pins, nil
	}
	return nil, nil, usageError{fmt.Errorf("%s is a list of pip, and %s cannot read it: give --tool uv or pip", file, c.tool)}
}

// carryOut runs commands, and says each before.
func (c *creation) carryOut(cmd *cobra.Command, steps ...fingerprint.Step) error {
	for _, s := range steps {
		line := strings.Join(append(slices.Clone(s.Env), s.Args...), " ")
		fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %s\n", line)
		if c.dryRun {
			continue
		}
		p := exec.CommandContext(cmd.Context(), s.Args[0], s.Args[1:]...)
		p.Env = append(os.Environ(), s.Env...)
		p.Stdout, p.Stderr = cmd.ErrOrStderr(), cmd.ErrOrStderr()
		if err := p.Run(); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}
