// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/nearest"
)

// misnamed reports a command that does not exist, before its flags are parsed: cobra
// would report the first flag of the intended command as unknown.
func misnamed(root *cobra.Command, args []string) error {
	if completes(args) {
		return nil
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	if len(args) > 0 && args[0] == "help" {
		args = args[1:]
	}
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") || cmd.Name() == "completion" {
		return nil // Execute says what is wrong, if anything
	}
	return cmd.ValidateArgs(rest[:1])
}

// flagError makes an error of the flag parser a usage error. For an unknown flag it
// names the most similar flag, or the commands that have the flag.
func flagError(cmd *cobra.Command, err error) error {
	usage := func(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
	var notExist *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var number *strconv.NumError
	switch {
	case errors.As(err, &notExist) && notExist.GetSpecifiedShortnames() != "":
		// A group of letters, or a flag with one dash as in Go.
		group := notExist.GetSpecifiedShortnames()
		name, _, _ := strings.Cut(group, "=")
		if f := cmd.Flags().Lookup(name); f != nil {
			return usage("unknown flag -%s for %s: did you mean --%s?", name, cmd.CommandPath(), f.Name)
		}
		return usage("unknown flag '%s' in -%s for %s (%[3]s --help lists the flags)", notExist.GetSpecifiedName(), group, cmd.CommandPath())
	case errors.As(err, &notExist):
		name := notExist.GetSpecifiedName()
		if having := commandsWith(cmd, name); len(having) > 0 {
			return usage("--%s is no flag of %s, but of %s: name the command first", name, cmd.CommandPath(), strings.Join(having, ", "))
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		return unknown("flag", "--"+name, names, cmd.CommandPath())
	case errors.As(err, &invalid) && errors.As(err, &number):
		want := map[string]string{"bool": "true or false", "int": "a whole number", "int64": "a whole number", "float64": "a number"}[invalid.GetFlag().Value.Type()]
		if number.Err == strconv.ErrRange {
			want += " that is not so large"
		}
		if want != "" {
			return usage("invalid argument %q for --%s: want %s (%s --help lists the flags)", invalid.GetValue(), invalid.GetFlag().Name, want, cmd.CommandPath())
		}
	}
	return usage("%w (%s --help lists the flags)", err, cmd.CommandPath())
}

// commandsWith returns the commands below cmd that have a flag.
func commandsWith(cmd *cobra.Command, flag string) (paths []string) {
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() {
			continue
		}
		if c.Flags().Lookup(flag) != nil {
			paths = append(paths, c.CommandPath())
		}
		paths = append(paths, commandsWith(c, flag)...)
	}
	return paths
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// otherWords has the names that other programs use for our commands.
var otherWords = map[string]string{
	"infer": "predict", "inference": "predict", "classify": "predict", "sample": "generate", "chat": "generate", "complete": "generate",
	"test": "eval", "evaluate": "eval", "validate": "eval", "score": "eval", "fit": "train", "finetune": "train lm --init-from", "fine-tune": "train lm --init-from",
	"resume": "train, which goes on where it was", "launch": "run", "torchrun": "run", "start": "run", "exec": "run", "benchmark": "bench", "encode": "tokenize encode",
}

// unknown reports a name that is not among known, with the most similar one.
func unknown(what, name string, known []string, command string) error {
	best := nearest.Name(name, known)
	if word := otherWords[strings.ToLower(name)]; word != "" && best == "" && slices.Contains(known, "train") {
		best = command + " " + word
	}
	if name == "help" {
		best = command + " --help"
	}
	if best != "" {
		return usageError{fmt.Errorf("unknown %s %s for %s: did you mean %s?", what, name, command, best)}
	}
	return usageError{fmt.Errorf("unknown %s %s for %s (%s --help lists what there is)", what, name, command, command)}
}
