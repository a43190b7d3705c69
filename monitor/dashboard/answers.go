// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// page answers with the page, which has everything that is known.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	d := s.data("")
	var b bytes.Buffer
	if err := report.Page(&b, d); err != nil {
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	w.Header().Del("Content-Security-Policy") // the page has its own
	_ = s.send(w, "text/html; charset=utf-8", b.Bytes())
}

// updates answers with what is new.
func (s *Server) updates(w http.ResponseWriter, r *http.Request) {
	s.asked.Store(time.Now().UnixNano())
	text, err := json.Marshal(s.data(r.URL.Query().Get("after")))
	if err != nil {
		http.Error(w, "the update cannot be made", http.StatusInternalServerError)
		return
	}
	if s.send(w, "application/json", text) == nil {
		s.answered.Add(1)
	}
}

// data returns what a page with this cursor does not know.
func (s *Server) data(after string) report.Data {
	d := report.Data{Title: s.o.Title, Live: true, Now: history.At(time.Now()), Runs: []report.RunData{}}
	s.runs.mu.Lock()
	s.runs.poll()
	known := parseCursor(after, len(s.runs.list))
	next := s.runs.add(&d, known)
	s.runs.mu.Unlock()
	if s.o.Job != nil {
		if job := s.o.Job.data(known.job); job != nil {
			d.Job, next.job = job, job.Version
		} else {
			next.job = known.job
		}
	}
	if text := s.refused(); text != "" {
		d.Trouble = []string{"refused " + text}
	}
	d.Cursor = next.String()
	return d
}

// log answers with lines that ranks have printed.
func (s *Server) log(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	rank := -1
	if text := q.Get("rank"); text != "" && text != "all" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			http.Error(w, "rank: give the number of a rank, or all", http.StatusBadRequest)
			return
		}
		rank = n
	}
	after := uint64(0)
	if text := q.Get("after"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			http.Error(w, "after: give the number of a line", http.StatusBadRequest)
			return
		}
		after = n
	}
	text, err := json.Marshal(s.o.Job.logOf(rank, q.Get("q"), after))
	if err != nil {
		http.Error(w, "the lines cannot be sent", http.StatusInternalServerError)
		return
	}
	_ = s.send(w, "application/json", text)
}
