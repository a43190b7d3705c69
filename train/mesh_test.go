// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

// TestFillRanks: what is left out of replicate × fsdp = ranks follows from the others, and
// an equation that does not hold is printed. The settings are replicate, fsdp, ranks; the
// letters say where they come from: f of a flag, c of a configuration file, - of nobody.
func TestFillRanks(t *testing.T) {
	for _, c := range []struct {
		asked, from string
		want        meshShape
		err         string
	}{
		{"0 0 2", "---", meshShape{2, 1, 2}, ""},
		{"0 0 4", "--f", meshShape{4, 1, 4}, ""},
		{"0 4 2", "-f-", meshShape{1, 4, 4}, ""},
		{"4 0 2", "f--", meshShape{4, 1, 4}, ""},
		{"2 3 2", "ff-", meshShape{2, 3, 6}, ""},
		{"0 2 6", "-ff", meshShape{3, 2, 6}, ""},
		{"2 0 6", "f-f", meshShape{2, 3, 6}, ""},
		{"2 3 6", "fff", meshShape{2, 3, 6}, ""},
		{"2 3 4", "fff", meshShape{}, "--replicate 2 × --fsdp 3 = --ranks 4: the product is 6; leave one of the three out"},
		{"0 3 4", "-ff", meshShape{}, "--replicate ? × --fsdp 3 = --ranks 4: 4 is no multiple of 3"},
		{"3 0 4", "f-f", meshShape{}, "--replicate 3 × --fsdp ? = --ranks 4: 4 is no multiple of 3"},
		// A flag comes before the file.
		{"2 2 8", "ccf", meshShape{4, 2, 8}, ""},
		{"2 4 4", "cfc", meshShape{1, 4, 4}, ""},
		{"1 2 4", "fcc", meshShape{1, 2, 2}, ""},
		{"2 2 3", "ccf", meshShape{}, "the product is 4"},
		{"2 3 4", "ccc", meshShape{}, "the product is 6"},
		{"0 3 4", "-cc", meshShape{}, "4 is no multiple of 3"},
	} {
		var s SharedConfig
		var from [3]byte
		for i, v := range strings.Fields(c.asked) {
			*[...]*int{&s.Replicate, &s.FSDP, &s.Ranks}[i] = int(v[0] - '0')
		}
		copy(from[:], c.from)
		given := map[string]string{}
		for i, name := range []string{"replicate", "fsdp", "ranks"} {
			if source := map[byte]string{'f': "flag", 'c': "a.toml:3"}[from[i]]; source != "" {
				given[name] = source
			}
		}
		err := s.FillRanks("lm", given)
		switch got := (meshShape{s.Replicate, s.FSDP, s.Ranks}); {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), "train lm: ") || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s (%s): %v, want %q", c.asked, c.from, err, c.err)
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("%s (%s): %v, %v, want %v", c.asked, c.from, got, err, c.want)
		}
	}
}

// TestJoin: a rank of a job that was started by flags for the axes and a file for the rest
// does not hold the number of ranks in the file against the job.
func TestJoin(t *testing.T) {
	for _, c := range []struct {
		from map[string]string
		err  string
	}{
		{map[string]string{"ranks": "a.toml:3", "replicate": "a.toml:4", "fsdp": "flag"}, ""},
		{map[string]string{"ranks": "a.toml:3", "fsdp": "a.toml:4"}, "train lm: ranks is 2 (a.toml:3), but this job was started with 4: leave the setting out"},
		{map[string]string{"ranks": "flag"}, "train lm: --ranks is 2, but this job was started with 4: leave the flag out"},
	} {
		err := dist.Spawn(t.Context(), 4, func(_ context.Context, g *dist.Group) error {
			s := SharedConfig{Replicate: 1, FSDP: 4, Ranks: 2}
			err := s.join("lm", g, c.from)
			if err == nil && (s.Replicate != 1 || s.FSDP != 4 || s.Ranks != 4) {
				err = fmt.Errorf("the axes are %+v", s)
			}
			return err
		})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v, want %q", c.from, err, c.err)
		}
	}
}

// TestArrange: in a job the number of ranks is what it is, and the axes follow or are
// refused.
func TestArrange(t *testing.T) {
	flags := map[string]string{"fsdp": "flag", "replicate": "flag"}
	s := SharedConfig{FSDP: 2, Ranks: 2}
	if err := s.arrange("lm", 6, flags); err != nil || s.Replicate != 3 || s.FSDP != 2 || s.Ranks != 6 {
		t.Errorf("%+v, %v", s, err)
	}
	s = SharedConfig{FSDP: 2, Replicate: 2, Ranks: 2}
	want := "train lm: this job was started with 6 ranks, and --replicate 2 × --fsdp 2 = ranks 6: the product is 4"
	if err := s.arrange("lm", 6, flags); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	s = SharedConfig{Ranks: 2}
	if err := s.arrange("lm", 3, nil); err != nil || s.Replicate != 3 || s.FSDP != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}
