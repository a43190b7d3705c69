// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/internal/visible"
)

func TestSecretIsCovered(t *testing.T) {
	const token = "04f8996da763b7a969b1028ee3007569eaf3a635486ddab211d512c85b9df8fb"
	s := newSecret(token)
	stars := func(n int) string { return strings.Repeat(string(cover), n) }
	hidden := stars(len(token))
	var coloured, letters string
	for i := range len(token) {
		coloured += fmt.Sprintf("\x1b[3%dm%c", i%8, token[i])
		letters += token[i:i+1] + "\u200b"
	}
	for in, want := range map[string]string{
		"":                            "",
		"nothing":                     "nothing",
		token:                         hidden,
		"a " + token + token + " b\n": "a " + hidden + hidden + " b\n",
		"T=" + strings.ToUpper(token): "T=" + hidden,
		token[:63] + "…":              stars(63) + "…", // cut short
		"x" + token[40:] + "-":        "x" + stars(24) + "-",
		"at " + token[:15] + " " + token[20:35] + " ":                     "at " + token[:15] + " " + token[20:35] + " ",
		"ends " + token[:9] + "\n":                                        "ends " + stars(9) + "\n",
		"ends " + token[:7] + "\n":                                        "ends " + token[:7] + "\n",
		token[:20] + "\b" + token[20:] + ".":                              stars(20) + "\b" + stars(44) + ".",
		token[:30] + "\x1b[31m" + token[30:] + ".":                        stars(30) + "\x1b[31m" + stars(34) + ".",
		token[:30] + "\u009b1;4m" + token[30:] + ".":                      stars(30) + "\u009b1;4m" + stars(34) + ".",
		token[:30] + "\x9bm" + token[30:] + ".":                           stars(30) + "\x9bm" + stars(34) + ".",
		token[:5] + "\x1b]8;;http://1f\x1b\\" + token[5:] + "\x1b]8;;\a.": stars(5) + "\x1b]8;;http://1f\x1b\\" + stars(59) + "\x1b]8;;\a.",
		"\x1b]0;" + token + "\a.":                                         "\x1b]0;" + hidden + "\a.",
		"\x1b]52;c;" + token + ".":                                        "\x1b]52;c;" + hidden + ".", // never ended
		"\x1bP1$r" + token + "\x1b\\":                                     "\x1bP1$r" + hidden + "\x1b\\",
		letters + ".":                                                     strings.Repeat(string(cover)+"\u200b", 64) + ".",
	} {
		b := []byte(in)
		s.hide(b)
		if string(b) != want {
			t.Errorf("%q becomes %q, want %q", in, b, want)
		}
	}
	newSecret("").hide([]byte("x"))
	b := []byte(coloured + ".")
	s.hide(b)
	for i := range len(token) {
		if b[i*6+5] != cover {
			t.Fatalf("%q becomes %q", coloured, b)
		}
	}
}

// TestSecretAcrossLines: what a rank writes in pieces, on lines of its own or in parts
// of one line, is covered but for the few digits that nobody could know yet.
func TestSecretAcrossLines(t *testing.T) {
	const token = "04f8996da763b7a969b1028ee3007569eaf3a635486ddab211d512c85b9df8fb"
	for _, end := range []string{"\r", "\n", "\r\n", "\x1b[0m\n", "\r\x1b[K", "\x1b"} {
		for _, size := range []int{1, 3, 7, 8, 16, 20, 32, 63} {
			var text strings.Builder
			for i := 0; i < len(token); i += size {
				text.WriteString(token[i:min(i+size, len(token))] + end)
			}
			text.WriteString(" and so on\n")
			for _, piece := range []int{1, 5, 4096} { // of the writes
				var shown bytes.Buffer
				c := &relay{dst: &sink{w: &shown}, hider: hider{secret: newSecret(token)}}
				for rest := text.String(); rest != ""; {
					n := min(piece, len(rest))
					c.take([]byte(rest[:n]))
					c.flush()
					rest = rest[n:]
				}
				c.end()
				c.flush()
				var left int
				for _, ch := range strings.NewReplacer("^[[0m", "", "^[[K", "", "and so on", "").Replace(shown.String()) {
					if hexDigit(ch) >= 0 {
						left++
					}
				}
				if left > endDigits+size-1 && size < endDigits || left > 0 && size >= endDigits {
					t.Errorf("lines of %d that end with %q, in writes of %d: %q", size, end, piece, shown.String())
				}
			}
		}
	}
}

// TestSecretPlain: lines without control characters, which are looked at in a quicker way,
// are covered as all others.
func TestSecretPlain(t *testing.T) {
	const token = "04f8996da763b7a969b1028ee3007569eaf3a635486ddab211d512c85b9df8fb"
	r := rand.New(rand.NewPCG(seeded.Of(t), 3))
	for range 3000 {
		quick, slow := hider{secret: newSecret(token)}, hider{secret: newSecret(token)}
		for range 4 {
			var b []byte
			for range r.IntN(5) {
				from := r.IntN(len(token))
				b = append(b, token[from:from+r.IntN(len(token)-from)]...)
				b = append(b, []string{"", "", "0", " ", "xyz", "-", "a b c d e f g h i j"}[r.IntN(7)]...)
			}
			was := string(b)
			b = append(b, '\n')
			slow.differ, slow.shown = true, slow.all
			c := bytes.Clone(b)
			quick.hide(b)
			slow.hide(c)
			if !bytes.Equal(b, c) {
				t.Fatalf("%q becomes %q, and the long way %q", was, b, c)
			}
		}
	}
}

