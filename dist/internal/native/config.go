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
	// Key is the name by which the members meet; groups of one name have different keys.
	// World is each rank's number in the job, by which the [Fabric] knows it.
	Key   string
	World []int
	// NumLocal is how many ranks of the job, members or not, are processes of
	// this node and share its cores; 0 if it is not known.
	NumLocal int
	// Agreed is a hash of the options that members must have in common. A member with
	// another hash is refused.
	Agreed uint64
	// Topology is where the ranks are, Options is how their plans are chosen.
	Topology collective.Topology
	Options  collective.Options
	// Explain tells how each operation is served. It may be nil.
	Explain *Explainer
	// Survivors is set where a rank of the job has been lost before.
	Survivors bool
	// Timeout limits a call whose context has no earlier end.
	Timeout time.Duration
	// Deaths is called for ranks whose process has ended, if this group finds it out first.
	// It may be nil.
	Deaths func(rank int)
	// Silence is for how long nothing may be heard of a rank, 0 for ever. Silences, which
	// may be nil, is called for a rank that has been silent for longer.
	Silence  time.Duration
	Silences func(rank int, text string)
	// Progress returns how far this rank has come. If it is nil, late ranks are not found.
	Progress func() Progress
	// ProcessEnd returns what is known of how a rank's process ended. It may wait a moment
	// for the news. It may be nil.
	ProcessEnd func(rank int) ProcessEnd
	// Site returns the line at which this rank's program made a call: "path/file.go:88
	// pkg.Func", or "" if that is not known any more. Operation and number name the call, and
	// for a message the peer too. Site is called when something has gone wrong. It may be nil.
	Site func(c operation.Call) string
	// Where returns where this rank's program is: a line, and a stack. It may be nil.
	Where func() (at, stack string)
	// Doing returns what this rank is doing, in any group, for a member of this one that
	// asks. It may be nil.
	Doing func(asker int) fault.Doing
}

// withLimit bounds a wait of a call by what is left of the group's time limit.
func (cfg *Config) withLimit(ctx context.Context, c *operation.Call) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, c.Start().Add(cfg.Timeout))
}

// newsPatience is how long a call whose connection was cut waits for the star to tell why.
const newsPatience = 500 * time.Millisecond
