// SPDX-License-Identifier: Apache-2.0

package disttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/internal/vnet"
)

// Link is the properties of the line from one rank to another. The zero Link takes no time.
type Link struct {
	// Latency is how long a byte is on its way.
	Latency time.Duration
	// Jitter is the most that is added to the latency, drawn from the seed. The order of what
	// is sent stays.
	Jitter time.Duration
	// BytesPerSecond is the line's rate in this direction, 0 for no limit.
	BytesPerSecond float64
}

// DefaultLink is Ethernet of 10 Gbit/s in one room.
var DefaultLink = Link{Latency: 25 * time.Microsecond, BytesPerSecond: 1.25e9}

func (l Link) String() string {
	rate := "no limit"
	if l.BytesPerSecond > 0 {
		rate = fmt.Sprintf("%.3g MB/s", l.BytesPerSecond/1e6)
	}
	return fmt.Sprintf("latency %v, jitter %v, %s", l.Latency, l.Jitter, rate)
}

func (l Link) check() error { return vnet.Link(l).Check() }

// Option changes a run.
type Option func(*options) error

type options struct {
	seed   uint64
	link   func(from, to int) Link
	nodes  []int
	faults []Fault
	init   []dist.Option

	numRandom int
	within    time.Duration
}

// WithSeed repeats a run: give it the seed that the run has printed. Without it each run has a new
// seed.
func WithSeed(seed uint64) Option {
	return func(o *options) error { o.seed = seed; return nil }
}

// WithLink gives all lines the same properties, in place of [DefaultLink].
func WithLink(l Link) Option { return WithLinks(func(int, int) Link { return l }) }

// WithLinks gives each line from a rank to another its own properties. link is called once for each
// line that is used.
func WithLinks(link func(from, to int) Link) Option {
	return func(o *options) error { o.link = link; return nil }
}

// WithNodes puts ranks on nodes: nodes[r] is any number for the node of rank r. The choice of
// algorithms depends on it. Without it every rank has a node of its own.
func WithNodes(nodes ...int) Option {
	return func(o *options) error { o.nodes = nodes; return nil }
}

// WithFaults makes faults happen.
func WithFaults(faults ...Fault) Option {
	return func(o *options) error { o.faults = append(o.faults, faults...); return nil }
}

// WithRandomFaults makes random faults happen, drawn from the seed, within a time from the beginning of
// the run.
func WithRandomFaults(num int, within time.Duration) Option {
	return func(o *options) error {
		if num < 0 || within <= 0 {
			return fmt.Errorf("WithRandomFaults: %d faults within %v", num, within)
		}
		o.numRandom, o.within = num, within
		return nil
	}
}

// WithInit gives options to [dist.Init] on every rank, such as [dist.WithTimeout]. Options about where
// ranks are and how they meet are set by the run.
func WithInit(opts ...dist.Option) Option {
	return func(o *options) error { o.init = append(o.init, opts...); return nil }
}

// maxRanks bounds a run, which is for the logic of a job and not for its size.
const maxRanks = 1024

func newOptions(n int, opts []Option) (*options, error) {
	o := &options{seed: rand.Uint64(), link: func(int, int) Link { return DefaultLink }}
	if n < 1 || n > maxRanks {
		return nil, fmt.Errorf("disttest: a run of %d ranks: want 1 to %d", n, maxRanks)
	}
	var errs []error
	for _, opt := range opts {
		errs = append(errs, opt(o))
	}
	if o.nodes != nil && len(o.nodes) != n {
		errs = append(errs, fmt.Errorf("WithNodes gives the nodes of %d ranks", len(o.nodes)))
	}
	for _, f := range o.faults {
		errs = append(errs, f.check(n))
	}
	if o.numRandom > 0 && n < 2 {
		errs = append(errs, errors.New("WithRandomFaults: a run of one rank has no lines"))
	}
	for from := range n {
		for to := range n {
			if err := o.link(from, to).check(); err != nil {
				errs = append(errs, fmt.Errorf("from rank %d to rank %d: %w", from, to, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("disttest: a run of %d ranks: %w", n, err)
	}
	random := rand.New(rand.NewPCG(o.seed, uint64(n)))
	for range o.numRandom {
		o.faults = append(o.faults, randomFault(random, n, o.within))
	}
	return o, nil
}

// node returns the number of a rank's node.
func (o *options) node(rank int) int {
	if o.nodes == nil {
		return rank
	}
	return o.nodes[rank]
}
