// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// Config describes one part of an island to [Meet].
type Config struct {
	// Store is what all islands share. The parts of an island may have connections of their own.
	Store store.Store
	// Run names the run, so that several may use one store; "" is "run".
	Run string

	Island, Islands int // the number of this island, and how many there are
	Part, Parts     int // the number of this part of the island, and how many there are; 0 parts are one

	// Settings must be the same on all islands: a line of text for errors.
	Settings string
	// Silence is for how long an island may show no life before the others go on without it; 0 is
	// DefaultSilence.
	Silence time.Duration
	// Patience is how long an exchange waits for an island that lives but does not post; 0 is
	// DefaultPatience. It also bounds the meeting at the start.
	Patience time.Duration
	// OnWait is called with the islands for which this one waits longer than usual; nil is not. It is
	// called on other goroutines than the caller's.
	OnWait func(Wait)
	// Keep is how many exchanges stay in the store, for islands that come back; 0 is DefaultKeep.
	Keep int
}

// The defaults of a [Config].
const (
	DefaultSilence  = 2 * time.Second
	DefaultPatience = 5 * time.Minute
	DefaultKeep     = 16
)

// The limits of a [Config].
const (
	mostIslands = 1024
	mostParts   = 1 << 16
	leastKeep   = 4
)

func (c Config) resolve() (Config, error) {
	c.Run = cmp.Or(c.Run, "run")
	c.Parts = cmp.Or(c.Parts, 1)
	c.Silence = cmp.Or(c.Silence, DefaultSilence)
	c.Patience = cmp.Or(c.Patience, DefaultPatience)
	c.Keep = cmp.Or(c.Keep, DefaultKeep)
	switch {
	case c.Store == nil:
		return c, fmt.Errorf("islands: there is no store: dial one that all islands reach")
	case c.Islands < 1 || c.Islands > mostIslands || c.Island < 0 || c.Island >= c.Islands:
		return c, fmt.Errorf("islands: island %d of %d: want a number from 0 to below the number of islands, of which there are at most %d", c.Island, c.Islands, mostIslands)
	case c.Parts < 1 || c.Parts > mostParts || c.Part < 0 || c.Part >= c.Parts:
		return c, fmt.Errorf("islands: part %d of %d of island %d: want a number from 0 to below the number of parts", c.Part, c.Parts, c.Island)
	case c.Silence < 0 || c.Patience < 0 || c.Keep < leastKeep:
		return c, fmt.Errorf("islands: silence %v, patience %v, keep %d: want at least 0, 0 and %d", c.Silence, c.Patience, c.Keep, leastKeep)
	}
	return c, nil
}

// Island is one part of an island that has met the others. One goroutine at a
// time calls its methods but Close, Begun, GiveState and Hurry.
type Island struct {
	c     Config
	store store.Store // of the run
	watch *watcher    // of part 0; nil for the others

	birth int64  // tells this start of the island from earlier ones
	given string // the last state that a list of members has promised
	hurry chan struct{}
	tells *teller
	late  []int // islands for which the last exchange has not waited to the end

	sent, received atomic.Int64

	closing sync.Once
}

// Traffic returns how many bytes this part has sent to the store and read from it: payloads and
// states, without what is around them.
func (i *Island) Traffic() (sent, received int64) { return i.sent.Load(), i.received.Load() }

// Birth is a number that tells this start of the island from earlier ones, for [Follow].
func (i *Island) Birth() int64 { return i.birth }

// Late returns the islands that live, and which the last exchange has left out after its patience.
func (i *Island) Late() []int { return i.late }

// errorf makes an error that says whose it is.
func (i *Island) errorf(format string, args ...any) error {
	return fmt.Errorf("island %d of %d: %w", i.c.Island, i.c.Islands, fmt.Errorf(format, args...))
}
