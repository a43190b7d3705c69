// SPDX-License-Identifier: Apache-2.0

package agentpipe

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

var sample = Event{Kind: KindExited, Rank: 1, LocalRank: 1, PID: 4711, Host: "h", Code: -1, Signal: "killed"}

func TestMain(m *testing.M) {
	if os.Getenv("AGENTPIPE_TEST_WORKER") != "" {
		worker()
	}
	// With the race detector, each process would linger for a second at its end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// worker prints every event that it gets, then how the stream ended.
func worker() {
	r, err := Open()
	if err != nil || r == nil {
		println("no pipe:", r, err)
		os.Exit(3)
	}
	for {
		e, err := r.Next()
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(0)
		}
		os.Stdout.WriteString(e.String() + "\n")
	}
}

func TestInherited(t *testing.T) {
	f, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AGENTPIPE_TEST_WORKER=1", envvar.AgentFD.Assign("3"))
	cmd.ExtraFiles = []*os.File{f}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := w.Send(sample); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(Event{Kind: KindExited, Rank: 2, PID: 5, Host: "h", Code: 7}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	want := "rank 1 (host h, pid 4711) ended by signal: killed\nrank 2 (host h, pid 5) exited with code 7\nEOF\n"
	if out.String() != want {
		t.Errorf("worker printed %q, want %q", out.String(), want)
	}
}

func TestLineOnTheWire(t *testing.T) {
	f, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := w.Send(sample); err != nil {
		t.Fatal(err)
	}
	w.Close()
	b, _ := io.ReadAll(f)
	want := `{"event":"exited","rank":1,"local_rank":1,"pid":4711,"host":"h","code":-1,"signal":"killed"}` + "\n"
	if string(b) != want {
		t.Errorf("wrote %s, want %s", b, want)
	}
}

// A worker that never reads, or has gone, must not hold up the agent.
func TestSendDoesNotWait(t *testing.T) {
	f, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	start := time.Now()
	for err == nil {
		err = w.Send(sample)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("full pipe: %v, want a deadline error", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("filling the pipe took %v", d)
	}
	f.Close()
	if err := w.Send(sample); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("reader gone: %v, want EPIPE", err)
	}
	if err := w.Send(Event{Kind: KindExited, Host: strings.Repeat("x", MaxLine)}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("long event: %v, want a length error", err)
	}
}

func TestCloseEndsNext(t *testing.T) {
	f, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := NewReader(f)
	got := make(chan error)
	go func() { _, err := r.Next(); got <- err }()
	r.Close()
	if err := <-got; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Next after Close: %v, want os.ErrClosed", err)
	}
}

func TestOpenWithoutAgent(t *testing.T) {
	notPipe, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer notPipe.Close()
	for _, v := range []string{"", "1000000", "0"} {
		if v == "0" { // the descriptor of something that is not a pipe
			v = strconv.Itoa(int(notPipe.Fd()))
		}
		t.Setenv(string(envvar.AgentFD), v)
		if r, err := Open(); r != nil || err != nil {
			t.Errorf("%s=%q: got %v, %v, want nil, nil", envvar.AgentFD, v, r, err)
		}
	}
	for _, v := range []string{"three", "-1", "3;"} {
		t.Setenv(string(envvar.AgentFD), v)
		if _, err := Open(); err == nil || !strings.Contains(err.Error(), string(envvar.AgentFD)) {
			t.Errorf("%s=%q: error %v does not name the variable", envvar.AgentFD, v, err)
		}
	}
}

func TestMalformedLines(t *testing.T) {
	in := "nonsense\n" + strings.Repeat("x", 3*MaxLine) + "\n{}\n" +
		`{"event":"exited","rank":4}` + "\n" + `{"event":"half`
	r := NewReader(io.NopCloser(strings.NewReader(in)))
	for i, want := range []string{`"nonsense"`, "at most", "names no event"} {
		if _, err := r.Next(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("line %d: error %v, want one with %s", i, err, want)
		}
	}
	if e, err := r.Next(); err != nil || e.Rank != 4 {
		t.Errorf("good line after bad ones: %v, %v", e, err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("half a line at the end: %v, want EOF", err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"event":"exited","rank":1}` + "\n"))
	f.Add([]byte("\n\n{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(io.NopCloser(strings.NewReader(string(in))))
		for range len(in) + 2 { // each call but the last consumes at least a byte
			if _, err := r.Next(); err == io.EOF {
				return
			}
		}
		t.Fatal("the stream never ends")
	})
}
