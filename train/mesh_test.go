// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

// TestFillRanks: what is left out of the axes and of the ranks follows from the others, and
// an equation that does not hold is printed. The settings are pp, replicate, fsdp, ep, cp, tp
// and the ranks; the letters say where they come from: f of a flag, c of a configuration
// file, - of nobody.
func TestFillRanks(t *testing.T) {
	for _, c := range []struct {
		asked, from, want, err string
	}{
		{"0 0 0 0 0 0 2", "-------", "1 2 1 1 1 1 2", ""},
		{"0 0 0 0 0 0 4", "------f", "1 4 1 1 1 1 4", ""},
		{"0 0 4 0 0 0 2", "--f----", "1 1 4 1 1 1 4", ""},
		{"0 4 0 0 0 0 2", "-f-----", "1 4 1 1 1 1 4", ""},
		{"0 2 3 0 0 0 2", "-ff----", "1 2 3 1 1 1 6", ""},
		{"0 0 2 0 0 0 6", "--f---f", "1 3 2 1 1 1 6", ""},
		{"0 2 0 0 0 0 6", "-f----f", "1 2 3 1 1 1 6", ""},
		{"0 2 3 0 0 0 6", "-ff---f", "1 2 3 1 1 1 6", ""},
		{"0 2 3 0 0 0 4", "-ff---f", "", "--replicate 2 × --fsdp 3 = --ranks 4: the product is 6; leave one of them out"},
		{"0 0 3 0 0 0 4", "--f---f", "", "--replicate ? × --fsdp 3 = --ranks 4: 4 is no multiple of 3"},
		{"0 3 0 0 0 0 4", "-f----f", "", "--replicate 3 × --fsdp ? = --ranks 4: 4 is no multiple of 3"},
		// The other axes are 1 unless they are given, or alone left out.
		{"0 0 0 0 0 2 2", "-----f-", "1 1 1 1 1 2 2", ""},
		{"2 0 0 0 0 2 2", "f----f-", "2 1 1 1 1 2 4", ""},
		{"2 0 2 0 0 2 8", "f-f--ff", "2 1 2 1 1 2 8", ""},
		{"0 0 0 2 2 0 8", "---ff-f", "1 2 1 2 2 1 8", ""},
		{"0 1 0 2 0 0 8", "-f-f--f", "1 1 4 2 1 1 8", ""},
		{"1 1 2 1 1 0 8", "fffff-f", "1 1 2 1 1 4 8", ""},
		{"2 1 2 0 0 3 8", "fff--ff", "", "--pp 2 × --replicate 1 × --fsdp 2 × --tp 3 = --ranks 8: the product is 12; leave one of them out"},
		{"0 0 0 0 0 3 4", "-----ff", "", "--replicate ? × --tp 3 = --ranks 4: 4 is no multiple of 3"},
		// A flag comes before the file.
		{"0 2 2 0 0 0 8", "-cc---f", "1 4 2 1 1 1 8", ""},
		{"0 2 4 0 0 0 4", "-cf---c", "1 1 4 1 1 1 4", ""},
		{"0 1 2 0 0 0 4", "-fc---c", "1 1 2 1 1 1 2", ""},
		{"1 2 1 1 1 2 2", "cccccfc", "1 1 1 1 1 2 2", ""},
		{"1 1 2 1 1 2 2", "cccccfc", "1 1 2 1 1 2 4", ""},
		{"0 2 2 0 0 0 3", "-cc---f", "", "the product is 4"},
		{"0 2 3 0 0 0 4", "-cc---c", "", "the product is 6"},
		{"0 0 3 0 0 0 4", "--c---c", "", "4 is no multiple of 3"},
	} {
		var s SharedConfig
		given := map[string]string{}
		for i, v := range strings.Fields(c.asked) {
			name, field := "ranks", &s.Ranks
			if i < len(axisNames) {
				name, field = axisNames[i], s.MeshConfig.size(axisNames[i])
			}
			*field = int(v[0] - '0')
			if source := map[byte]string{'f': "flag", 'c': "a.toml:3"}[c.from[i]]; source != "" {
				given[name] = source
			}
		}
		err := s.FillRanks("lm", given)
		sizes := s.sizes()
		got := strings.Trim(fmt.Sprint(append(sizes[:], s.Ranks)), "[]")
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), "train lm: ") || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s (%s): %v, want %q", c.asked, c.from, err, c.err)
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("%s (%s): %v, %v, want %v", c.asked, c.from, got, err, c.want)
		}
	}
}

// TestHugeMesh: sizes whose product fits no number are refused, not multiplied.
func TestHugeMesh(t *testing.T) {
	c := DefaultLM()
	c.MeshConfig = MeshConfig{Replicate: mostRanks, FSDP: mostRanks, TP: mostRanks, PP: mostRanks, EP: mostRanks, CP: mostRanks}
	if err := c.FillRanks("lm", map[string]string{"tp": "flag"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--ranks is ") {
		t.Errorf("%d ranks: %v", c.Ranks, err)
	}
}

// TestOnlyData: a recipe whose model is not split over an axis refuses it by name.
func TestOnlyData(t *testing.T) {
	v, r := DefaultVision(), DefaultRec()
	v.TP, r.PP = 2, 3
	for want, err := range map[string]error{
		"train vision: --tp is 2, and an image classifier is not split over the axis tp: leave --tp out, and use --replicate and --fsdp": v.Validate(),
		"train rec: --pp is 3, and a recommender is not split over the axis pp: leave --pp out, and use --replicate and --fsdp":          r.Validate(),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
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
			s := SharedConfig{MeshConfig: MeshConfig{Replicate: 1, FSDP: 4}, Ranks: 2}
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
	s := SharedConfig{MeshConfig: MeshConfig{FSDP: 2}, Ranks: 2}
	if err := s.arrange("lm", 6, flags); err != nil || s.Replicate != 3 || s.FSDP != 2 || s.Ranks != 6 {
		t.Errorf("%+v, %v", s, err)
	}
	s = SharedConfig{MeshConfig: MeshConfig{FSDP: 2, Replicate: 2}, Ranks: 2}
	want := "train lm: this job was started with 6 ranks, and --replicate 2 × --fsdp 2 = ranks 6: the product is 4"
	if err := s.arrange("lm", 6, flags); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	s = SharedConfig{Ranks: 2}
	if err := s.arrange("lm", 3, nil); err != nil || s.Replicate != 3 || s.FSDP != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}
