// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cohort-ml/cohort/data/chat/internal/jinja"
)

// Template turns conversations into texts. Get one from [Parse] or [Load]. It
// is safe for concurrent use.
type Template struct {
	source string
	parsed *jinja.Template
	path   string            // "" if it is from no file
	tokens map[string]string // special tokens such as bos_token
	tools  *Template         // for conversations with tools; nil if this is
}

// Error is a mistake in a template, or one that the template found in a
// conversation.
type Error struct {
	Path   string // the file of the template, "" if there is none
	Line   int    // in the template
	Msg    string
	Raised bool // by the template itself, about the conversation
}

func (e *Error) Error() string {
	path := "chat template"
	if e.Path != "" {
		path = "chat template " + e.Path
	}
	if e.Raised {
		return fmt.Sprintf("chat: %s, line %d: the template refuses the conversation: %s", path, e.Line, e.Msg)
	}
	return fmt.Sprintf("chat: %s, line %d: %s", path, e.Line, e.Msg)
}

// Parse reads a template. A mistake, or a construct that is not known, is an
// *[Error].
func Parse(source string) (*Template, error) { return parse(source, "") }

func parse(source, path string) (*Template, error) {
	t := &Template{source: source, path: path}
	var err error
	if t.parsed, err = jinja.Parse(source); err != nil {
		return nil, t.error(err)
	}
	return t, nil
}

// error gives a mistake the file.
func (t *Template) error(err error) error {
	var e *jinja.Error
	if errors.As(err, &e) {
		return &Error{t.path, e.Line, e.Msg, e.Raised}
	}
	return err
}

// Source is the text of the template.
func (t *Template) Source() string { return t.source }

// RenderOptions say what is written besides the messages. The zero value
// writes these alone.
type RenderOptions struct {
	AddGenerationPrompt  bool // ends with what comes before an answer of the assistant
	ContinueFinalMessage bool // ends within the last message, which the model goes on with

	Tools     []json.RawMessage // descriptions of functions that the assistant may call; nil for none
	Documents []json.RawMessage // texts to answer from, for templates that know them
	Variables map[string]any    // others that the template knows, such as enable_thinking: what JSON can hold

	Now func() time.Time // the time for templates that write the date; time.Now if nil
}

// Render writes a conversation.
func (t *Template) Render(messages []Message, o RenderOptions) (string, error) {
	out, err := t.render(messages, o, false)
	return out.Text, err
}

// render writes a conversation; spans asks for the blocks generation.
func (t *Template) render(messages []Message, o RenderOptions, spans bool) (jinja.Output, error) {
	if t.tools != nil && o.Tools != nil {
		t = t.tools
	}
	var none jinja.Output
	switch {
	case len(messages) == 0:
		return none, fmt.Errorf("chat: the conversation has no messages")
	case o.AddGenerationPrompt && o.ContinueFinalMessage:
		return none, fmt.Errorf("chat: AddGenerationPrompt and ContinueFinalMessage exclude each other")
	}
	list := make(jinja.List, len(messages))
	for i := range messages {
		dict, err := messages[i].dict()
		if err != nil {
			return none, fmt.Errorf("chat: message %d: %w", i, err)
		}
		list[i] = dict
	}
	variables, err := t.variables(o)
	if err != nil {
		return none, err
	}
	variables["messages"] = list
	last := ""
	if o.ContinueFinalMessage {
		if last, err = t.markLast(list[len(list)-1].(*jinja.Dict)); err != nil {
			return none, err
		}
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	out, err := t.parsed.Execute(variables, now, spans)
	if err != nil {
		return none, t.error(err)
	}
	if o.ContinueFinalMessage {
		out.Text, err = cutLast(out.Text, last)
	}
	return out, err
}

// variables are what a template sees besides the messages.
func (t *Template) variables(o RenderOptions) (map[string]any, error) {
	all := map[string]any{"add_generation_prompt": o.AddGenerationPrompt}
	for name, token := range t.tokens {
		all[name] = token
	}
	for name, list := range map[string][]json.RawMessage{"tools": o.Tools, "documents": o.Documents} {
		if all[name] = nil; list == nil {
			continue
		}
		values := make(jinja.List, len(list))
		for i, raw := range list {
			v, err := jinja.Decode(raw)
			if err != nil {
				return nil, fmt.Errorf("chat: %s[%d]: %w", name, i, err)
			}
			if _, ok := v.(*jinja.Dict); !ok {
				return nil, fmt.Errorf("chat: %s[%d] must be an object", name, i)
			}
			values[i] = v
		}
		all[name] = values
	}
	for _, name := range slices.Sorted(maps.Keys(o.Variables)) {
		switch name {
		case "messages", "tools", "documents", "add_generation_prompt":
			return nil, fmt.Errorf("chat: the variable %s has a field of its own", name)
		}
		raw, err := encode(o.Variables[name])
		if err != nil {
			return nil, fmt.Errorf("chat: the variable %s: %w", name, err)
		}
		if all[name], err = jinja.Decode(raw); err != nil {
			return nil, fmt.Errorf("chat: the variable %s: %w", name, err)
		}
	}
	return all, nil
}

// lastMark stands where the last message ends that is to be continued.
const lastMark = "CONTINUE_FINAL_MESSAGE_TAG "

// markLast puts the mark at the end of a message, and returns its text.
func (t *Template) markLast(m *jinja.Dict) (string, error) {
	content, ok := m.Get("content")
	if !ok {
		return "", fmt.Errorf("chat: the last message has no content that could be continued")
	}
	if !strings.Contains(t.source, "content") {
		return "", fmt.Errorf("chat: the template does not write the content of messages, so the last cannot be continued")
	}
	if text, ok := content.(string); ok {
		m.Set("content", text+lastMark)
		return text, nil
	}
	parts, _ := content.(jinja.List)
	for i := len(parts) - 1; i >= 0; i-- {
		if part, ok := parts[i].(*jinja.Dict); ok {
			if v, ok := part.Get("text"); ok {
				text, _ := v.(string)
				part.Set("text", text+lastMark)
				return text, nil
			}
		}
	}
	return "", fmt.Errorf("chat: the last message has no text that could be continued")
}

// cutLast ends a text where the mark is.
func cutLast(text, last string) (string, error) {
	bare := strings.TrimSpace(lastMark)
	at := strings.LastIndex(text, bare)
	if at < 0 || !strings.Contains(text, strings.TrimFunc(last, unicode.IsSpace)) {
		return "", fmt.Errorf("chat: the template does not write the last message as it is, so it cannot be continued")
	}
	if strings.HasPrefix(text[at:], lastMark) {
		return text[:at], nil
	}
	// The template takes spaces off the end of a message.
	return strings.TrimRightFunc(text[:at], unicode.IsSpace), nil
}
