// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// textRecords are the records of a file, each with values by the names of its fields. The
// recipes of texts read them into memory: what they train on are sentences.
type textRecords struct {
	path  string
	rows  []map[string]any
	lines []int // of the file, by record
	sum   string
}

const (
	maxTextFile   = 4 << 30
	maxTextRecord = 16 << 20
)

// readTextRecords reads a file of JSON lines, or a table with a header (CSV, or TSV).
func readTextRecords(path string) (*textRecords, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: name a file of records, .jsonl, .csv or .tsv", path)
	case info.Size() > maxTextFile:
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that are read into memory", path, info.Size(), int64(maxTextFile))
	}
	t := &textRecords{path: path}
	h := sha256.New()
	from := io.TeeReader(f, h)
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".jsonl", ".ndjson", ".json":
		err = t.readLines(from)
	case ".csv", ".tsv":
		err = t.readTable(from, map[string]rune{".csv": ',', ".tsv": '\t'}[ext])
	default:
		err = fmt.Errorf("%s: a file of records ends in .jsonl, .csv or .tsv", path)
	}
	if err == nil && len(t.rows) == 0 {
		err = fmt.Errorf("%s has no records", path)
	}
	t.sum = hex.EncodeToString(h.Sum(nil)[:8])
	return t, err
}

func (t *textRecords) readLines(from io.Reader) error {
	s := bufio.NewScanner(from)
	s.Buffer(make([]byte, 64<<10), maxTextRecord)
	line := 0
	for s.Scan() {
		line++
		text := bytes.TrimSpace(bytes.TrimPrefix(s.Bytes(), []byte("\xef\xbb\xbf")))
		if len(text) == 0 {
			continue
		}
		var row map[string]any
		if err := json.Unmarshal(text, &row); err != nil {
			return fmt.Errorf("%s:%d: want one JSON object in a line: %w", t.path, line, err)
		}
		t.rows, t.lines = append(t.rows, row), append(t.lines, line)
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("%s:%d: the record has more than the %d bytes allowed", t.path, line+1, maxTextRecord)
	}
	return s.Err()
}

func (t *textRecords) readTable(from io.Reader, comma rune) error {
	r := csv.NewReader(bufio.NewReader(from))
	r.Comma, r.LazyQuotes = comma, comma == '\t'
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil
	}
	for err == nil {
		var fields []string
		if fields, err = r.Read(); err != nil {
			break
		}
		line, _ := r.FieldPos(0)
		row := make(map[string]any, len(header))
		for i, name := range header {
			row[strings.TrimPrefix(name, "\ufeff")] = fields[i]
		}
		t.rows, t.lines = append(t.rows, row), append(t.lines, line)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("%s: %w", t.path, err)
}

// Len is the number of records.
func (t *textRecords) Len() int { return len(t.rows) }

// at names a record in an error.
func (t *textRecords) at(i int) string { return fmt.Sprintf("%s:%d", t.path, t.lines[i]) }

// fields lists the names of a record's fields.
func (t *textRecords) fields(i int) string {
	names := slices.Sorted(maps.Keys(t.rows[i]))
	if len(names) > 12 {
		names = append(names[:12], "…")
	}
	return strings.Join(names, ", ")
}

// has says whether the first record has fields of these names.
func (t *textRecords) has(names ...string) bool {
	for _, n := range names {
		if _, ok := t.rows[0][n]; !ok {
			return false
		}
	}
	return true
}

// value returns a field of a record.
func (t *textRecords) value(i int, name string) (any, error) {
	v, ok := t.rows[i][name]
	if !ok || v == nil {
		return nil, fmt.Errorf("%s: the record has no field %q; it has %s", t.at(i), name, t.fields(i))
	}
	return v, nil
}

// text returns a field that is text.
func (t *textRecords) text(i int, name string) (string, error) {
	v, err := t.value(i, name)
	if err != nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: the field %q is %s, want text", t.at(i), name, shortJSON(v))
	}
	return s, nil
}

// number returns a field that is a number.
func (t *textRecords) number(i int, name string) (float64, error) {
	v, err := t.value(i, name)
	if err != nil {
		return 0, err
	}
	switch v := v.(type) {
	case float64:
		return v, nil
	case string:
		if x, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && x-x == 0 {
			return x, nil
		}
	}
	return 0, fmt.Errorf("%s: the field %q is %s, want a finite number", t.at(i), name, shortJSON(v))
}

// names returns a field that is a list of names, of words or of tags. In a table they stand
// in one field, with spaces between them.
func (t *textRecords) names(i int, name string) ([]string, error) {
	v, err := t.value(i, name)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case string:
		return strings.Fields(v), nil
	case []any:
		list := make([]string, len(v))
		for k, e := range v {
			text, ok := nameOfValue(e)
			if !ok {
				return nil, fmt.Errorf("%s: element %d of the field %q is %s, want a name", t.at(i), k, name, shortJSON(e))
			}
			list[k] = text
		}
		return list, nil
	}
	return nil, fmt.Errorf("%s: the field %q is %s, want a list of names", t.at(i), name, shortJSON(v))
}

// nameOfValue returns a class as its name: text, a whole number or a truth value.
func nameOfValue(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), v == float64(int64(v))
	}
	return "", false
}

// shortJSON shows a value in an error.
func shortJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const most = 60
	if len(text) > most {
		return strings.ToValidUTF8(string(text[:most]), "") + "…"
	}
	return string(text)
}
