// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

// heldEvery is how many records there are for one that is held out.
const heldEvery = 20

// sequence is the tokens of a record.
type sequence struct {
	tokens  []int64
	ignored []bool // tokens that are no targets that count; nil if all are
}

// source is a set of records of one kind.
type source struct {
	*maker
	set    *records.Set
	kind   Kind
	want   func(field string) records.Want
	weight float64
	packs  *packing // nil if each record is a row

	first int // number of its first row in the data
}

// maker makes sequences of records.
type maker struct {
	Options
	columns Columns
}

// numHeld is how many of n records are held out. Of a few records the last one is.
func numHeld(n int) int {
	if n < heldEvery {
		return min(1, n-1)
	}
	return (n + heldEvery/2 - 1) / heldEvery
}

// trainingAt is the number of the i-th record of n that is trained on.
func trainingAt(i, n int) int {
	if n < heldEvery {
		return i
	}
	const each = heldEvery - 1
	i += i / each
	if i%heldEvery >= heldEvery/2 {
		i++
	}
	return i
}

// heldAt is the number of the i-th record of n that is held out.
func heldAt(i, n int) int {
	if n < heldEvery {
		return n - 1
	}
	return i*heldEvery + heldEvery/2
}

func (s *source) numTraining() int { return s.set.Len() - numHeld(s.set.Len()) }

// read returns the tokens of record i.
func (s *source) read(i int) (sequence, error) {
	r, err := s.set.ReadFields(i, s.want)
	if err != nil {
		return sequence{}, err
	}
	q, err := s.make(s.kind, r)
	if err != nil {
		return sequence{}, s.set.At(i, err)
	}
	return q, nil
}

// make makes a sequence of a record.
func (m *maker) make(kind Kind, r records.Record) (sequence, error) {
	switch kind {
	case Text:
		text, err := r.Text(m.columns.of("text"))
		if err != nil {
			return sequence{}, err
		}
		q := sequence{tokens: m.end(m.Tokenizer.EncodeInput([]byte(text)))}
		if len(q.tokens) < 2 {
			return sequence{}, &records.FieldError{Field: m.columns.of("text"), Detail: "has no text to learn from"}
		}
		return q, nil
	case Completion:
		return m.completion(r)
	case Instruction:
		return m.instruction(r)
	}
	return m.chat(kind, r)
}

// end puts the token that ends a text behind tokens.
func (m *maker) end(tokens []int64) []int64 {
	if n := len(tokens); m.EndOfText >= 0 && (n == 0 || tokens[n-1] != m.EndOfText) {
		return append(tokens, m.EndOfText)
	}
	return tokens
}

// completion makes a sequence of a prompt and a completion: texts, or messages.
func (m *maker) completion(r records.Record) (sequence, error) {
	var texts [2]string
	for i, f := range []string{"prompt", "completion"} {
		name := m.columns.of(f)
		raw, ok := r[name].(json.RawMessage)
		switch {
		case !ok:
			_, err := r.Text(name)
			return sequence{}, err
		case raw[0] == '[':
			return m.chatCompletion(r)
		case raw[0] != '"':
			return sequence{}, &records.FieldError{Field: name, Detail: "is neither a text nor a list of messages"}
		}
		if err := json.Unmarshal(raw, &texts[i]); err != nil {
			return sequence{}, &records.FieldError{Field: name, Detail: err.Error()}
		}
	}
	return m.answer(texts[0], texts[1], m.columns.of("prompt"), m.columns.of("completion"))
}

// answer makes a sequence of a prompt and what follows it. The loss counts the tokens that are not
// those of the prompt alone: one that begins in the prompt and ends behind it counts.
func (m *maker) answer(prompt, completion, promptField, field string) (sequence, error) {
	if completion == "" {
		return sequence{}, &records.FieldError{Field: field, Detail: "is empty: there is nothing to learn"}
	}
	q := sequence{tokens: m.end(m.Tokenizer.EncodeInput([]byte(prompt + completion)))}
	alone := m.Tokenizer.EncodeInput([]byte(prompt))
	begin := 0
	for begin < min(len(alone), len(q.tokens)) && alone[begin] == q.tokens[begin] {
		begin++
	}
	if !m.All {
		q.ignored = make([]bool, len(q.tokens))
		for i := range begin {
			q.ignored[i] = true
		}
	}
	return q, m.room(q, begin, promptField)
}

// room fails for a sequence of which no token that counts is left where it is cut.
func (m *maker) room(q sequence, prompt int, field string) error {
	if q.counts(m.Context) {
		return nil
	}
	return &records.FieldError{Field: field, Detail: fmt.Sprintf("has %d tokens, which leaves no room for what the loss counts in a sequence of %d: raise --context, or leave the record out (--on-error skip)", prompt, m.Context)}
}

