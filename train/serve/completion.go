// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/train"
)

const (
	maxChoices       = 16 // texts of a prompt
	usualTokens      = 16 // of a completion where nobody says, as OpenAI has it
	maxStopTexts     = 4
	writeLimit       = 30 * time.Second // for a client to take what is written
	maxPenalty       = 2.
	maxTemperature   = 100.
	maxSeed          = math.MaxInt64 >> 1
	maxStreamPending = 3 // bytes of a character that is not whole yet
)

// textRequest is a request of texts.
type textRequest struct {
	prompts [][]int64
	o       train.GenerateOptions
	n       int // texts of each prompt
	chat    bool
	stream  bool
	usage   bool // at the end of a stream
}

// completions answers requests for continuations of texts.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	q, err := s.readCompletion(b)
	if err != nil {
		return err
	}
	return s.answerTexts(w, r, q)
}

func (s *Server) readCompletion(b body) (q textRequest, err error) {
	if err := s.begin(b, "lm"); err != nil {
		return q, err
	}
	prompts, err := b.texts("prompt", s.o.MaxInputs)
	if err != nil {
		return q, err
	}
	if len(prompts) == 0 {
		prompts = []string{""}
	}
	for _, p := range prompts {
		ids, err := s.m.LM.Prompt(p)
		if err != nil {
			return q, badField("prompt", "%v", err)
		}
		q.prompts = append(q.prompts, ids)
	}
	q.o.NumTokens = usualTokens
	for _, name := range []string{"echo", "logprobs"} {
		b.only(name, "false", "0")
	}
	b.only("best_of", "1")
	b.only("suffix", `""`)
	return q, s.readOptions(b, &q, []string{"max_tokens"})
}

// chats answers requests for the next message of conversations.
func (s *Server) chats(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	q, err := s.readChat(b)
	if err != nil {
		return err
	}
	return s.answerTexts(w, r, q)
}

func (s *Server) readChat(b body) (q textRequest, err error) {
	q.chat = true
	if err := s.begin(b, "lm"); err != nil {
		return q, err
	}
	var messages []chat.Message
	if ok, err := b.take("messages", &messages); err != nil {
		return q, err
	} else if !ok || len(messages) == 0 || len(messages) > s.o.MaxInputs {
		return q, badField("messages", "there are %d messages, want 1 to %d", len(messages), s.o.MaxInputs)
	}
	ids, err := s.m.LM.ChatPrompt(messages)
	if err != nil {
		return q, badField("messages", "%v", err)
	}
	q.prompts = [][]int64{ids}
	q.o.NumTokens = min(s.o.MaxTokens, s.m.LM.Context()-len(ids))
	b.only("logprobs", "false")
	b.only("top_logprobs", "0")
	b.only("parallel_tool_calls", "true", "false")
	b.only("tools", "[]")
	b.only("functions", "[]")
	b.only("tool_choice", `"none"`, `"auto"`)
	b.only("modalities", `["text"]`)
	b.only("response_format", `{"type":"text"}`)
	return q, s.readOptions(b, &q, []string{"max_completion_tokens", "max_tokens"})
}

// begin takes the model of a request, and compares its task.
func (s *Server) begin(b body, tasks ...string) error {
	var name string
	if ok, err := b.take("model", &name); err != nil {
		return err
	} else if !ok {
		return badField("model", "it is missing; there is %q", s.o.Name)
	}
	if err := s.checkName(name); err != nil {
		return err
	}
	for _, t := range tasks {
		if t == s.m.Task {
			return nil
		}
	}
	return badField("model", "%q is a model of the task %q, which cannot do this", name, s.m.Task)
}

