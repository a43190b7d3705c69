// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// job makes the dumps of a job whose ranks have ended a number of collectives,
// one every 10 ms, and wait in nothing.
func job(numRanks, numCalls int) []*Dump {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	dumps := make([]*Dump, numRanks)
	for r := range dumps {
		d := &Dump{Version: Version, Rank: r, WorldSize: numRanks, Host: fmt.Sprintf("h%d", r/8), PID: 1000 + r, Reason: "asked", Start: start,
			Sites:  []string{"", "app/train.go:88 main.train"},
			Groups: []Group{{Name: "world", Key: "world", Rank: r, Size: numRanks, Transport: "tcp"}}}
		for m := range numRanks {
			d.Groups[0].Members = append(d.Groups[0].Members, Member{Rank: m, Host: fmt.Sprintf("h%d", m/8), PID: 1000 + m})
		}
		for range numCalls {
			d.end(d.call("all_reduce"), 2*ms)
		}
		d.TimeNS = int64(numCalls)*10*ms + 3000*ms
		dumps[r] = d
	}
	return dumps
}

// TestUnrecorded: of PyTorch's ranks, which have no dumps, nobody says that they did not
// come, or that they are the cause when a neighbour waited for them.
func TestUnrecorded(t *testing.T) {
	dumps := job(4, 3)[2:]
	for i, d := range dumps {
		d.Groups[0].Transport = "gloo"
		d.fail(d.call("all_reduce"), 2000*ms, "timed out", i)
	}
	r := Merge(dumps)
	text := strings.Join(r.Lines(), "\n")
	if w := r.Groups[0].Waiting; w.Missing.Count() != 0 || w.Unrecorded.String() != "0-1" || r.Unrecorded().String() != "0-1" ||
		r.Known(ranksOf([]int{0, 2})).Count() != 0 || !strings.Contains(text, "; ranks 2-3 had called it; ") || strings.Contains(text, "had not come") || strings.Contains(text, "because of") ||
		!strings.Contains(text, "whether ranks 0-1 called it is not known: there is no dump (PyTorch's ranks keep none)") {
		t.Errorf("the report is %+v:\n%s", w, text)
	}
	// Nobody waits with a rank that failed by itself.
	alone := job(4, 3)
	alone[3].call("all_reduce")
	if k := Merge(alone).Known(ranksOf([]int{2})); k.String() != "2" {
		t.Errorf("known are %q, want 2", k)
	}
}

// call adds a collective that has begun, 10 ms after the one before.
func (d *Dump) call(op string) *Entry {
	g := &d.Groups[0]
	g.Called++
	g.Begun++
	at := int64(g.Called) * 10 * ms
	e := Entry{Op: op, Seq: g.Called, CalledNS: at, BegunNS: at, State: Begun, Site: 1}
	if op != "barrier" {
		e.DType, e.Count, e.Reduce = "float32", 4, "sum"
	}
	d.Entries = append(d.Entries, e)
	return &d.Entries[len(d.Entries)-1]
}

func (d *Dump) end(e *Entry, tookNS int64) {
	e.EndedNS, e.State = e.BegunNS+tookNS, Ended
	d.Groups[0].Ended = e.Seq
}

func (d *Dump) fail(e *Entry, tookNS int64, text string, culprits ...int) {
	e.EndedNS, e.State, e.Error = e.BegunNS+tookNS, Failed, text
	d.Groups[0].Error, d.Groups[0].Culprits, d.Reason = text, culprits, "failed: "+text
}

