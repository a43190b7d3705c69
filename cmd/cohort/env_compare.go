// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// maxEnvFile bounds the file of an environment.
const maxEnvFile = 2 << 20

// readEnvFile reads a file that cohort env export has written. People may have changed it.
func readEnvFile(path string) (*fingerprint.Fingerprint, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	var raw map[string]map[string]any
	if err := toml.Unmarshal(text, &raw); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			line, column := syntax.Position()
			return nil, fmt.Errorf("%s:%d:%d: %s", path, line, column, strings.TrimPrefix(syntax.Error(), "toml: "))
		}
		return nil, fmt.Errorf("%s is no file of cohort env export: %s", path, strings.TrimPrefix(err.Error(), "toml: "))
	}
	values := map[string]map[string]string{}
	for section, keys := range raw {
		values[section] = map[string]string{}
		for key, v := range keys {
			switch v := v.(type) {
			case string:
				values[section][key] = v
			case int64, float64, bool:
				values[section][key] = fmt.Sprint(v)
			default:
				return nil, fmt.Errorf("%s: %s.%s is no text: write a text or a number", path, section, key)
			}
		}
	}
	f, err := fingerprint.FromMap(values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(f.Map()) == 0 {
		return nil, fmt.Errorf("%s has no section: write one with cohort env export", path)
	}
	return f, nil
}

// readBounded reads a file of an environment.
func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxEnvFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxEnvFile:
		return nil, fmt.Errorf("%s has more than %d bytes: it is no file of an environment", path, maxEnvFile)
	case bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")):
		return nil, fmt.Errorf("%s is UTF-16, as PowerShell writes it with >: write it as UTF-8, as in pip freeze | Out-File -Encoding ascii FILE", path)
	case bytes.IndexByte(text, 0) >= 0:
		return nil, fmt.Errorf("%s is no text: it is no file of an environment", path)
	}
	return text, nil
}

func newEnvExportCommand() *cobra.Command {
	var what collected
	var force, hashes bool
	var form string
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Write the fingerprint of this node's environment to a file",
		Long: `Write the fingerprint of this node's environment to FILE, in TOML: one line a value, in a
fixed order, so that a diff of two files is short. Remove what other nodes need not have.
The FILE - is the standard output.

The packages of the Python environment alone are written in the forms of other tools: as a
list of pip to a FILE *.txt, as an environment.yml to a FILE *.yml, and by --form explicit
as a list of conda with the addresses of the packages.`,
		Example: `  cohort env export job.toml --program ./train
  cohort env export requirements.txt --python .venv/bin/python --hashes
  cohort env export environment.yml --python .venv/bin/python`,
		Args: numArgs(1, "a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := what.collect(cmd)
			if err != nil {
				return err
			}
			text, err := inForm(cmd, f, formOf(form, args[0]), hashes)
			if err != nil {
				return err
			}
			return writeNew(cmd, args[0], text, force)
		},
	}
	what.flags(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "write over a file that exists")
	cmd.Flags().StringVar(&form, "form", "", "what is written (default: by the ending of FILE)")
	oneOf(cmd.Flags(), "form", envForms...)
	cmd.Flags().BoolVar(&hashes, "hashes", false, "for requirements: add the hashes of the packages, which uv asks of the index")
	return cmd
}

// envForms are the forms of a file of an environment.
var envForms = []string{"toml", "requirements", "environment", "explicit"}

// formOf returns the form of a file, by a flag or by its name.
func formOf(form, path string) string {
	if form != "" {
		return form
	}
	switch filepath.Ext(path) {
	case ".txt":
		return "requirements"
	case ".yml", ".yaml":
		return "environment"
	}
	return "toml"
}