// counts reports whether a token among the first of a sequence is a target that counts.
func (q sequence) counts(length int) bool {
	for i := 1; i < min(len(q.tokens), length+1); i++ {
		if q.ignored == nil || !q.ignored[i] {
			return true
		}
	}
	return false
}

// instruction makes a sequence of an instruction, its input and the output: a chat of two messages if
// there is a template, and else the text that Stanford's Alpaca was trained on.
func (m *maker) instruction(r records.Record) (sequence, error) {
	var texts [3]string
	for i, f := range []string{"instruction", "output", "input"} {
		v, there := r[m.columns.of(f)]
		if f == "input" && (!there || v == nil) {
			continue
		}
		var err error
		if texts[i], err = r.Text(m.columns.of(f)); err != nil {
			return sequence{}, err
		}
	}
	task, output, input := texts[0], texts[1], texts[2]
	if m.hasTemplate() {
		return m.instructionChat(task, input, output)
	}
	prompt := "### Instruction:\n" + task
	if input != "" {
		prompt += "\n\n### Input:\n" + input
	}
	return m.answer(prompt+"\n\n### Response:\n", output, m.columns.of("instruction"), m.columns.of("output"))
}

// piece is a part of a sequence of at most length inputs.
func (q sequence) piece(i, length int) sequence {
	from := i * length
	to := min(from+length+1, len(q.tokens))
	p := sequence{tokens: q.tokens[from:to:to]}
	if q.ignored != nil {
		p.ignored = q.ignored[from:to:to]
	}
	return p
}

// numPieces is how many parts sequences of a number of tokens have: several for texts in packs, of
// which nothing is cut away.
func (s *source) numPieces(tokens int) int {
	switch {
	case tokens < 2:
		return 0
	case s.kind != Text:
		return 1
	}
	return (tokens - 2 + s.Context) / s.Context
}

// row makes a row of sequences, one after the other.
func row(tok *tokenizer.Tokenizer, parts ...sequence) data.TokenWindow {
	n := 0
	masked := len(parts) > 1
	for _, p := range parts {
		n += len(p.tokens)
		masked = masked || p.ignored != nil
	}
	w := data.TokenWindow{Tokens: make([]int64, 0, n)}
	if len(parts) > 1 {
		w.Documents = make([]int64, 0, n)
	}
	if masked {
		w.Ignored = make([]bool, 0, n)
	}
	for i, p := range parts {
		for j, id := range p.tokens {
			// A document's first token is no target: nothing before it is of the document.
			counts := j > 0 && (p.ignored == nil || !p.ignored[j])
			if w.Tokens = append(w.Tokens, id); len(w.Tokens) > 1 && masked {
				w.Ignored = append(w.Ignored, !counts)
			}
			if counts {
				w.Bytes += tok.Len(id)
			}
			if w.Documents != nil {
				w.Documents = append(w.Documents, int64(i))
			}
		}
	}
	if w.Documents != nil {
		w.Documents = w.Documents[:n-1]
	}
	return w
}

// check makes sequences of some records, evenly spaced, so that what is wrong with all of them is found
// before training. It says how many are cut.
func (s *source) check(ctx context.Context) (looked, cut int, err error) {
	const most = 200
	n := s.set.Len()
	looked = min(n, most)
	bad := 0
	var first error
	for i := range looked {
		if err := context.Cause(ctx); err != nil {
			return 0, 0, err
		}
		q, err := s.read(int(int64(i) * int64(n) / int64(looked)))
		if err != nil {
			if !s.Skip {
				return 0, 0, err
			}
			if bad++; first == nil {
				first = err
			}
			continue
		}
		if len(q.tokens) > s.Context+1 {
			cut++
		}
	}
	if bad == looked {
		return 0, 0, fmt.Errorf("none of the %d records that were looked at can be used; the first: %w", looked, first)
	}
	return looked, cut, nil
}

// parse reads a path with a weight, PATH=WEIGHT.
func parseWeighted(item string) (path string, weight float64, err error) {
	at := strings.LastIndexByte(item, '=')
	if at <= 0 {
		return "", 0, fmt.Errorf("%q: want PATH=WEIGHT, such as chats.jsonl=3", item)
	}
	if _, err := fmt.Sscanf(item[at+1:]+"\n", "%g\n", &weight); err != nil || !(weight > 0) || weight > 1e9 {
		return "", 0, fmt.Errorf("%q: the weight must be a number above 0", item)
	}
	return item[:at], weight, nil
}

var errNoTemplate = errors.New("chats need the chat template of a model: give --init-from a folder that has one (chat_template.jinja, or in tokenizer_config.json)")
