// SPDX-License-Identifier: Apache-2.0

package event

import (
	"encoding/json"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sample() File {
	s := New(time.Now())
	c := s.Channel("world", 1, []int{0, 1})
	c.Ended(&Call{Op: 1, Name: "all_reduce", Bytes: 12, Span: Span{0, 1, 3}})
	s.StepDone(7, StepNumbers{Loss: math.NaN(), LearningRate: 0.5})
	s.Holds(MemoryNumbers{Resident: 5})
	return File{Rank: 1, WorldSize: 2, Host: "h", PID: 3, Request: 4, Figures: s.Figures()}
}

// TestFile: a file comes back as it was; what is not finite is left out.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	want := sample()
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFile(filepath.Join(dir, FileName(1)))
	if err != nil {
		t.Fatal(err)
	}
	want.Version = FileVersion
	want.Figures.Time, want.Figures.Start, got.Figures.Time, got.Figures.Start = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if _, ok := got.Figures.Last["loss"]; ok || got.Figures.Last["learning_rate"] != 0.5 || got.Figures.Channels[0].Ops[0].Running != 2 {
		t.Errorf("got %+v", got.Figures)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestBadFiles(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "other": "[]", "version": `{"version":2,"world_size":1}`, "rank": `{"version":1,"rank":1,"world_size":1}`,
		"large": strings.Repeat(" ", maxFile+1), "commas": "[" + strings.Repeat("0,", maxCommas+1) + "0]",
		"groups": `{"version":1,"world_size":1,"figures":{"groups":[` + strings.Repeat(`{},`, maxChannels) + `{}]}}`,
		"name":   `{"version":1,"world_size":1,"figures":{"groups":[{"name":"` + strings.Repeat("x", maxText+1) + `"}]}}`,
	} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzFile(f *testing.F) {
	s := sample()
	s.Version = FileVersion
	text, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := parse(text); err == nil && (got.Rank >= got.WorldSize || len(got.Figures.Channels) > maxChannels) {
			t.Errorf("got %+v", got)
		}
	})
}
