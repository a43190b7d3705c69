// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/journal"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// ServingOptions choose what Serving measures.
type ServingOptions struct {
	Cases            []string // of [ServingCases]
	Servers, Clients int      // processes
	Dim, Rows        int      // of the table
	Batch            int      // rows of a request
	Bag              int      // rows of a bag, in the case bags
	Steps            int      // requests of a client that are measured
	Dir              string   // of the log, in the case recover
}

// ServingCases are the cases that Serving knows.
func ServingCases() []string {
	return []string{"pull", "push", "pull_push", "skew", "bags", "batched", "recover"}
}

// zipf is the exponent of the case skew.
const zipf = 1.05

// Validate reports the first option that makes no sense.
func (o ServingOptions) Validate() error {
	for _, c := range o.Cases {
		if err := oneOf("case", c, ServingCases()); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		name     string
		n, limit int
	}{
		{"servers", o.Servers, 1024}, {"clients", o.Clients, 1024}, {"dim", o.Dim, 1 << 14}, {"rows", o.Rows, 1 << 32},
		{"batch", o.Batch, 1 << 22}, {"bag", o.Bag, o.Batch}, {"steps", o.Steps, 1 << 24},
	} {
		if n.n < 1 || n.n > n.limit {
			return fmt.Errorf("--%s is %d: want 1 to %d", n.name, n.n, n.limit)
		}
	}
	return nil
}

// Table describes what a parameter server was measured with.
type Table struct {
	Servers   int     `json:"servers"`
	Dim       int     `json:"dim"`
	TableRows int     `json:"rows"`
	P50Micros float64 `json:"p50_us"`
}

// Serving measures a parameter server on the ranks of a group: the first ranks are clients,
// the last ones servers. Rank 0 emits.
func Serving(ctx context.Context, group *dist.Group, o ServingOptions, emit func(Result) error) error {
	if err := o.Validate(); err != nil {
		return fmt.Errorf("bench ps: %w", err)
	}
	if group.Size() != o.Servers+o.Clients {
		return fmt.Errorf("bench ps: a group of %d, want %d servers and %d clients", group.Size(), o.Servers, o.Clients)
	}
	for _, c := range o.Cases {
		b := serving{ServingOptions: o, name: c, group: group, client: group.Rank(), server: group.Rank() - o.Clients}
		if err := b.run(ctx, emit); err != nil {
			return fmt.Errorf("bench ps: %s: %w", c, err)
		}
	}
	return nil
}

// serving is a case on one rank.
type serving struct {
	ServingOptions
	name   string
	group  *dist.Group
	client int // its number, if it is one of the clients
	server int // its number; less than 0 of a client

	c     *ps.Client
	draw  *rand.Rand
	skew  *rand.Zipf
	grads *tensor.Tensor
}

// schema is the table that is measured.
func (b *serving) schema() rows.Schema {
	return rows.Schema{Name: "bench", Width: b.Dim, Init: rows.Init{Kind: rows.Uniform, Scale: 0.01}, Optimizer: rows.Optimizer{Kind: rows.SGD, LR: 0.1}}
}

func (b *serving) consistency() ps.Consistency {
	if b.name == "batched" {
		return ps.Asynchronous().Batched(b.Clients, true)
	}
	return ps.Asynchronous()
}

// run makes servers and clients, measures and ends them.
func (b *serving) run(ctx context.Context, emit func(Result) error) (err error) {
	agent, err := rpc.Init(ctx, fmt.Sprintf("%s%d", b.name, b.group.Rank()), rpc.WithGroup(b.group))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	var own string
	var server *ps.Server
	var keeps *journal.Journal
	if b.server >= 0 {
		if server, keeps, err = b.serve(ctx, agent); err != nil {
			return err
		}
		own = server.Addr()
	}
	addrs, err := dist.AllGatherObject(ctx, b.group, own)
	if err != nil {
		return err
	}
	var took []time.Duration
	if b.server < 0 {
		b.c, err = ps.Dial(ctx, agent, ps.At(addrs[b.Clients:]...), ps.WithTables(b.schema()), ps.WithWorker(b.client, b.Clients, b.consistency()))
		if err == nil {
			err = b.fill(ctx)
		}
		if err != nil {
			return err
		}
	}
	if err := b.group.Barrier(ctx); err != nil {
		return err
	}
	switch {
	case b.server < 0 && b.name != "recover":
		took, err = b.measure(ctx)
	case b.server >= 0 && b.name == "recover":
		server, keeps, took, err = b.recover(ctx, agent, server, keeps)
	}
	if err != nil {
		return err
	}
	all, err := dist.AllGatherObject(ctx, b.group, took)
	if err != nil {
		return err
	}
	if b.group.Rank() == 0 {
		if err := emit(b.result(all)); err != nil {
			return err
		}
	}
	if b.c != nil && b.name != "recover" {
		err = b.c.Close()
	}
	if err := errors.Join(err, b.group.Barrier(ctx)); err != nil {
		return err
	}
	if server != nil {
		err = server.Close()
	}
	if keeps != nil {
		err = errors.Join(err, keeps.Close(), os.RemoveAll(b.dir()))
	}
	return errors.Join(err, agent.Shutdown(ctx))
}

// result puts together what the ranks have measured. Rates are those of all clients.
func (b *serving) result(all [][]time.Duration) Result {
	var t times
	rate := 0.0
	for _, took := range all {
		total := time.Duration(0)
		for _, d := range took {
			total += d
		}
		if t = append(t, took...); len(took) > 0 {
			rate += float64(b.Batch*len(took)) / total.Seconds()
		}
	}
	if b.name == "recover" {
		rate = float64(b.Rows) / t.quantile(1).Seconds() // all servers at once
	}
	slices.Sort(t)
	return Result{
		Bench: "ps", Case: b.name, Transport: envvar.Transport.Get("auto"), Clients: b.Clients, Batch: b.Batch, Bytes: b.bytes(),
		RowsPerSec: rate, MedianMicros: micros(t.median()), MinMicros: micros(t.quantile(0)), P99Micros: micros(t.quantile(0.99)),
		Table: &Table{Servers: b.Servers, Dim: b.Dim, TableRows: b.Rows, P50Micros: micros(t.median())},
	}
}