// What a rank's error file says is shown without the token, however it is escaped.
func TestSecretInJSON(t *testing.T) {
	const token = "04f8996da763b7a969b1028ee3007569eaf3a635486ddab211d512c85b9df8fb"
	s := newSecret(token)
	for in, want := range map[string]string{
		`{"n":12345678901234567890,"a":["x",null,true]}`:                                 `{"n":12345678901234567890,"a":["x",null,true]}`,
		`{"message":"` + token + `"}`:                                                    `{"message":"` + strings.Repeat("*", 64) + `"}`,
		`{"message":{"message":"` + token[:9] + `\u001b[1m` + token[9:] + `","n":1.50}}`: `{"message":{"message":"*********\u001b[1m` + strings.Repeat("*", 55) + `","n":1.50}}`,
		`{"` + token + `":"\u0030` + token[1:] + `"}`:                                    `{"` + strings.Repeat("*", 64) + `":"` + strings.Repeat("*", 64) + `"}`,
		token + " is no JSON":                                                            strings.Repeat("*", 64) + " is no JSON",
	} {
		if got := string(s.hideJSON([]byte(in))); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
}

// TestEscapes: what ranks write reaches a terminal through prefixes and the report
// without a control character; files have it as it is.
func TestEscapes(t *testing.T) {
	const nasty = "\x1b]52;c;aGk=\a\x1b[2J\u009b31m\x9b1m\x1bP+q\x1b\\\x1b[?2004h a\bb\ttab\x1b"
	const plain = `^[]52;c;aGk=^G^[[2J\u009b31m\x9b1m^[P+q^[\^[[?2004h a^Hb` + "\ttab^["
	dir := t.TempDir()
	file := filepath.Join(dir, "nasty")
	if err := os.WriteFile(file, []byte(nasty), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs output
	cfg := Config{
		Program: "sh", NumRanks: 1, Stdout: &out, Stderr: &errs, LeaveSignals: true,
		Args: []string{"-c", `cat "$0"; printf '10%%\r20%%\r\n'; cat "$0" >&2
printf '{"message": "bad \\u001b[5m\\u009b7m news\\r"}' >"$TORCHELASTIC_ERROR_FILE"; exit 3`, file},
		Logs: Logs{Dir: dir, Tee: RankStreams{AllRanks: Stdout}, Prefix: "\x1b[1m>\x1b[0m "}, // the user's own
	}
	job := ended(t, Run(t.Context(), cfg))
	var report bytes.Buffer
	job.Report(&report)
	if want := "\x1b[1m>\x1b[0m " + plain + "10%\r\x1b[1m>\x1b[0m 20%\r\n"; out.String() != want {
		t.Errorf("standard output is\n%q, want\n%q", out.String(), want)
	}
	for _, want := range []string{"    | " + plain + "\n", `    | bad ^[[5m\u009b7m news` + "\n"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("the report lacks %q:\n%q", want, report.String())
		}
	}
	for _, c := range report.String() {
		if c != '\n' && c != '\t' && visible.IsControl(c) {
			t.Errorf("the report has %q", report.String())
			break
		}
	}
	logs, _ := filepath.Glob(dir + "/none_*/attempt_0/0/stdout.log")
	if len(logs) != 1 {
		t.Fatal(logs)
	}
	if got, err := os.ReadFile(logs[0]); err != nil || string(got) != nasty+"10%\r20%\r\n" {
		t.Errorf("the file has %q, %v", got, err)
	}
}

// A program that fails and shows its environment, on either stream, leaves the
// token in no output and no report; nor do the arguments of any process have it.
func TestTokenIsNotInOutputOrReport(t *testing.T) {
	token := strings.Repeat("c0ffee01", 8)
	var stdout, stderr output
	cfg := self(t, 2, "exit")
	cfg.Program, cfg.Direct, cfg.Args = "sh", false, []string{"-c", `env; env >&2; cat /proc/$$/cmdline /proc/$PPID/cmdline | tr '\0' ' '; exit 3`}
	cfg.Stdout, cfg.Stderr, cfg.FailGrace = &stdout, &stderr, time.Minute // both are to print all
	cfg.Env = append(cfg.Env, "COHORT_TOKEN="+token)
	err := Run(t.Context(), cfg)
	var job *Error
	if !errors.As(err, &job) {
		t.Fatal(err)
	}
	var report bytes.Buffer
	job.Report(&report)
	all := stdout.String() + stderr.String() + report.String() + err.Error()
	if strings.Contains(all, token) {
		t.Errorf("the token is in\n%s", all)
	}
	if n := strings.Count(all, "COHORT_TOKEN="+strings.Repeat(string(cover), 64)); n < 4 {
		t.Errorf("the token was shown and covered %d times in\n%s", n, all)
	}
}

// A compiler that the launcher starts does not get the token.
func TestBuildDoesNotGetTheToken(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"p/main.go": "package main\n\nfunc main() {}\n", "bin/go": "#!/bin/sh\nenv > " + dir + "/env\nexit 1\n"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	var out output
	cfg := Config{Program: filepath.Join(dir, "p"), NumRanks: 1, Stdout: &out, Stderr: &out, Env: append(os.Environ(), "COHORT_TOKEN="+strings.Repeat("ab", 32), "THING=kept")}
	if err := Run(t.Context(), cfg); err == nil {
		t.Fatal("built by nothing")
	}
	env, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil || !bytes.Contains(env, []byte("THING=kept")) || bytes.Contains(env, []byte("abababab")) {
		t.Errorf("%v: the compiler's environment is\n%s", err, env)
	}
}
