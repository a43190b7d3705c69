// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"strings"
	"testing"
)

// text returns the actions of a rank in one line.
func text(actions []Action) string {
	var words []string
	for _, a := range actions {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// TestSmall: the orders of a pipeline that can be checked by hand.
func TestSmall(t *testing.T) {
	for _, c := range []struct {
		name string
		want []string
	}{
		{"gpipe", []string{"0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"}},
		{"1f1b", []string{"0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"}},
	} {
		s, err := New(c.name, 2, 0, 3)
		if err != nil {
			t.Fatal(err)
		}
		for rank, want := range c.want {
			if got := text(s.Ranks[rank]); got != want {
				t.Errorf("%s: rank %d does %s, want %s", c.name, rank, got, want)
			}
		}
	}
}

// TestErrors: numbers that do not fit are refused with the equation.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name                      string
		ranks, stages, microbatch int
		want                      string
	}{
		{"1f1b", 4, 4, 3, "schedule: 1f1b for 4 ranks, 4 stages and 3 microbatches: it needs as many microbatches as stages, and 3 < 4: accumulate over 4 passes or more, or take gpipe"},
		{"1f1b", 2, 4, 8, "1f1b has one stage a rank, and 4 ≠ 2: cut the model into 2 stages, or take interleaved"},
		{"gpipe", 2, 1, 8, "gpipe has one stage a rank, and 1 ≠ 2"},
		{"gpipe", 0, 0, 8, "a pipeline has at least 1 rank"},
		{"gpipe", 1, -1, 8, "a pipeline has at least 1 stage"},
		{"gpipe", 1, 1, 0, "a step has at least 1 microbatch"},
	} {
		_, err := New(c.name, c.ranks, c.stages, c.microbatch)
		var e *CountError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %d %d %d: %v, want %s", c.name, c.ranks, c.stages, c.microbatch, err, c.want)
		}
	}
	_, err := New("1f1", 2, 2, 2)
	var e *NameError
	if !errors.As(err, &e) || e.Nearest != "1f1b" || !strings.Contains(err.Error(), `there is no schedule "1f1", did you mean "1f1b"?`) {
		t.Errorf("%v", err)
	}
	if _, err := New("breadth", 2, 2, 2); err == nil || strings.Contains(err.Error(), "did you mean") {
		t.Errorf("%v", err)
	}
}
