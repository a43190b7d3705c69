// SPDX-License-Identifier: Apache-2.0

package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io"
	"time"

	"github.com/cohort-ml/cohort/internal/markup"
	"github.com/cohort-ml/cohort/monitor/history"
)

// The parts of the page.
var (
	// pageHTML has verbs for policy, title, style, title, data and script.
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageStyle string
	//go:embed page/page.js
	pageScript string
	//go:embed page/curves.js
	curvesScript string
	//go:embed page/values.js
	valuesScript string
	//go:embed page/goodput.js
	goodputScript string
	//go:embed page/job.js
	jobScript string
	//go:embed page/recorder.js
	recorderScript string
	//go:embed page/phases.js
	phasesScript string
	//go:embed page/start.js
	startScript string
	//go:embed page/uPlot.min.css
	plotStyle string
	//go:embed page/uPlot.iife.min.js
	plotScript string
)

// HTML writes one self-contained page that shows and compares the runs.
func HTML(w io.Writer, title string, runs []Run) error {
	d := Data{Title: title, Now: history.At(time.Now()), Differ: Differences(runs)}
	for i, r := range runs {
		d.Runs = append(d.Runs, RunDataOf(i, r))
		notes := &d.Runs[i].Notes
		*notes = (*notes)[max(0, len(*notes)-maxNotes):]
	}
	return Page(w, d)
}

// Page writes the page. If the data are live, it asks "updates" and "log" below its own address
// for what is new, with the query of its own address.
func Page(w io.Writer, d Data) error {
	data, err := json.Marshal(d) // has no < and no >, so it ends no script
	if err != nil {
		return err
	}
	style := plotStyle + pageStyle
	script := plotScript + "\n(() => {\n" + pageScript + curvesScript + valuesScript + jobScript + recorderScript + phasesScript + goodputScript + startScript + "})();\n"
	var p markup.Page
	p.Put(pageHTML, policy(style, script, d.Live), d.Title, markup.Raw(style), d.Title, markup.Raw(data), markup.Raw(script))
	_, err = p.WriteTo(w)
	return err
}

// policy returns the content security policy of a page: its own style and script and nothing else,
// and connections to where it comes from if it is live.
func policy(style, script string, live bool) string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	p := "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src " + hash(style) + "; script-src " + hash(script)
	if live {
		p += "; connect-src 'self'"
	}
	return p
}
