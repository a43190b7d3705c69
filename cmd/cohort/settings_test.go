// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/train"
)

// TestSettingsFile: what is wrong with a file is said with its place.
func TestSettingsFile(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"steps = 20\nlr = 1e-3 # slow\n\n\"save-every\" = 5\nprompt = '''a\nb'''\n", ""},
		{"", ""},
		{"steps = 20\n  setps = 30\n", "x.toml:2:3: unknown setting setps: did you mean steps?"},
		{"save_every = 20\n", "x.toml:1:1: unknown setting save_every: did you mean save-every?"},
		{"colour = 'red'\n", "x.toml:1:1: unknown setting colour; there are data, steps, vocab, "},
		{"\nsteps = '20'\n", `x.toml:2:1: steps is the string "20", want a whole number`},
		{"steps = 2_0.5\n", "x.toml:1:1: steps is 20.5, want a whole number"},
		{"steps = 1979-05-27\n", "x.toml:1:1: steps is 1979-05-27, want a whole number"},
		{"steps = 20\n[model]\nwidth = 3\n", "x.toml:2:2: model is a table"},
		{"[[model]]\nwidth = 3\n", "x.toml:1:3: model is a table"},
		{"model.width = 3\n", "x.toml:1:1: model is a table"},
		{"data = {a = 1}\n", "x.toml:1:1: data is a table, want a string"},
		{"steps = 20\nsteps = 30\n", "x.toml:2:1: key steps is already defined"},
		{"steps = = 20\n", "x.toml:1:9: unexpected character"},
		{"steps = 20 lr = 3\n", "x.toml:1:12: "},
		{"steps = 99999999999999999999\n", "x.toml:1:9: "},
	} {
		cfg := train.DefaultLM()
		err := parseSettings("x.toml", []byte(c.text), config.New(&cfg))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.want)
		}
	}
	cfg := train.DefaultLM()
	s := config.New(&cfg)
	if err := s.Field("steps").SetText("7", config.Flag); err != nil {
		t.Fatal(err)
	}
	if err := parseSettings("x.toml", []byte("# a\nsteps = 20\n\nlr = 1\nprompt = 'a'"), s); err != nil {
		t.Fatal(err)
	}
	if cfg.Steps != 7 || cfg.LR != 1 || cfg.Prompt != "a" {
		t.Errorf("%+v", cfg)
	}
	if got, want := s.Given(), map[string]string{"steps": "flag", "lr": "x.toml:4", "prompt": "x.toml:5"}; !reflect.DeepEqual(got, want) {
		t.Errorf("given %v, want %v", got, want)
	}

	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("# a comment\n"), maxSettingsBytes/12+1), 0o666); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "no.toml"): "no such file", dir: dir + " is not a file", os.DevNull: "is not a file", large: "has more than 1048576 bytes",
	} {
		if err := readSettings(path, s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestPrintConfig: the text is a file that says the same.
func TestPrintConfig(t *testing.T) {
	dir := t.TempDir()
	file, out := filepath.Join(dir, "my.toml"), filepath.Join(dir, "out")
	if err := os.WriteFile(file, []byte("steps = 33\nclip = inf\nprompt = \"\\\"x\\\\\"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	printed := func(args ...string) string {
		t.Helper()
		var stdout bytes.Buffer
		root := newRoot(&stdout, io.Discard)
		root.SetArgs(append([]string{"train", "lm", "--print-config"}, args...))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return stdout.String()
	}
	text := printed("--config", file, "--lr", "0.5", "--out", out)
	for _, want := range []string{"\nsteps = 33 ", "# " + file + ":1\n", "\nclip = inf ", "# " + file + ":2\n", "\nlr = 0.5 ", "# flag\n", "\nbatch = 4 ", "# default\n", `prompt = "\"x\\"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	again := filepath.Join(dir, "again.toml")
	if err := os.WriteFile(again, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	values := func(text string) (lines []string) {
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, "#")
			lines = append(lines, strings.TrimSpace(line))
		}
		return lines
	}
	if got, want := values(printed("--config", again)), values(text); !reflect.DeepEqual(got, want) {
		t.Errorf("%q\nfrom %q", got, want)
	}
	tuned := filepath.Join("..", "..", "train", "testdata", "finetune")
	text = printed("--init-from", filepath.Join(tuned, "llama"), "--data", filepath.Join(tuned, "text.txt"), "--lora", "4")
	for _, want := range []string{"\nout = \"out/lora\" ", "\nsteps = 200 ", "# default of --init-from\n", "\nlr = 0.001 ", "# the model's\n", "\nclip = 1.0 "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	island := []string{"--diloco", "50", "--islands", "2", "--islands-at", "127.0.0.1:29500"}
	for want, more := range map[string][]string{"\nwarmup = 0.2 ": nil, "\nwarmup = 0.05 ": {"--warmup", "0.05"}} {
		text = printed(append(more, island...)...)
		if !strings.Contains(text, want) || strings.Contains(text, "# default of --diloco\n") != (more == nil) {
			t.Errorf("%q: no %q in\n%s", more, want, text)
		}
	}
	if code, _, stderr := cohort("train", "lm", "--data", "a", "--data", "b"); code == 0 || !strings.Contains(stderr, `given before, as "a"`) {
		t.Errorf("two places of data: %d %s", code, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func FuzzSettings(f *testing.F) {
	for _, text := range []string{"steps = 20\n", "a.b = {c = [1, 2]}\n", "[[x]]\n", "lr = nan\ndata = \"\\u00e9\"\n", "# c\n\n'out' = '''\nx'''"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		cfg := train.DefaultLM()
		s := config.New(&cfg)
		if parseSettings("x", text, s) != nil {
			return
		}
		// What was taken can be written and read again.
		again := train.DefaultLM()
		other := config.New(&again)
		if err := parseSettings("y", s.TOML("header"), other); err != nil {
			t.Fatalf("%q gives %q: %v", text, s.TOML("header"), err)
		}
		if got, want := string(other.TOML()), string(s.TOML()); len(strings.Split(got, "\n")) != len(strings.Split(want, "\n")) {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}
