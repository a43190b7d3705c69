// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"net/netip"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/agentpipe"
)

// World is the name of the group of all ranks.
const World = "world"

// MaxWorldSize bounds WORLD_SIZE: a typing error is to be told, not tried.
const MaxWorldSize = 1 << 20

// Settings are what dist.Init was given, by its options. The environment says the rest.
type Settings struct {
	URL             string      // where the ranks meet, "" for the environment
	Store           store.Store // where they meet in place of a store that rank 0 serves
	Rank, WorldSize int         // who this process is, if WorldSize is not 0
	Node            string      // the node that it is on, "" for the environment
	Timeout         time.Duration
	Silence         time.Duration // how long nothing may be heard of a rank; 0 is for ever
	SilenceSet      bool          // Silence was given by an option
	Algorithms      collective.Options
	PyTorch         string         // the version of PyTorch that other ranks run, "" where it is not said
	Admitted        []netip.Prefix // from where ranks that prove nothing may come, besides this host
}

// Start checks the settings and finds out where this process stands in its job, from them and
// the environment that the launcher has set (cohort run, torchrun, mpirun). It does not wait
// for other ranks: [Job.Meet] does.
type Start func(ctx context.Context, s *Settings) (Job, error)

// Open opens a communicator for a kind of device in a group whose members have met, on every
// member, and also in a group of one rank. Its Rules and Where are not used: the group has
// those of the host's communicator.
type Open func(ctx context.Context, s *Spec) (*Membership, error)

// Job is this process's part in a job. It forms groups of the job's ranks.
type Job interface {
	// Place says which rank of how many this process is.
	Place() (rank, worldSize int)
	// Meet brings all ranks of the job together. end ends ctx, with a reason. answer
	// writes the flight recorder or the figures when the launcher asks for that. Where Meet fails, it
	// has told the other ranks why.
	Meet(ctx context.Context, end context.CancelCauseFunc, answer func(e agentpipe.Event)) (*Roster, Forming, error)
	// NewGroup begins to form a group of some ranks. end ends ctx, with a reason. The
	// forming is nil where this rank has no part in it.
	NewGroup(ctx context.Context, end context.CancelCauseFunc, parent *Parent, w *Wish) (Forming, error)
	// Close ends this process's part in the job. pending says that operations were under
	// way: the job has failed, or is being stopped. It is also called after a Meet or
	// a forming of the group of all ranks that has failed.
	Close(pending bool) error
}

// Where is where a rank runs.
type Where struct {
	Host string // "" where it is not known
	PID  int    // 0 where it is not known, or in this process
	Node string // the id of its node, equal for ranks that share memory; "" where it is not known
}

// Roster is all ranks of a job, when they have met.
type Roster struct {
	Where []Where // by rank
	// Keys is the store in which groups have their keys. Store is what the group of all
	// ranks offers its program. Neither is nil: a backend whose ranks meet without a store,
	// such as MPI, serves one on rank 0 and tells the others its address.
	Keys, Store store.Store
	// Interface is the network interface at which other ranks reach this one, and why.
	Interface string
}

// Parent is the group that another one is made from.
type Parent struct {
	Name    string
	Rank    int
	Members []fault.Member // by rank
	World   []int          // by rank, the rank in the job
	IsWorld bool           // it is the group of all ranks
	Rules   Rules          // nil for none
	// Comm returns what moves the group's data, nil where the group is one rank or is closed.
	Comm func() Communicator
}

// Wish is the group that Group.NewGroup was asked for.
type Wish struct {
	Ranks   []int  // by their numbers in the parent
	Backend string // "" where nothing was said
	// SilenceSet says that an option gave a limit of silence, Local that the members alone
	// call NewGroup.
	SilenceSet, Local bool
}

// Plan is what is known of a group before its members have come.
type Plan struct {
	Job   Job     // forms the groups that are made of the new one
	Ranks []int   // its members by their numbers in the parent; none where this rank is no member, and for the group of all ranks
	Name  string  // what it is called where the program gives no name; "" leaves that to dist
	Where []Where // where the members are, by rank; nil: as the parent knows it
	// Barrier says that all members have come when all have passed a barrier of the group,
	// which dist runs after Open.
	Barrier bool
}

// Forming is a group that is being formed. Its methods are called in this order, each
// once, Open not for a rank that is no member.
type Forming interface {
	Plan() Plan
	// Open opens this rank's part of the group, to which the others may not have come yet.
	Open(ctx context.Context, s *Spec) (*Membership, error)
	// Complete returns when all ranks have come, as far as no barrier is needed to know.
	Complete(ctx context.Context) error
	// End ends the forming. err is what it has failed with, nil if it has not; End
	// returns the error to report in its place.
	End(ctx context.Context, err error) error
}

// Spec is a group whose communicator is to be opened.
type Spec struct {
	Name    string
	Key     string // by which the members meet; it differs for groups of one name
	ByRanks string // what members call the group by its ranks alone, whatever its name
	Rank    int
	Members []fault.Member // by rank
	World   []int          // by rank, the rank in the job
	Parent  *Parent        // nil for the group of all ranks
	// Keys is the store in which the job's groups have their keys. Store is the part that
	// is this group's alone.
	Keys, Store store.Store
	// Host is the communicator of the host's memory, for an [Open]: its Trouble says that
	// a rank has died or left, so that what waits on a device is ended. It is nil for a group
	// of one rank, and while that communicator is opened itself.
	Host       Communicator
	Timeout    time.Duration // limits a call whose context has no earlier end
	Silence    time.Duration
	Algorithms collective.Options
	// Progress returns how far this rank has come.
	Progress func() Progress
	// Site returns where this rank's program made a call, given by operation and number
	// (of messages by peer too): "path/file.go:88 pkg.Func", "" if it is not known any more.
	Site func(c operation.Call) string
	// Where returns where this rank's program is: a line, and a stack.
	Where func() (at, stack string)
	// Doing returns what this rank is doing, in whatever group, for a member of this one.
	Doing func(asker int) fault.Doing
}

// Membership is this rank's part of a group that has been opened.
type Membership struct {
	Comm      Communicator // nil for a group of one rank
	Transport string       // how data moves: "shm", "tcp"
	Rules     Rules        // nil for none
	Where     []Where      // where the members are, by rank; nil: as it was planned
	Store     store.Store  // what the group offers its program; nil: a part of [Spec.Keys]
	// Unwatch ends the news of deaths, before Comm is closed. Close gives back the rest,
	// after that. Both may be nil.
	Unwatch func()
	Close   func() error
}
