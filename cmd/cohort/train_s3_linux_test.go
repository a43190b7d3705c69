// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
)

// answer is a command, and a part of what it prints.
type answer struct {
	want string
	args []string
}

// check runs the command.
func (a answer) check(t *testing.T) {
	t.Helper()
	j := start(t, nil, a.args...)
	code := j.wait(t)
	if stdout, stderr := j.output(); code != 0 || !strings.Contains(stdout, a.want) {
		t.Errorf("cohort %s: code %d, want %q in\n%s\n%s", strings.Join(a.args, " "), code, a.want, stdout, stderr)
	}
}

// TestTrainInBucket: a run that saves in a bucket, behind a proxy that spoils a part of the
// requests, is killed and goes on bit for bit; its model is evaluated, generated with, begun with
// and proved from the bucket. The second server is not written in Go.
func TestTrainInBucket(t *testing.T) {
	text, out := writeText(t), filepath.Join(t.TempDir(), "whole")
	flags := []string{"--json", "--steps", "40", "--save-every", "8", "--eval-every", "20"}
	want := whole(t, tiny(text, out, flags...))
	t.Run("gofakes3", func(t *testing.T) { trainInBucket(t, s3test.GoFake(t), text, flags, want) })
	t.Run("moto", func(t *testing.T) {
		trainInBucket(t, s3test.Moto(t, filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS"))...), text, flags, want)
	})
	t.Run("web", func(t *testing.T) {
		server := httptest.NewServer(http.FileServer(http.Dir(out)))
		defer server.Close()
		for _, a := range []answer{
			{"bits per byte", []string{"eval", "--from", server.URL + "/step-00000040", "--tokens", "256"}},
			{"abc", []string{"generate", "--from", server.URL + "/best/step-00000040", "--prompt", "abc", "--tokens", "5"}},
			{"all bits are equal", []string{"ckpt", "prove", server.URL + "/step-00000032"}},
		} {
			a.check(t)
		}
		j := start(t, nil, "eval", "--from", server.URL)
		if code := j.wait(t); code != exitFailed {
			t.Errorf("code %d of a run on a web server", code)
		}
		if _, stderr := j.output(); !strings.Contains(stderr, "give the address of one checkpoint") {
			t.Errorf("a run on a web server: %s", stderr)
		}
	})
}

// trainInBucket trains in the bucket of a server; want are the losses of the same run elsewhere.
func trainInBucket(t *testing.T, server *s3test.Server, text string, flags []string, want map[int]float64) {
	const seed = 5
	t.Logf("seed %d", seed)
	s3test.Credentials(t)
	proxy := s3test.NewProxy(t, server, seed, s3test.Faults{Rate: 0.05, Delay: 3 * time.Millisecond})
	defer func() { t.Log(proxy) }()
	dir, place := t.TempDir(), proxy.Address("lm")
	args := tiny(text, filepath.Join(dir, "run"), append(flags, "--keep", "9", "--save-to", place)...)

	j := start(t, nil, args...)
	j.await(t, "step 20", func(s string) bool { return strings.Contains(s, `{"step":20,`) })
	for _, pid := range j.processes(-1) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	j.wait(t)
	j.gone(t)
	stdout, _ := j.output()
	before := steps(t, stdout)

	j = start(t, nil, append(args, "--prove")...)
	code := j.wait(t)
	stdout, stderr := j.output()
	if code != 0 || !strings.Contains(stderr, "is proved in") || strings.Contains(stderr, "could not be proved") || strings.Contains(stderr, "WARNING") {
		t.Errorf("code %d of the run that went on:\n%s", code, stderr)
	}
	after := steps(t, stdout)
	if first := len(want) - len(after) + 1; first <= 1 || first > len(before)+1 {
		t.Errorf("the run was killed after step %d and went on with step %d", len(before), first)
	}
	for step, loss := range after {
		if loss != want[step] {
			t.Errorf("step %d: loss %v, undisturbed %v", step, loss, want[step])
		}
	}

	tuned := func(name string) []string {
		return []string{"train", "lm", "--init-from", place, "--data", text, "--out", filepath.Join(dir, name), "--save-to", proxy.Address(name), "--steps", "2", "--batch", "2"}
	}
	for _, a := range []answer{
		{"copied", []string{"ckpt", "cp", proxy.Address("lm/step-00000032"), filepath.Join(dir, "copy")}},
		{"all bits are equal", []string{"ckpt", "prove", filepath.Join(dir, "copy")}},
		{"step-00000040", []string{"ckpt", "verify", place}},
		{"bits per byte", []string{"eval", "--from", place, "--tokens", "256"}},
		{"abc", []string{"generate", "--from", place, "--step", "40", "--prompt", "abc", "--tokens", "5"}},
		{"all bits are equal", []string{"ckpt", "prove", place}},
		{"generate --from '" + proxy.Address("tuned"), tuned("tuned")},
		{"generate --from '" + proxy.Address("lora"), append(tuned("lora"), "--lora", "2", "--fsdp", "2")},
		{"bits per byte", []string{"eval", "--from", proxy.Address("lora"), "--tokens", "256"}},
	} {
		a.check(t)
	}
}
