// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
)

// Waits is what the flight recorders of a running job's ranks say: who waits in what since when, who has
// not come to it, and their stacks.
type Waits struct {
	Text   string          `json:"text"`   // for people
	Report json.RawMessage `json:"report"` // a flightlog.Report
}

// recorder answers with what the flight recorders of the ranks say now.
func (s *Server) recorder(w http.ResponseWriter, r *http.Request) {
	report := s.o.Recorder(r.Context())
	if report == nil {
		http.Error(w, "no rank answers: none runs yet, or the job has ended", http.StatusServiceUnavailable)
		return
	}
	lines := append(report.Lines(), report.Table()...)
	whole, err := json.Marshal(report)
	text, failed := json.Marshal(Waits{Text: strings.Join(lines, "\n") + "\n", Report: whole})
	if err != nil || failed != nil {
		http.Error(w, "the report cannot be sent", http.StatusInternalServerError)
		return
	}
	_ = s.send(w, "application/json", text)
}

// Recorder asks for what the flight recorders of the ranks say now.
func (c *Client) Recorder(ctx context.Context) (*Waits, error) {
	var waits Waits
	if err := c.get(ctx, "/recorder", nil, &waits); err != nil {
		return nil, err
	}
	return &waits, nil
}
