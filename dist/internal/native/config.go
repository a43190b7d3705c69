// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Config is what a backend needs to know of its group.
type Config struct {
	Group   string
	Rank    int
	Members []fault.Member // by rank
	// Key is what the members meet by, which differs for groups of one name,
	// and World each rank's number in the job, by which the [Fabric] knows it.
	Key   string
	World []int
	// NumLocal is how many ranks of the job, members or not, are processes of
	// this node and share its cores; 0 if it is not known.
	NumLocal int
	// Agreed is a hash of what members must have in common; who comes with
	// another is refused.
	Agreed uint64
	// Topology is where the ranks are, Options how their plans are chosen.
	Topology collective.Topology
	Options  collective.Options
	// Explain is told how each operation is served. May be nil.
	Explain *Explainer
	// Survivors is set where a rank of the job has been lost before.
	Survivors bool
	// Timeout limits a call whose context has no earlier end.
	Timeout time.Duration
	// Deaths is told of ranks whose process has ended, as far as this group
	// finds it out first. May be nil.
	Deaths func(rank int)
	// Silence is for how long nothing may be heard of a rank; 0 is for ever.
	// Silences is told of ranks that have been silent for longer. May be nil.
	Silence  time.Duration
	Silences func(rank int, text string)
	// Progress returns how far this rank has come. May be nil: then nobody
	// finds out who is late.
	Progress func() Progress
	// Obituary returns what is known of how a rank's process ended. It may
	// wait a moment for the news. May be nil.
	Obituary func(rank int) Obituary
	// Site returns where this rank's program made a call, given by operation
	// and number (of messages by peer too): "path/file.go:88 pkg.Func", or ""
	// if that is not known any more. It is asked when something has gone wrong.
	// May be nil.
	Site func(c operation.Call) string
	// Where returns where this rank's program is: a line, and a stack. May be nil.
	Where func() (at, stack string)
	// Doing returns what this rank is doing, in whatever group, for a member of
	// this one. May be nil.
	Doing func(asker int) fault.Doing
}

// withLimit bounds a wait of a call by what is left of the group's time limit.
func (cfg *Config) withLimit(ctx context.Context, c *operation.Call) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, c.Start().Add(cfg.Timeout))
}

// newsPatience is how long a call whose connection was cut waits for the star to tell why.
const newsPatience = 500 * time.Millisecond
