// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

// StoreOptions choose what Store measures.
type StoreOptions struct {
	Ops     []string // of [StoreOps]
	Clients []int    // numbers of callers, each with one call under way
	// Connections are "own", a connection for every caller, and "shared", one
	// for all callers of a process. With one caller a process they are the same.
	Connections []string
	Processes   int           // that the callers are shared out over
	Wire        string        // of [StoreWires]
	Addr        string        // of a server of PyTorch's that is there already; or empty
	Bytes       int           // of a value
	Time        time.Duration // that each of three rounds takes
}

// StoreOps are the operations that Store knows: set without waiting for each
// answer, as PyTorch's set is, and set that waits.
func StoreOps() []string { return []string{"set", "set_wait", "get", "add"} }

// ConnectionKinds are how callers can be connected.
func ConnectionKinds() []string { return []string{"own", "shared"} }

// StoreWires are the protocols over which a store can be measured. PyTorch's has no set of
// which many can be under way.
func StoreWires() []string { return []string{"cohort", "pytorch"} }

const (
	maxStoreClients = 100_000
	maxProcesses    = 1024
)

// Validate reports the first option that makes no sense.
func (o StoreOptions) Validate() error {
	for _, op := range o.Ops {
		if err := oneOf("operation", op, StoreOps()); err != nil {
			return err
		}
	}
	if err := oneOf("wire", o.Wire, StoreWires()); err != nil {
		return err
	}
	if o.Wire == "pytorch" && slices.Contains(o.Ops, "set") {
		return errors.New("PyTorch's wire is measured by set_wait, get and add: leave set out of --ops")
	}
	if o.Addr != "" && o.Wire != "pytorch" {
		return fmt.Errorf("a server at %s: only one that speaks PyTorch's wire (--wire pytorch) can be measured from here", o.Addr)
	}
	for _, kind := range o.Connections {
		if err := oneOf("kind of connections", kind, ConnectionKinds()); err != nil {
			return err
		}
	}
	if o.Processes < 1 || o.Processes > maxProcesses {
		return fmt.Errorf("%d processes: want 1 to %d", o.Processes, maxProcesses)
	}
	for _, n := range o.Clients {
		if n < 1 || n > maxStoreClients {
			return fmt.Errorf("%d clients: want 1 to %d", n, maxStoreClients)
		}
		if n%o.Processes != 0 {
			return fmt.Errorf("%d clients cannot be shared out over %d processes", n, o.Processes)
		}
	}
	if o.Bytes < 1 || o.Bytes > store.MaxValue {
		return fmt.Errorf("values of %d bytes: want 1 to %d", o.Bytes, store.MaxValue)
	}
	if o.Time <= 0 {
		return fmt.Errorf("rounds of %v: want more", o.Time)
	}
	return nil
}

// The processes of a bench meet in the job's store, under these keys.
const (
	storeAddr = "bench/store/addr"
	storeDone = "bench/store/done"
)

// ServeStore is the process with the store that is measured: it serves one on
// a port of its own until the others have finished.
func ServeStore(ctx context.Context, job store.Store, o StoreOptions) error {
	if o.Addr != "" {
		if err := job.Set(ctx, storeAddr, []byte(o.Addr)); err != nil {
			return err
		}
		return job.Wait(ctx, storeDone)
	}
	if o.Wire == "pytorch" {
		srv, err := store.ListenPyTorch("127.0.0.1:0")
		if err != nil {
			return err
		}
		defer srv.Close()
		if err := job.Set(ctx, storeAddr, []byte(srv.Addr())); err != nil {
			return err
		}
		return job.Wait(ctx, storeDone)
	}
	token, err := transport.TokenFromEnv()
	if err != nil {
		return err
	}
	port, err := transport.Listen("127.0.0.1:0", token)
	if err != nil {
		return err
	}
	defer port.Close()
	srv := store.Serve(port, store.NewMemory())
	defer srv.Close()
	if err := job.Set(ctx, storeAddr, []byte(port.Addr())); err != nil {
		return err
	}
	return job.Wait(ctx, storeDone)
}

