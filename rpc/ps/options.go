// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// DefaultTimeout limits requests whose context has no deadline.
const DefaultTimeout = time.Minute

// Option changes what [Serve] or [Dial] does.
type Option func(*options) error

type options struct {
	progress *Progress
	want     settings
	worker   int // -1: none
	timeout  time.Duration
	journal  Journal
	logLimit int64
	dir      string // of cold rows
	store    store.Store
	// forServer and forClient name an option that only one of the two knows.
	forServer, forClient string
}

func applyOptions(servers int, opts []Option) (*options, error) {
	o := &options{worker: -1, timeout: DefaultTimeout, logLimit: DefaultLogLimit}
	o.want.Servers = servers
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt(o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// WithTables names the tables. A server with tables refuses workers that name other schemas
// for them. A worker brings its tables to servers that do not have them.
func WithTables(tables ...rows.Schema) Option {
	return func(o *options) error {
		for _, t := range tables {
			if o.want.table(t.Name) != nil {
				return errorf(KindTable, "two tables have the name").of(t.Name)
			}
			if err := t.Validate(); err != nil {
				return errorf(KindTable, "%w", err).of(t.Name)
			}
			o.want.Tables = append(o.want.Tables, t)
		}
		return nil
	}
}

// WithJob names the job. Servers and workers of two jobs refuse each other.
func WithJob(name string) Option {
	return func(o *options) error { o.want.Job = name; return nil }
}

// WithWorkers says to a server how many workers there are, and how far they may be apart.
// Without it the first worker says so.
func WithWorkers(workers int, c Consistency) Option {
	return func(o *options) error {
		o.forServer = "WithWorkers"
		return o.workers(workers, c)
	}
}

// WithWorker makes a client one of the workers of a job, with a number from 0 to workers-1.
// All workers and servers give the same number of workers and the same consistency.
func WithWorker(worker, workers int, c Consistency) Option {
	return func(o *options) error {
		o.forClient = "WithWorker"
		if worker < 0 || worker >= workers {
			return fmt.Errorf("worker %d of %d: want 0 to %d", worker, workers, workers-1)
		}
		o.worker = worker
		return o.workers(workers, c)
	}
}

func (o *options) workers(workers int, c Consistency) error {
	if workers < 1 || workers > maxWorkers {
		return fmt.Errorf("%d workers: want 1 to %d", workers, maxWorkers)
	}
	c.Mode = c.mode()
	o.want.Workers, o.want.Consistency = workers, &c
	return c.validate(workers)
}

// WithTimeout limits the requests of a client whose context has no deadline, in place of
// [DefaultTimeout], and pushes.
func WithTimeout(d time.Duration) Option {
	return func(o *options) error {
		o.forClient = "WithTimeout"
		if d <= 0 {
			return fmt.Errorf("a time limit of %v", d)
		}
		o.timeout = d
		return nil
	}
}

// WithJournal makes a server keep all that it acknowledges, and begin with what was kept.
// Without a journal a server that ends loses its rows.
func WithJournal(j Journal) Option {
	return func(o *options) error {
		o.forServer = "WithJournal"
		if j == nil {
			return errors.New("WithJournal was given no journal")
		}
		o.journal = j
		return nil
	}
}

// WithDir says where a server keeps the rows of tables with a bound on their memory
// (rows.Schema.Memory) that do not fit it. They are no snapshot: a server that is started
// again makes them anew from its journal.
func WithDir(dir string) Option {
	return func(o *options) error {
		o.forServer = "WithDir"
		o.dir = dir
		return nil
	}
}

// WithStore makes a server publish its address in a store, where [InStore] finds it. A
// server that is started again publishes its new address.
func WithStore(s store.Store) Option {
	return func(o *options) error {
		o.forServer = "WithStore"
		if s == nil {
			return errors.New("WithStore was given no store")
		}
		o.store = s
		return nil
	}
}
