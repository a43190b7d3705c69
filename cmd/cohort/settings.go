// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/internal/nearest"
)

// settingFlag makes a recipe's setting a flag.
type settingFlag struct{ *config.Field }

func (f settingFlag) String() string {
	if f.Field == nil { // pflag asks the zero value
		return ""
	}
	return f.Text()
}

func (f settingFlag) Set(text string) error {
	// Of other flags the last one counts, as with other programs. Who gives two
	// places of data means both.
	if f.Name == "data" && f.From == config.Flag && f.Text() != text {
		return fmt.Errorf("given before, as %q: name one file or directory, such as one with both in it", f.Text())
	}
	return f.SetText(text, config.Flag)
}

func (f settingFlag) Type() string { return f.Kind() }

// addSettings gives a command a flag for each setting.
func addSettings(cmd *cobra.Command, s *config.Settings) {
	for _, f := range s.Fields() {
		flag := cmd.Flags().VarPF(settingFlag{f}, f.Name, "", f.Usage)
		annotate(flag, groupAnnotation, f.Group)
		annotate(flag, valueAnnotation, f.ValueName)
		if f.Kind() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// maxSettingsBytes is the largest size of a configuration file.
const maxSettingsBytes = 1 << 20

// readSettings sets the settings that a TOML file has and that no flag has set. An
// error names file, line and column.
func readSettings(path string, s *config.Settings) error {
	text, err := readSettingsFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	return parseSettings(path, text, s)
}

func readSettingsFile(path string) ([]byte, error) {
	info, err := os.Stat(path) // opening a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSettingsBytes+1))
	if err == nil && len(text) > maxSettingsBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxSettingsBytes)
	}
	return text, err
}

// parseSettings is readSettings for the text of a file.
func parseSettings(path string, text []byte, s *config.Settings) error {
	at := func(line, column int, format string, args ...any) error {
		return fmt.Errorf("%s:%d:%d: %s", path, line, column, fmt.Sprintf(format, args...))
	}
	values := make(map[string]any)
	if err := toml.Unmarshal(text, &values); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			line, column := syntax.Position()
			return at(line, column, "%s", strings.TrimPrefix(syntax.Error(), "toml: "))
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	// Parse again for the place of each key.
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		e := p.Expression()
		key := e.Key()
		if !key.Next() {
			continue // a comment
		}
		begin := p.Shape(key.Node().Raw).Start
		name := string(key.Node().Data)
		if e.Kind != unstable.KeyValue || key.Next() {
			return at(begin.Line, begin.Column, "%s is a table: settings are flat, a line each, such as steps = 100", name)
		}
		f := s.Field(name)
		if f == nil {
			return at(begin.Line, begin.Column, "unknown setting %s%s", name, didYouMean(name, s.Names()))
		}
		if f.From == config.Flag {
			continue
		}
		if err := f.Set(values[name], fmt.Sprintf("%s:%d", path, begin.Line)); err != nil {
			return at(begin.Line, begin.Column, "%v", err)
		}
	}
	if err := p.Error(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// didYouMean ends an error about a name that is not among known: it names the most
// similar one, or all of them.
func didYouMean(name string, known []string) string {
	if best := nearest.Name(name, known); best != "" {
		return ": did you mean " + best + "?"
	}
	return "; there are " + strings.Join(known, ", ")
}