// bytes are the keys and values of a request and its answer, if no key comes twice.
func (b *serving) bytes() int {
	keys, values := 8*b.Batch, 4*b.Dim*b.Batch
	switch b.name {
	case "pull", "push":
		return keys + values
	case "bags":
		bags := (b.Batch + b.Bag - 1) / b.Bag
		return keys + bags*(8+4*b.Dim)
	case "batched":
		return keys + 2*values
	case "recover":
		return 4 * b.Dim * b.Rows
	}
	return 2 * (keys + values)
}

// dir is the directory of a server's log.
func (b *serving) dir() string {
	return filepath.Join(b.Dir, fmt.Sprintf("cohort-bench-ps-%d-%d", os.Getpid(), b.server))
}

// serve starts a server, in the case recover with a log.
func (b *serving) serve(ctx context.Context, agent *rpc.Agent) (*ps.Server, *journal.Journal, error) {
	if b.name != "recover" {
		s, err := ps.Serve(ctx, agent, b.server, b.Servers)
		return s, nil, err
	}
	j, err := journal.Open(b.dir(), journal.Options{Server: b.server, Servers: b.Servers})
	if err != nil {
		return nil, nil, err
	}
	s, err := ps.Serve(ctx, agent, b.server, b.Servers, ps.WithJournal(j))
	return s, j, err
}

// recover ends a server and measures how long it takes until it is back, on an agent of its
// own.
func (b *serving) recover(ctx context.Context, agent *rpc.Agent, s *ps.Server, j *journal.Journal) (*ps.Server, *journal.Journal, []time.Duration, error) {
	if err := errors.Join(s.Close(), j.Close()); err != nil {
		return nil, nil, nil, err
	}
	again, err := rpc.Init(ctx, "recovered", rpc.WithNetwork(rpc.NewNetwork()))
	if err != nil {
		return nil, nil, nil, err
	}
	began := time.Now()
	s, j, err = b.serve(ctx, again)
	took := time.Since(began)
	if err != nil {
		return nil, nil, nil, errors.Join(err, again.Close())
	}
	err = errors.Join(s.Close(), again.Close())
	return nil, j, []time.Duration{took}, err
}

// fill pushes a gradient to each row that falls to this client, so that the row begins.
func (b *serving) fill(ctx context.Context) error {
	b.draw = rand.New(rand.NewPCG(uint64(b.client), 1))
	b.skew = newZipf(b.draw, b.Rows)
	b.grads = tensor.Full(0.001, b.Batch, b.Dim)
	const block = 1 << 14
	grads := tensor.Full(0.001, block, b.Dim)
	from, to := b.Rows*b.client/b.Clients, b.Rows*(b.client+1)/b.Clients
	if b.name == "batched" { // of which all clients have as many
		from, to = 0, b.Rows
	}
	for ; from < to; from += block {
		keys := make([]int64, min(block, to-from))
		for i := range keys {
			keys[i] = int64(from + i)
		}
		if err := b.c.Push(ctx, ps.Gradient{Table: "bench", Keys: keys, Grads: grads.Narrow(0, 0, len(keys))}); err != nil {
			return err
		}
	}
	return nil
}

// keys draws the keys of a request.
func (b *serving) keys() []int64 {
	keys := make([]int64, b.Batch)
	for i := range keys {
		if b.name == "skew" {
			keys[i] = int64(b.skew.Uint64())
		} else {
			keys[i] = b.draw.Int64N(int64(b.Rows))
		}
	}
	return keys
}

// newZipf draws ranks of a Zipf distribution from 0 to n-1.
func newZipf(r *rand.Rand, n int) *rand.Zipf { return rand.NewZipf(r, zipf, 1, uint64(n-1)) }

// maxBatches is how many requests have keys of their own. Their rows are to be many times
// what a cache holds.
const maxBatches = 512

// measure makes the client's requests.
func (b *serving) measure(ctx context.Context) ([]time.Duration, error) {
	var offsets []int64
	if b.name == "bags" {
		for i := 0; i < b.Batch; i += b.Bag {
			offsets = append(offsets, int64(i))
		}
	}
	// A program has keys from its data, so they are drawn before, as far as memory allows.
	type batch struct{ keys, once []int64 }
	batches := make([]batch, min(b.Steps, maxBatches))
	for i := range batches {
		keys := b.keys()
		batches[i] = batch{keys, slices.Compact(slices.Sorted(slices.Values(keys)))}
	}
	took := make([]time.Duration, b.Steps)
	for i := range took {
		keys, once := batches[i%len(batches)].keys, batches[i%len(batches)].once
		g := ps.Gradient{Table: "bench", Keys: once, Grads: b.grads.Narrow(0, 0, len(once))}
		began := time.Now()
		if b.name != "push" && b.name != "batched" {
			pulled, err := b.c.Pull(ctx, ps.Request{Table: "bench", Keys: keys, Offsets: offsets})
			if err != nil {
				return nil, err
			}
			pulled[0].Free()
		}
		var err error
		switch b.name {
		case "push", "pull_push", "skew":
			err = b.c.Push(ctx, g)
		case "batched":
			_, err = b.c.Update(ctx, g)
		}
		if err != nil {
			return nil, err
		}
		took[i] = time.Since(began)
	}
	return took, nil
}
