// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"slices"
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
		{"interleaved", []string{"0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2", "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2"}},
		{"zbv", []string{"0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2", "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2"}},
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
		{"interleaved", 4, 6, 8, "interleaved for 4 ranks, 6 stages and 8 microbatches: each rank has as many stages, and 6 % 4 = 2: cut the model into 4 or 8 stages"},
		{"interleaved-zb", 4, 2, 8, "2 % 4 = 2: cut the model into 4 stages"},
		{"interleaved", 4, 8, 11, "the microbatches go in 11 / 4 = 2 rounds of equal length, and 11 % 2 = 1: take 10 or 12 microbatches"},
		{"interleaved-zb", 3, 6, 11, "11 % 3 = 2: take 9 or 12 microbatches"},
		{"zbv", 2, 2, 8, "zbv has two stages a rank, and 2 ≠ 2·2: cut the model into 4 stages"},
		{"dualpipev", 2, 0, 3, "it needs as many microbatches as stages, and 3 < 4"},
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

// TestRankOf: stages lie in turn on the ranks, or in the shape of a V.
func TestRankOf(t *testing.T) {
	for _, c := range []struct {
		name string
		want []int
	}{
		{"gpipe", []int{0, 1, 2}}, {"interleaved", []int{0, 1, 2, 0, 1, 2}}, {"zbv", []int{0, 1, 2, 2, 1, 0}}, {"dualpipev", []int{0, 1, 2, 2, 1, 0}},
	} {
		s, err := New(c.name, 3, 0, 6)
		if err != nil {
			t.Fatal(err)
		}
		for stage, want := range c.want {
			rank := s.RankOf(stage)
			if rank != want || !slices.Contains(s.StagesOf(rank), stage) {
				t.Errorf("%s: stage %d lies on rank %d, which has %v, want rank %d", c.name, stage, rank, s.StagesOf(rank), want)
			}
		}
	}
}
