// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
	"github.com/cohort-ml/cohort/dist/operation"
)

// monitoredBarrier is PyTorch's monitored_barrier: rank 0 waits to hear from every
// other rank and answers all when it has. Who is missing only rank 0 knows, and
// the others that their answer does not come; the group is of no more use then.
func (j *glooJob) monitoredBarrier(ctx context.Context, g *Group) error {
	r := g.newRequest(ctx, operation.Barrier)
	if b, ok := g.backend.(*gloo.Backend); ok { // not of one rank alone
		r.instead = func(c operation.Call, _, _ collective.Data) error { return b.MonitoredBarrier(ctx, c, true) }
	}
	return g.run(r)
}
