// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var (
	// fenced finds the blocks of a document that are marked sh, spanned what
	// stands between backquotes in a line.
	fenced   = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	anyBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	spanned  = regexp.MustCompile("`([^`\n]+)`")
	// called finds the program in a command line, behind settings of variables.
	called = regexp.MustCompile(`^\s*(?:[A-Z_]+=\S* +)*(?:cohort|go run \./cmd/cohort)(?: +(.*))?$`)
	word   = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
)

// words splits a command line as a shell does, without what follows a #.
func words(line string) []string {
	var out []string
	for _, w := range word.FindAllString(line, -1) {
		if strings.HasPrefix(w, "#") {
			break
		}
		out = append(out, strings.Trim(w, `'"`))
	}
	return out
}

// checkLine returns what is wrong with the arguments of a command line. A
// mention in a sentence may leave arguments out, but not invent flags.
func checkLine(args []string, mention bool) error {
	root := newRoot(io.Discard, io.Discard)
	root.InitDefaultCompletionCmd(args...) // which Execute adds
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if mention && cmd.HasParent() {
		return nil
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// TestDocuments: what the documents tell a reader to type is a command of this
// program, with flags that it has and values that they take.
func TestDocuments(t *testing.T) {
	var docs []string
	for _, pattern := range []string{"*.md", filepath.Join("docs", "*.md")} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, found...)
	}
	numLines := 0
	for _, name := range docs {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		check := func(line string, mention bool) {
			m := called.FindStringSubmatch(line)
			if m == nil {
				return
			}
			numLines++
			if err := checkLine(words(m[1]), mention); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(name), strings.TrimSpace(line), err)
			}
		}
		for _, m := range fenced.FindAllSubmatch(text, -1) {
			for line := range strings.Lines(string(m[1])) {
				check(strings.TrimSuffix(line, "\n"), false)
			}
		}
		for _, m := range spanned.FindAllSubmatch(anyBlock.ReplaceAll(text, nil), -1) {
			check(string(m[1]), true)
		}
	}
	if numLines < 10 {
		t.Errorf("only %d command lines were found in %q", numLines, docs)
	}
}

// TestDocumentLines checks the check itself.
func TestDocumentLines(t *testing.T) {
	for _, c := range []struct {
		line        string
		mention, ok bool
	}{
		{"cohort train lm --ranks 2   # a comment", false, true},
		{"go run ./cmd/cohort train lm --json", false, true},
		{"RANK=0 cohort env", false, true},
		{"cohort train lm --ranks two", false, false},
		{"cohort train lm --cores 2", false, false},
		{"cohort dance", false, false},
		{"cohort run --nproc_per_node 2 prog --its-own flag", false, true},
		{"cohort run", false, false},
		{"cohort run", true, true},
		{"cohort dance", true, false},
		{"cohort generate --prompt 'func main() {'", false, true},
	} {
		m := called.FindStringSubmatch(c.line)
		if m == nil {
			t.Fatalf("%s is not taken for a command line", c.line)
		}
		if err := checkLine(words(m[1]), c.mention); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", c.line, err, c.ok)
		}
	}
}
