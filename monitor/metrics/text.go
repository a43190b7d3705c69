// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// kind is a type of a metric in the format.
type kind string

const (
	counter kind = "counter"
	gauge   kind = "gauge"
)

// label is a name with a value, which may be any text.
type label struct{ name, value string }

// family is a metric with its samples.
type family struct {
	name, help string
	kind       kind
	samples    []sample
}

type sample struct {
	labels []label
	value  float64
}

// add adds a sample.
func (f *family) add(value float64, labels ...label) {
	f.samples = append(f.samples, sample{slices.Clone(labels), value})
}

var (
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)

// write writes families that have samples.
func write(w io.Writer, families []*family) error {
	var b strings.Builder
	for _, f := range families {
		if len(f.samples) == 0 {
			continue
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", f.name, escapeHelp.Replace(f.help), f.name, f.kind)
		for _, s := range f.samples {
			b.WriteString(f.name)
			for i, l := range s.labels {
				b.WriteByte("{,"[min(i, 1)])
				b.WriteString(l.name + `="` + escapeLabel.Replace(strings.ToValidUTF8(l.value, "\ufffd")) + `"`)
			}
			if len(s.labels) > 0 {
				b.WriteByte('}')
			}
			b.WriteString(" " + number(s.value) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// number writes a value as Go does, and as the format says: +Inf, -Inf, NaN.
func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
