// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// The help of a command has its text, its usage, examples, commands and flags.
// Flags stand in groups under headings, in the order in which they are declared.
// A flag's group and the name of its value are annotations of the flag, which
// groupFlags, oneOf and addSettings set.
const (
	groupAnnotation = "group"
	valueAnnotation = "value"
)

// groupFlags puts flags under the heading "TITLE flags:" of the help.
func groupFlags(flags *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		annotate(flags.Lookup(name), groupAnnotation, title)
	}
}

// oneOf declares the values that a flag takes, for the help and for shells to
// complete. The command checks the value. A word in capitals among them stands
// for other values: N, DIR.
func oneOf(flags *pflag.FlagSet, name string, values ...string) {
	annotate(flags.Lookup(name), valueAnnotation, strings.Join(values, "|"))
}

func annotate(f *pflag.Flag, key, text string) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[key] = []string{text}
}

func annotation(f *pflag.Flag, key string) string {
	if texts := f.Annotations[key]; len(texts) > 0 {
		return texts[0]
	}
	return ""
}

// valueNames are the names of values in the help, by the type of the flag.
var valueNames = map[string]string{
	"bool": "", "string": "TEXT", "stringSlice": "LIST", "stringArray": "TEXT", "intSlice": "LIST", "strings": "LIST", "sizes": "SIZES",
	"int": "N", "int64": "N", "float": "NUMBER", "float64": "NUMBER", "duration": "DURATION",
}

// describeFlag returns what the help calls a flag's value, "" if the flag takes
// none, and the text of the help.
func describeFlag(f *pflag.Flag) (value, text string) {
	value, text = pflag.UnquoteUsage(f)
	if !strings.Contains(f.Usage, "`") {
		value = valueNames[f.Value.Type()]
	}
	if name := annotation(f, valueAnnotation); name != "" {
		value = name
	}
	switch def := strings.Trim(f.DefValue, "[]"); def {
	case "", "0", "0s", "false":
	default:
		text += " " + unbroken(fmt.Sprintf("(default %s)", def))
	}
	return value, text
}

// helpWidth is the number of columns of the terminal that w is, or 80.
func helpWidth(w io.Writer) int {
	const usual, least = 80, 40
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return max(columns, least)
		}
	}
	return usual
}

// printHelp writes the help of a command in lines of a width.
func printHelp(w io.Writer, cmd *cobra.Command, width int) {
	var b strings.Builder
	reflow(&b, cmp.Or(cmd.Long, cmd.Short), width)
	fmt.Fprintf(&b, "\nUsage:\n  %s\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	printCommands(&b, cmd, width)
	printFlags(&b, cmd, width)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s --help says more.\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
	}
	_, _ = io.WriteString(w, b.String()) // nothing is left to do without a reader
}

// reflow writes paragraphs in lines of a width. Lines that begin with spaces stay
// as they are.
func reflow(b *strings.Builder, text string, width int) {
	var words []string
	flush := func() {
		for _, line := range wrap(strings.Join(words, " "), width) {
			b.WriteString(line + "\n")
		}
		words = nil
	}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			words = append(words, line)
			continue
		}
		flush()
		b.WriteString(line + "\n")
	}
	flush()
}

// noBreak is a space at which no line ends.
const noBreak = '\u00a0'

// unbroken returns a text that stays in one line.
func unbroken(text string) string { return strings.ReplaceAll(text, " ", string(noBreak)) }

// wrap cuts a text into lines of at most width characters. A longer word has a
// line of its own.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		if word == "" {
			continue
		}
		word = strings.ReplaceAll(word, string(noBreak), " ")
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// entry is a line of a list in the help: what is explained, and the explanation.
type entry struct{ name, text string }

// longestName is the longest name beside which the text begins in the same line.
const longestName = 30

