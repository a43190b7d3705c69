// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/monitor/history"
)

// ranksOf draws a record of so many ranks.
func ranksOf(r *rand.Rand, n, step int) history.Ranks {
	column := func() history.Column {
		c := make(history.Column, n)
		for i := range c {
			c[i] = float64(r.IntN(1e4)) / 1e4
		}
		return c
	}
	out := history.Ranks{Step: step, Steps: 2, Time: history.Seconds(step), Seconds: 1, Phases: map[string]history.Column{"forward": column(), "waiting": column()},
		Hidden: column(), Late: column(), ForSeconds: column(), CPU: column(), GC: column()}
	for i := range n {
		out.For = append(out.For, (i+1)%n)
		out.Resident = append(out.Resident, int64(step))
	}
	return out
}

// TestRanks: records of ranks come back as they were, and thinning keeps their sums and the file small.
func TestRanks(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for _, c := range []struct{ ranks, records int }{{2, 3}, {2, 5000}, {512, 300}} {
		dir := t.TempDir()
		w := create(t, dir, run(0))
		sum := map[string]float64{}
		var first history.Ranks
		for i := range c.records {
			record := ranksOf(r, c.ranks, 2*(i+1))
			if i == 0 {
				first = record
			}
			for name, column := range record.Phases {
				sum[name] += column[1]
			}
			sum["late"] += record.Late[1]
			w.Ranks(record)
		}
		w.Close(patience)
		if err := w.Err(); err != nil {
			t.Fatal(err)
		}
		h := read(t, dir)
		steps, got := 0, map[string]float64{}
		for _, record := range h.Ranks {
			steps += record.Steps
			for name, column := range record.Phases {
				got[name] += column[1]
			}
			got["late"] += record.Late[1]
		}
		for name, want := range sum {
			if math.Abs(got[name]-want) > 1e-4*float64(c.records) {
				t.Errorf("%d records of %d ranks: %s is %v, want %v", c.records, c.ranks, name, got[name], want)
			}
		}
		if steps != 2*c.records {
			t.Errorf("%d steps, want %d", steps, 2*c.records)
		}
		if c.records == 3 && !reflect.DeepEqual(h.Ranks[0], first) {
			t.Errorf("got %+v, want %+v", h.Ranks[0], first)
		}
		info, err := os.Stat(filepath.Join(dir, history.FileName))
		if err != nil || info.Size() > 4<<20 {
			t.Errorf("%d records of %d ranks: %d bytes, %v", c.records, c.ranks, info.Size(), err)
		}
	}
}

// TestValues: each name keeps its curve, and there are not too many.
func TestValues(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	refused := 0
	for i := 1; i <= 400; i++ {
		for name := range history.MaxNames + 1 {
			if !w.Value(history.Value{Step: i, Name: fmt.Sprint(name), Value: history.Number(i)}) {
				refused++
			}
		}
	}
	w.Close(patience)
	h := read(t, dir)
	per := map[string]int{}
	for _, v := range h.Values {
		per[v.Name]++
	}
	if refused != 400 || len(per) != history.MaxNames || len(h.Values) > history.MaxValues {
		t.Errorf("%d refused, %d names, %d values", refused, len(per), len(h.Values))
	}
	for name, n := range per {
		if n < 40 {
			t.Errorf("of the values of %s %d are left", name, n)
		}
	}
}

// TestBadRanks: records that cannot be are refused.
func TestBadRanks(t *testing.T) {
	for _, line := range []string{
		`{"kind":"ranks","steps":-1}`, `{"kind":"ranks","phases":{"a":[1],"b":[1,2]}}`, `{"kind":"ranks","phases":{"a":[1]},"late":[1,2]}`,
		`{"kind":"ranks","phases":{"a":[1]},"for":[1]}`, `{"kind":"ranks","phases":{"a":[1]},"for":[]}`, `{"kind":"ranks","phases":{"a":[1]},"resident":[1,2]}`,
	} {
		if _, err := history.Read(strings.NewReader(`{"kind":"run","version":1}` + "\n" + line + "\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: got %v", line, err)
		}
	}
}
