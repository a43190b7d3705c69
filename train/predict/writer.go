// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/train"
)

// The formats of predictions.
const (
	Table     = "table"
	CSV       = "csv"
	JSONLines = "jsonl"
)

// Writer takes predictions in the order of their inputs. Close ends what is written; the
// writer below stays open.
type Writer interface {
	Write(items []Item, told []train.Prediction) error
	Close() error
}

// WriterOptions say what is written of a prediction.
type WriterOptions struct {
	Top  int      // classes of each, likeliest first; 0 is all, in a table three
	Keep []string // names of what is copied
}

// NewWriter returns a writer of a format.
func NewWriter(w io.Writer, format string, m *train.Model, o WriterOptions) (Writer, error) {
	if o.Top < 0 {
		return nil, fmt.Errorf("--top is %d, want 0 or more", o.Top)
	}
	form := form{m.Kind(), m.Classes(), o}
	switch format {
	case Table:
		if form.o.Top == 0 {
			form.o.Top = 3
		}
		return &tableWriter{form: form, w: w}, nil
	case CSV:
		return &csvWriter{form: form, w: csv.NewWriter(w)}, nil
	case JSONLines:
		return &jsonWriter{form, w}, nil
	}
	return nil, fmt.Errorf("the format of the output is %q, want table, csv or jsonl", format)
}

// form is what a prediction has.
type form struct {
	kind    string
	classes []string
	o       WriterOptions
}

// scored is a class with its probability.
type scored struct {
	class string
	p     float64
}

// top returns the likeliest classes.
func (f form) top(p train.Prediction) []scored {
	all := make([]scored, len(p.Probabilities))
	for i, v := range p.Probabilities {
		all[i] = scored{f.classes[i], v}
	}
	slices.SortStableFunc(all, func(a, b scored) int { return cmp.Compare(b.p, a.p) })
	if f.o.Top > 0 {
		all = all[:min(len(all), f.o.Top)]
	}
	return all
}

// number writes a number that was computed in 32 bits.
func number(v float64) string { return strconv.FormatFloat(float64(float32(v)), 'g', 7, 32) }

// share writes a probability for people.
func share(p float64) string { return strconv.FormatFloat(p, 'f', 4, 64) }

// textOf writes a value that was copied.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// jsonWriter writes an object in each line.
type jsonWriter struct {
	form
	w io.Writer
}

func (w *jsonWriter) Write(items []Item, told []train.Prediction) error {
	var b bytes.Buffer
	for i, item := range items {
		fields := []field{{"file", item.File}}
		if item.Line > 0 {
			fields = append(fields, field{"line", item.Line})
		}
		for k, name := range w.o.Keep {
			fields = append(fields, field{name, item.Kept[k]})
		}
		if err := writeObject(&b, append(fields, w.fieldsOf(told[i])...)); err != nil {
			return fmt.Errorf("%s: %w", item.Place(), err)
		}
		b.WriteByte('\n')
	}
	_, err := w.w.Write(b.Bytes())
	return err
}

func (w *jsonWriter) Close() error { return nil }

// field is a field of a JSON object.
type field struct {
	name  string
	value any
}

// writeObject writes fields in their order.
func writeObject(b *bytes.Buffer, fields []field) error {
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		for k, v := range []any{f.name, f.value} {
			if k > 0 {
				b.WriteByte(':')
			}
			e := json.NewEncoder(b)
			e.SetEscapeHTML(false)
			if err := e.Encode(v); err != nil {
				return err
			}
			b.Truncate(b.Len() - 1) // its line feed
		}
	}
	b.WriteByte('}')
	return nil
}

// fieldsOf are those of a prediction.
func (f form) fieldsOf(p train.Prediction) []field {
	var out []field
	switch f.kind {
	case "class":
		out = append(out, field{"prediction", p.Class}, field{"probability", float32(p.Probability)})
	case "classes":
		out = append(out, field{"prediction", slices.Concat([]string{}, p.Classes)})
	case "tags":
		probabilities := make([]float32, len(p.TagProbabilities))
		for i, v := range p.TagProbabilities {
			probabilities[i] = float32(v)
		}
		out = append(out, field{"prediction", p.Tags}, field{"probabilities", probabilities})
	case "value":
		out = append(out, field{"prediction", float32(p.Value)})
	default:
		out = append(out, field{"probability", float32(p.Probability)})
	}
	if p.Probabilities != nil {
		var inside []field
		for _, s := range f.top(p) {
			inside = append(inside, field{s.class, float32(s.p)})
		}
		out = append(out, field{"probabilities", object(inside)})
	}
	if p.Cut {
		out = append(out, field{"cut", true})
	}
	return out
}

// Fields returns a prediction as a JSON object, with so many of the likeliest classes; 0 is all.
func Fields(m *train.Model, p train.Prediction, top int) json.Marshaler {
	return object(form{m.Kind(), m.Classes(), WriterOptions{Top: top}}.fieldsOf(p))
}

