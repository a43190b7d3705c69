// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write makes a folder of files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoad(t *testing.T) {
	hello, tools := []Message{{Role: "user", Content: Text("hi")}}, RenderOptions{Tools: []json.RawMessage{json.RawMessage(`{"name":"f"}`)}}
	settings := `{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "chat_template": [
		{"name": "default", "template": "{{ bos_token }}d"}, {"name": "tool_use", "template": "{{ eos_token }}t"}, {"name": "rag", "template": "r"}]}`
	for _, c := range []struct {
		name          string
		files         map[string]string
		load          string
		want, toolUse string
	}{
		{"a string", map[string]string{settingsFile: `{"chat_template": "one {{ bos_token }}", "bos_token": "B"}`}, "", "one B", "one B"},
		{"a list", map[string]string{settingsFile: settings}, "", "<s>d", "</s>t"},
		{"one of a list", map[string]string{settingsFile: settings}, "rag", "r", "r"},
		{"a file", map[string]string{settingsFile: settings, templateFile: "{{ eos_token }}f"}, "", "</s>f", "</s>f"},
		{"more files", map[string]string{settingsFile: settings, templateFile: "f", moreDir + "/tool_use.jinja": "m"}, "", "f", "m"},
		{"the other map of tokens", map[string]string{specialsFile: `{"bos_token": "X"}`, templateFile: "{{ bos_token }}"}, "", "X", "X"},
	} {
		tmpl, err := LoadNamed(write(t, c.files), c.load)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		plain, err := tmpl.Render(hello, RenderOptions{})
		used, err2 := tmpl.Render(hello, tools)
		if err != nil || err2 != nil || plain != c.want || used != c.toolUse {
			t.Errorf("%s: %q and with tools %q (%v, %v), want %q and %q", c.name, plain, used, err, err2, c.want, c.toolUse)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	_, err := Load(write(t, map[string]string{settingsFile: `{}`}))
	if !errors.Is(err, ErrNoTemplate) {
		t.Errorf("a folder without a template: %v", err)
	}
	for _, c := range []struct {
		files map[string]string
		name  string
		want  string
	}{
		{map[string]string{settingsFile: `{"chat_template": [{"name": "rag", "template": ""}]}`}, "", "none is the default: choose one of rag"},
		{map[string]string{settingsFile: `{"chat_template": "x"}`}, "rag", "no chat template \"rag\": there are default"},
		{map[string]string{settingsFile: `{"chat_template": 7}`}, "", "must be a string"},
		{map[string]string{settingsFile: `{"chat_template": [{"name": "x"}]}`}, "", "entry 0 has no name or no template"},
		{map[string]string{settingsFile: `{"chat_template": "x", "bos_token": 7}`}, "", "bos_token"},
		{map[string]string{settingsFile: `{"chat_template": `}, "", settingsFile},
		{map[string]string{templateFile: "a\n{% if x %}"}, "", templateFile + ", line 2: {% if %} has no {% endif %}"},
	} {
		if _, err := LoadNamed(write(t, c.files), c.name); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.files, err, c.want)
		}
	}
}

func TestMessageErrors(t *testing.T) {
	for raw, want := range map[string]string{
		`{"content": "x"}`:                                  "no \"role\"",
		`{"from": "human", "value": "x"}`:                   "\"from\" and \"value\"",
		`{"role": "user", "content": 7}`:                    "\"content\" of a message: must be a string or a list",
		`{"role": "user", "content": [{"type": "image"}]}`:  "part 0 has the type \"image\"",
		`{"role": "user", "content": ["x"]}`:                "part 0 must be an object",
		`{"role": "user", "content": "\ud800"}`:             "half of a character",
		`{"role": "user", "content": "x", "tool_calls": 1}`: "\"tool_calls\"",
		`[]`: "must be an object",
	} {
		var m Message
		if err := json.Unmarshal([]byte(raw), &m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", raw, err, want)
		}
	}
}

// TestMessageKeepsFields checks that a message is written as it was read.
func TestMessageKeepsFields(t *testing.T) {
	for _, raw := range []string{
		`{"content":"<a>","weight":1e5,"role":"user","name":"Ada"}`,
		`{"role":"assistant","tool_calls":[{"b":1,"a":[1.0]}],"x":{"z":1,"y":2}}`,
		`{"role":"user","content":[{"type":"text","text":"a","cache":{}},{"type":"text","text":"b"}]}`,
	} {
		var m Message
		if err := json.Unmarshal([]byte(raw), &m); err != nil {
			t.Fatal(err)
		}
		if got, err := m.MarshalJSON(); err != nil || string(got) != raw {
			t.Errorf("got %s (%v), want %s", got, err, raw)
		}
	}
}

func TestRenderErrors(t *testing.T) {
	user := []Message{{Role: "user", Content: Text("hi")}}
	for _, c := range []struct {
		source   string
		messages []Message
		o        RenderOptions
		want     string
	}{
		{"x", nil, RenderOptions{}, "no messages"},
		{"\n{{ raise_exception('no ' ~ 'way') }}", user, RenderOptions{}, "line 2: the template refuses the conversation: no way"},
		{"{{ messages[0].content + 1 }}", user, RenderOptions{}, "line 1: str + int is not possible"},
		{"{{ messages[0].x.y }}", user, RenderOptions{}, "x of a dict is undefined: it has no y"},
		{"{{ messages.append(1) }}", user, RenderOptions{}, "would change a list"},
		{"content", user, RenderOptions{ContinueFinalMessage: true}, "does not write the last message"},
		{"x", user, RenderOptions{ContinueFinalMessage: true}, "does not write the content"},
		{"x", user, RenderOptions{Tools: []json.RawMessage{json.RawMessage(`7`)}}, "tools[0] must be an object"},
		{"x", user, RenderOptions{Variables: map[string]any{"messages": 1}}, "has a field of its own"},
	} {
		tmpl, err := Parse(c.source)
		if err == nil {
			_, err = tmpl.Render(c.messages, c.o)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.source, err, c.want)
		}
	}
}

func ExampleTemplate_Render() {
	t, err := Parse("{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
	if err != nil {
		panic(err)
	}
	text, err := t.Render([]Message{{Role: "user", Content: Text(" Who wrote Faust? ")}}, RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(text)
	// Output:
	// <|user|>Who wrote Faust?
	// <|assistant|>
}
