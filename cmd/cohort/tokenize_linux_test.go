// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInterruptedEncoding: Ctrl-C says that the tokens are not complete, and
// nothing takes what is left for a text.
func TestInterruptedEncoding(t *testing.T) {
	dir := t.TempDir()
	corpus, tok, out := filepath.Join(dir, "corpus.txt"), filepath.Join(dir, "tokenizer.json"), filepath.Join(dir, "tokens")
	line := []byte("Every rank reads its share of the text, and none of another's.\n")
	small := filepath.Join(dir, "small.txt")
	if err := os.WriteFile(small, []byte(strings.Repeat(string(line), 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := cohort("tokenize", "train", "--data", small, "--vocab", "300", "--out", tok); code != 0 {
		t.Fatal(stderr)
	}
	if err := os.WriteFile(corpus, []byte(strings.Repeat(string(line), 1_500_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	j := start(t, nil, "tokenize", "encode", "--tokenizer", tok, "--data", corpus, "--out", out, "--workers", "1")
	shard := filepath.Join(out, "train-00000.tokens")
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if info, err := os.Stat(shard); err == nil && info.Size() > 0 {
			break
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatal("there is no shard")
		}
	}
	if err := j.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	code := j.wait(t)
	if _, stderr := j.output(); code != exitFailed || !strings.Contains(stderr, "stopped: "+out+" is not complete") {
		t.Errorf("code %d, %s", code, stderr)
	}
	for _, args := range [][]string{{"train", "lm", "--data", out, "--out", filepath.Join(dir, "run")}, {"tokenize", "decode", "--data", out}} {
		if code, _, stderr := cohort(args...); code == 0 || !strings.Contains(stderr, "encoding did not end") {
			t.Errorf("%q: code %d, %s", args, code, stderr)
		}
	}
}
