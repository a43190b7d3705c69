// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/nearest"
)

// Plan says how tensor parallelism cuts a model: which module has which style. It is written
// with one rule a line, and [ParsePlan] reads it:
//
//	# attention in 12 heads
//	h.*.attn.c_attn:  column packed 3 in 12
//	h.*.attn.c_proj:  row
//	h.*.mlp.c_fc:     column
//	h.*.mlp.c_proj:   row
//	lm_head:          column
//	.:                logits
//
// Before the colon stands the path of a module, as errors and checkpoints have it. A star stands
// for any one part of a path, or for any letters within a part; a dot alone is the model. Behind
// the colon stand a style and its words:
//
//	column       a linear layer's outputs are cut: each rank computes some of them
//	row          its inputs are cut: each rank computes a part of a sum, which is then reduced
//	vocabulary   the rows of an embedding are cut
//	width        the columns of an embedding are cut
//	sequence     the module works on this rank's part of the sequence, with whole parameters
//	cut          the module works on this rank's part of the last dim, with whole parameters
//	heads        attention in this rank's heads, or a norm of the channels of each of them
//	experts      the hidden channels of experts are cut
//	input, output  what the module takes or gives is spread anew: "input to copy"
//	shard D      a parameter is cut along dim D; the path is that of the parameter
//	logits       what the module gives are logits of this rank's part of the classes
//
// The words are:
//
//	packed K     the dim has K parts side by side, each of which is cut: packed queries, keys
//	             and values have 3
//	in N         the cut falls between N equal pieces, such as heads; N must be a multiple of
//	             the number of ranks
//	from KIND    how the input lies, and
//	to KIND      how the output shall lie, where it is not the usual
//	I            which input or output is meant, from 0; without it the first
//
// The kinds of values are replicate, copy, sequence, cut and partial; docs/tensor-parallelism.md
// has a picture of each.
type Plan []Rule

// Rule is one line of a [Plan].
type Rule struct {
	Pattern string // of the module's path; "." is the model
	Style   string
	Dim     int    // of shard
	Packed  int    // parts that lie side by side; 0 is 1
	In      int    // pieces between which the cut falls; 0 for any
	Index   int    // of the input or output
	From    string // the kind of what the module takes, or of what is spread anew; "" for the usual
	To      string // the kind of what the module gives, or of what comes of it; "" for the usual
	Line    int    // where it stands, from 1; 0 for nowhere
}

const (
	styleColumn     = "column"
	styleRow        = "row"
	styleVocabulary = "vocabulary"
	styleWidth      = "width"
	styleSequence   = "sequence"
	styleCut        = "cut"
	styleHeads      = "heads"
	styleExperts    = "experts"
	styleInput      = "input"
	styleOutput     = "output"
	styleShard      = "shard"
	styleLogits     = "logits"
)

// wordsOf are the words that each style takes.
var wordsOf = map[string][]string{
	styleColumn: {"packed", "in", "from", "to"}, styleRow: {"packed", "in", "from", "to"},
	styleVocabulary: {"to"}, styleWidth: {"to"}, styleSequence: {}, styleCut: {}, styleHeads: {}, styleExperts: {"from", "to"},
	styleInput: {"from", "to"}, styleOutput: {"from", "to"}, styleShard: {"packed", "in"}, styleLogits: {},
}

const (
	maxPlanBytes = 1 << 20
	maxPlanRules = 1 << 14
	maxPlanWord  = 1 << 16 // what a number of a rule may be
)

// PlanError says what is wrong with a rule of a [Plan].
type PlanError struct {
	Line    int    // of the plan's text, from 1; 0 for a rule that stands in none
	Rule    string // as it is written
	Problem string // what is wrong, and what to do
}

func (e *PlanError) Error() string {
	where := ""
	if e.Line > 0 {
		where = fmt.Sprintf(" line %d", e.Line)
	}
	return fmt.Sprintf("tensor parallel plan:%s %q: %s", where, e.Rule, e.Problem)
}

// ParsePlan reads a plan. The error is a [*PlanError].
func ParsePlan(text string) (Plan, error) {
	if len(text) > maxPlanBytes {
		return nil, &PlanError{Rule: text[:20] + "…", Problem: fmt.Sprintf("the plan has %d bytes, and at most %d are read", len(text), maxPlanBytes)}
	}
	plan := Plan{}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) { // a mark of some editors
		number++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		r, problem := parseRule(line)
		if problem == "" && len(plan) == maxPlanRules {
			problem = fmt.Sprintf("the plan has more than %d rules: use patterns with a star", maxPlanRules)
		}
		if problem != "" {
			return nil, &PlanError{number, line, problem}
		}
		r.Line = number
		plan = append(plan, r)
	}
	return plan, nil
}