// printEntries writes a list whose texts begin in one column.
func printEntries(b *strings.Builder, list []entry, column, width int) {
	for _, e := range list {
		name := "  " + e.name
		for _, line := range wrap(e.text, max(width-column, 20)) {
			if utf8.RuneCountInString(name)+2 > column && name != "" {
				b.WriteString(name + "\n")
				name = ""
			}
			fmt.Fprintf(b, "%s%s%s\n", name, strings.Repeat(" ", column-utf8.RuneCountInString(name)), line)
			name = ""
		}
	}
}

// columnOf returns the column at which the texts of lists begin.
func columnOf(lists ...[]entry) int {
	column := 0
	for _, e := range slices.Concat(lists...) {
		if n := utf8.RuneCountInString(e.name); n <= longestName {
			column = max(column, n)
		}
	}
	return column + 4
}

// printCommands lists the commands below one, by their groups.
func printCommands(b *strings.Builder, cmd *cobra.Command, width int) {
	titles, lists := []string{}, map[string][]entry{}
	for _, g := range cmd.Groups() {
		titles = append(titles, g.Title)
	}
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() && c.Name() != "help" {
			continue
		}
		title := cmp.Or(c.GroupID, "Commands")
		if !slices.Contains(titles, title) {
			titles = append(titles, title)
		}
		lists[title] = append(lists[title], entry{c.Name(), c.Short})
	}
	var all []entry
	for _, list := range lists {
		all = append(all, list...)
	}
	for _, title := range titles {
		fmt.Fprintf(b, "\n%s:\n", title)
		printEntries(b, lists[title], columnOf(all), width)
	}
}

// printFlags lists the flags of a command by their groups. Flags without a group,
// and those of the commands above, come last.
func printFlags(b *strings.Builder, cmd *cobra.Command, width int) {
	var titles []string
	lists := map[string][]entry{}
	add := func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		title := annotation(f, groupAnnotation)
		if _, there := lists[title]; !there && title != "" {
			titles = append(titles, title)
		}
		value, text := describeFlag(f)
		name := "    --" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", --" + f.Name
		}
		lists[title] = append(lists[title], entry{strings.TrimRight(name+" "+value, " "), text})
	}
	cmd.Flags().SortFlags, cmd.PersistentFlags().SortFlags = false, false
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	var all []entry
	for _, list := range lists {
		all = append(all, list...)
	}
	heading := "Flags"
	for _, title := range titles {
		fmt.Fprintf(b, "\n%s flags:\n", title)
		printEntries(b, lists[title], columnOf(all), width)
		heading = "Other flags"
	}
	if len(lists[""]) > 0 {
		fmt.Fprintf(b, "\n%s:\n", heading)
		printEntries(b, lists[""], columnOf(all), width)
	}
}

// completes reports whether a shell asks this program to complete a command line.
func completes(args []string) bool {
	return len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd)
}

// addCompletions tells cobra how a shell completes the values of all flags and
// the arguments of all commands: values that exist, directories, files, or nothing.
func addCompletions(cmd *cobra.Command) error {
	var err error
	complete := func(f *pflag.Flag) {
		value, _ := describeFlag(f)
		how := cobra.NoFileCompletions
		var values []string
		for name := range strings.SplitSeq(value, "|") {
			switch {
			case name == "DIR" || name == "PLACE": // an address is typed
				how = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
					return nil, cobra.ShellCompDirectiveFilterDirs
				}
			case name == "FILE" || name == "PATH":
				how = nil // as the shell does by itself
			case name != strings.ToUpper(name):
				values = append(values, name)
			}
		}
		if len(values) > 0 {
			directive := cobra.ShellCompDirectiveNoFileComp
			if strings.Contains(value, "DIR") || strings.Contains(value, "FILE") {
				directive = cobra.ShellCompDirectiveDefault
			}
			how = cobra.FixedCompletions(values, directive)
		}
		if how != nil && f.Value.Type() != "bool" && err == nil {
			err = cmd.RegisterFlagCompletionFunc(f.Name, how)
		}
	}
	cmd.LocalFlags().VisitAll(complete)
	if cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() && cmd.ValidateArgs([]string{"x"}) != nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		if e := addCompletions(c); err == nil {
			err = e
		}
	}
	return err
}
