// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
)

// DefaultTimeout limits an operation whose context has no earlier end. It is
// long, as in PyTorch, because ranks may legitimately wait for one that loads
// data; a rank that has died is noticed at once.
const DefaultTimeout = 30 * time.Minute

// DefaultInitTimeout limits how long [Init] waits for all ranks to come when
// its context has no earlier end.
const DefaultInitTimeout = 5 * time.Minute

// worldName is the name of the group of all ranks.
const worldName = "world"

// Option changes what [Init] or [Group.NewGroup] does. An option that makes no
// sense for the one at hand is an error.
type Option func(*options) error

type options struct {
	// forGroup says that the options are for a group of some ranks.
	forGroup bool
	name     string
	// store is where the ranks meet in place of one that rank 0 serves, and
	// place who this one is, if given.
	store store.Store
	place *place
	url   string
	// backend is "" where nothing was said; pytorch is which one a gloo job has.
	backend string
	pytorch pytorch
	// local says that only its members make a PyTorch group.
	local bool
	// admitted is from where PyTorch ranks may come, besides this host.
	admitted []netip.Prefix
	timeout  time.Duration
	silence  time.Duration
	// silenceSaid is that WithSilence was given.
	silenceSaid bool
	node        string
	// dumpSignal is what makes this process write its flight recorder, or nil.
	dumpSignal os.Signal
	host       *native.Host // nil but in a network inside the process
	// algorithms is what the user asks of the choice of algorithms.
	algorithms collective.Options
}

// apply takes the options one after the other.
func (o *options) apply(opts []Option) error {
	for i, opt := range opts {
		if opt == nil {
			return fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt(o); err != nil {
			return err
		}
	}
	return nil
}

// WithDeterministic makes reductions go in the order of ranks: sums have the
// same bits on every transport and topology and for every size. Between nodes
// that costs connections between all pairs of ranks and working memory as
// large as the data.
func WithDeterministic() Option {
	return func(o *options) error { o.algorithms.Deterministic = true; return nil }
}

// WithURL says where the ranks meet: "env://" (the default: RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT) or "tcp://host:port?rank=R&world_size=N", where
// host:port is rank 0's to listen on. With the backend "gloo" it is PyTorch's init_method:
// also "file:///path", the rank and the number of ranks may come from [WithRank], and
// env:// may have a query.
func WithURL(url string) Option {
	return func(o *options) error { o.url = url; return o.onlyInit("WithURL") }
}

// WithStore makes the ranks meet in a store of the caller's, such as etcd or a
// file that all can open, so that nobody listens at MASTER_ADDR:MASTER_PORT,
// which need not be set. The store stays the caller's to close, after the group.
//
// What lies in a store from another run is not this run's: the keys used begin
// with TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT, as far as they are
// set; without, give every run a part of its own by [store.Prefix]. With the
// backend "gloo" the keys are those that PyTorch makes of its argument store, without a
// prefix.
func WithStore(s store.Store) Option {
	return func(o *options) error {
		if s == nil {
			return errors.New("WithStore was given no store")
		}
		o.store = s
		return o.onlyInit("WithStore")
	}
}

// WithRank says which rank of how many this process is, in place of RANK and
// WORLD_SIZE.
func WithRank(rank, worldSize int) Option {
	return func(o *options) error {
		if worldSize < 1 || worldSize > maxWorldSize || rank < 0 || rank >= worldSize {
			return fmt.Errorf("WithRank: rank %d of %d ranks: want 0 to one less than that, of 1 to %d ranks", rank, worldSize, maxWorldSize)
		}
		o.place = &place{rank: rank, worldSize: worldSize}
		return o.onlyInit("WithRank")
	}
}

// WithTimeout sets the group's time limit in place of [DefaultTimeout]: that of a call
// as a whole, not of its wait for each rank.
func WithTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d <= 0 {
			return fmt.Errorf("a time limit of %v", d)
		}
		o.timeout = d
		return nil
	}
}

// WithBackend chooses how data moves. "native", the default, is between Cohort's
// ranks. "gloo" makes this process a rank of a PyTorch job; see the package's
// section on PyTorch. Of the options of [Group.NewGroup], "native" makes a group
// of Go members in such a job.
func WithBackend(name string) Option {
	return func(o *options) error {
		if name != nativeBackend && name != glooBackend {
			return fmt.Errorf("no backend %q: there are %q and %q", name, nativeBackend, glooBackend)
		}
		o.backend = name
		return nil
	}
}

const (
	nativeBackend = "native"
	glooBackend   = "gloo"
)

// WithNodeID names the node that this rank runs on, in place of
// COHORT_NODE_ID. Ranks of equal node id share memory.
func WithNodeID(id string) Option {
	return func(o *options) error { o.node = id; return o.onlyInit("WithNodeID") }
}

// WithName names a group that [Group.NewGroup] or [Group.Split] makes. Its
// members give the same name, and a rank has one open group of a name.
func WithName(name string) Option {
	return func(o *options) error {
		if !o.forGroup {
			return fmt.Errorf("WithName is for groups of some ranks: that of all is %q", worldName)
		}
		if name == "" || len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("the name %q: want 1 to %d bytes without control characters", name, maxName)
		}
		o.name = name
		return nil
	}
}

// onlyInit is an error if the options are not for Init.
func (o *options) onlyInit(option string) error {
	if o.forGroup {
		return fmt.Errorf("%s is an option of Init: groups inherit it", option)
	}
	return nil
}