// Store measures a store over TCP as process number me, from 0, of those that
// the callers are shared out over; process 0 emits. It runs beside
// [ServeStore], and all have the same options.
func Store(ctx context.Context, job store.Store, me int, o StoreOptions, emit func(Result) error) error {
	if err := o.Validate(); err != nil {
		return fmt.Errorf("bench store: %w", err)
	}
	addr, err := job.Get(ctx, storeAddr)
	if err != nil {
		return err
	}
	token, err := transport.TokenFromEnv()
	if err != nil {
		return err
	}
	b := &storeBench{StoreOptions: o, job: job, me: me, connect: func() (storeClient, error) {
		if o.Wire == "pytorch" {
			return store.DialPyTorch(ctx, string(addr))
		}
		return store.Connect(ctx, string(addr), token, transport.EncryptControl)
	}}
	for _, n := range o.Clients {
		mine := n / o.Processes
		for _, kind := range o.Connections {
			conns := mine
			if kind == "shared" {
				if conns = 1; mine == 1 && slices.Contains(o.Connections, "own") {
					continue
				}
			}
			if err := b.measure(ctx, mine, conns, emit); err != nil {
				return err
			}
		}
	}
	if me != 0 {
		return nil
	}
	return job.Set(ctx, storeDone, nil)
}

// storeBench is what a process of the bench has.
type storeBench struct {
	StoreOptions
	job     store.Store
	me      int
	meeting int // how often the processes have met
	connect func() (storeClient, error)
}

// storeClient is a client over either wire.
type storeClient interface {
	store.Store
	Close() error
}

// measure measures all operations with this process's callers on its connections.
func (b *storeBench) measure(ctx context.Context, callers, conns int, emit func(Result) error) (err error) {
	clients := make([]storeClient, conns)
	defer func() {
		for _, c := range clients {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
	}()
	for i := range clients {
		if clients[i], err = b.connect(); err != nil {
			return err
		}
	}
	value := make([]byte, b.Bytes)
	if err := clients[0].Set(ctx, "key", value); err != nil {
		return err
	}
	for _, op := range b.Ops {
		var rates []float64
		for range 3 {
			rate, err := b.round(ctx, op, value, clients, callers)
			if err != nil {
				return err
			}
			rates = append(rates, rate)
		}
		if b.me != 0 {
			continue
		}
		slices.Sort(rates)
		numCallers := callers * b.Processes
		r := Result{
			Bench: "store", Case: op, Transport: b.transport(), Clients: numCallers, Connections: conns * b.Processes,
			Bytes: b.Bytes, OpsPerSec: rates[1], MedianMicros: 1e6 * float64(numCallers) / rates[1], MinMicros: 1e6 * float64(numCallers) / rates[2],
		}
		if op == "add" {
			r.Bytes = 0
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}

// transport is what the results call the wire.
func (b *storeBench) transport() string {
	if b.Wire == "pytorch" {
		return "tcp, PyTorch's wire"
	}
	return "tcp"
}

// round has all callers of all processes work for the time, and returns
// operations a second in process 0.
func (b *storeBench) round(ctx context.Context, op string, value []byte, clients []storeClient, callers int) (float64, error) {
	if _, err := b.meet(ctx, 0); err != nil {
		return 0, err
	}
	var done atomic.Bool
	time.AfterFunc(b.Time, func() { done.Store(true) })
	var total atomic.Int64
	errs := make([]error, callers)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			c, n := clients[i%len(clients)], int64(0)
			call := storeCall(ctx, c, op, strconv.Itoa(b.me*callers+i), value)
			for !done.Load() {
				if errs[i] = call(); errs[i] != nil {
					return
				}
				n++
			}
			if op == "set" {
				errs[i] = c.(*store.Client).Flush(ctx)
			}
			total.Add(n)
		})
	}
	wg.Wait()
	rate := float64(total.Load()) / time.Since(began).Seconds()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	// Rates add up, for all work at the same time but for the odd millisecond.
	sum, err := b.meet(ctx, int64(rate))
	return float64(cmp.Or(sum, 1)), err
}

// storeCall returns a call of an operation.
func storeCall(ctx context.Context, c storeClient, op, key string, value []byte) func() error {
	switch op {
	case "set":
		return func() error { return c.(*store.Client).SetAsync(ctx, key, value) }
	case "set_wait":
		return func() error { return c.Set(ctx, key, value) }
	case "add":
		return func() error { _, err := c.Add(ctx, "n", 1); return err }
	default:
		return func() error { _, err := c.Get(ctx, "key"); return err }
	}
}

// meet waits until all processes have come, and returns the sum of what they bring.
func (b *storeBench) meet(ctx context.Context, brought int64) (int64, error) {
	b.meeting++
	key := "bench/store/meeting/" + strconv.Itoa(b.meeting)
	if _, err := b.job.Add(ctx, key+"/sum", brought); err != nil {
		return 0, err
	}
	n, err := b.job.Add(ctx, key+"/come", 1)
	if err != nil {
		return 0, err
	}
	if int(n) == b.Processes {
		if err := b.job.Set(ctx, key+"/all", nil); err != nil {
			return 0, err
		}
	}
	if err := b.job.Wait(ctx, key+"/all"); err != nil {
		return 0, err
	}
	return b.job.Add(ctx, key+"/sum", 0)
}
