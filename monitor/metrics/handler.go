// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"context"
	"net/http"
	"strconv"

	"github.com/cohort-ml/cohort/internal/event"
)

// contentType is that of the format.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Handler answers a scraper with the metrics of the ranks that ask returns, such as the method Ask of
// a launch.Figures. Who may ask, and how often, is for the server to say.
func Handler(ask func(ctx context.Context) []event.Answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		_ = Write(&b, ask(r.Context())) // to memory
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
		_, _ = w.Write(b.Bytes())
	})
}
