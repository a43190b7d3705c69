// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/flightlog"
)

// TestCallSites: the collectives that DDP starts from within a backward pass are
// those of the line of the program that runs the pass.
func TestCallSites(t *testing.T) {
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		if _, err := train(ctx, g, "sgd", 3); err != nil {
			return err
		}
		var b bytes.Buffer
		if err := g.Dump(&b); err != nil {
			return err
		}
		d, err := flightlog.Read(&b)
		if err != nil {
			return err
		}
		background := 0
		for _, e := range d.Entries {
			if e.Background {
				background++
			}
			if site := d.Sites[e.Site]; !strings.HasPrefix(site, "parallel/") || !strings.Contains(site, "_test.go:") {
				t.Errorf("%s %d is said to be called at %q", e.Op, e.Seq, site)
			}
		}
		if background < 3 {
			t.Errorf("%d of %d collectives ran beside the pass, want 3 at least", background, len(d.Entries))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
