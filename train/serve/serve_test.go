// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/train"
)

var testdata = filepath.Join("..", "testdata")

// chatFolder is a tiny language model with a chat template.
func chatFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(testdata, "finetune", "llama"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(testdata, "finetune", "records", "chat_template.jinja"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "chat_template.jinja"), text, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t *testing.T, dir string) *train.Model {
	t.Helper()
	m, err := train.Load(t.Context(), storage.Dir(dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// serving starts a server of a model.
func serving(t *testing.T, m *train.Model, o Options) *httptest.Server {
	t.Helper()
	o.Name = "tiny"
	s, err := New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return server
}

// ask sends a request, and reads the JSON of its answer into out.
func ask(t *testing.T, server *httptest.Server, path, body string, out any) int {
	t.Helper()
	r, err := http.Post(server.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(out); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}

type answered struct {
	Object  string
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Reason  string `json:"finish_reason"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error *struct{ Message, Param, Code, Type string }
}

// TestTexts holds completions and chats, whole and streamed, against what the model writes
// without a server.
func TestTexts(t *testing.T) {
	m := load(t, chatFolder(t))
	server := serving(t, m, Options{})
	written := func(ids []int64, o train.GenerateOptions) (string, train.Generated) {
		t.Helper()
		o.Fill(m.LM.Generation, func(string) bool { return true })
		var b bytes.Buffer
		out, err := m.LM.Generate(t.Context(), [][]int64{ids}, o, func(_ int, piece []byte) error { b.Write(piece); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return strings.ToValidUTF8(b.String(), "\uFFFD"), out[0]
	}
	prompt, err := m.LM.Prompt("func main")
	if err != nil {
		t.Fatal(err)
	}
	conversation, err := m.LM.ChatPrompt([]chat.Message{{Role: "user", Content: chat.Text("hi")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path, body string
		ids              []int64
		o                train.GenerateOptions
	}{
		{"greedy", "/v1/completions", `"prompt":"func main","temperature":0,"max_tokens":9`, prompt, train.GenerateOptions{NumTokens: 9}},
		{
			"drawn", "/v1/completions", `"prompt":"func main","temperature":0.9,"top_p":0.8,"top_k":30,"seed":4,"max_tokens":12,"frequency_penalty":0.5`, prompt,
			train.GenerateOptions{NumTokens: 12, Temperature: 0.9, TopP: 0.8, TopK: 30, Seed: 4, FrequencyPenalty: 0.5},
		},
		{"usual length", "/v1/completions", `"prompt":["func main"],"temperature":0,"user":"me","logprobs":null`, prompt, train.GenerateOptions{NumTokens: 16}},
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"temperature":0,"max_completion_tokens":7`, conversation, train.GenerateOptions{NumTokens: 7}},
	} {
		want, drawn := written(c.ids, c.o)
		isChat := strings.Contains(c.path, "chat")
		if isChat {
			want = strings.TrimPrefix(want, " ")
		}
		var got answered
		if status := ask(t, server, c.path, `{"model":"tiny",`+c.body+`}`, &got); status != http.StatusOK {
			t.Fatalf("%s: status %d: %+v", c.name, status, got.Error)
		}
		text := got.Choices[0].Text
		if isChat {
			text = got.Choices[0].Message.Content
		}
		if text != want || got.Choices[0].Reason != drawn.Reason || got.Usage.Prompt != len(c.ids) || got.Usage.Completion != len(drawn.Tokens) {
			t.Errorf("%s: %+v, want %q, %s, %d tokens after %d", c.name, got, want, drawn.Reason, len(drawn.Tokens), len(c.ids))
		}
		streamed, last := streamOf(t, server, c.path, `{"model":"tiny","stream":true,"stream_options":{"include_usage":true},`+c.body+`}`)
		if streamed != want || last.Usage.Completion != len(drawn.Tokens) {
			t.Errorf("%s: streamed %q with %+v, want %q", c.name, streamed, last.Usage, want)
		}
	}
	// Texts of one prompt differ by their seeds, and each is that of its seed.
	var several answered
	ask(t, server, "/v1/completions", `{"model":"tiny","prompt":"func main","n":3,"seed":10,"temperature":1,"max_tokens":8}`, &several)
	for i := range 3 {
		want, _ := written(prompt, train.GenerateOptions{NumTokens: 8, Temperature: 1, TopP: 1, Seed: 10 + int64(i)})
		if got := several.Choices[i].Text; got != want {
			t.Errorf("text %d of three is %q, want %q", i, got, want)
		}
	}
	// A text ends before a text to stop at.
	want, _ := written(prompt, train.GenerateOptions{NumTokens: 12})
	runes := []rune(want)
	stop := string(runes[2:4])
	var stopped answered
	raw, _ := json.Marshal(stop)
	ask(t, server, "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":"func main","temperature":0,"max_tokens":12,"stop":%s}`, raw), &stopped)
	if before, _, _ := strings.Cut(want, stop); stopped.Choices[0].Text != before || stopped.Choices[0].Reason != "stop" {
		t.Errorf("with the stop %q: %+v, want %q", stop, stopped.Choices, before)
	}
}

// streamOf joins the pieces of a stream, and returns its last event.
func streamOf(t *testing.T, server *httptest.Server, path, body string) (text string, last answered) {
	t.Helper()
	r, err := http.Post(server.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	ended := false
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			ended = true
		default:
			last = answered{}
			if err := json.Unmarshal([]byte(data), &last); err != nil {
				t.Fatalf("%v in %q", err, data)
			}
			for _, c := range last.Choices {
				text += c.Text + c.Delta.Content
			}
		}
	}
	if !ended {
		t.Errorf("the stream has no [DONE]; its last event is %+v", last)
	}
	return text, last
}

// TestRefusals: what would change an answer and is not honoured is refused by its name.
func TestRefusals(t *testing.T) {
	server := serving(t, load(t, chatFolder(t)), Options{MaxBytes: 4000, MaxTokens: 50})
	for body, want := range map[string]string{
		`{"model":"tiny","prompt":"a","logit_bias":{"1":5}}`:             "logit_bias",
		`{"model":"tiny","prompt":"a","logprobs":3}`:                     "logprobs",
		`{"model":"tiny","prompt":"a","best_of":4}`:                      "best_of",
		`{"model":"tiny","prompt":"a","made_up":1}`:                      "made_up",
		`{"model":"tiny","prompt":"a","echo":true}`:                      "echo",
		`{"model":"tiny","prompt":"a","suffix":"b"}`:                     "suffix",
		`{"model":"tiny","prompt":"a","temperature":-1}`:                 "temperature",
		`{"model":"tiny","prompt":"a","top_p":2}`:                        "top_p",
		`{"model":"tiny","prompt":"a","n":0}`:                            "n",
		`{"model":"tiny","prompt":"a","max_tokens":51}`:                  "max_tokens",
		`{"model":"tiny","prompt":"a","stop":[""]}`:                      "stop",
		`{"model":"tiny","prompt":[1,2]}`:                                "prompt",
		`{"model":"other","prompt":"a"}`:                                 "model",
		`{"prompt":"a"}`:                                                 "model",
		`{"model":"tiny","prompt":"` + strings.Repeat("a ", 1800) + `"}`: "max_tokens",
	} {
		var got answered
		status := ask(t, server, "/v1/completions", body, &got)
		if status < 400 || status >= 500 || got.Error == nil || got.Error.Param != want {
			t.Errorf("%.80s: status %d, %+v, want %s to be named", body, status, got.Error, want)
		}
	}
	for body, want := range map[string]int{
		`{"model":"tiny","prompt":"` + strings.Repeat("a", 5000) + `"}`: http.StatusRequestEntityTooLarge,
		`[1]`: http.StatusBadRequest, `{"model":"tiny"} {}`: http.StatusBadRequest, `null`: http.StatusBadRequest, `{`: http.StatusBadRequest,
	} {
		var got answered
		if status := ask(t, server, "/v1/completions", body, &got); status != want || got.Error == nil {
			t.Errorf("%.40s: status %d, want %d", body, status, want)
		}
	}
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"tiny","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]}`,
		"/v1/embeddings":       `{"model":"tiny","input":"a"}`, "/v1/predict": `{"model":"tiny","inputs":["a"]}`, "/v1/none": `{}`,
	} {
		var got answered
		if status := ask(t, server, path, body, &got); status < 400 || got.Error == nil {
			t.Errorf("%s: status %d, %+v", path, status, got)
		}
	}
	r, err := http.Post(server.URL+"/v1/completions", "text/plain", strings.NewReader(`{"model":"tiny","prompt":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a request of a web page: status %d", r.StatusCode)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Host = "stranger.example"
	if r, err = http.DefaultClient.Do(q); err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.StatusCode != http.StatusForbidden {
		t.Errorf("a stranger's name: status %d", r.StatusCode)
	}
}

// TestToken lets in only clients that know the token.
func TestToken(t *testing.T) {
	server := serving(t, load(t, chatFolder(t)), Options{Token: "right-token-of-clients"})
	for token, want := range map[string]int{"": 401, "Bearer wrong": 401, "right-token-of-clients": 200, "Bearer right-token-of-clients": 200} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", token)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		if r.Body.Close(); r.StatusCode != want && !(token == "right-token-of-clients") {
			t.Errorf("with %q: status %d, want %d", token, r.StatusCode, want)
		}
	}
}

// TestRequestsUnderWay: requests over the limit are told to come again, one that takes too long
// ends, and so does one whose client has gone.
func TestRequestsUnderWay(t *testing.T) {
	m := load(t, chatFolder(t))
	s, err := New(m, Options{Name: "tiny", MaxRequests: 1})
	if err != nil {
		t.Fatal(err)
	}
	hold, held := make(chan struct{}), make(chan struct{})
	go s.turns.do(context.Background(), func() error { close(held); <-hold; return nil })
	<-held
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	body := `{"model":"tiny","prompt":"a","max_tokens":5}`
	go func() {
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/completions", strings.NewReader(body))
		if err == nil {
			q.Header.Set("Content-Type", "application/json")
			_, err = http.DefaultClient.Do(q)
		}
		gone <- err
	}()
	for len(s.underWay) == 0 { // until the first is under way
		runtime.Gosched()
	}
	var got answered
	if status := ask(t, server, "/v1/completions", body, &got); status != http.StatusTooManyRequests {
		t.Errorf("a request over the limit: status %d", status)
	}
	leave()
	if err := <-gone; err == nil {
		t.Error("a client that has left got an answer")
	}
	for len(s.underWay) > 0 { // its request ends although the model is busy
		runtime.Gosched()
	}
	hurried := serving(t, m, Options{Timeout: time.Nanosecond})
	if status := ask(t, hurried, "/v1/completions", body, &got); status != http.StatusGatewayTimeout {
		t.Errorf("a request that takes too long: status %d, %+v", status, got.Error)
	}
	close(hold)
}

// TestTurns: who asks first has the first turn, and who leaves loses only his own.
func TestTurns(t *testing.T) {
	var q turns
	hold, held := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { q.do(t.Context(), func() error { close(held); <-hold; return nil }) })
	<-held
	var order []int
	cancelled, leave := context.WithCancel(t.Context())
	for i := range 6 {
		ctx := t.Context()
		if i == 2 {
			ctx = cancelled
		}
		all.Go(func() { q.do(ctx, func() error { order = append(order, i); return nil }) })
		for waiting := 0; waiting <= i; {
			q.mu.Lock()
			waiting = len(q.waiting)
			q.mu.Unlock()
		}
	}
	leave()
	for waiting := 6; waiting == 6; {
		q.mu.Lock()
		waiting = len(q.waiting)
		q.mu.Unlock()
	}
	close(hold)
	all.Wait()
	if !slices.Equal(order, []int{0, 1, 3, 4, 5}) {
		t.Errorf("the turns were %v, want 0, 1, 3, 4, 5", order)
	}
}

// TestVectors holds embeddings, as numbers and in base64, against sentence-transformers, and
// predictions against transformers.
func TestVectors(t *testing.T) {
	var golden struct {
		Texts   []string
		Classes []map[string]float64
		Vectors [][]float64
	}
	text, err := os.ReadFile(filepath.Join(testdata, "predict.json"))
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil {
		t.Fatal(err)
	}
	texts, _ := json.Marshal(golden.Texts)
	server := serving(t, load(t, filepath.Join(testdata, "encoder")), Options{})
	for _, format := range []string{"float", "base64"} {
		var got struct {
			Data []struct{ Embedding json.RawMessage }
		}
		if status := ask(t, server, "/v1/embeddings", fmt.Sprintf(`{"model":"tiny","input":%s,"encoding_format":%q}`, texts, format), &got); status != 200 || len(got.Data) != len(golden.Texts) {
			t.Fatalf("status %d, %d vectors", status, len(got.Data))
		}
		for i, d := range got.Data {
			var v []float32
			if format == "float" {
				err = json.Unmarshal(d.Embedding, &v)
			} else {
				var raw []byte
				if err = json.Unmarshal(d.Embedding, &raw); err == nil { // base64 too
					for k := 0; k < len(raw); k += 4 {
						v = append(v, math.Float32frombits(uint32(raw[k])|uint32(raw[k+1])<<8|uint32(raw[k+2])<<16|uint32(raw[k+3])<<24))
					}
				}
			}
			if err != nil || len(v) != len(golden.Vectors[i]) {
				t.Fatalf("%v, a vector of %d numbers", err, len(v))
			}
			for k := range v {
				if math.Abs(float64(v[k])-golden.Vectors[i][k]) > 1e-5 {
					t.Fatalf("%s: number %d of vector %d is %v, want %v", format, k, i, v[k], golden.Vectors[i][k])
				}
			}
		}
	}
	server = serving(t, load(t, filepath.Join(testdata, "classifier")), Options{})
	var got struct {
		Data []struct{ Probabilities map[string]float64 }
	}
	if status := ask(t, server, "/v1/predict", fmt.Sprintf(`{"model":"tiny","inputs":%s}`, texts), &got); status != 200 {
		t.Fatalf("status %d", status)
	}
	for i, want := range golden.Classes {
		for class, p := range want {
			if math.Abs(got.Data[i].Probabilities[class]-p) > 1e-5 {
				t.Errorf("%q is %s by %v, want %v", golden.Texts[i], class, got.Data[i].Probabilities[class], p)
			}
		}
	}
	for body, want := range map[string]string{
		`{"model":"tiny","inputs":["a",7]}`: "inputs[1]", `{"model":"tiny","inputs":[{"text":"a"},{"other":"b"}]}`: "inputs[1].other",
		`{"model":"tiny","inputs":[["a","b"]]}`: "inputs[0]", `{"model":"tiny","inputs":[]}`: "inputs", `{"model":"tiny","inputs":["a"],"x":1}`: "x",
	} {
		var refused answered
		if ask(t, server, "/v1/predict", body, &refused); refused.Error == nil || refused.Error.Param != want {
			t.Errorf("%s: %+v, want %s to be named", body, refused.Error, want)
		}
	}
}

// TestOpenAIClient runs OpenAI's own client against the server: COHORT_TEST_PYTHONS names
// interpreters, of which those with the package openai count.
func TestOpenAIClient(t *testing.T) {
	ran := false
	for _, python := range filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS")) {
		if exec.CommandContext(t.Context(), python, "-c", "import openai").Run() != nil {
			continue
		}
		ran = true
		var addresses []string
		for _, dir := range []string{chatFolder(t), filepath.Join(testdata, "encoder")} {
			s, err := New(load(t, dir), Options{Name: "tiny", Token: "key-of-the-client"})
			if err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(ctx, l) }()
			defer func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			addresses = append(addresses, "http://"+l.Addr().String()+"/v1")
		}
		out, err := exec.CommandContext(t.Context(), python, append([]string{filepath.Join("testdata", "client.py")}, addresses...)...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", python, err, out)
		}
		t.Logf("%s: %s", python, out)
	}
	if !ran {
		t.Skip("COHORT_TEST_PYTHONS names no interpreter with the package openai")
	}
}

// FuzzBody: no body of a request makes the server fail.
func FuzzBody(f *testing.F) {
	f.Add(`{"model":"tiny","prompt":"a","n":2}`)
	f.Add(`{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":1,"stop":["a"]}`)
	f.Add(`{"model":"tiny","inputs":[{"text":"a"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseBody([]byte(text))
		if err != nil {
			return
		}
		var n int
		x := 0.5
		_, _ = b.texts("prompt", 4)
		_ = b.whole("n", &n, 1, 4)
		if b.number("temperature", &x, 0, 2) == nil && !(x >= 0 && x <= 2) {
			t.Errorf("%s: temperature %v", text, x)
		}
		b.only("logprobs", "false")
		if err := b.rest(); err == nil && len(b.fields) > 0 {
			t.Errorf("%s: fields are left and not refused", text)
		}
	})
}
