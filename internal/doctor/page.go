// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
)

// cell makes a text fit a cell of a table in Markdown.
func cell(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", `\|`), "\n", " ") }

// CheckTable returns the table of checks as docs/doctor.md has it.
func CheckTable() string {
	var b strings.Builder
	b.WriteString("| check | what is looked at | why it matters | what mends it |\n|---|---|---|---|\n")
	for _, c := range Checks() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, cell(c.What), cell(c.Why), cell(c.Mend))
	}
	return b.String()
}

// TroubleTable returns the table of troubles as docs/doctor.md has it.
func TroubleTable() string {
	var b strings.Builder
	b.WriteString("| trouble | what the logs say | what has happened | what to do |\n|---|---|---|---|\n")
	for _, t := range Troubles() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", t.Name, cell(t.Says), cell(t.Why), cell(t.Mend))
	}
	return b.String()
}
