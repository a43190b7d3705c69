// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/pytorch"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// DefaultTimeout limits an operation whose context has no earlier end. It is
// long, as in PyTorch, because ranks may legitimately wait for one that loads
// data; a rank that has died is noticed at once.
const DefaultTimeout = 30 * time.Minute

// DefaultInitTimeout limits how long [Init] waits for all ranks to come when
// its context has no earlier end.
const DefaultInitTimeout = 5 * time.Minute

// DefaultSilence is how long nothing may be heard of a rank before the
// others give it up, if neither [WithSilence] nor COHORT_SILENCE gives another limit.
const DefaultSilence = 3 * time.Second

// Option changes what [Init] or [Group.NewGroup] does. An option that makes no
// sense for the one at hand is an error.
type Option func(*options) error

type options struct {
	// Settings are what the backend of a job is given.
	backend.Settings
	// forGroup says that the options are for a group of some ranks.
	forGroup bool
	name     string
	// backends is the name of the backend for each kind of device; nil where nothing was said.
	backends map[string]string
	// local says that only its members make a PyTorch group.
	local bool
	// dumpSignal is what makes this process write its flight recorder, or nil.
	dumpSignal os.Signal
}

// backendFor returns the name of the backend for a kind of device.
func (o *options) backendFor(kind string) string {
	return cmp.Or(o.backends[kind], backends[0].name)
}

// backendFromEnv takes the backend for the host's memory that the environment names, if the
// options name none.
func (o *options) backendFromEnv() error {
	name, ok := envvar.Backend.Lookup()
	if !ok || o.backends[hostKind] != "" {
		return nil
	}
	if err := checkBackend(hostKind, name); err != nil {
		return fmt.Errorf("%s: %w", envvar.Backend, err)
	}
	chosen := maps.Clone(o.backends)
	if chosen == nil {
		chosen = map[string]string{}
	}
	chosen[hostKind] = name
	o.backends = chosen
	return nil
}

// devicesOver returns the names of a new group's backends, given those of its parent.
func (o *options) devicesOver(parent map[string]string) map[string]string {
	if o.backends == nil {
		return parent
	}
	all := map[string]string{}
	maps.Copy(all, parent)
	maps.Copy(all, o.backends)
	return all
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
// this needs connections between all pairs of ranks, and working memory as
// large as the data.
func WithDeterministic() Option {
	return func(o *options) error { o.Algorithms.Deterministic = true; return nil }
}

// WithURL says where the ranks meet: "env://" (the default: RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT) or "tcp://host:port?rank=R&world_size=N", where
// host:port is rank 0's to listen on. With the backend "gloo" it is PyTorch's init_method:
// also "file:///path", the rank and the number of ranks may come from [WithRank], and
// env:// may have a query.
func WithURL(url string) Option {
	return func(o *options) error { o.URL = url; return o.onlyInit("WithURL") }
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
		o.Store = s
		return o.onlyInit("WithStore")
	}
}

// WithRank says which rank of how many this process is, in place of RANK and
// WORLD_SIZE.
func WithRank(rank, worldSize int) Option {
	return func(o *options) error {
		if worldSize < 1 || worldSize > backend.MaxWorldSize || rank < 0 || rank >= worldSize {
			return fmt.Errorf("WithRank: rank %d of %d ranks: want 0 to one less than that, of 1 to %d ranks", rank, worldSize, backend.MaxWorldSize)
		}
		o.Rank, o.WorldSize = rank, worldSize
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
		o.Timeout = d
		return nil
	}
}

// WithNodeID names the node that this rank runs on, in place of
// COHORT_NODE_ID. Ranks of equal node id share memory.
func WithNodeID(id string) Option {
	return func(o *options) error { o.Node = id; return o.onlyInit("WithNodeID") }
}

// WithName names a group that [Group.NewGroup] or [Group.Split] makes. Its
// members give the same name, and a rank has one open group of a name.
func WithName(name string) Option {
	return func(o *options) error {
		if !o.forGroup {
			return fmt.Errorf("WithName is for groups of some ranks: that of all is %q", backend.World)
		}
		if name == "" || len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("the name %q: want 1 to %d bytes without control characters", name, maxName)
		}
		o.name = name
		return nil
	}
}

