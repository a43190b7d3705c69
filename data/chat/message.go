// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data/chat/internal/jinja"
)

// Message is what somebody says in a conversation.
type Message struct {
	Role      string // such as system, user, assistant or tool
	Content   Content
	Name      string            // "" if the message has none
	ToolCalls []json.RawMessage // calls that the assistant makes, as the data has them
	Extra     []Field           // other fields, such as reasoning_content

	order []string // of the fields in the JSON that it was read from
}

// Content is what a message says. The zero value is an empty text.
type Content struct {
	Text   string
	Parts  []Part // if not nil, the content is a list of parts, and Text is ""
	Absent bool   // there is none, as in a message with nothing but tool calls
}

// Part is a part of a content, of the type text.
type Part struct {
	Text  string
	Extra []Field // fields besides type and text
}

// Field is a field of a JSON object that this package does not know.
type Field struct {
	Key   string
	Value json.RawMessage
}

// Text is a content that is a text.
func Text(text string) Content { return Content{Text: text} }

// String is the text of the content, of all parts one after the other.
func (c Content) String() string {
	if c.Parts == nil {
		return c.Text
	}
	var b strings.Builder
	for _, p := range c.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// fields are the fields of a JSON object, in order.
func fields(raw []byte) ([]Field, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("must be an object")
	}
	var out []Field
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		f := Field{Key: key.(string)}
		if err := d.Decode(&f.Value); err != nil {
			return nil, err
		}
		// Of a key that is there twice the last value counts, at the first place.
		if i := slices.IndexFunc(out, func(o Field) bool { return o.Key == f.Key }); i >= 0 {
			out[i] = f
		} else {
			out = append(out, f)
		}
	}
	return out, nil
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// UnmarshalJSON reads a message. Fields that are null count as absent, as in
// the Hugging Face libraries.
func (m *Message) UnmarshalJSON(raw []byte) error {
	if _, err := jinja.Decode(raw); err != nil {
		return fmt.Errorf("chat: message %w", err)
	}
	list, err := fields(raw)
	if err != nil {
		return fmt.Errorf("chat: a message %w", err)
	}
	*m = Message{Content: Content{Absent: true}}
	for _, f := range list {
		if isNull(f.Value) {
			continue
		}
		switch m.order = append(m.order, f.Key); f.Key {
		case "role":
			err = json.Unmarshal(f.Value, &m.Role)
		case "content":
			m.Content, err = readContent(f.Value)
		case "name":
			err = json.Unmarshal(f.Value, &m.Name)
		case "tool_calls":
			err = json.Unmarshal(f.Value, &m.ToolCalls)
		default:
			m.Extra = append(m.Extra, f)
		}
		if err != nil {
			return fmt.Errorf("chat: field %q of a message: %w", f.Key, err)
		}
	}
	if m.Role == "" {
		if slices.ContainsFunc(m.Extra, func(f Field) bool { return f.Key == "from" }) {
			return fmt.Errorf("chat: a message has \"from\" and \"value\" in place of \"role\" and \"content\"")
		}
		return fmt.Errorf("chat: a message has no \"role\"")
	}
	return nil
}

func readContent(raw json.RawMessage) (Content, error) {
	switch raw[0] {
	case '"':
		var c Content
		return c, json.Unmarshal(raw, &c.Text)
	case '[':
	default:
		return Content{}, fmt.Errorf("must be a string or a list of parts")
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return Content{}, err
	}
	c := Content{Parts: make([]Part, len(list))}
	for i, raw := range list {
		part, err := fields(raw)
		if err != nil {
			return Content{}, fmt.Errorf("part %d %w", i, err)
		}
		kind, text := "", false
		for _, f := range part {
			switch f.Key {
			case "type":
				err = json.Unmarshal(f.Value, &kind)
			case "text":
				text = true
				err = json.Unmarshal(f.Value, &c.Parts[i].Text)
			default:
				c.Parts[i].Extra = append(c.Parts[i].Extra, f)
			}
			if err != nil {
				return Content{}, fmt.Errorf("part %d: %w", i, err)
			}
		}
		if kind != "text" || !text {
			return Content{}, fmt.Errorf("part %d has the type %q, only \"text\" with a \"text\" is supported", i, kind)
		}
	}
	return c, nil
}

// MarshalJSON writes a message, with its fields in the order in which they were
// read.
func (m Message) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for _, f := range m.fields() {
		if len(b) > 1 {
			b = append(b, ',')
		}
		key, err := encode(f.Key)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, key...), ':'), f.Value...)
	}
	return append(b, '}'), nil
}

// encode is JSON without escapes for HTML.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// fields are the fields of a message, in order.
func (m *Message) fields() []Field {
	known := map[string]json.RawMessage{}
	put := func(key string, v any) {
		raw, err := encode(v)
		if err != nil {
			raw = json.RawMessage(`null`) // a tool call that is no JSON
		}
		known[key] = raw
	}
	put("role", m.Role)
	switch c := m.Content; {
	case c.Parts != nil:
		parts := make([]json.RawMessage, len(c.Parts))
		for i, p := range c.Parts {
			text, _ := encode(p.Text)
			parts[i] = append(json.RawMessage(`{"type":"text","text":`), text...)
			for _, f := range p.Extra {
				key, _ := encode(f.Key)
				parts[i] = append(append(append(append(parts[i], ','), key...), ':'), f.Value...)
			}
			parts[i] = append(parts[i], '}')
		}
		put("content", parts)
	case !c.Absent:
		put("content", c.Text)
	}
	if m.Name != "" {
		put("name", m.Name)
	}
	if m.ToolCalls != nil {
		put("tool_calls", m.ToolCalls)
	}
	var out []Field
	add := func(key string) {
		if v, ok := known[key]; ok {
			out = append(out, Field{key, v})
			delete(known, key)
		}
	}
	extra := make(map[string]json.RawMessage, len(m.Extra))
	for _, f := range m.Extra {
		extra[f.Key] = f.Value
	}
	for _, key := range m.order {
		add(key)
		if v, ok := extra[key]; ok {
			out = append(out, Field{key, v})
			delete(extra, key)
		}
	}
	for _, key := range []string{"role", "content", "name", "tool_calls"} {
		add(key)
	}
	for _, f := range m.Extra {
		if _, ok := extra[f.Key]; ok {
			out = append(out, f)
			delete(extra, f.Key)
		}
	}
	return out
}

// reasoning are the names under which data sets have what an assistant thinks.
var reasoning = []string{"reasoning_content", "thinking", "reasoning"}

// dict is the message as a template sees it.
func (m *Message) dict() (*jinja.Dict, error) {
	given := new(jinja.Dict)
	for _, f := range m.fields() {
		if isNull(f.Value) {
			continue
		}
		var v any
		var err error
		switch {
		case f.Key == "role":
			v = m.Role
		case f.Key == "content" && m.Content.Parts == nil:
			v = m.Content.Text
		default:
			v, err = jinja.Decode(f.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", f.Key, err)
		}
		given.Set(f.Key, v)
	}
	for _, name := range reasoning {
		thought, ok := given.Get(name)
		if !ok {
			continue
		}
		// All templates find it, by whatever name they look for it.
		all := new(jinja.Dict)
		all.Set("thinking", thought)
		for _, key := range given.Keys() {
			v, _ := given.Get(key)
			all.Set(key, v)
		}
		all.Set("reasoning_content", thought)
		return all, nil
	}
	return given, nil
}
