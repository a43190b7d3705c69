// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Data is what the page shows: all of it, or, in an update of a live page, what is new.
type Data struct {
	Title   string          `json:"title,omitempty"`
	Live    bool            `json:"live"`             // the page asks for updates
	Now     history.Seconds `json:"now"`              // when this was true
	Cursor  string          `json:"cursor,omitempty"` // of a live page: up to where it knows everything
	Runs    []RunData       `json:"runs"`
	Differ  []Difference    `json:"differ"`
	Job     *JobData        `json:"job,omitempty"`
	Trouble []string        `json:"trouble,omitempty"` // of the page itself
}

// RunData is a run of the page. In an update its lists have only what is new, if the page knows the
// generation.
type RunData struct {
	Index       int                  `json:"index"`
	Name        string               `json:"name"`
	Generation  int                  `json:"generation"`
	Unit        string               `json:"unit"`
	Begun       history.Seconds      `json:"begun"`
	Starts      []history.Run        `json:"starts"`
	Steps       []history.Step       `json:"steps"`
	Evaluations []history.Evaluation `json:"evaluations"`
	Saved       []history.Saved      `json:"saved"`
	Notes       []history.Note       `json:"notes"`
	Lost        []history.Lost       `json:"lost"`
	Ranks       []history.Ranks      `json:"ranks"`
	Values      []history.Value      `json:"values"`
	Samples     []history.Sample     `json:"samples"`
	Spikes      []Spike              `json:"spikes"` // all of them
	End         *history.End         `json:"end,omitempty"`
	Summary     *Summary             `json:"summary,omitempty"` // nil before the run has begun
	Verdicts    []Verdict            `json:"verdicts"`
	Readings    []Reading            `json:"readings,omitempty"`
	Settings    map[string]string    `json:"settings,omitempty"`
	Trouble     string               `json:"trouble,omitempty"` // why nothing is known
}

// JobData is what the launcher of a job knows of its ranks.
type JobData struct {
	Version  uint64     `json:"version"` // grows with each change
	Program  string     `json:"program"`
	World    int        `json:"world"` // ranks of the job; Ranks are those of one machine
	Attempt  int        `json:"attempt"`
	Over     bool       `json:"over"`
	Mesh     []Axis     `json:"mesh,omitempty"`
	Ranks    []RankData `json:"ranks"`
	Events   []Event    `json:"events"`
	Verdicts []Verdict  `json:"verdicts,omitempty"`
}

// Axis is an axis of the mesh. The last one's ranks are neighbours.
type Axis struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// RankData is a rank of a job.
type RankData struct {
	Rank   int             `json:"rank"`
	Local  int             `json:"local"`
	Host   string          `json:"host"`
	PID    int             `json:"pid"`
	State  string          `json:"state"` // "running", "slow", "stopped", "failed" or "ended"
	How    string          `json:"how,omitempty"`
	Since  history.Seconds `json:"since"` // when it came into this state
	Starts int             `json:"starts"`
}

// Event is something that happened to a job.
type Event struct {
	Time history.Seconds `json:"time"`
	Text string          `json:"text"`
	Bad  bool            `json:"bad,omitempty"`
}

// Difference is a setting, or something of the environment, that is not the same in all runs.
type Difference struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// maxNotes is how many notes of a run the page shows: the last ones.
const maxNotes = 500

// RunDataOf returns what the page shows of a run, whose history may be nil.
func RunDataOf(index int, r Run) RunData {
	d := RunData{
		Index: index, Name: r.Name, Settings: r.Settings,
		Starts: []history.Run{}, Steps: []history.Step{}, Evaluations: []history.Evaluation{}, Saved: []history.Saved{}, Notes: []history.Note{}, Lost: []history.Lost{},
		Ranks: []history.Ranks{}, Values: []history.Value{}, Samples: []history.Sample{}, Spikes: []Spike{}, Readings: Readings(r.History),
	}
	h := r.History
	if h == nil {
		d.Verdicts = Verdicts(nil)
		return d
	}
	s := Summarize(r)
	d.Verdicts = s.verdicts(h)
	d.Summary, d.Unit, d.Begun, d.End = &s, h.Runs[len(h.Runs)-1].Unit, h.Runs[0].Time, h.End
	d.Starts, d.Steps, d.Evaluations = orEmpty(h.Runs), orEmpty(h.Steps), orEmpty(h.Evaluations)
	d.Saved, d.Notes, d.Lost = orEmpty(h.Saved), orEmpty(h.Notes), orEmpty(h.Lost)
	d.Spikes = Spikes(h.Steps)
	d.Ranks, d.Values, d.Samples = orEmpty(h.Ranks), orEmpty(h.Values), orEmpty(h.Samples)
	return d
}

// orEmpty makes a list that JSON has as one.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Differences lists the settings, and what the runs say of their environments, that are not the
// same in all runs.
func Differences(runs []Run) []Difference {
	values := make([]map[string]string, len(runs))
	for i, r := range runs {
		values[i] = map[string]string{}
		maps.Copy(values[i], environment(r.History))
	}
	all := differing(values, func(name string) string { return name + " (as it ran)" })
	all = append(all, differing(environments(runs), func(name string) string { return name + " (environment)" })...)
	for i, r := range runs {
		if r.Settings == nil { // nothing is known of this run
			return all
		}
		values[i] = r.Settings
	}
	return append(differing(values, func(name string) string { return name }), all...)
}

// environments are the fingerprints of the runs, those that have one; nil if fewer than two have.
func environments(runs []Run) []map[string]string {
	all, n := make([]map[string]string, len(runs)), 0
	for i, r := range runs {
		if all[i] = r.Environment; r.Environment != nil {
			n++
		}
	}
	if n < 2 {
		return nil
	}
	return all
}

// environment is what a history says of the machine and the way of training.
func environment(h *history.History) map[string]string {
	if h == nil {
		return nil
	}
	r := h.Runs[len(h.Runs)-1]
	return map[string]string{
		"ranks": strconv.Itoa(r.Ranks), "threads of a rank": strconv.Itoa(r.Threads), "dtype": r.DType, "strategy": r.Strategy, "transport": r.Transport,
		"model": r.Model, "data": r.Data, "parameters": strconv.Itoa(r.NumParams), "starts": fmt.Sprint(len(h.Runs)),
	}
}

// differing lists the names whose values are not the same in all maps.
func differing(values []map[string]string, label func(string) string) []Difference {
	names := map[string]bool{}
	for _, v := range values {
		for name := range v {
			names[name] = true
		}
	}
	all := []Difference{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d := Difference{Name: label(name)}
		var known []string // of the maps that say something
		for _, v := range values {
			d.Values = append(d.Values, v[name])
			if v != nil {
				known = append(known, v[name])
			}
		}
		if slices.ContainsFunc(known, func(v string) bool { return v != known[0] }) {
			all = append(all, d)
		}
	}
	return all
}
