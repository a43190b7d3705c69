// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// roleSave waits to be asked to end, and says why it was and how long it has.
func roleSave(string) int {
	return ExitCode(Spawn(context.Background(), 0, func(ctx context.Context) error {
		say("ready %d", os.Getpid())
		<-ctx.Done()
		var stop *StopError
		if !errors.As(context.Cause(ctx), &stop) {
			return fmt.Errorf("the cause is %v", context.Cause(ctx))
		}
		left := "no"
		if !stop.Deadline.IsZero() {
			left = fmt.Sprint(time.Until(stop.Deadline).Round(10 * time.Second))
		}
		say("saved: %v; %s time limit", stop, left)
		return nil
	}))
}

const testInterval = 5 * time.Millisecond

// A notice file ends the job; the ranks learn why, and in what time.
func TestNoticeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notice")
	var out, errs output
	cfg := self(t, 2, "save")
	cfg.Stdout, cfg.Stderr = &out, &errs
	cfg.MaxRestarts = 3 // a machine that goes does not start ranks again
	cfg.Notice = Notice{File: path, Interval: testInterval}
	var err error
	checkLeaks(t, func() {
		done := make(chan error, 1)
		go func() { done <- Run(context.Background(), cfg) }()
		out.await(t, 2, "ready")
		if err := os.WriteFile(path+".new", []byte("taken back at 13:00\x1b[2J\nmore\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // there with all that it says
			t.Fatal(err)
		}
		err = <-done
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	})
	want := "notice file " + path + ": taken back at 13:00 [2J"
	var job *Error
	if !errors.As(err, &job) || job.Signal != syscall.SIGTERM || job.Notice != want || job.Restartable() {
		t.Fatalf("error %#v", err)
	}
	if want := "stopped, because this machine is about to go: " + want; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	for i := range 2 {
		if want := fmt.Sprintf("[rank%d] saved: rank %d got SIGTERM: %s; 30s time limit\n", i, i, want); !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if n := strings.Count(errs.String(), "about to go"); n != 1 {
		t.Errorf("told %d times:\n%s", n, errs.String())
	}
}

// A signal without a notice has the same type of cause, and no time limit.
func TestNoticeNone(t *testing.T) {
	p := startAgent(t, Config{NumRanks: 1, Notice: Notice{File: filepath.Join(t.TempDir(), "notice")}}, "save")
	p.out.await(t, 1, "ready")
	_ = p.Process.Signal(syscall.SIGTERM)
	if code, _ := p.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if want := "[rank0] saved: rank 0 got SIGTERM; no time limit\n"; !strings.Contains(p.out.String(), want) {
		t.Errorf("no %q in:\n%s", want, p.out.String())
	}
	if want := "cohort: stopped by SIGTERM\n"; !strings.Contains(p.errs.String(), want) {
		t.Errorf("no %q in:\n%s", want, p.errs.String())
	}
}

// A metadata service that wants a token, breaks down, comes back and gives notice.
func TestNoticeURL(t *testing.T) {
	const token = "AQAE-token"
	var phase, broken atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			http.Error(w, "no time to live", http.StatusBadRequest)
			return
		}
		fmt.Fprintln(w, token)
	})
	mux.HandleFunc("GET /latest/meta-data/spot/instance-action", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
			w.WriteHeader(http.StatusUnauthorized)
		case phase.Load() == 0:
			http.NotFound(w, r)
		case phase.Load() == 1:
			broken.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, "{\n \"action\": \"terminate\"\n}\n")
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	url := server.URL + "/latest/meta-data/spot/instance-action"

	var out, errs output
	cfg := self(t, 1, "save")
	cfg.Stdout, cfg.Stderr = &out, &errs
	cfg.Logs.Dir = os.DevNull // no file for the ranks: the signal comes all the same
	cfg.Notice = Notice{URL: url, Interval: testInterval}
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), cfg) }()
	out.await(t, 1, "ready")
	phase.Store(1)
	errs.await(t, 1, "503 Service Unavailable")
	for before := broken.Load(); broken.Load() < before+5; {
		time.Sleep(testInterval)
	}
	phase.Store(2)
	err := <-done
	if want := "stopped, because this machine is about to go: " + url + ` says { "action": "terminate" }`; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if !strings.Contains(out.String(), "saved: rank 0 got SIGTERM; no time limit\n") {
		t.Errorf("output:\n%s", out.String())
	}
	if n := strings.Count(errs.String(), "503 Service Unavailable"); n != 1 {
		t.Errorf("trouble told %d times:\n%s", n, errs.String())
	}
}

// What cannot be, or is so already, is said before anything starts.
func TestNoticeRefused(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	forbids := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer forbids.Close()
	goes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "TRUE") }))
	defer goes.Close()
	for want, n := range map[string]Notice{
		"so nothing is started: notice file " + there:         {File: there},
		"its directory " + dir + "/missing cannot be used: ":  {File: dir + "/missing/notice"},
		there + " is not a directory":                         {File: there + "/notice"},
		"begins with http:// or https://":                     {URL: "169.254.169.254/latest"},
		"notice URL: parse":                                   {URL: "http://a b/"},
		"notice URL " + gone.URL + " cannot be asked":         {URL: gone.URL},
		"it answers 403 Forbidden":                            {URL: forbids.URL},
		"so nothing is started: " + goes.URL + " says TRUE (": {URL: goes.URL},
		"so nothing is started: notice file " + there + " (":  {File: there, URL: goes.URL},
	} {
		cfg := self(t, 1, "save")
		cfg.Notice = n
		err := Run(t.Context(), cfg)
		if bad := (*ConfigError)(nil); !errors.As(err, &bad) || bad.Field != "Notice" || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", n, err, want)
		}
	}
}

// What the clouds answer.
func TestNoticeAnswers(t *testing.T) {
	for _, c := range []struct {
		status     int
		body, want string
		bad        bool
	}{
		{404, "anything", "", false},
		{204, "", "", false},
		{200, " \n", "", false},
		{200, "FALSE", "", false},
		{200, "NONE\n", "", false},
		{200, "MIGRATE_ON_HOST_MAINTENANCE", "", false},
		{200, "TRUE", "TRUE", false},
		{200, "TERMINATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE", false},
		{200, `{"action": "stop", "time": "2026-11-21T13:00:00Z"}`, `{"action": "stop", "time": "2026-11-21T13:00:00Z"}`, false},
		{200, `{"DocumentIncarnation":1,"Events":[]}`, "", false},
		{200, `{"Events":[{"EventType":"Freeze"}]}`, "", false},
		{200, `{"Events":[{"EventType":"Freeze"},{"EventType":"Preempt","NotBefore":"Sat, 21 Nov"}]}`, "Preempt Sat, 21 Nov", false},
		{200, "\x00\x01\x02", "something that cannot be shown", false},
		{302, "", "", true},
		{401, "", "", true},
		{500, "TRUE", "", true},
	} {
		got, err := noticeIn(c.status, []byte(c.body))
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%d %q: %q, %v; want %q, an error: %v", c.status, c.body, got, err, c.want, c.bad)
		}
	}
}

func FuzzNoticeIn(f *testing.F) {
	f.Add(200, []byte(`{"Events":[{"EventType":"Preempt"}]}`))
	f.Add(200, []byte("TRUE\n\x1b[2J"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		said, err := noticeIn(status, body)
		if err != nil && said != "" || len([]rune(said)) > maxNoticeText {
			t.Errorf("%q, %v", said, err)
		}
		for _, c := range said {
			if c < ' ' || c == 0x7f {
				t.Errorf("control character in %q", said)
			}
		}
	})
}
