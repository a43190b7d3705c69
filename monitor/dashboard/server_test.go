// SPDX-License-Identifier: Apache-2.0

package dashboard_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

const patience = time.Minute

// told collects what a server tells.
type told struct {
	mu   sync.Mutex
	list []string
}

func (t *told) tell(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, text)
}

func (t *told) count(part string) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, text := range t.list {
		if strings.Contains(text, part) {
			n++
		}
	}
	return n
}

func listen(t *testing.T, o dashboard.Options) (*dashboard.Server, *told) {
	t.Helper()
	var said told
	o.Addr, o.Tell = "127.0.0.1:0", said.tell
	s, err := dashboard.Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, &said
}

// get asks a server for a path with a query, and the token of its page.
func get(t *testing.T, s *dashboard.Server, path string, query url.Values) (int, []byte) {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	all := u.Query()
	for k, v := range query {
		all[k] = v
	}
	u.Path, u.RawQuery = path, all.Encode()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := c.Get(u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, text
}

func update(t *testing.T, s *dashboard.Server, after string) (d report.Data) {
	t.Helper()
	code, text := get(t, s, "/updates", url.Values{"after": {after}})
	if code != http.StatusOK {
		t.Fatalf("updates: %d %s", code, text)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func begin(n int) history.Run {
	return history.Run{Time: 100, Task: "lm", DType: "float32", Ranks: 2, Threads: 1, Unit: "tokens", FirstStep: n, Steps: 1000}
}

// TestUpdatesAddUp: a page that asks while the history grows, is thinned, and goes on after a
// restart, has in the end what a page has that is opened then.
func TestUpdatesAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	dir := t.TempDir()
	s, _ := listen(t, dashboard.Options{Runs: []string{dir}})
	first := update(t, s, "")
	if len(first.Runs) != 1 || first.Runs[0].Trouble == "" || first.Runs[0].Summary != nil {
		t.Fatalf("before the history there is %+v", first)
	}
	page, cursor := first.Runs[0], first.Cursor
	take := func() {
		d := update(t, s, cursor)
		cursor = d.Cursor
		for _, u := range d.Runs {
			if u.Generation == page.Generation {
				u.Starts, u.Steps = append(page.Starts, u.Starts...), append(page.Steps, u.Steps...)
				u.Evaluations, u.Saved = append(page.Evaluations, u.Evaluations...), append(page.Saved, u.Saved...)
				u.Notes, u.Lost = append(page.Notes, u.Notes...), append(page.Lost, u.Lost...)
				u.Ranks, u.Values = append(page.Ranks, u.Ranks...), append(page.Values, u.Values...)
			}
			page = u
		}
	}
	steps := []int{0, 700, 500, history.MaxSteps + 100}
	for i := 1; i < len(steps); i++ {
		w, _, err := history.Create(dir, begin(steps[i-1]))
		if err != nil {
			t.Fatal(err)
		}
		take()
		for n := steps[i-1] + 1; n <= steps[i]+100*r.IntN(2); n++ {
			w.Step(history.Step{Step: n, Time: history.Seconds(100 + n), Loss: history.Number(r.Float64()), Size: 10, Seconds: 0.5})
			if n%50 == 0 {
				w.Evaluation(history.Evaluation{Step: n, Metrics: []history.Metric{{Name: "loss", Value: 1}}})
				w.Saved(history.Saved{Step: n})
				w.Note(history.Note{Step: n, Text: "note"})
				w.Ranks(history.Ranks{Step: n, Steps: 50, Seconds: 25, Phases: map[string]history.Column{"forward": {20, 25}, "waiting": {5, 0}}})
				w.Value(history.Value{Step: n, Name: "temperature", Value: 1})
			}
		}
		w.Close(patience)
		take()
	}
	want := update(t, s, "").Runs[0]
	page.Index = want.Index
	a, _ := json.Marshal(page)
	b, _ := json.Marshal(want)
	if !bytes.Equal(a, b) || len(want.Lost) == 0 || len(want.Steps) < history.MaxSteps/2 {
		t.Errorf("the page has %d steps, %d evaluations, %d lost; a new one has %d, %d, %d", len(page.Steps), len(page.Evaluations), len(page.Lost), len(want.Steps), len(want.Evaluations), len(want.Lost))
	}
	if d := update(t, s, cursor); len(d.Runs) != 0 || d.Cursor != cursor {
		t.Errorf("nothing is new, and the update has %d runs and the cursor %s after %s", len(d.Runs), d.Cursor, cursor)
	}
	for _, bad := range []string{"x", "0_1", "0_1.1.1.1.1.1.1.1.1.-1", strings.Repeat("9", 9000), "18446744073709551616_1.1.1.1.1.1.1.1.1.1"} {
		if d := update(t, s, bad); len(d.Runs) != 1 || len(d.Runs[0].Steps) != len(want.Steps) {
			t.Errorf("of the cursor %.20q everything was to be sent", bad)
		}
	}
}

// TestToken: who has no token, or another one, sees nothing; what is there can only be read.
func TestToken(t *testing.T) {
	s, said := listen(t, dashboard.Options{Title: "a job", Metrics: http.NotFoundHandler()})
	base := strings.Split(s.URL(), "?")[0]
	for _, path := range []string{"", "updates", "log", "metrics", "what"} {
		for _, query := range []string{"", "?token=", "?token=x", "?token=" + strings.Repeat("x", 10_000)} {
			answer, err := http.Get(base + path + query)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusForbidden {
				t.Errorf("/%s%.20s: %s", path, query, answer.Status)
			}
		}
	}
	if n := said.count("a wrong token"); n != 1 {
		t.Errorf("wrong tokens were told %d times, want once", n)
	}
	token := s.URL()[strings.Index(s.URL(), "=")+1:]
	ask, err := http.NewRequest(http.MethodGet, base, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("with the token as a header: %s, %v", answer.Status, answer.Header)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, "BREW"} {
		ask, err := http.NewRequest(method, s.URL(), strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, answer.Status)
		}
	}
	if lines := s.Announce(); len(lines) != 2 || !strings.Contains(lines[0], s.URL()) || !strings.Contains(lines[1], "ssh -N -L ") {
		t.Errorf("got %q", lines)
	}
}

// TestAddresses: what a user may write.
func TestAddresses(t *testing.T) {
	for _, addr := range []string{"0", ":0", "127.0.0.1:0", "localhost:0"} {
		s, err := dashboard.Listen(dashboard.Options{Addr: addr})
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") && !strings.HasPrefix(s.URL(), "http://[::1]:") {
			t.Errorf("%s: %s", addr, s.URL())
		}
		s.Close()
	}
	for _, addr := range []string{"", "x", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "70000", "::1:0", "1.2.3.4.5:0"} {
		if s, err := dashboard.Listen(dashboard.Options{Addr: addr}); err == nil {
			t.Errorf("%q: listens at %s", addr, s.URL())
			s.Close()
		}
	}
}

