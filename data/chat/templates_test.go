// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var templatesFlag = flag.String("templates", "testdata/templates.json", "conversations and texts that testdata/templates.py wrote")

type goldenCase struct {
	Messages []Message
	Options  map[string]json.RawMessage
	Texts    map[string]string
	Spans    map[string][][2]int
}

// options makes RenderOptions of the arguments of apply_chat_template.
func (c *goldenCase) options(t *testing.T) RenderOptions {
	t.Helper()
	o := RenderOptions{Variables: map[string]any{}, Now: func() time.Time { return time.Date(2025, 3, 7, 9, 5, 2, 0, time.UTC) }}
	for name, raw := range c.Options {
		var into any
		switch name {
		case "add_generation_prompt":
			into = &o.AddGenerationPrompt
		case "continue_final_message":
			into = &o.ContinueFinalMessage
		case "tools":
			into = &o.Tools
		case "documents":
			into = &o.Documents
		default:
			o.Variables[name] = raw
			continue
		}
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func readTemplates(t *testing.T) map[string]*Template {
	t.Helper()
	paths, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(paths) == 0 {
		t.Fatal("no templates", err)
	}
	all := make(map[string]*Template)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := parse(string(b), path)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.tokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>"}
		all[strings.TrimSuffix(filepath.Base(path), ".jinja")] = tmpl
	}
	return all
}

func readCases(t *testing.T) []goldenCase {
	t.Helper()
	b, err := os.ReadFile(*templatesFlag)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Cases []goldenCase }
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	return golden.Cases
}

// TestTemplates compares texts with those of the Hugging Face library: what it
// refuses is refused.
func TestTemplates(t *testing.T) {
	templates, rendered, refused := readTemplates(t), 0, 0
	for i, c := range readCases(t) {
		o := c.options(t)
		for name, tmpl := range templates {
			got, err := tmpl.Render(c.Messages, o)
			want, ok := c.Texts[name]
			switch {
			case !ok && err == nil:
				t.Errorf("case %d, %s: rendered, but the library refuses it:\n%s", i, name, got)
			case !ok:
				refused++
			case err != nil:
				t.Errorf("case %d, %s: %v", i, name, err)
			default:
				rendered++
				sum := sha256.Sum256([]byte(got))
				if got != want && hex.EncodeToString(sum[:5]) != want {
					t.Errorf("case %d, %s: got\n%q\nwant\n%q", i, name, got, want)
				}
			}
		}
		if t.Failed() {
			b, _ := json.Marshal(c)
			t.Fatalf("case %d: %s", i, b)
		}
	}
	t.Logf("%d texts of %d templates are equal, %d are refused by both", rendered, len(templates), refused)
}

// TestGenerationBlocks compares what blocks generation say with the Hugging Face
// library, which counts characters.
func TestGenerationBlocks(t *testing.T) {
	templates, compared := readTemplates(t), 0
	for i, c := range readCases(t) {
		o := c.options(t)
		o.AddGenerationPrompt, o.ContinueFinalMessage = false, false
		for name, want := range c.Spans {
			got, err := templates[name].RenderSpans(c.Messages, o)
			if err != nil {
				t.Fatalf("case %d, %s: %v", i, name, err)
			}
			if len(got.Assistant) != len(want) {
				t.Fatalf("case %d, %s: %d parts, want %d", i, name, len(got.Assistant), len(want))
			}
			for j, s := range got.Assistant {
				if start, n := utf8.RuneCountInString(got.Text[:s.Start]), utf8.RuneCountInString(got.Text[s.Start:s.End]); start != want[j][0] || start+n != want[j][1] {
					t.Errorf("case %d, %s: part %d is %d to %d, want %v", i, name, j, start, start+n, want[j])
				}
				compared++
			}
		}
	}
	if compared == 0 {
		t.Fatal("nothing was compared")
	}
}

// TestSpans compares what rendering beginnings finds with what the messages say.
func TestSpans(t *testing.T) {
	templates, found, refused := readTemplates(t), 0, map[string]int{}
	for i, c := range readCases(t) {
		o := c.options(t)
		o.AddGenerationPrompt, o.ContinueFinalMessage = false, false
		for name, tmpl := range templates {
			if tmpl.parsed.Generation {
				continue
			}
			got, err := tmpl.RenderSpans(c.Messages, o)
			var raised *Error
			if errors.As(err, &raised) {
				continue
			}
			if err != nil {
				refused[name]++
				continue
			}
			var answers []Message
			for _, m := range c.Messages {
				if m.Role == "assistant" {
					answers = append(answers, m)
				}
			}
			if len(got.Assistant) != len(answers) {
				t.Fatalf("case %d, %s: %d parts, want %d", i, name, len(got.Assistant), len(answers))
			}
			for j, s := range got.Assistant {
				text := got.Text[s.Start:s.End]
				say := strings.TrimSpace(answers[j].Content.String())
				if k := strings.LastIndex(say, "</think>"); k >= 0 {
					say = strings.TrimSpace(say[k+len("</think>"):])
				}
				if name != "typed" && answers[j].ToolCalls == nil && !strings.Contains(text, say) {
					t.Errorf("case %d, %s: part %d is %q, want %q in it", i, name, j, text, say)
				}
				if strings.Contains(text, "user") && name != "documents" {
					t.Errorf("case %d, %s: part %d reaches into the next message: %q", i, name, j, text)
				}
				found++
			}
		}
	}
	t.Logf("%d parts found; conversations refused: %v", found, refused)
	if found < 300 {
		t.Fatalf("only %d parts were found", found)
	}
}
