// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/internal/visible"
)

// maxCell bounds what a table shows of a value.
const maxCell = 44

// Table returns findings as a table for people: which node, what, what is expected and what
// found, why it matters, and below each of them the command that mends it.
func Table(all []Finding) string {
	rows := [][]string{{"", "what", "expected", "found", "why it matters"}}
	nodes := false
	for _, f := range all {
		nodes = nodes || f.Node != ""
		rows = append(rows, []string{string(f.Kind), f.What(), cell(f.Expected, f.Unit), cell(f.Found, f.Unit), f.Why})
	}
	if nodes {
		rows[0] = append([]string{"node"}, rows[0]...)
		for i, f := range all {
			rows[i+1] = append([]string{f.Node}, rows[i+1]...)
		}
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(visible.Text(c)))
		}
	}
	var b strings.Builder
	for i, row := range rows {
		var line strings.Builder
		for k, c := range row {
			c = visible.Text(c)
			line.WriteString(c)
			line.WriteString(strings.Repeat(" ", width[k]-utf8.RuneCountInString(c)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		if i > 0 && all[i-1].Mend != "" {
			b.WriteString("    mend: " + visible.Text(all[i-1].Mend) + "\n")
		}
	}
	return b.String()
}

// cell is a value in a table.
func cell(value, unit string) string {
	switch {
	case value == "":
		return "-"
	case unit != "" && value != unlimited:
		value += " " + unit
	}
	if utf8.RuneCountInString(value) <= maxCell {
		return value
	}
	r := []rune(value)
	return string(r[:maxCell-1]) + "…"
}

// Summary counts findings: "2 differences that stop a job, 1 that may harm it".
func Summary(all []Finding) string {
	musts := 0
	for _, f := range all {
		if f.Kind == Must {
			musts++
		}
	}
	switch warns := len(all) - musts; {
	case musts == 0:
		return fmt.Sprintf("%s that may harm a job", differences(warns))
	case warns == 0:
		return fmt.Sprintf("%s that must not be", differences(musts))
	default:
		return fmt.Sprintf("%s that must not be, and %d that may harm a job", differences(musts), warns)
	}
}

func differences(n int) string {
	if n == 1 {
		return "1 difference"
	}
	return fmt.Sprintf("%d differences", n)
}
