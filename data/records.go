// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// recordsHead is how much of a file is read to see whether it has records.
const recordsHead = 256 << 10

const recordAdvice = "records, such as conversations or questions with answers, are no text: `cohort train lm --init-from` trains on them in files that are called .jsonl, .json, .parquet or .tar; or write their text to a file, as the model shall see it"

// Names under which records have their texts: those that say so alone, those
// that do in pairs, and columns of tables.
var (
	recordLists = []string{"messages", "conversations", "conversation", "dialog", "dialogue"}
	recordPairs = [][2]string{
		{"role", "content"}, {"from", "value"}, {"prompt", "completion"}, {"prompt", "response"}, {"instruction", "output"}, {"instruction", "response"},
		{"question", "answer"}, {"question", "answers"}, {"chosen", "rejected"}, {"input", "output"}, {"user", "assistant"}, {"human", "assistant"}, {"source", "target"},
	}
	recordColumns = []string{
		"text", "messages", "conversations", "conversation", "prompt", "completion", "instruction", "input", "output", "response", "question", "answer",
		"chosen", "rejected", "query", "reply", "system", "user", "assistant", "human", "bot", "role", "content", "source", "target",
	}
)

// records is what a file has instead of text.
type records struct {
	kind string // for people, "" if it has none
	// sure is whether its records have texts, or stand one a line. Among other files
	// it is text like them where it is not: programs bring lists in JSON along.
	sure bool
}

// findRecords looks for records: lines or a list of JSON objects, whatever the
// file's name, a JSON object with a list of conversations, or a table. head is
// the file's beginning.
func (f *file) findRecords(head []byte) error {
	trimmed := bytes.TrimLeft(bytes.TrimPrefix(head, []byte(byteOrderMark)), " \t\r\n")
	if len(trimmed) == 0 {
		return nil
	}
	if isJSON := trimmed[0] == '{' || trimmed[0] == '['; isJSON && int64(len(head)) < f.size {
		h, err := os.Open(f.path)
		if err != nil {
			return unreadable(f.path, err)
		}
		defer h.Close()
		if head, err = io.ReadAll(io.LimitReader(h, recordsHead)); err != nil {
			return unreadable(f.path, err)
		}
	}
	f.records = recordsIn(f.name, bytes.TrimPrefix(head, []byte(byteOrderMark)), int64(len(head)) < f.size)
	return nil
}

// recordsIn finds the records in the beginning of a file, which may be cut.
func recordsIn(name string, head []byte, cut bool) records {
	ext := strings.ToLower(path.Ext(name))
	head = bytes.TrimLeft(head, " \t\r\n")
	if len(head) > 0 && (head[0] == '{' || head[0] == '[') {
		return jsonRecords(ext, head, cut)
	}
	return tableRecords(ext, head, cut)
}

// jsonRecords looks at JSON values, one after the other.
func jsonRecords(ext string, head []byte, cut bool) records {
	lines := records{"lines of JSON", true}
	d := json.NewDecoder(bytes.NewReader(head))
	var first json.RawMessage
	for n := 0; ; n++ {
		var v json.RawMessage
		err := d.Decode(&v)
		rest := bytes.TrimLeft(head[min(int(d.InputOffset()), len(head)):], " \t\r\n")
		switch {
		case err == nil && v[0] != '{' && v[0] != '[':
			return records{}
		case err == nil && n == 0:
			first = v
			continue
		case err == nil: // a second one
			return lines
		case errors.Is(err, io.EOF):
		case cut && errors.Is(err, io.ErrUnexpectedEOF):
			if n == 0 {
				first = rest
			} else if rest[0] == '{' || rest[0] == '[' {
				return lines
			}
		default:
			return records{} // no JSON, or not to the end: a program
		}
		break
	}
	k := keysIn(first)
	if k.talk {
		return records{"JSON with conversations", true}
	}
	if ext == ".jsonl" || ext == ".ndjson" {
		return lines
	}
	if first[0] == '[' && k.alike {
		return records{"a list of JSON objects", slices.ContainsFunc(recordColumns, func(name string) bool { return k.inLists[name] })}
	}
	return records{}
}

// jsonKeys is what the keys of a JSON value tell.
type jsonKeys struct {
	inLists map[string]bool // of objects in lists, in lower case
	talk    bool            // they are those of conversations
	alike   bool            // the value is a list of objects, or of lists of them
}

// keysIn reads the keys of a JSON value that may be cut.
func keysIn(v []byte) jsonKeys {
	k := jsonKeys{inLists: make(map[string]bool)}
	var open []byte // brackets
	lists := 0
	all := make(map[string]bool)
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '{', '[':
			open = append(open, v[i])
			if v[i] == '[' {
				lists++
			} else if lists > 0 && lists == len(open)-1 {
				k.alike = true
			}
		case '}', ']':
			if v[i] == ']' {
				lists--
			}
			open = open[:max(0, len(open)-1)]
		case '"':
			begin := i + 1
			for i++; i < len(v) && v[i] != '"'; i++ {
				if v[i] == '\\' {
					i++
				}
			}
			if i >= len(v) {
				break
			}
			name := strings.ToLower(string(v[begin:i]))
			after := bytes.TrimLeft(v[i+1:], " \t\r\n")
			if len(after) > 0 && after[0] == ':' && len(open) > 0 && open[len(open)-1] == '{' {
				all[name] = true
				if lists > 0 {
					k.inLists[name] = true
				}
			}
		}
	}
	k.talk = slices.ContainsFunc(recordPairs, func(p [2]string) bool { return k.inLists[p[0]] && k.inLists[p[1]] }) ||
		slices.ContainsFunc(recordLists, func(name string) bool { return all[name] }) && (all["role"] || all["from"] || all["content"] || all["value"] || all["text"])
	return k
}

// tableRecords looks at the first lines of a table with a header.
func tableRecords(ext string, head []byte, cut bool) records {
	named := ext == ".csv" || ext == ".tsv"
	for _, comma := range []rune{',', '\t', ';'} {
		r := csv.NewReader(bytes.NewReader(head))
		r.Comma, r.LazyQuotes = comma, comma == '\t'
		header, err := r.Read()
		if err != nil || len(header) < 2 {
			continue
		}
		rows := 0
		for ; rows < 20; rows++ {
			if _, err = r.Read(); err != nil {
				break
			}
		}
		if rows == 0 || err != nil && !errors.Is(err, io.EOF) && !(cut && rows > 1) {
			continue
		}
		known := 0
		for _, name := range header {
			if slices.Contains(recordColumns, strings.ToLower(strings.TrimSpace(name))) {
				known++
			}
		}
		if named || known >= 2 {
			return records{"a table", known >= 2 || named && known > 0}
		}
	}
	return records{}
}