func TestReport(t *testing.T) {
	const site = " (app/train.go:88 main.train)"
	for _, tc := range []struct {
		name string
		make func() []*Dump
		want []string // the first lines
	}{
		{"idle", func() []*Dump { return job(2, 20) }, []string{`group "world" of 2 ranks: nobody waits; its 20 collectives have ended`}},
		{"one does not come", func() []*Dump {
			ds := job(4, 20)
			for _, r := range []int{0, 1, 3} {
				ds[r].call("all_reduce")
			}
			return ds
		}, []string{
			`group "world": all_reduce 21 waits for rank 2 of 4, 2.99s` + site,
			`  rank 2 (host h0, pid 1002): has not called it; its last was all_reduce 20, ended 3s before its dump` + site,
			`  called by ranks 0-1, 3` + site,
		}},
		{"killed", func() []*Dump {
			ds := job(3, 20)
			for _, r := range []int{0, 1} {
				ds[r].fail(ds[r].call("all_reduce"), 5*ms, "dist: rank 2 died: signal killed", 2)
			}
			return ds[:2]
		}, []string{
			`group "world": all_reduce 21 waited for rank 2 of 3, 5ms` + site,
			`  rank 2 (host h0, pid 1002): no dump: it has ended, does not answer, or its dump is elsewhere`,
			`  called by ranks 0-1` + site,
			`  told to ranks 0-1: dist: rank 2 died: signal killed`,
			`no dump of rank 2 of 3`,
		}},
		{"killed where another is not there yet", func() []*Dump {
			ds := job(3, 20)
			ds[0].fail(ds[0].call("all_reduce"), 5*ms, "dist: rank 2 died: signal killed", 2)
			ds[2].call("all_reduce")
			return ds
		}, []string{`group "world": all_reduce 21 failed because of rank 2 (host h0, pid 1002) of 3, after 5ms` + site + `; rank 1 had not come`}},
		{"an old dump", func() []*Dump {
			ds := job(2, 20)
			ds[0].call("all_reduce")
			ds[1].TimeNS = 205 * ms
			return ds
		}, []string{
			`group "world": all_reduce 21 waits for rank 1 of 2, 2.99s` + site,
			`  rank 1 (host h0, pid 1001): has not called it by its dump, which is 3s older than the latest; its last was all_reduce 20, ended 3ms before its dump` + site,
		}},
		{"late", func() []*Dump {
			ds := job(2, 20)
			ds[0].fail(ds[0].call("all_reduce"), 1000*ms, "timed out waiting for rank 1", 1)
			e := ds[1].call("all_reduce")
			e.CalledNS += 1500 * ms
			e.BegunNS = e.CalledNS
			ds[1].fail(e, 1, "rank 0 failed", 0)
			return ds
		}, []string{
			`group "world": all_reduce 21 waited for rank 1 of 2, 1s` + site,
			`  rank 1 (host h0, pid 1001): came 500ms after the others had given up; failed: rank 0 failed`,
		}},
		{"mismatch", func() []*Dump {
			ds := job(3, 20)
			ds[0].call("all_reduce")
			ds[1].call("barrier")
			ds[1].Sites = append(ds[1].Sites, "app/eval.go:12 main.eval")
			ds[1].Entries[20].Site = 2
			ds[2].call("all_reduce")
			return ds
		}, []string{
			`group "world": call 21 differs: ranks 0, 2 all_reduce sum of 4 float32; rank 1 barrier`,
			`  ranks 0, 2: all_reduce sum of 4 float32` + site,
			`  rank 1: barrier (app/eval.go:12 main.eval)`,
			`group "world": all_reduce 21 runs on ranks 0-2, for 2.99s` + site + `; all 3 ranks have called it`,
		}},
		{"mismatch that was found before some came", func() []*Dump {
			ds := job(3, 20)
			const text = "dist: group \"world\", call 21: ranks called different things"
			ds[0].fail(ds[0].call("all_reduce"), 5*ms, text+": rank 0 a, rank 1 b")
			for _, r := range []int{1, 2} {
				e := ds[r].call("all_reduce")
				e.CalledNS, e.BegunNS, e.Count = e.CalledNS+7*ms, e.BegunNS+7*ms, 5
				ds[r].fail(e, 1*ms, text+": rank 1 b, rank 0 a")
			}
			return ds
		}, []string{
			`group "world": call 21 differs: ranks 1-2 all_reduce sum of 5 float32; rank 0 all_reduce sum of 4 float32`,
			`  ranks 1-2: all_reduce sum of 5 float32` + site,
			`  rank 0: all_reduce sum of 4 float32` + site,
			`  told to ranks 0-2: dist: group "world", call 21: ranks called different things: rank 1 b, rank 0 a`,
		}},
		{"deadlock of groups", func() []*Dump {
			ds := job(2, 20)
			for _, d := range ds {
				d.Groups = append(d.Groups, Group{Name: "pair", Key: "pair 1.0", Rank: d.Rank, Size: 2})
			}
			ds[0].call("all_reduce")
			ds[1].Groups[1].Called = 1
			ds[1].Entries = append(ds[1].Entries, Entry{Group: 1, Op: "barrier", Seq: 1, CalledNS: 220 * ms, BegunNS: 220 * ms, State: Begun, Site: 1})
			return ds
		}, []string{
			`group "world": all_reduce 21 waits for rank 1 of 2, 2.99s` + site,
			`  rank 1 (host h0, pid 1001): has not called it; runs barrier 1 of group "pair", for 2.98s` + site +
				`; its last was all_reduce 20, ended 3s before its dump` + site,
			`  called by rank 0` + site,
			`group "pair": barrier 1 waits for rank 0 of 2, 2.98s` + site,
		}},
		{"message", func() []*Dump {
			ds := job(2, 20)
			zero, one := 0, 1
			ds[0].Entries = append(ds[0].Entries, Entry{Op: "recv", Seq: 3, DType: "float32", Count: 2, Peer: &one, CalledNS: 200 * ms, BegunNS: 200 * ms, State: Begun, Site: 1})
			ds[1].Entries = append(ds[1].Entries, Entry{Op: "send", Seq: 2, DType: "float32", Count: 2, Peer: &zero, CalledNS: 1, BegunNS: 1, EndedNS: 1, State: Ended})
			return ds
		}, []string{
			`group "world": rank 0 waits in recv 3, for 3s, of rank 1 (host h0, pid 1001)` + site,
			`  rank 1 has called 2 in that direction`,
		}},
		{"slow", func() []*Dump {
			ds := job(3, 20)
			for _, r := range []int{0, 2} {
				for i := range ds[r].Entries {
					ds[r].Entries[i].EndedNS += 5 * ms
				}
			}
			return ds
		}, []string{
			`group "world" of 3 ranks: nobody waits; its 20 collectives have ended`,
			`  rank 1 is slow: the others wait 5ms of 9.6ms a step for it`,
		}},
		{"slow by its table", func() []*Dump {
			ds := job(3, 20)
			ds[1].Groups[0].Skew = []Skew{{Rank: 0, LateNS: 1}, {Rank: 2, LateNS: 12 * ms, Share: 0.3, StepNS: 40 * ms}}
			return ds
		}, []string{
			`group "world" of 3 ranks: nobody waits; its 20 collectives have ended`,
			`  rank 2 is slow: the others wait 12ms of 40ms a step for it`,
		}},
		{"forming", func() []*Dump {
			ds := job(4, 0)
			for _, d := range ds {
				d.Groups = nil
			}
			return append(ds[:2], ds[3])
		}, []string{`ranks 0-1, 3 of 4 wait in Init for rank 2`}},
		{"no dumps", func() []*Dump { return nil }, []string{`there are no dumps`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lines := Merge(tc.make()).Lines()
			if len(lines) < len(tc.want) || !slices.Equal(lines[:len(tc.want)], tc.want) {
				t.Errorf("the report is\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// TestReportOf512 is a job of 512 ranks in which three do not come to a
// collective and one has no dump: the first line names them.
func TestReportOf512(t *testing.T) {
	ds := job(512, 40)
	var there []*Dump
	for _, d := range ds {
		if d.Rank != 17 && d.Rank != 230 && d.Rank != 231 {
			d.call("all_reduce")
		}
		if d.Rank != 231 {
			there = append(there, d)
		}
	}
	r := Merge(there)
	want := `group "world": all_reduce 41 waits for ranks 17, 230-231 of 512, 2.99s (app/train.go:88 main.train)`
	if got := r.Lines()[0]; got != want {
		t.Errorf("the first line is\n%s\nwant\n%s", got, want)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"missing":"17,230-231"`, `"no_dump":"231"`, `"pid":1231`, `"why":"no dump"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the JSON has no %s:\n%.2000s", want, text)
		}
	}
	t.Logf("the report:\n%s", strings.Join(r.Lines(), "\n"))
}

func TestRanks(t *testing.T) {
	for _, tc := range []struct {
		list      []int
		text      string
		otherText string // the ranks of 8 that are not in it
	}{
		{nil, "", "0-7"},
		{[]int{3}, "3", "0-2,4-7"},
		{[]int{7, 0, 1, 1, 2, 5}, "0-2,5,7", "3-4,6"},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, "0-7", ""},
	} {
		r := ranksOf(slices.Clone(tc.list))
		if r.String() != tc.text || r.without(8).String() != tc.otherText {
			t.Errorf("%v is %q and %q, want %q and %q", tc.list, r, r.without(8), tc.text, tc.otherText)
		}
		if all := r.union(r.without(8)); all.String() != "0-7" || all.Count() != 8 {
			t.Errorf("%v and the others are %v", tc.list, all)
		}
		for rank := range 8 {
			if r.Has(rank) != slices.Contains(tc.list, rank) {
				t.Errorf("%v has rank %d: %v", tc.list, rank, r.Has(rank))
			}
		}
	}
}

// TestCulprits: whom the errors name who do not only follow from others.
func TestCulprits(t *testing.T) {
	one := func(ranks ...int) Ranks { return ranksOf(ranks) }
	for name, tc := range map[string]struct {
		told []Told
		want string
	}{
		"most name it":                  {[]Told{{Ranks: one(0, 1), Culprits: one(3)}, {Ranks: one(2), Culprits: one(0)}}, "3"},
		"one for another that it lost":  {[]Told{{Ranks: one(1, 3), Culprits: one(0)}, {Ranks: one(0), Culprits: one(2)}}, "2"},
		"the same in different words":   {[]Told{{Ranks: one(3), Culprits: one(0)}, {Ranks: one(1), Culprits: one(2)}, {Ranks: one(4), Culprits: one(2)}}, "2"},
		"each names the other":          {[]Told{{Ranks: one(0), Culprits: one(1)}, {Ranks: one(1), Culprits: one(0)}}, "1"},
		"it was given up and wakes":     {[]Told{{Ranks: one(0, 1, 3), Culprits: one(2)}, {Ranks: one(2), Culprits: one(0)}}, "2"},
		"most ranks":                    {[]Told{{Ranks: one(0), Culprits: one(1, 2, 3)}}, ""},
		"nobody":                        {[]Told{{Ranks: one(0)}}, ""},
		"some do not know, others know": {[]Told{{Ranks: one(0, 1)}, {Ranks: one(3), Culprits: one(2)}}, "2"},
	} {
		r := Report{Groups: []GroupReport{{Size: 5, Told: tc.told}}}
		if got := r.Culprits().String(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		r.Groups[0].Mismatches = []Mismatch{{}}
		if got := r.Culprits(); got != nil {
			t.Errorf("%s, where calls differ: %v", name, got)
		}
	}
}
