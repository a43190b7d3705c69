// SPDX-License-Identifier: Apache-2.0

// Package jinja renders the part of the Jinja language that published chat
// templates use, as the transformers package does: with trim_blocks and
// lstrip_blocks, in a sandbox that changes no list and no dict, and with the
// block generation.
//
// A template is read into a tree once and then evaluated. What is not known
// (a block, a filter, a test, a method, a function) is an error when it is
// read, with the line. A template can neither read files nor use other
// templates, and its steps, the depth of its calls and the size of what it
// makes are limited. So a template of a stranger can do no harm.
//
// Map of the files: lexer.go makes tokens; parser.go and parseexpr.go the tree;
// statement.go, eval.go and arithmetic.go evaluate it; value.go has the values
// of Python, format.go their texts; method.go, filter.go, jinjatest.go and
// global.go are what templates can call; decode.go reads values from JSON.
//
// It differs from Jinja in this: filters such as map compute at once, integers
// of more than 64 bits can be written but not computed with, and the operator %
// of strings is refused.
package jinja

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Error is a mistake in a template, or one that a template found.
type Error struct {
	Line   int
	Msg    string
	Raised bool // by the template's raise_exception
}

func (e *Error) Error() string {
	if e.Raised {
		return fmt.Sprintf("line %d: the template refuses the conversation: %s", e.Line, e.Msg)
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Msg)
}

// tables have what templates can call besides methods and functions.
type tables struct {
	filters map[string]filterFunc
	tests   map[string]testFunc
}

var known = sync.OnceValue(func() *tables { return &tables{filters(), tests()} })

func fail(line int, format string, args ...any) {
	panic(&Error{Line: line, Msg: fmt.Sprintf(format, args...)})
}

// Span is a part of a text, in bytes.
type Span struct{ Start, End int }

// Template is a template that was read. It is safe for concurrent use.
type Template struct {
	body []node
	// Generation says that the template has a block generation.
	Generation bool
}

// Parse reads a template. A mistake is an *[Error].
func Parse(source string) (t *Template, err error) {
	defer caught(&err)
	if len(source) > maxSource {
		fail(1, "the template has %d bytes, at most %d are supported", len(source), maxSource)
	}
	if i := strings.IndexByte(strings.ToValidUTF8(source, "\x00"), 0); i >= 0 {
		fail(1+strings.Count(source[:i], "\n"), "the template has a zero byte or is no UTF-8")
	}
	t = new(Template)
	t.body, t.Generation = parse(source)
	return t, nil
}

// caught makes an error of a mistake.
func caught(err *error) {
	switch e := recover().(type) {
	case nil:
	case *Error:
		*err = e
	default:
		panic(e)
	}
}

// Output is what a template writes.
type Output struct {
	Text  string
	Spans []Span // of its blocks generation, if they were asked for
}

// Execute renders the template with variables. Their values are those that
// [Decode] makes. spans asks for the places of the blocks generation.
func (t *Template) Execute(variables map[string]any, now func() time.Time, spans bool) (out Output, err error) {
	defer caught(&err)
	root := new(strings.Builder)
	x := &exec{out: root, root: root, now: now, wanted: spans, known: known()}
	// What a template sets must not reach the caller's map.
	x.scope = &scope{vars: make(map[string]any), parent: &scope{vars: variables}}
	x.run(t.body)
	return Output{root.String(), x.spans}, nil
}
