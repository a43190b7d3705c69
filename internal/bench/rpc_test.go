// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

// Every case of rpc gives a line with its own figure.
func TestRPC(t *testing.T) {
	for transport, cases := range map[string][]string{"auto": RPCCases(), "tcp": {"noop", "async"}} {
		t.Setenv("COHORT_TRANSPORT", transport)
		o := RPCOptions{Cases: cases, Bytes: []int{4096, 1 << 20}, Calls: 20, Async: 100}
		var got []string
		err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			return RPC(ctx, g, o, func(r Result) error {
				got = append(got, r.Case)
				checkPrinted(t, r, "bench case transport "+map[string]string{
					"noop": "median_us min_us p99_us", "add": "median_us min_us p99_us", "async": "calls calls_per_s median_us min_us",
					"echo": "bytes median_us min_us gb_per_s", "ps": "rows_per_s median_us min_us p99_us",
				}[r.Case])
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		want := strings.Replace(strings.Join(cases, " "), "echo", "echo echo", 1)
		if strings.Join(got, " ") != want {
			t.Errorf("%s: cases %q, want %q", transport, got, want)
		}
	}
	for want, o := range map[string]RPCOptions{
		`no case "nothing"`: {Cases: []string{"nothing"}, Calls: 1, Async: 1},
		"an echo of 6":      {Bytes: []int{6}, Calls: 1, Async: 1},
		"0 calls":           {Calls: 0, Async: 1},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want %q", o, err, want)
		}
	}
}