const (
	minSilence = envvar.MinSilence
	maxSilence = envvar.MaxSilence
)

// WithSilence sets how long nothing may be heard of a rank before the
// others give it up, in place of [DefaultSilence] or COHORT_SILENCE. A rank is silent when its
// process is stopped, its machine is gone or the line to it is cut. Operations
// then fail with a [RankError] that names the rank, with the cause [ErrSilent]. The
// group's processes exchange heartbeats by themselves, so a rank that only computes for long is
// not silent. 0 gives no rank up, for work with a debugger. All ranks of a group must give
// the same limit.
//
// Only time in which the line could have carried something counts. When TCP has lost a packet,
// it pauses before it sends the packet again. The rank then has until after the next try,
// which comes within a second, or within a third of a limit that is longer than three seconds
// (on Linux before 6.15 within the limit). So an outage that is shorter than the limit costs
// its time and no rank.
//
// Ranks that are goroutines of one process are never silent. PyTorch's ranks send no
// heartbeats: in a PyTorch job this is an option of the groups that [Group.NewGroup] makes of
// Go ranks.
func WithSilence(d time.Duration) Option {
	return func(o *options) error {
		if d != 0 && (d < minSilence || d > maxSilence) {
			return fmt.Errorf("a silence limit of %v: want 0 (none) or %v to %v", d, minSilence, maxSilence)
		}
		o.Silence, o.SilenceSet = d, true
		return nil
	}
}

// silenceFromEnv takes the limit that the environment gives, if it does.
func (o *options) silenceFromEnv() (err error) {
	o.Silence, err = envvar.Silence.DurationOr(o.Silence, minSilence, maxSilence)
	return err
}

// WithDumpSignal makes the process write its flight recorder when it gets a
// signal, such as syscall.SIGUSR1, until the group is closed: as JSON to the
// directory COHORT_RECORDER_DIR, or, where that is not set, as a report on this
// rank alone to standard error. Without this option no signal is caught; under
// `cohort run` it is enough to send SIGUSR1 to the launcher.
func WithDumpSignal(sig os.Signal) Option {
	return func(o *options) error {
		if sig == nil {
			return errors.New("WithDumpSignal was given no signal")
		}
		o.dumpSignal = sig
		return o.onlyInit("WithDumpSignal")
	}
}

// WithPyTorch says which PyTorch the other ranks of a job with the backend "gloo" run, in the
// form of torch.__version__: "1.13.1", "2.6.0". "2" is the newest. Init finds out by itself
// whether it is 1.13 or a later one, and the release too where PyTorch serves the store. Give
// the version where another program serves the store, so that operations which that version
// does not have are refused before anything is sent, or where a [PyTorchError] assumes too old
// a version.
func WithPyTorch(version string) Option {
	return func(o *options) error {
		if _, err := pytorch.ParseRelease(version); err != nil {
			return fmt.Errorf("WithPyTorch: %w", err)
		}
		o.PyTorch = version
		return o.onlyInit("WithPyTorch")
	}
}

// WithAdmitted says from which addresses other hosts' processes may connect to this rank in a
// PyTorch job. This host's own addresses are always admitted. The option holds for the store,
// if this is rank 0, and for the connections from other ranks. Connections from other ranks
// are also taken from the addresses that the ranks have published in the store. Under
// `cohort run` on several nodes, these nodes are admitted without the option. If
// the address at which the ranks meet is localhost for rank 0, or no address of
// its machine, the store then listens at all addresses of the machine. PyTorch's protocols have
// no authentication: whoever connects can read and write everything.
func WithAdmitted(from ...netip.Prefix) Option {
	return func(o *options) error {
		for _, p := range from {
			if !p.IsValid() {
				return fmt.Errorf("WithAdmitted: %v is no range of addresses", p)
			}
		}
		o.Admitted = slices.Clone(from)
		return o.onlyInit("WithAdmitted")
	}
}

// WithLocalSynchronization makes a group with PyTorch members as new_group does
// with use_local_synchronization=True: only the members call [Group.NewGroup], and the other
// ranks learn nothing of it.
func WithLocalSynchronization() Option {
	return func(o *options) error {
		if !o.forGroup {
			return errors.New("WithLocalSynchronization is an option of NewGroup")
		}
		o.local = true
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
