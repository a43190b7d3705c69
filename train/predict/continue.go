// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/train"
)

// ContinueOptions say which prompts [Continue] reads, and how it goes on.
type ContinueOptions struct {
	Path    string // lines of JSON with prompt or messages (.jsonl), or lines of text; "-" is Stdin
	Stdin   io.Reader
	Samples int // texts of each prompt
	Batch   int // texts at the same time
	Draw    train.GenerateOptions
	Notice  func(text string)
}

// promptsAhead is how many prompts are read before they are continued, so that those of one
// length can be continued together.
const promptsAhead = 64

// continuation is a prompt with its texts.
type continuation struct {
	line  int
	ids   []int64
	texts []bytes.Buffer
	out   []train.Generated
}

// Continue writes the texts that a language model makes of prompts, as JSON lines in the order
// of the prompts. Text k of the i-th prompt, both from 0, has the seed Draw.Seed + i·Samples + k.
func Continue(ctx context.Context, m *train.LanguageModel, o ContinueOptions, w io.Writer) error {
	in, name := o.Stdin, "-"
	if o.Path != "-" {
		f, err := os.Open(o.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		in, name = f, o.Path
	}
	name = strings.ToLower(name)
	asJSON := strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".ndjson")
	stream := records.NewStream(ctx, o.Path, in)
	for first, last := 0, false; !last; {
		var some []*continuation
		for len(some) < promptsAhead && !last {
			c, err := readPrompt(m, stream, asJSON)
			switch {
			case errors.Is(err, io.EOF):
				last = true
			case err != nil:
				return err
			default:
				some = append(some, c)
			}
		}
		if err := continueSome(ctx, m, o, some, first); err != nil {
			return err
		}
		if first += len(some); first == 0 {
			return fmt.Errorf("%s has no prompts", o.Path)
		}
		if err := writeTexts(w, o.Path, some); err != nil {
			return err
		}
	}
	return nil
}

// readPrompt reads a prompt, and makes tokens of it.
func readPrompt(m *train.LanguageModel, stream *records.Stream, asJSON bool) (*continuation, error) {
	line, err := stream.NextLine()
	if err != nil {
		return nil, err
	}
	c := &continuation{line: stream.Line()}
	if !asJSON {
		if !utf8.Valid(line) {
			return nil, stream.At(errors.New("the line is no UTF-8: convert the file"))
		}
		c.ids, err = m.Prompt(string(line))
		return c, stream.At(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, stream.At(fmt.Errorf("want a JSON object in a line: %w", err))
	}
	wrong := func(field string, err error) error {
		return stream.At(&records.FieldError{Field: field, Detail: err.Error()})
	}
	if raw, ok := fields["messages"]; ok {
		var messages []chat.Message
		if err := json.Unmarshal(raw, &messages); err != nil {
			return nil, wrong("messages", err)
		}
		if c.ids, err = m.ChatPrompt(messages); err != nil {
			return nil, wrong("messages", err)
		}
		return c, nil
	}
	var prompt *string
	if raw, ok := fields["prompt"]; !ok {
		return nil, stream.At(errors.New("the record has neither prompt nor messages"))
	} else if err := json.Unmarshal(raw, &prompt); err != nil || prompt == nil {
		return nil, wrong("prompt", errors.New("want text"))
	}
	if c.ids, err = m.Prompt(*prompt); err != nil {
		return nil, wrong("prompt", err)
	}
	return c, nil
}

// continueSome continues prompts, those of one length together. A text's seed is that of its
// place, and so it does not depend on what is beside it.
func continueSome(ctx context.Context, m *train.LanguageModel, o ContinueOptions, some []*continuation, first int) error {
	type text struct{ prompt, sample int }
	byLength := make(map[int][]text)
	for i, c := range some {
		c.texts, c.out = make([]bytes.Buffer, o.Samples), make([]train.Generated, o.Samples)
		for k := range o.Samples {
			byLength[len(c.ids)] = append(byLength[len(c.ids)], text{i, k})
		}
	}
	var lengths []int
	for n := range byLength {
		lengths = append(lengths, n)
	}
	slices.Sort(lengths)
	for _, n := range lengths {
		for part := range slices.Chunk(byLength[n], max(1, o.Batch)) {
			draw := o.Draw
			var prompts [][]int64
			draw.Seeds = nil
			for _, t := range part {
				prompts = append(prompts, some[t.prompt].ids)
				draw.Seeds = append(draw.Seeds, o.Draw.Seed+int64((first+t.prompt)*o.Samples+t.sample))
			}
			out, err := m.Generate(ctx, prompts, draw, func(i int, piece []byte) error {
				some[part[i].prompt].texts[part[i].sample].Write(piece)
				return nil
			})
			if err != nil {
				return err
			}
			for i, g := range out {
				some[part[i].prompt].out[part[i].sample] = g
			}
		}
	}
	return nil
}

// writeTexts writes an object for each text.
func writeTexts(w io.Writer, path string, some []*continuation) error {
	var b bytes.Buffer
	for _, c := range some {
		for k := range c.texts {
			text := strings.ToValidUTF8(c.texts[k].String(), "\uFFFD")
			fields := []field{{"file", path}, {"line", c.line}, {"sample", k}, {"text", text}, {"tokens", len(c.out[k].Tokens)}, {"reason", c.out[k].Reason}}
			if err := writeObject(&b, fields); err != nil {
				return err
			}
			b.WriteByte('\n')
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}
