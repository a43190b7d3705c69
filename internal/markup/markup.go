// SPDX-License-Identifier: Apache-2.0

// Package markup writes HTML pages in which every value is escaped.
//
// It takes the place of html/template, which finds methods by names that only run time
// knows. So the linker has to keep all exported methods of all types in a program that
// imports it: 8.5 MB of the command cohort.
//
// Values stand in the text of elements, or in attributes with quotes. Scripts, styles and
// addresses are Raw: their caller makes them safe. The zero Page is empty.
package markup

import (
	"bytes"
	"fmt"
	"html"
	"io"
)

// Raw is markup as it is. Only constants of the program, and JSON, which has no markup, become Raw.
type Raw string

// Page is a page that is being written.
type Page struct{ b bytes.Buffer }

// Put adds markup with values at its verbs (%s), all escaped but those of type [Raw].
func (p *Page) Put(format string, values ...any) {
	escaped := make([]any, len(values))
	for i, v := range values {
		if raw, ok := v.(Raw); ok {
			escaped[i] = string(raw)
		} else {
			escaped[i] = html.EscapeString(fmt.Sprint(v))
		}
	}
	fmt.Fprintf(&p.b, format, escaped...)
}

// WriteTo writes the page at once, so that a failure before it leaves no half of one.
func (p *Page) WriteTo(w io.Writer) (int64, error) { return p.b.WriteTo(w) }