func parseRule(line string) (r Rule, problem string) {
	pattern, rest, found := strings.Cut(line, ":")
	if !found {
		return r, "a rule is PATH: STYLE, and there is no colon"
	}
	r.Pattern = strings.TrimSpace(pattern)
	if problem := checkPattern(r.Pattern); problem != "" {
		return r, problem
	}
	words := strings.Fields(rest)
	if len(words) == 0 {
		return r, "there is no style behind the colon: write one of " + strings.Join(planStyles(), ", ")
	}
	r.Style, words = words[0], words[1:]
	known, ok := wordsOf[r.Style]
	if !ok {
		return r, fmt.Sprintf("there is no style %q%s: the styles are %s", r.Style, perhaps(nearest.Name(r.Style, planStyles())), strings.Join(planStyles(), ", "))
	}
	switch r.Style {
	case styleShard:
		if len(words) == 0 {
			return r, "shard wants the dim that is cut: shard 0"
		}
		if r.Dim, problem = parseCount("the dim", words[0], 0); problem != "" {
			return r, problem
		}
		words = words[1:]
	case styleInput, styleOutput:
		if len(words) > 0 && words[0] != "" && words[0][0] >= '0' && words[0][0] <= '9' {
			if r.Index, problem = parseCount("the number of the "+r.Style, words[0], 0); problem != "" {
				return r, problem
			}
			words = words[1:]
		}
	}
	seen := map[string]bool{}
	for len(words) > 0 {
		word := words[0]
		switch {
		case !slices.Contains(known, word):
			return r, fmt.Sprintf("%s does not know the word %q%s: it takes %s", r.Style, word, perhaps(nearest.Name(word, known)), listOr(known, "no words"))
		case seen[word]:
			return r, fmt.Sprintf("the word %s comes twice", word)
		case len(words) == 1:
			return r, fmt.Sprintf("there is nothing behind %q", word)
		}
		seen[word] = true
		switch word {
		case "packed":
			r.Packed, problem = parseCount(word, words[1], 1)
		case "in":
			r.In, problem = parseCount(word, words[1], 1)
		case "from":
			r.From, problem = parseKind(words[1])
		case "to":
			r.To, problem = parseKind(words[1])
		}
		if problem != "" {
			return r, problem
		}
		words = words[2:]
	}
	if r.To == "" && (r.Style == styleInput || r.Style == styleOutput) {
		return r, fmt.Sprintf("%s wants the kind that comes of it: %s to replicate", r.Style, r.Style)
	}
	return r, ""
}

// checkPattern returns what is wrong with a pattern, "" if nothing.
func checkPattern(pattern string) string {
	switch {
	case pattern == "":
		return "there is no path before the colon: the model itself is a dot"
	case pattern == ".":
		return ""
	case strings.ContainsAny(pattern, "/\\ \t"):
		return "a path has parts with dots between, and no spaces or slashes"
	}
	for part := range strings.SplitSeq(pattern, ".") {
		if part == "" {
			return "the path has an empty part: parts stand between single dots"
		}
		if _, err := path.Match(part, ""); err != nil {
			return fmt.Sprintf("the part %q is no pattern: a star stands for any letters", part)
		}
	}
	return ""
}

func parseCount(what, word string, least int) (n int, problem string) {
	n, err := strconv.Atoi(word)
	if err != nil || n < least || n > maxPlanWord || strconv.Itoa(n) != word {
		return 0, fmt.Sprintf("%s is %q, want a number from %d to %d", what, word, least, maxPlanWord)
	}
	return n, ""
}

func parseKind(word string) (string, string) {
	if _, ok := kinds[word]; ok {
		return word, ""
	}
	return "", fmt.Sprintf("there is no kind %q of value%s: the kinds are %s", word, perhaps(nearest.Name(word, kindNames())), strings.Join(kindNames(), ", "))
}

// perhaps suggests a name, if there is one.
func perhaps(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (%s?)", name)
}

func listOr(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}

// planStyles returns the styles in the order of the alphabet.
func planStyles() []string {
	var names []string
	for name := range wordsOf {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// String returns the plan as [ParsePlan] reads it.
func (p Plan) String() string {
	var b strings.Builder
	for _, r := range p {
		b.WriteString(r.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// String returns the rule as it stands in a plan.
func (r Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", r.Pattern, r.Style)
	switch {
	case r.Style == styleShard:
		fmt.Fprintf(&b, " %d", r.Dim)
	case r.Index > 0:
		fmt.Fprintf(&b, " %d", r.Index)
	}
	if r.Packed > 0 {
		fmt.Fprintf(&b, " packed %d", r.Packed)
	}
	if r.In > 0 {
		fmt.Fprintf(&b, " in %d", r.In)
	}
	if r.From != "" {
		b.WriteString(" from " + r.From)
	}
	if r.To != "" {
		b.WriteString(" to " + r.To)
	}
	return b.String()
}

// validate returns what is wrong with a rule that was not parsed.
func (r Rule) validate() error {
	again, problem := parseRule(r.String())
	again.Line = r.Line
	if problem == "" && again != r {
		problem = "it has fields that its style does not take"
	}
	if problem != "" {
		return r.wrong("%s", problem)
	}
	return nil
}

func (r Rule) wrong(format string, args ...any) error {
	return &PlanError{r.Line, r.String(), fmt.Sprintf(format, args...)}
}

// matches reports whether the rule is for the module or parameter at a path.
func (r Rule) matches(at string) bool {
	if r.Pattern == "." {
		return at == ""
	}
	ok, _ := path.Match(strings.ReplaceAll(r.Pattern, ".", "/"), strings.ReplaceAll(at, ".", "/"))
	return ok && at != ""
}
