// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"fmt"
	"strings"
)

// Span is a part of a text, from the byte Start to before the byte End.
type Span struct{ Start, End int }

// Rendered is a conversation as text.
type Rendered struct {
	Text      string
	Assistant []Span // what the assistant wrote, in order
}

// RenderSpans writes a conversation, and says which parts of the text the
// assistant wrote: for a loss that counts only these.
//
// A template may say so itself, by blocks {% generation %}. For others the
// parts are found by rendering beginnings of the conversation: what is written
// after the beginning with a generation prompt, up to the end of the message,
// with the mark that ends it. If a template writes a beginning in another way
// than within the whole, the place of a message is not known and RenderSpans
// refuses the conversation.
func (t *Template) RenderSpans(messages []Message, o RenderOptions) (Rendered, error) {
	if o.AddGenerationPrompt || o.ContinueFinalMessage {
		return Rendered{}, fmt.Errorf("chat: the parts of the assistant are known only in a whole conversation, without AddGenerationPrompt and ContinueFinalMessage")
	}
	if t.tools != nil && o.Tools != nil {
		t = t.tools
	}
	out, err := t.render(messages, o, t.parsed.Generation)
	if err != nil {
		return Rendered{}, err
	}
	r := Rendered{Text: out.Text}
	if t.parsed.Generation {
		for _, s := range out.Spans {
			r.Assistant = append(r.Assistant, Span(s))
		}
		return r, nil
	}
	for i, m := range messages {
		if m.Role != "assistant" {
			continue
		}
		s, err := t.spanOf(messages, i, out.Text, o)
		if err != nil {
			return Rendered{}, err
		}
		if n := len(r.Assistant); n > 0 && s.Start < r.Assistant[n-1].End {
			return Rendered{}, fmt.Errorf("chat: messages of the assistant before and at %d lie in each other in the text of the template", i)
		}
		r.Assistant = append(r.Assistant, s)
	}
	return r, nil
}

// spanOf finds message i in the text of all messages.
func (t *Template) spanOf(messages []Message, i int, text string, o RenderOptions) (Span, error) {
	var s Span
	refuse := func(why string) (Span, error) {
		return s, fmt.Errorf("chat: where message %d of the assistant lies in the text is not known: %s; a template with {%% generation %%} blocks would say it", i, why)
	}
	if i == 0 {
		return refuse("no message comes before it")
	}
	asked := o
	asked.AddGenerationPrompt = true
	before, err := t.Render(messages[:i], asked)
	if err != nil {
		return s, err
	}
	if !strings.HasPrefix(text, before) {
		return refuse("the template writes the messages before it in another way when they are alone")
	}
	s.Start = len(before)
	until, err := t.Render(messages[:i+1], o)
	if err != nil {
		return s, err
	}
	if strings.HasPrefix(text, until) && strings.HasPrefix(until, before) {
		s.End = len(until)
		return s, nil
	}
	// The template writes the last answer in another way, for instance with what
	// the assistant thought. What it writes after an answer is still the same.
	if messages[i].Content.Parts != nil || messages[i].Content.Absent {
		return refuse("the template writes it in another way when it is the last")
	}
	const mark = "\ue000COHORT\ue001"
	marked := append([]Message(nil), messages...)
	marked[i].Content.Text += mark
	alone, err := t.Render(marked[:i+1], o)
	if err != nil {
		return s, err
	}
	whole, err := t.Render(marked, o)
	if err != nil {
		return s, err
	}
	_, after, ok := strings.Cut(alone, mark)
	head, tail, ok2 := strings.Cut(whole, mark)
	if !ok || !ok2 || head+tail != text || !strings.HasPrefix(tail, after) || len(head) < s.Start {
		return refuse("the template writes it in another way when it is the last")
	}
	s.End = len(head) + len(after)
	return s, nil
}