// inForm returns an environment in a form.
func inForm(cmd *cobra.Command, f *fingerprint.Fingerprint, form string, hashes bool) ([]byte, error) {
	if !slices.Contains(envForms, form) {
		return nil, usageError{fmt.Errorf("--form %s: give one of %s", form, strings.Join(envForms, ", "))}
	}
	if hashes && form != "requirements" {
		return nil, usageError{fmt.Errorf("--hashes is for --form requirements, not %s", form)}
	}
	if form != "toml" && !f.Has(fingerprint.Python) {
		return nil, usageError{fmt.Errorf("--form %s needs a Python environment: name its interpreter by --python", form)}
	}
	var text string
	var err error
	switch form {
	case "toml":
		return f.TOML("The environment of a program, by cohort env export, "+time.Now().UTC().Format(time.RFC3339)+".", "cohort env verify compares a node with it."), nil
	case "requirements":
		if text, err = f.Requirements(); err == nil && hashes {
			return withHashes(cmd, text, f.Get(fingerprint.Python, "version"))
		}
	case "environment":
		text, err = f.EnvironmentYML("cohort")
	case "explicit":
		text, err = fingerprint.CondaExplicit(f.Get(fingerprint.Python, "prefix"))
	}
	if err != nil {
		return nil, usageError{err}
	}
	return []byte(text), nil
}

// withHashes adds to a list of pip the hashes that its index has.
func withHashes(cmd *cobra.Command, list, python string) ([]byte, error) {
	if _, err := exec.LookPath("uv"); err != nil {
		return nil, usageError{errors.New("--hashes needs uv, and it is not in PATH: install it, or leave the flag out")}
	}
	p := exec.CommandContext(cmd.Context(), "uv", "pip", "compile", "-q", "--no-deps", "--no-header", "--no-annotate", "--generate-hashes", "--python-version", python, "-")
	p.Stdin, p.Stderr = strings.NewReader(list), cmd.ErrOrStderr()
	out, err := p.Output()
	if err != nil {
		return nil, fmt.Errorf("uv pip compile --generate-hashes: %w", err)
	}
	return out, nil
}

// writeNew writes a file that does not exist yet, or one that may be written over.
func writeNew(cmd *cobra.Command, path string, text []byte, force bool) error {
	if path == "-" {
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return usageError{err}
	}
	f, err := os.OpenFile(path, mode, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return usageError{fmt.Errorf("%s exists: name another file, or give --force", path)}
	}
	if err != nil {
		return usageError{err}
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func newEnvVerifyCommand() *cobra.Command {
	var what collected
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Compare this node's environment with a file",
		Long: `Compare this node's environment with FILE, which cohort env export has written, and print
each difference with the command that mends it. Only the sections of FILE are compared.
In the sections packages and variables, what FILE does not name must not be there.

The exit code is 3 if there is a difference.`,
		Args: numArgs(1, "a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			expected, err := readEnvFile(args[0])
			if err != nil {
				return usageError{err}
			}
			if path := expected.Get(fingerprint.Python, "executable"); what.python == "" && what.program == "" && path != "" {
				if _, err := os.Stat(path); err == nil {
					what.python = path
				}
			}
			if path := expected.Get(fingerprint.Program, "path"); what.program == "" && path != "" {
				what.program = path
			}
			found, err := what.collect(cmd)
			if err != nil {
				return err
			}
			return tellDifferences(cmd, fingerprint.Verify(expected, found), asJSON, "this node has the environment of "+args[0])
		},
	}
	what.flags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func newEnvDiffCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff FILE FILE",
		Short: "Compare two files of environments",
		Long: `Compare two files that cohort env export has written. What the first file has is expected
of the second. The exit code is 3 if there is a difference.`,
		Args: numArgs(2, "two FILEs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var both [2]*fingerprint.Fingerprint
			for i, path := range args {
				f, err := readEnvFile(path)
				if err != nil {
					return usageError{err}
				}
				both[i] = f
			}
			return tellDifferences(cmd, fingerprint.Diff(both[0], both[1]), asJSON, "the environments do not differ in what is compared")
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

// tellDifferences prints findings, or that there are none.
func tellDifferences(cmd *cobra.Command, all []fingerprint.Finding, asJSON bool, none string) error {
	switch {
	case asJSON && all == nil:
		all = []fingerprint.Finding{}
		fallthrough
	case asJSON:
		if err := printJSON(cmd.OutOrStdout(), all); err != nil {
			return err
		}
	case len(all) == 0:
		_, err := fmt.Fprintln(cmd.OutOrStdout(), none)
		return err
	default:
		if _, err := io.WriteString(cmd.OutOrStdout(), fingerprint.Table(all)); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return nil
	}
	return answerError{errors.New(fingerprint.Summary(all))}
}