// readOptions takes what texts are drawn by.
func (s *Server) readOptions(b body, q *textRequest, lengths []string) error {
	def := train.GenerateOptions{NumTokens: q.o.NumTokens, Temperature: 1}
	def.Fill(s.m.LM.Generation, func(name string) bool { return name == "max_new_tokens" })
	q.o, q.n = def, 1
	seed, given := 0, q.o.NumTokens
	topP := q.o.TopP
	if topP == 0 {
		topP = 1
	}
	for _, name := range lengths {
		if err := b.whole(name, &given, 1, 1<<30); err != nil {
			return err
		}
	}
	_, hasSeed := b.fields["seed"]
	stops, err := b.texts("stop", maxStopTexts)
	if err != nil {
		return err
	}
	for _, stop := range stops {
		if stop == "" || len(stop) > 1024 {
			return badField("stop", "a text of %d bytes, want 1 to 1024", len(stop))
		}
	}
	q.o.Stop = append(q.o.Stop, stops...)
	var streaming struct {
		Usage bool `json:"include_usage"`
	}
	for _, err := range []error{
		b.number("temperature", &q.o.Temperature, 0, maxTemperature),
		b.number("top_p", &topP, 0, 1),
		b.number("min_p", &q.o.MinP, 0, 1),
		b.number("presence_penalty", &q.o.PresencePenalty, -maxPenalty, maxPenalty),
		b.number("frequency_penalty", &q.o.FrequencyPenalty, -maxPenalty, maxPenalty),
		b.number("repetition_penalty", &q.o.RepetitionPenalty, 0.01, 100),
		b.whole("top_k", &q.o.TopK, 0, 1<<30),
		b.whole("n", &q.n, 1, maxChoices),
		b.whole("seed", &seed, math.MinInt64>>1, maxSeed),
	} {
		if err != nil {
			return err
		}
	}
	if _, err := b.take("stream", &q.stream); err != nil {
		return err
	}
	if _, err := b.take("stream_options", &streaming); err != nil {
		return err
	}
	q.usage = streaming.Usage
	if q.o.TopP = topP; topP == 0 {
		q.o.TopP = math.SmallestNonzeroFloat64 // the likeliest alone
	}
	q.o.Seed = int64(seed)
	if !hasSeed {
		q.o.Seed = rand.Int64N(maxSeed)
	}
	q.o.Turn = s.turns.do
	b.without("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
	b.only("logit_bias", "{}")
	if err := b.rest(); err != nil {
		return err
	}
	return s.checkLengths(q, given, lengths[0])
}

// checkLengths compares the lengths of texts with what the model takes.
func (s *Server) checkLengths(q *textRequest, given int, field string) error {
	if given > s.o.MaxTokens {
		return badField(field, "it is %d, and this server writes %d at most", given, s.o.MaxTokens)
	}
	if n := len(q.prompts) * q.n; n > s.o.MaxInputs {
		return badField("n", "the request asks for %d texts, want %d at most", n, s.o.MaxInputs)
	}
	q.o.NumTokens = given
	for _, ids := range q.prompts {
		if len(ids)+given > s.m.LM.Context() {
			code := "context_length_exceeded"
			return &apiError{
				status: http.StatusBadRequest, Param: &field, Code: &code,
				Message: fmt.Sprintf("%d tokens after a prompt of %d are more than the %d that the model takes: ask for fewer (%s), or shorten the prompt", given, len(ids), s.m.LM.Context(), field),
			}
		}
	}
	return nil
}

// choice is one text of an answer.
type choice struct {
	text    bytes.Buffer
	pending []byte // of a character that is not whole
	out     train.Generated
	begun   bool
}

// add takes bytes, and returns the text that is whole.
func (c *choice) add(piece []byte) string {
	all := append(c.pending, piece...)
	keep := 0
	for n := 1; n <= min(maxStreamPending, len(all)); n++ {
		if b := all[len(all)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(all[len(all)-n:]) {
				keep = n
			}
			break
		}
	}
	c.pending = bytes.Clone(all[len(all)-keep:])
	text := strings.ToValidUTF8(string(all[:len(all)-keep]), "\uFFFD")
	c.text.WriteString(text)
	return text
}

// finish returns what is left of a text.
func (c *choice) finish() string {
	if len(c.pending) == 0 {
		return ""
	}
	c.pending = nil
	c.text.WriteString("\uFFFD")
	return "\uFFFD"
}

// answerTexts draws texts and writes them.
func (s *Server) answerTexts(w http.ResponseWriter, r *http.Request, q textRequest) error {
	choices := make([]*choice, len(q.prompts)*q.n)
	for i := range choices {
		choices[i] = &choice{}
	}
	kind, prefix := "text_completion", "cmpl"
	if q.chat {
		kind, prefix = "chat.completion", "chatcmpl"
	}
	head := answerHead{fmt.Sprintf("%s-%016x", prefix, rand.Uint64()), kind, time.Now().Unix(), s.o.Name}
	var stream *eventStream
	if q.stream {
		if q.chat {
			head.Object += ".chunk"
		}
		stream = newEventStream(w)
	}
	err := s.generate(r.Context(), q, choices, func(i int, text string) error {
		if stream == nil || text == "" {
			return nil
		}
		return stream.send(head.chunk(q, i, text, choices[i]))
	})
	if stream == nil {
		if err == nil {
			writeJSON(w, http.StatusOK, head.whole(q, choices))
		}
		return err
	}
	if err == nil {
		for i, c := range choices {
			if err = stream.send(head.last(q, i, c)); err != nil {
				break
			}
		}
	}
	if err == nil && q.usage {
		err = stream.send(answer{answerHead: head, Choices: []any{}, Usage: usageOf(q, choices)})
	}
	if err == nil {
		return stream.end()
	}
	stream.fail(err) // the status has gone out
	s.o.Log("%s: the stream broke off: %v", r.URL.Path, err)
	return nil
}

// generate draws the texts of all prompts, those of one prompt at the same time.
func (s *Server) generate(ctx context.Context, q textRequest, choices []*choice, emit func(i int, text string) error) error {
	for p, ids := range q.prompts {
		same := make([][]int64, q.n)
		for i := range same {
			same[i] = ids
		}
		o, first := q.o, p*q.n
		o.Seed += int64(first)
		out, err := s.m.LM.Generate(ctx, same, o, func(i int, piece []byte) error {
			c := choices[first+i]
			if q.chat && !c.begun { // the space that some tokenizers put before a word
				piece = bytes.TrimPrefix(piece, []byte(" "))
			}
			c.begun = true
			return emit(first+i, c.add(piece))
		})
		if err != nil {
			return err
		}
		for i, g := range out {
			choices[first+i].out = g
			if text := choices[first+i].finish(); text != "" {
				if err := emit(first+i, text); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// answerHead is how each answer begins.
type answerHead struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

type answer struct {
	answerHead
	Choices []any  `json:"choices"`
	Usage   *usage `json:"usage,omitempty"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func usageOf(q textRequest, choices []*choice) *usage {
	var u usage
	for _, ids := range q.prompts {
		u.Prompt += len(ids)
	}
	for _, c := range choices {
		u.Completion += len(c.out.Tokens)
	}
	u.Total = u.Prompt + u.Completion
	return &u
}

type message struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

// whole is an answer that is not streamed.
func (h answerHead) whole(q textRequest, choices []*choice) answer {
	a := answer{answerHead: h, Usage: usageOf(q, choices)}
	for i, c := range choices {
		if q.chat {
			a.Choices = append(a.Choices, map[string]any{"index": i, "message": message{"assistant", c.text.String()}, "finish_reason": c.out.Reason, "logprobs": nil})
		} else {
			a.Choices = append(a.Choices, map[string]any{"index": i, "text": c.text.String(), "finish_reason": c.out.Reason, "logprobs": nil})
		}
	}
	return a
}

// chunk is a piece of a text in a stream.
func (h answerHead) chunk(q textRequest, i int, text string, c *choice) answer {
	if !q.chat {
		return answer{answerHead: h, Choices: []any{map[string]any{"index": i, "text": text, "finish_reason": nil, "logprobs": nil}}}
	}
	delta := message{Content: text}
	if c.text.Len() == len(text) { // the first
		delta.Role = "assistant"
	}
	return answer{answerHead: h, Choices: []any{map[string]any{"index": i, "delta": delta, "finish_reason": nil, "logprobs": nil}}}
}

// last says in a stream why a text has ended.
func (h answerHead) last(q textRequest, i int, c *choice) answer {
	one := map[string]any{"index": i, "text": "", "finish_reason": c.out.Reason, "logprobs": nil}
	if q.chat {
		one = map[string]any{"index": i, "delta": struct{}{}, "finish_reason": c.out.Reason, "logprobs": nil}
	}
	return answer{answerHead: h, Choices: []any{one}}
}

// eventStream sends events as they come (text/event-stream).
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newEventStream(w http.ResponseWriter) *eventStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	return &eventStream{w, http.NewResponseController(w)}
}

func (e *eventStream) send(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.write("data: " + string(text) + "\n\n")
}

func (e *eventStream) write(text string) error {
	_ = e.control.SetWriteDeadline(time.Now().Add(writeLimit)) // of a connection that has none, nothing
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.control.Flush()
}

func (e *eventStream) end() error { return e.write("data: [DONE]\n\n") }

// fail tells of an error in the middle of a stream.
func (e *eventStream) fail(err error) {
	_ = e.send(map[string]any{"error": &apiError{Message: err.Error(), Type: "server_error"}})
}
