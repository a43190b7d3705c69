// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands returns all commands of the program.
func commands(t *testing.T) (all []*cobra.Command) {
	t.Helper()
	root := newRoot(io.Discard, io.Discard)
	root.InitDefaultHelpCmd()
	for queue := []*cobra.Command{root}; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, queue[0].Commands()...)
	}
	if len(all) < 20 {
		t.Fatalf("only %d commands", len(all))
	}
	return all
}

// TestHelpWidth: the help fits the terminal, but for what must not be broken:
// examples, indented lines and long words. Those fit 80 columns.
func TestHelpWidth(t *testing.T) {
	for _, cmd := range commands(t) {
		fixed := strings.Split(cmd.Example+"\n"+cmd.Long, "\n")
		for _, width := range []int{60, 80, 132} {
			var b strings.Builder
			printHelp(&b, cmd, width)
			for line := range strings.Lines(b.String()) {
				line = strings.TrimSuffix(line, "\n")
				if strings.HasSuffix(line, " ") {
					t.Errorf("%s: %q ends with a space", cmd.CommandPath(), line)
				}
				if strings.HasPrefix(line, " ") && slices.Contains(fixed, line) && utf8.RuneCountInString(line) > 80 {
					t.Errorf("%s: an indented line of %d characters, want at most 80: %s", cmd.CommandPath(), utf8.RuneCountInString(line), line)
				}
				if utf8.RuneCountInString(line) <= width || strings.HasPrefix(line, " ") && slices.Contains(fixed, line) {
					continue
				}
				// What is left is a name without a text, or one word of the text.
				if name := strings.TrimSpace(line); !strings.HasPrefix(name, "--") && strings.Contains(strings.ReplaceAll(name, "(default ", ""), " ") {
					t.Errorf("%s: a line of %d characters, want %d: %s", cmd.CommandPath(), utf8.RuneCountInString(line), width, line)
				}
			}
		}
	}
}

// TestHelpOfFlags: the help names the value of every flag that takes one, in
// capitals or by the values that exist, and lists many flags under headings.
func TestHelpOfFlags(t *testing.T) {
	for _, cmd := range commands(t) {
		numFlags, grouped := 0, 0
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			numFlags++
			if annotation(f, groupAnnotation) != "" {
				grouped++
			}
			value, text := describeFlag(f)
			takes := f.Value.Type() != "bool"
			if (value != "") != takes || strings.ContainsAny(value, " `{") || strings.ContainsAny(text, "`{") && !strings.Contains(text, "${") {
				t.Errorf("%s --%s: value %q, text %q", cmd.CommandPath(), f.Name, value, text)
			}
			if value != strings.ToUpper(value) && !strings.Contains(value, "|") {
				t.Errorf("%s --%s %s: want capitals, or the values with | between them", cmd.CommandPath(), f.Name, value)
			}
			if annotation(f, valueAnnotation) != "" && value != strings.ToUpper(value) && f.DefValue != "" && !isSetting(f) &&
				!slices.Contains(strings.Split(value, "|"), f.DefValue) && !strings.Contains(value, "N") {
				t.Errorf("%s --%s %s: its default %s is none of them", cmd.CommandPath(), f.Name, value, f.DefValue)
			}
		})
		if most := 14; numFlags > most && grouped < numFlags-1 {
			t.Errorf("%s: %d of %d flags are under a heading, want all but --help: call groupFlags, or give settings the tag group", cmd.CommandPath(), grouped, numFlags)
		}
	}
}

// isSetting says whether a flag is a recipe's, whose values train's tests check.
func isSetting(f *pflag.Flag) bool { _, ok := f.Value.(settingFlag); return ok }

func TestHelpLayout(t *testing.T) {
	cmd := &cobra.Command{Use: "paint SHED", Short: "Paint", Long: "Paint a shed\nin one colour.\n\n  red  warm\n\nOr leave it.", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().String("colour", "red", "what it is painted with")
	cmd.Flags().IntP("coats", "c", 0, "number of coats, of which the first one has to dry for a day")
	cmd.Flags().Float64("a-very-long-name-of-a-flag", 0, "thin with `SHARE` of water")
	cmd.Flags().Bool("dry", true, "wait")
	oneOf(cmd.Flags(), "colour", "red", "green")
	groupFlags(cmd.Flags(), "Paint", "colour", "a-very-long-name-of-a-flag")
	var b strings.Builder
	printHelp(&b, cmd, 60)
	const want = `Paint a shed in one colour.

  red  warm

Or leave it.

Usage:
  paint SHED [flags]

Paint flags:
      --colour red|green  what it is painted with
                          (default red)
      --a-very-long-name-of-a-flag SHARE
                          thin with SHARE of water

Other flags:
  -c, --coats N           number of coats, of which the
                          first one has to dry for a day
      --dry               wait (default true)
`
	if got := b.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestCompletion: a shell is given the values that exist, files or directories.
func TestCompletion(t *testing.T) {
	const none, dirs, files = 4, 16, 0
	for _, c := range []struct {
		args   []string
		values []string
		how    int
	}{
		{[]string{"train", "lm", "--dtype", ""}, []string{"float32", "bfloat16"}, none},
		{[]string{"train", "vision", "--data", ""}, []string{"digits"}, files},
		{[]string{"train", "lm", "--out", ""}, nil, dirs},
		{[]string{"train", "lm", "--config", ""}, nil, files},
		{[]string{"train", "lm", "--steps", ""}, nil, none},
		{[]string{"train", "lm", ""}, nil, none},
		{[]string{"train", "l"}, []string{"lm"}, none},
		{[]string{"run", "--rdzv-backend", ""}, []string{"static", "c10d", "etcd", "file"}, none},
		{[]string{"run", "--nproc-per-node", ""}, []string{"cpu", "gpu", "auto"}, none},
		{[]string{"run", ""}, nil, files},
		{[]string{"bench", "step", "--cpuprofile", ""}, nil, files},
		{[]string{"bench", "form", "--kind", ""}, []string{"processes", "goroutines"}, none},
		{[]string{"eval", "--from", ""}, nil, dirs},
		{[]string{"schedule", "--name", ""}, []string{"gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv", "dualpipev", "all"}, none},
		{[]string{"schedule", "--svg", ""}, nil, files},
	} {
		code, stdout, _ := cohort(append([]string{cobra.ShellCompNoDescRequestCmd}, c.args...)...)
		want := strings.Join(append(slices.Clone(c.values), fmt.Sprintf(":%d\n", c.how)), "\n")
		if code != 0 || stdout != want {
			t.Errorf("cohort %q: code %d, completed by %q, want %q", c.args, code, stdout, want)
		}
	}
}
