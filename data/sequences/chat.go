// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/records"
)

// today is the date that templates write which ask for it: a sequence is a function of its record.
var today = time.Date(2024, time.July, 26, 0, 0, 0, 0, time.UTC)

func (m *maker) hasTemplate() bool { return m.Template != nil }

// ready reports a kind that needs what is not there.
func (m *maker) ready(kind Kind) error {
	if (kind == Messages || kind == ShareGPT) && !m.hasTemplate() {
		return errNoTemplate
	}
	return nil
}

// templatePrint identifies the template.
func (m *maker) templatePrint() string {
	if m.Template == nil {
		return "plain"
	}
	h := sha256.Sum256([]byte(m.Template.Source()))
	return "template=" + hex.EncodeToString(h[:8])
}

// chat makes a sequence of a conversation.
func (m *maker) chat(kind Kind, r records.Record) (sequence, error) {
	field := "messages"
	if kind == ShareGPT {
		field = "conversations"
	}
	messages, err := m.messages(r, field)
	if err != nil {
		return sequence{}, err
	}
	var o chat.RenderOptions
	if raw, ok := r[m.columns.of("tools")].(json.RawMessage); ok && string(raw) != "null" {
		if raw[0] == '"' { // Parquet has no lists of objects with different fields
			var text string
			if err := json.Unmarshal(raw, &text); err == nil {
				raw = json.RawMessage(text)
			}
		}
		if err := json.Unmarshal(raw, &o.Tools); err != nil {
			return sequence{}, &records.FieldError{Field: m.columns.of("tools"), Detail: "is no list of tools: " + err.Error()}
		}
	}
	return m.render(messages, 0, o, m.columns.of(field))
}

// messages reads a list of messages.
func (m *maker) messages(r records.Record, field string) ([]chat.Message, error) {
	name := m.columns.of(field)
	raw, ok := r[name].(json.RawMessage)
	if !ok {
		_, err := r.Text(name)
		return nil, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, &records.FieldError{Field: name, Detail: "is no list of messages"}
	}
	if len(list) == 0 {
		return nil, &records.FieldError{Field: name, Detail: "has no messages"}
	}
	messages := make([]chat.Message, len(list))
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", name, i)
		var err error
		if field == "conversations" {
			messages[i], err = turnOf(one)
		} else {
			err = json.Unmarshal(one, &messages[i])
		}
		if err != nil {
			return nil, &records.FieldError{Field: at, Detail: strings.TrimPrefix(err.Error(), "chat: ")}
		}
	}
	return messages, nil
}

// roles are what ShareGPT calls those who speak.
var roles = map[string]string{
	"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
	"system": "system", "tool": "tool", "observation": "tool",
}

