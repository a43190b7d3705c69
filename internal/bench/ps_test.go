// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

// TestServing: every case of ps gives a line with its figures, with several servers and
// clients.
func TestServing(t *testing.T) {
	o := ServingOptions{Cases: ServingCases(), Servers: 2, Clients: 2, Dim: 3, Rows: 5000, Batch: 64, Bag: 8, Steps: 5, Dir: t.TempDir()}
	bytes := map[string]int{"pull": 64 * 20, "push": 64 * 20, "pull_push": 2 * 64 * 20, "skew": 2 * 64 * 20, "bags": 64*8 + 8*20, "batched": 64 * 32, "recover": 5000 * 12}
	var got []string
	err := dist.Spawn(t.Context(), 4, func(ctx context.Context, g *dist.Group) error {
		return Serving(ctx, g, o, func(r Result) error {
			got = append(got, r.Case)
			checkPrinted(t, r, "bench case transport batch bytes clients rows_per_s median_us min_us p99_us servers dim rows p50_us")
			if r.Bytes != bytes[r.Case] || r.Servers != 2 || r.TableRows != 5000 {
				t.Errorf("%s: %+v, want %d bytes", r.Case, r, bytes[r.Case])
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, ServingCases()) {
		t.Errorf("cases %q, want %q", got, ServingCases())
	}
	for want, change := range map[string]func(o *ServingOptions){
		`no case "nothing"`: func(o *ServingOptions) { o.Cases = []string{"nothing"} },
		"--servers is 0":    func(o *ServingOptions) { o.Servers = 0 },
		"--bag is 65":       func(o *ServingOptions) { o.Bag = 65 },
	} {
		bad := o
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want %q", bad, err, want)
		}
	}
}