// TestStalledBrowsers: browsers that connect and do nothing, read nothing or flood are cut off and
// told once; a job's lines go on meanwhile, and who asks afterwards is answered.
func TestStalledBrowsers(t *testing.T) {
	job := dashboard.NewJob("p", nil)
	s, said := listen(t, dashboard.Options{Job: job})
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range 100 {
		c, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if i%2 == 0 { // ask, and read nothing
			fmt.Fprintf(c, "GET /log?%s HTTP/1.1\r\nHost: x\r\n\r\n", u.RawQuery)
		}
	}
	begun := time.Now()
	for range 20_000 {
		job.Line(0, false, []byte("a line of a rank\n"))
	}
	if took, most := time.Since(begun), loaded.Allow(2*time.Second); took > most {
		t.Errorf("20,000 lines took %v beside stalled browsers, want at most %v", took, most)
	}
	for end := time.Now().Add(patience); said.count("connections at a time") == 0; {
		if time.Now().After(end) {
			t.Fatal("nobody was told of too many connections")
		}
		time.Sleep(time.Millisecond)
	}
	for _, c := range conns {
		c.Close()
	}
	for end := time.Now().Add(patience); ; {
		answer, err := http.Get(s.URL())
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("who asks after the stalled browsers gets %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	if n := said.count("connections at a time"); n != 1 {
		t.Errorf("told %d times, want once", n)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	many := strings.Repeat(fmt.Sprintf("GET /none?%s HTTP/1.1\r\nHost: x\r\n\r\n", u.RawQuery), 100)
	for end := time.Now().Add(patience); said.count("requests a second") == 0; {
		if _, err := io.WriteString(c, many); err != nil { // it does not wait for answers
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("a flood of requests was not cut off")
		}
	}
}

// TestJob: ranks start, print, fail and are started again.
func TestJob(t *testing.T) {
	job := dashboard.NewJob("train\x1b[2J", []report.Axis{{Name: "tp", Size: 2}})
	s, _ := listen(t, dashboard.Options{Job: job})
	job.Begin(0, 2)
	job.Started(1, 1, 11, "h")
	job.Started(0, 0, 10, "h")
	job.Ended(1, true, false, "exited with code 3")
	job.Ended(0, true, true, "was killed by SIGTERM")
	d := update(t, s, "")
	if d.Job == nil || d.Job.Program != "train^[[2J" || len(d.Job.Ranks) != 2 || d.Job.Ranks[0].State != "ended" || d.Job.Ranks[1].State != "failed" || d.Job.Ranks[1].How != "exited with code 3" || len(d.Job.Events) != 2 || !d.Job.Events[0].Bad {
		t.Fatalf("got %+v", d.Job)
	}
	if again := update(t, s, d.Cursor); again.Job != nil || again.Cursor != d.Cursor {
		t.Errorf("nothing is new, and there is %+v", again.Job)
	}
	job.Begin(1, 2)
	job.Started(1, 1, 12, "h")
	job.Over(errors.New("no\nluck"))
	d = update(t, s, d.Cursor)
	if d.Job == nil || d.Job.Attempt != 1 || d.Job.Ranks[1].State != "running" || d.Job.Ranks[1].Starts != 2 || !d.Job.Over {
		t.Errorf("got %+v", d.Job)
	}
}

type logAnswer struct {
	Lines []struct {
		Rank int
		Err  bool
		Text string
	}
	After uint64
	Note  string
}

func logOf(t *testing.T, s *dashboard.Server, query url.Values) (a logAnswer) {
	t.Helper()
	code, text := get(t, s, "/log", query)
	if code != http.StatusOK {
		t.Fatalf("log: %d %s", code, text)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestLog: lines come in their order, can be searched, and are cut, bounded and plain.
func TestLog(t *testing.T) {
	job := dashboard.NewJob("p", nil)
	s, _ := listen(t, dashboard.Options{Job: job})
	job.Line(0, false, []byte("first\r\n"))
	job.Line(1, true, []byte("Second \x1b[31mred\x07 \xff\n"))
	job.Line(0, false, bytes.Repeat([]byte("x"), 1<<20))
	a := logOf(t, s, nil)
	if len(a.Lines) != 3 || a.Lines[0].Text != "first" || a.Lines[1].Text != "Second ^[[31mred^G \ufffd" || !a.Lines[1].Err || a.Lines[1].Rank != 1 ||
		len(a.Lines[2].Text) > 5000 || !strings.HasSuffix(a.Lines[2].Text, "… (1048576 bytes)") {
		t.Errorf("got %.200q", fmt.Sprint(a))
	}
	if b := logOf(t, s, url.Values{"after": {fmt.Sprint(a.After)}}); len(b.Lines) != 0 || b.After != a.After {
		t.Errorf("nothing is new, and there is %+v", b)
	}
	if b := logOf(t, s, url.Values{"q": {"SECOND"}}); len(b.Lines) != 1 || b.Lines[0].Rank != 1 {
		t.Errorf("searched: %+v", b.Lines)
	}
	if b := logOf(t, s, url.Values{"rank": {"7"}}); len(b.Lines) != 0 {
		t.Errorf("of no rank: %+v", b.Lines)
	}
	for _, bad := range []url.Values{{"rank": {"x"}}, {"rank": {"-2"}}, {"after": {"x"}}} {
		if code, _ := get(t, s, "/log", bad); code != http.StatusBadRequest {
			t.Errorf("%v: %d", bad, code)
		}
	}
	for i := range 10_000 {
		job.Line(0, false, fmt.Appendf(nil, "line %d\n", i))
	}
	a = logOf(t, s, url.Values{"rank": {"0"}})
	if n := len(a.Lines); n != 1000 || a.Lines[n-1].Text != "line 9999" || a.Lines[0].Text != "line 9000" || a.Note == "" {
		t.Errorf("got %d lines, the last %+v", n, a.Lines[n-1])
	}
	if a = logOf(t, s, url.Values{"rank": {"1"}}); len(a.Lines) != 1 {
		t.Errorf("the lines of a quiet rank are gone: %+v", a.Lines)
	}
	// 600 ranks print megabytes: memory stays.
	long := bytes.Repeat([]byte("y"), 4000)
	for range 40 {
		for rank := range 600 {
			job.Line(rank, false, long)
		}
	}
	if a = logOf(t, s, url.Values{"rank": {"599"}}); len(a.Lines) == 0 {
		t.Error("the last lines of rank 599 are gone")
	}
}

// TestPage: the page has what is known, and settings if there are some.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	w, _, err := history.Create(dir, begin(0))
	if err != nil {
		t.Fatal(err)
	}
	w.Step(history.Step{Step: 1, Loss: 2, Seconds: 1})
	w.Close(patience)
	s, _ := listen(t, dashboard.Options{Title: "<script>x</script>", Runs: []string{dir}, Settings: func(d string) (map[string]string, error) {
		if d != dir {
			return nil, os.ErrNotExist
		}
		return map[string]string{"lr": "1"}, nil
	}})
	code, text := get(t, s, "/", nil)
	if code != http.StatusOK || strings.Contains(string(text), "<script>x") || !strings.Contains(string(text), "connect-src &#39;self&#39;") {
		t.Errorf("%d: %.300s", code, text)
	}
	d := update(t, s, "")
	if len(d.Runs) != 1 || !reflect.DeepEqual(d.Runs[0].Settings, map[string]string{"lr": "1"}) || d.Runs[0].Summary.Done != 1 {
		t.Errorf("got %+v", d.Runs)
	}
}