// turnOf reads a turn of ShareGPT.
func turnOf(raw json.RawMessage) (m chat.Message, err error) {
	var turn struct {
		From  *string `json:"from"`
		Value *string `json:"value"`
		Role  *string `json:"role"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&turn); err != nil {
		return m, fmt.Errorf("is no turn, an object with from and value: %w", err)
	}
	switch {
	case turn.From == nil && turn.Role != nil: // of the other kind
		return m, json.Unmarshal(raw, &m)
	case turn.From == nil || turn.Value == nil:
		return m, fmt.Errorf("lacks from or value")
	}
	role, ok := roles[strings.ToLower(*turn.From)]
	if !ok {
		return m, fmt.Errorf("is from %q: known are human, gpt, system and tool", *turn.From)
	}
	return chat.Message{Role: role, Content: chat.Text(*turn.Value)}, nil
}

// chatCompletion makes a sequence of a prompt and a completion that are lists of messages.
func (m *maker) chatCompletion(r records.Record) (sequence, error) {
	if err := m.ready(Messages); err != nil {
		return sequence{}, err
	}
	prompt, err := m.messages(r, "prompt")
	if err != nil {
		return sequence{}, err
	}
	completion, err := m.messages(r, "completion")
	if err != nil {
		return sequence{}, err
	}
	said := 0
	for _, msg := range prompt {
		if msg.Role == "assistant" {
			said++
		}
	}
	return m.render(append(prompt, completion...), said, chat.RenderOptions{}, m.columns.of("completion"))
}

// instructionChat makes a sequence of an instruction as a conversation.
func (m *maker) instructionChat(task, input, output string) (sequence, error) {
	if input != "" {
		task += "\n\n" + input
	}
	messages := []chat.Message{{Role: "user", Content: chat.Text(task)}, {Role: "assistant", Content: chat.Text(output)}}
	return m.render(messages, 0, chat.RenderOptions{}, m.columns.of("output"))
}

// render makes a sequence of messages, of which the loss counts what the assistant says, but for the
// first parts of it.
func (m *maker) render(messages []chat.Message, leave int, o chat.RenderOptions, field string) (sequence, error) {
	o.Now = func() time.Time { return today }
	if m.All {
		text, err := m.Template.Render(messages, o)
		if err != nil {
			return sequence{}, &records.FieldError{Field: field, Detail: strings.TrimPrefix(err.Error(), "chat: ")}
		}
		return sequence{tokens: m.Tokenizer.Encode([]byte(text))}, nil
	}
	out, err := m.Template.RenderSpans(messages, o)
	if err != nil {
		return sequence{}, &records.FieldError{Field: field, Detail: strings.TrimPrefix(err.Error(), "chat: ")}
	}
	if len(out.Assistant) <= leave {
		return sequence{}, &records.FieldError{Field: field, Detail: "has no message of the assistant: there is nothing to learn (--loss all counts all messages)"}
	}
	q := sequence{tokens: m.Tokenizer.Encode([]byte(out.Text))}
	q.ignored = m.outside(q.tokens, out.Text, out.Assistant[leave:])
	return q, m.room(q, len(q.tokens), field)
}

// outside says which tokens of a text lie in none of its parts. A token that lies in one only partly
// counts as within.
func (m *maker) outside(tokens []int64, text string, parts []chat.Span) []bool {
	ignored := make([]bool, len(tokens))
	for i := range ignored {
		ignored[i] = true
	}
	total := 0
	for _, id := range tokens {
		total += m.Tokenizer.Len(id)
	}
	if total == len(text) {
		at, next := 0, 0
		for i, id := range tokens {
			end := at + m.Tokenizer.Len(id)
			for next < len(parts) && parts[next].End <= at {
				next++
			}
			if next < len(parts) && end > parts[next].Start {
				ignored[i] = false
			}
			at = end
		}
		return ignored
	}
	// The tokenizer changes texts: a part begins where the tokens of what is before it end.
	for _, p := range parts {
		from, _ := m.common(tokens, text[:p.Start])
		to, whole := m.common(tokens, text[:p.End])
		if !whole {
			to++
		}
		for i := from; i < min(to, len(ignored)); i++ {
			ignored[i] = false
		}
	}
	return ignored
}

// common is how many tokens the beginning of a text has in common with the whole, and whether these are
// all of its own.
func (m *maker) common(tokens []int64, begin string) (n int, whole bool) {
	own := m.Tokenizer.Encode([]byte(begin))
	for n < min(len(own), len(tokens)) && own[n] == tokens[n] {
		n++
	}
	return n, n == len(own)
}

// prompt is what a model may be asked to go on with.
func (s *source) prompt(r records.Record) string {
	switch s.kind {
	case Text:
		text, _ := r.Text(s.columns.of("text"))
		return text
	case Instruction:
		text, _ := r.Text(s.columns.of("instruction"))
		return text
	}
	for _, field := range []string{"prompt", "messages", "conversations"} {
		raw, ok := r[s.columns.of(field)].(json.RawMessage)
		if !ok {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) == nil {
			return text
		}
		messages, err := s.messages(r, field)
		if err != nil {
			return ""
		}
		for i, msg := range messages {
			if msg.Role != "user" {
				continue
			}
			text, err := s.Template.Render(messages[:i+1], chat.RenderOptions{AddGenerationPrompt: true, Now: func() time.Time { return today }})
			if err != nil {
				return ""
			}
			return text
		}
	}
	return ""
}