// object is a JSON object whose fields keep their order.
type object []field

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := writeObject(&b, o)
	return b.Bytes(), err
}

// csvWriter writes a table with a header.
type csvWriter struct {
	form
	w     *csv.Writer
	begun bool
}

func (w *csvWriter) Write(items []Item, told []train.Prediction) error {
	if err := w.begin(); err != nil {
		return err
	}
	for i, item := range items {
		line := ""
		if item.Line > 0 {
			line = strconv.Itoa(item.Line)
		}
		row := []string{item.File, line}
		for _, v := range item.Kept {
			row = append(row, textOf(v))
		}
		if err := w.w.Write(append(row, w.row(told[i])...)); err != nil {
			return err
		}
	}
	w.w.Flush()
	return w.w.Error()
}

// begin writes the header.
func (w *csvWriter) begin() error {
	if w.begun {
		return nil
	}
	w.begun = true
	head := append([]string{"file", "line"}, w.o.Keep...)
	switch w.kind {
	case "class":
		head = append(head, "prediction", "probability")
	case "tags":
		head = append(head, "prediction", "probabilities")
	case "classes", "value":
		head = append(head, "prediction")
	default:
		head = append(head, "probability")
	}
	switch {
	case w.kind == "tags" || w.classes == nil:
	case w.o.Top == 0:
		for _, c := range w.classes {
			head = append(head, "p_"+c)
		}
	default:
		for i := range min(w.o.Top, len(w.classes)) {
			head = append(head, fmt.Sprintf("class_%d", i+1), fmt.Sprintf("probability_%d", i+1))
		}
	}
	return w.w.Write(head)
}

// row is a prediction in the columns of the header.
func (w *csvWriter) row(p train.Prediction) (row []string) {
	switch w.kind {
	case "class":
		row = append(row, p.Class, number(p.Probability))
	case "tags":
		probabilities := make([]string, len(p.TagProbabilities))
		for i, v := range p.TagProbabilities {
			probabilities[i] = number(v)
		}
		return append(row, strings.Join(p.Tags, " "), strings.Join(probabilities, " "))
	case "classes":
		row = append(row, strings.Join(p.Classes, ";"))
	case "value":
		row = append(row, number(p.Value))
	default:
		row = append(row, number(p.Probability))
	}
	if w.o.Top == 0 {
		for _, v := range p.Probabilities {
			row = append(row, number(v))
		}
		return row
	}
	for _, s := range w.top(p) {
		row = append(row, s.class, number(s.p))
	}
	return row
}

func (w *csvWriter) Close() error {
	if err := w.begin(); err != nil {
		return err
	}
	w.w.Flush()
	return w.w.Error()
}

// tableWriter writes columns for people, as wide as the first inputs need.
type tableWriter struct {
	form
	w      io.Writer
	widths []int
}

func (w *tableWriter) Write(items []Item, told []train.Prediction) error {
	head := append([]string{"input"}, w.o.Keep...)
	switch w.kind {
	case "class":
		head = append(head, "prediction", "probability", "next")
	case "classes":
		head = append(head, "prediction", "likeliest")
	case "value", "tags":
		head = append(head, "prediction")
	default:
		head = append(head, "probability")
	}
	var rows [][]string
	if w.widths == nil {
		rows = append(rows, head)
	}
	for i, item := range items {
		row := []string{item.Place()}
		for _, v := range item.Kept {
			row = append(row, textOf(v))
		}
		rows = append(rows, append(row, w.row(told[i])...))
	}
	for _, row := range rows {
		for k, text := range row {
			row[k] = visible.Text(strings.Join(strings.Fields(text), " "))
		}
	}
	if w.widths == nil {
		const most = 60
		w.widths = make([]int, len(head))
		for _, row := range rows {
			for k, text := range row {
				w.widths[k] = min(most, max(w.widths[k], utf8.RuneCountInString(text)))
			}
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for k, text := range row {
			line += text
			if k < len(row)-1 {
				line += strings.Repeat(" ", max(0, w.widths[k]-utf8.RuneCountInString(text))+2)
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w.w, b.String())
	return err
}

func (w *tableWriter) row(p train.Prediction) []string {
	list := func(some []scored) string {
		var texts []string
		for _, s := range some {
			texts = append(texts, s.class+" "+share(s.p))
		}
		return strings.Join(texts, ", ")
	}
	switch w.kind {
	case "class":
		return []string{p.Class, share(p.Probability), list(w.top(p)[1:])}
	case "classes":
		return []string{strings.Join(p.Classes, ", "), list(w.top(p))}
	case "tags":
		return []string{strings.Join(p.Tags, " ")}
	case "value":
		return []string{number(p.Value)}
	}
	return []string{share(p.Probability)}
}

func (w *tableWriter) Close() error { return nil }
