// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"html/template"
	"io"
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/monitor/history"
)

// The parts of the page.
var (
	//go:embed page/report.html
	pageHTML string
	//go:embed page/report.css
	pageStyle string
	//go:embed page/report.js
	pageScript string
	//go:embed page/uPlot.min.css
	plotStyle string
	//go:embed page/uPlot.iife.min.js
	plotScript string
)

// curves are the data of a run in the page.
type curves struct {
	Name        string               `json:"name"`
	Unit        string               `json:"unit"`
	Begun       history.Seconds      `json:"begun"`
	Steps       []history.Step       `json:"steps"`
	Evaluations []history.Evaluation `json:"evaluations"`
}

// difference is a setting that is not the same in all runs.
type difference struct {
	Name   string
	Values []string
}

// told are the notes of a run.
type told struct {
	Name  string
	Lines []noteLine
}

type noteLine struct {
	Time string
	Step int
	Text string
}

// maxNotes is how many notes of a run the page shows: the last ones.
const maxNotes = 200

// HTML writes one self-contained page that shows and compares the runs.
func HTML(w io.Writer, title string, runs []Run) error {
	page, err := template.New("report").Funcs(template.FuncMap{"number": number}).Parse(pageHTML)
	if err != nil {
		return err
	}
	content := struct {
		Title            string
		PlotStyle, Style template.CSS
		Plot, Script     template.JS
		Data             []curves
		Runs             []Summary
		Differ           []difference
		Notes            []told
	}{Title: title, PlotStyle: template.CSS(plotStyle), Style: template.CSS(pageStyle), Plot: template.JS(plotScript), Script: template.JS(pageScript), Differ: differences(runs)}
	for _, r := range runs {
		h := r.History
		content.Runs = append(content.Runs, Summarize(r))
		content.Data = append(content.Data, curves{
			Name: r.Name, Unit: h.Runs[len(h.Runs)-1].Unit, Begun: h.Runs[0].Time, Steps: orEmpty(h.Steps), Evaluations: orEmpty(h.Evaluations),
		})
		n := told{Name: r.Name}
		for _, note := range h.Notes[max(0, len(h.Notes)-maxNotes):] {
			n.Lines = append(n.Lines, noteLine{note.Time.Time().UTC().Format("2006-01-02 15:04:05Z"), note.Step, note.Text})
		}
		content.Notes = append(content.Notes, n)
	}
	return page.Execute(w, content)
}

// orEmpty makes a list that JSON has as one.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// differences lists the settings that are not the same in all runs.
func differences(runs []Run) []difference {
	names := map[string]bool{}
	for _, r := range runs {
		if r.Settings == nil { // nothing is known of this run
			return nil
		}
		for name := range r.Settings {
			names[name] = true
		}
	}
	var all []difference
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d := difference{Name: name}
		for _, r := range runs {
			d.Values = append(d.Values, r.Settings[name])
		}
		if slices.ContainsFunc(d.Values, func(v string) bool { return v != d.Values[0] }) {
			all = append(all, d)
		}
	}
	return all
}
