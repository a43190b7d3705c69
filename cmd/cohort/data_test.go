// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
)

// proof writes the order logs of a run of two ranks, three steps, and a
// checkpoint of the last.
func proof(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var state data.LoaderState
	for rank := range 2 {
		s, err := data.NewStream(data.StreamConfig{Len: 9, Batch: 2, Rank: rank, World: 2, Shuffle: true, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		l, err := data.OpenOrderLog(filepath.Join(dir, data.OrderDir), rank)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		state = data.LoaderState{Order: s.Order()}
		if err := l.Begin(data.OrderAttempt{Attempt: 1, World: 2, Batch: 2, From: state}); err != nil {
			t.Fatal(err)
		}
		for step := range 3 {
			var keys []data.Key
			keys, state.Position = s.Batch(nil, state.Position)
			l.Add(keys, nil)
			if err := l.Step(step+1, state.Position); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.End(); err != nil {
			t.Fatal(err)
		}
	}
	loader, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	err = checkpoint.Save(context.Background(), nil, storage.Dir(dir), 3, checkpoint.State{
		Values: map[string]any{checkpoint.ProgressValue: checkpoint.Progress{Step: 3, Loader: loader, Recipe: json.RawMessage("{}")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDataCheck(t *testing.T) {
	check := func(args ...string) (string, error) {
		var out, errs bytes.Buffer
		root := newRoot(&out, &errs)
		root.SetArgs(append([]string{"data", "check"}, args...))
		err := root.ExecuteContext(t.Context())
		return out.String() + errs.String(), err
	}
	dir := proof(t)
	text, err := check(dir)
	if err != nil || !strings.Contains(text, "3 steps took 12 samples of a dataset of 9: in each step those of the promised order") {
		t.Errorf("%v\n%s", err, text)
	}
	text, err = check("--json", filepath.Join(dir, data.OrderDir))
	var report data.OrderReport
	if err != nil || json.Unmarshal([]byte(text), &report) != nil || report.Steps != 3 || report.Epochs != 1 || report.Rest != 3 {
		t.Errorf("%v\n%s", err, text)
	}
	path := filepath.Join(dir, data.OrderDir, "rank-1.log")
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The last two lines of all ranks are lost, which only the checkpoint knows.
	for _, name := range []string{"rank-0.log", "rank-1.log"} {
		lines := bytes.SplitAfter(log, []byte("\n"))
		if name == "rank-0.log" {
			other, err := os.ReadFile(filepath.Join(dir, data.OrderDir, name))
			if err != nil {
				t.Fatal(err)
			}
			lines = bytes.SplitAfter(other, []byte("\n"))
		}
		if err := os.WriteFile(filepath.Join(dir, data.OrderDir, name), bytes.Join(lines[:3], nil), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	text, err = check(dir)
	if err == nil || !strings.Contains(text, "the run has a checkpoint of step 3, the logs end at step 2: they were cut off") {
		t.Errorf("%v\n%s", err, text)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if text, err = check(dir); err == nil || !strings.HasPrefix(text, "WRONG: ") || strings.Contains(text, "took 0 samples") {
		t.Errorf("without a log: %v\n%s", err, text)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "needs the directory of one run"},
		{[]string{t.TempDir()}, "order is missing"},
		{[]string{"a", "b"}, "got 2"},
	} {
		if _, err := check(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
