// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
)

// pieces reads a text in pieces of random size.
type pieces struct {
	text string
	r    *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := min(1+p.r.IntN(9), len(p.text), len(b))
	copy(b, p.text[:n])
	p.text = p.text[n:]
	return n, nil
}

func TestRelay(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{"a\n", "> a\n"},
		{"a\nb", "> a\n> b\n"},
		{"\n\n", "> \n> \n"},
		{"a\r\nb\r\n", "> a\r\n> b\r\n"},
		{"10%\r20%\rdone\n", "> 10%\r> 20%\r> done\n"},
		{"10%\r", "> 10%\r\n"},
		{"\r\r\n", "> \r> \r\n"},
		{"long long line of text\nünïcödé\n", "> long long line of text\n> ünïcödé\n"},
	}
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, tt := range tests {
		for range 50 {
			var out bytes.Buffer
			c := &relay{prefix: []byte("> "), dst: &sink{w: &out}}
			c.run(&spy{Reader: &pieces{tt.in, r}})
			if out.String() != tt.want {
				t.Fatalf("seed %d: relay of %q wrote %q, want %q", seed, tt.in, out.String(), tt.want)
			}
		}
	}
}

func TestRelayLongLine(t *testing.T) {
	var out bytes.Buffer
	c := &relay{prefix: []byte("> "), dst: &sink{w: &out}}
	c.run(&spy{Reader: strings.NewReader(strings.Repeat("x", 3*maxLine) + "\n")})
	if n := strings.Count(out.String(), "x"); n != 3*maxLine {
		t.Errorf("%d of %d bytes arrived", n, 3*maxLine)
	}
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "> ") || len(line) > maxLine+readSize+10 {
			t.Errorf("a line of %d bytes that begins %q", len(line), line[:min(len(line), 10)])
		}
	}
}

// A line that is too long is not broken within a character, wherever reads end.
func TestRelayBreaksBetweenCharacters(t *testing.T) {
	for _, char := range []string{"ü", "€", "😀", "\u0440", "\xff"} {
		var out bytes.Buffer
		c := &relay{dst: &sink{w: &out}}
		text := strings.Repeat(char, 3*maxLine/len(char))
		for i := 0; i < len(text); i += 1001 {
			c.take([]byte(text[i:min(i+1001, len(text))]))
			c.flush()
		}
		c.end()
		c.flush()
		if got := strings.ReplaceAll(out.String(), "\n", ""); got != text || strings.Count(out.String(), "\n") < 3 {
			i := 0
			for i < min(len(got), len(text)) && got[i] == text[i] {
				i++
			}
			t.Errorf("%q: %d bytes of %d are as they were, then comes %.20q", char, i, len(text), got[i:])
		}
	}
}

// spy is a stream without deadlines.
type spy struct {
	io.Reader
	closed bool
}

func (c *spy) Close() error                    { c.closed = true; return nil }
func (c *spy) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

type failingWriter struct{ calls int }

func (f *failingWriter) Write([]byte) (int, error) { f.calls++; return 0, errors.New("no room") }

// A destination that fails ends the stream for the rank, and is not tried again.
func TestRelayDestinationGone(t *testing.T) {
	w := &failingWriter{}
	s := &sink{w: w}
	for range 2 {
		from := &spy{Reader: strings.NewReader(strings.Repeat("line\n", 100000))}
		(&relay{dst: s}).run(from)
		if !from.closed {
			t.Error("the stream was not closed")
		}
		if n, _ := from.Reader.(*strings.Reader).Seek(0, io.SeekCurrent); n > readSize {
			t.Errorf("read on to %d", n)
		}
	}
	if w.calls != 1 {
		t.Errorf("%d writes to a destination that had failed", w.calls)
	}
}

func TestSinksOfOneFileShareALock(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if out, errs := newSinks(w, w); out != errs {
		t.Error("two locks for one file")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if out, errs := newSinks(w, null); out == errs {
		t.Error("one lock for two files")
	}
	if out, errs := newSinks(&bytes.Buffer{}, &bytes.Buffer{}); out == errs {
		t.Error("one lock for two buffers")
	}
}

// slowWriter takes the first write only when it is let.
type slowWriter struct {
	bytes.Buffer
	let chan struct{}
}

func (s *slowWriter) Write(b []byte) (int, error) {
	<-s.let
	return s.Buffer.Write(b)
}

// A pipe that somebody holds open beyond its deadline, and a reader of ours who
// is slower than that: what is in the pipe arrives whole, and there is an end.
func TestRelayDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	text := strings.Repeat("0123456789abcdef\n", 3000)
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	dst := &slowWriter{let: make(chan struct{})}
	c := &relay{dst: &sink{w: dst}}
	ended := make(chan struct{})
	go func() { c.run(r); close(ended) }()
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	close(dst.let)
	<-ended
	if dst.String() != text {
		t.Errorf("%d of %d bytes arrived", dst.Len(), len(text))
	}
}

// TestRelayFile: a log file has what the rank wrote, byte for byte but for the token,
// in whatever pieces it comes; filters see the same lines as the terminal.
func TestRelayFile(t *testing.T) {
	seed := seeded.Of(t)
	r := rand.New(rand.NewPCG(seed, 2))
	const token = "deadbeefcafe"
	parts := []string{"apple", "plum", "\n", "\r\n", "\r", " ", token, "ü", strings.Repeat("x", 300)}
	for round := range 200 {
		var text strings.Builder
		for range r.IntN(40) {
			text.WriteString(parts[r.IntN(len(parts))])
		}
		f, err := os.CreateTemp(t.TempDir(), "log")
		if err != nil {
			t.Fatal(err)
		}
		var shown, filtered bytes.Buffer
		c := &relay{
			prefix: []byte("> "), dst: &sink{w: &shown}, file: f, hider: hider{secret: newSecret(token)},
			filtered: &sink{w: &filtered}, needles: []string{"plum"}, trouble: func(err error) { t.Error(err) },
		}
		c.run(&spy{Reader: &pieces{text.String(), r}})
		got, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(text.String(), token, strings.Repeat("*", len(token))); string(got) != want {
			t.Fatalf("seed %d, round %d: the file has %q, want %q", seed, round, got, want)
		}
		var want strings.Builder
		for line := range strings.SplitSeq(shown.String(), "> ") {
			if strings.Contains(line, "plum") {
				want.WriteString("> " + line)
			}
		}
		if filtered.String() != want.String() {
			t.Fatalf("seed %d, round %d: filtered %q, want %q", seed, round, filtered.String(), want.String())
		}
	}
}
