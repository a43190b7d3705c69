// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Rules say what the backend of a group does not have, and what it does in its own way.
// A backend that has everything has no Rules. The errors are about this rank's call, which
// has sent nothing: the group is as it was.
type Rules interface {
	// Admits returns why a call is not made, nil where it is.
	Admits(c *operation.Call) error
	// AdmitsObjects returns why an operation on objects is not made.
	AdmitsObjects(op operation.Op) error
	// AdmitsSplit returns why the group is not split.
	AdmitsSplit() error
	// ReduceScatterList returns what does a reduce-scatter of a list, nil for
	// [Communicator.Collective].
	ReduceScatterList(ctx context.Context) (Do, error)
	// MonitoredBarrier returns what does a monitored barrier.
	MonitoredBarrier(ctx context.Context) Do
	// Foreign returns which ranks of the group do not run Cohort, in order.
	Foreign(ctx context.Context) ([]int, error)
	// ForeignVersion returns what those run, as far as it is known.
	ForeignVersion() string
}

// Do does a call in place of [Communicator.Collective].
type Do func(c operation.Call, in, out collective.Data) error
