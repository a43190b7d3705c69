// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServe: an agent greets, runs what it is told, and returns the exit code; what it cannot
// do is one line.
func TestServe(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PET_NNODES", "9")
	t.Setenv("COHORT_TOKEN", "")
	t.Setenv("COHORT_SSH_TEST", "")
	t.Setenv("SSH_CONNECTION", "10.0.0.9 1 10.0.0.2 22")
	t.Chdir(home)
	program := filepath.Join(home, "program")
	if err := os.WriteFile(program, []byte("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	sum, err := SumOf(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, order string
		code        int
		want        string // on standard error
	}{
		{"runs", `{"args":["run","x"],"env":["COHORT_SSH_TEST=a=b"],"dir":"~","token":"secret","program":"` + program + `","sum":"` + sum + `"}`, 7, ""},
		{"says how it ended", `{"args":["run","x"],"env":["COHORT_SSH_TEST=a=b"],"dir":"~","token":"secret","end":"E"}`, 7, ""},
		{"no command", `{"dir":"~"}`, 2, "has no command"},
		{"nothing comes", "", 0, ""},
		{"no order", "{", 2, "cannot be read"},
		{"no directory", `{"args":["run"],"dir":"/no/dir"}`, 2, "directory /no/dir, in which the job is started, is not here: no such file or directory: name one"},
		{"a damaged copy", `{"args":["run"],"program":"` + program + `","sum":"00"}`, 2, "is damaged"},
		{"too long", `{"args":["` + strings.Repeat("x", maxOrder) + `"]}`, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			in, w := io.Pipe()
			go func() {
				if c.order != "" {
					_, _ = io.WriteString(w, c.order+"\n")
				} else {
					w.Close()
				}
			}()
			ran := false
			code := Serve(in, &out, &errs, "cohort v1", func(args []string, stdout, _ io.Writer) int {
				ran = true
				dir, _ := os.Getwd()
				if len(args) != 2 || os.Getenv("COHORT_SSH_TEST") != "a=b" || os.Getenv("COHORT_TOKEN") != "secret" || os.Getenv("PET_NNODES") != "" || dir != home {
					t.Errorf("%q in %s with %q", args, dir, os.Environ())
				}
				_, _ = io.WriteString(stdout, "out\n")
				return 7
			})
			in.Close()
			if code != c.code || ran != (c.code == 7) || !strings.Contains(errs.String(), c.want) || c.want == "" && errs.Len() > 0 || strings.Count(errs.String(), "\n") > 1 {
				t.Errorf("code %d, ran %v, %q", code, ran, errs.String())
			}
			line, rest, _ := strings.Cut(out.String(), "\n")
			text, ok := strings.CutPrefix(line, greeting)
			h, err := parseHello(text)
			if !ok || err != nil || h.Version != "cohort v1" || h.Addr != "10.0.0.2" || len(h.Sum) != 64 || h.Machine == "" || h.Port == 0 || ran && rest != "out\n" && rest != "out\nE 7\n" || (c.name == "says how it ended") != strings.HasSuffix(rest, "E 7\n") {
				t.Errorf("%q: %+v, %v", out.String(), h, err)
			}
		})
	}
}

func TestParseHello(t *testing.T) {
	for _, text := range []string{"", "{", `{"host":"a\u001b[2J"}`, `{"port":70000}`, `{"port":-1}`, `{"protocol":"x"}`} {
		if h, err := parseHello(text); err == nil {
			t.Errorf("%q is taken: %+v", text, h)
		}
	}
	line, err := json.Marshal(Hello{Protocol: protocol, Host: "a", Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := parseHello(string(line)); err != nil || h.Host != "a" {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestExplain: what ssh and shells say becomes a cause and what mends it.
func TestExplain(t *testing.T) {
	for printed, want := range map[string]string{
		"ada@a: Permission denied (publickey,password).\r\n":                       "would ask for a password (ada@a: Permission denied (publickey,password).): cohort run needs a key: run `ssh-copy-id a`",
		"banner\nbash: line 1: exec: cohort: not found\n":                          "there is no cohort in the PATH of commands that come over ssh (bash: line 1: exec: cohort: not found): give --copy",
		"sh: 1: /x/cohort: Permission denied\n":                                    "may not be executed there",
		"ssh: connect to host a port 22: Connection timed out\n":                   "the host does not answer",
		"ssh: Could not resolve hostname a: Name or service not known\n":           "there is no such name",
		"cohort: unknown command host-agent for cohort\n":                          "too old",
		"Warning: Permanently added 'a' (ED25519) to the list of known hosts.\r\n": "ssh has ended before Cohort began there (without a word)",
		"something \x1b[2J else\n":                                                 "(something ?[2J else)",
		"":                                                                         "without a word",
		"cat: write error: No space left on device":                                "the disk of the host is full",
	} {
		if err := explain("a", "cohort", printed); !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", printed, err, want)
		}
	}
}

// failing is a reader's end that is gone after some bytes.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("gone")
	}
	return len(b), nil
}

func TestOutputOutlivesReader(t *testing.T) {
	l := &lasting{w: &failing{left: 3}}
	for range 4 {
		if n, err := l.Write([]byte("ab")); n != 2 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
}

func TestReadLine(t *testing.T) {
	r := bufio.NewReaderSize(strings.NewReader("a\n"+strings.Repeat("b", 100)+"\nc"), 16)
	for _, want := range []string{"a", strings.Repeat("b", 100)} {
		if line, err := readLine(r, 200); err != nil || string(line) != want {
			t.Errorf("%q, %v", line, err)
		}
	}
	if line, err := readLine(r, 200); !errors.Is(err, io.EOF) || string(line) != "c" {
		t.Errorf("%q, %v", line, err)
	}
	if _, err := readLine(bufio.NewReader(strings.NewReader(strings.Repeat("b", 100))), 50); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a line that is too long: %v", err)
	}
}

// TestErrLines: lines of a host get its name, lines of ranks do not, and what comes before the
// greeting is held.
func TestErrLines(t *testing.T) {
	var out bytes.Buffer
	e := &errLines{host: "a", w: &out, held: true}
	_, _ = io.WriteString(e, "banner\n")
	if out.Len() > 0 || e.lastLine() != "banner" {
		t.Errorf("%q, %q", out.String(), e.lastLine())
	}
	e.release()
	for _, part := range []string{"[rank0] x\ncoh", "ort: y\n\nz"} {
		_, _ = io.WriteString(e, part)
	}
	e.flush()
	if got, want := out.String(), "[rank0] x\n[a] cohort: y\n\n[a] z\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{
		"cohort": "cohort", "/a b": "'/a b'", "~/c d": `"$HOME"/'c d'`, "a'b": `'a'\''b'`, "$(x)": "'$(x)'",
	} {
		if got := Quote(word); got != want {
			t.Errorf("%s: %s, want %s", word, got, want)
		}
	}
}

// TestScripts: the scripts pass through a login shell in single quotes.
func TestScripts(t *testing.T) {
	for _, script := range []string{lookScript, saveScript} {
		if strings.ContainsAny(script, "'!\n`") {
			t.Errorf("%s", script)
		}
	}
}
