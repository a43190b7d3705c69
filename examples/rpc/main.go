// SPDX-License-Identifier: Apache-2.0

// Command rpc keeps a table of numbers in one process. Other processes read rows, add
// to rows, and watch the sums of rows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

const dim = 4

// Change is the argument of Add: rows of the table, and the numbers to add to each.
type Change struct {
	Rows []int64
	By   *tensor.Tensor // [len(Rows), dim]
}

// Sum is an answer of Watch about a row.
type Sum struct {
	Row   int64
	Value float64
}

var (
	Read  = rpc.NewMethod[[]int64, *tensor.Tensor]("table.Read")
	Add   = rpc.NewMethod[Change, struct{}]("table.Add")
	Watch = rpc.NewStream[int64, Sum]("table.Watch")

	ErrNoRow = errors.New("the table has no such row")
)

// Table is the table that the methods use.
type Table struct {
	mu   sync.Mutex
	rows *tensor.Tensor // [rows, dim]
}

func (t *Table) check(rows []int64) error {
	for _, r := range rows {
		if r < 0 || r >= int64(t.rows.Dim(0)) {
			return fmt.Errorf("row %d: %w", r, ErrNoRow)
		}
	}
	return nil
}

func (t *Table) read(ctx context.Context, rows []int64) (*tensor.Tensor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.check(rows); err != nil {
		return nil, err
	}
	return t.rows.IndexSelect(0, tensor.FromInt64(rows)), nil
}

func (t *Table) add(ctx context.Context, c Change) (struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.check(c.Rows); err != nil {
		return struct{}{}, err
	}
	for i, r := range c.Rows {
		t.rows.Narrow(0, int(r), 1).Axpy(1, c.By.Narrow(0, i, 1))
	}
	return struct{}{}, nil
}

// watch receives numbers of rows, and answers each with the sum of that row.
func (t *Table) watch(ctx context.Context, s *rpc.Stream[Sum, int64]) error {
	for row, err := range s.All(ctx) {
		if err != nil {
			return err
		}
		values, err := t.read(ctx, []int64{row})
		if err != nil {
			return err
		}
		if err := s.Send(ctx, Sum{row, values.Sum().Item()}); err != nil {
			return err
		}
	}
	return nil
}

// use calls the methods of the table from another process.
func use(ctx context.Context, table *rpc.Peer, rank int) error {
	// A call waits for its answer.
	ones := tensor.Full(1, 2, dim)
	if _, err := Add.Call(ctx, table, Change{Rows: []int64{int64(rank), 7}, By: ones}); err != nil {
		return err
	}

	// A future is an answer that may not be there yet.
	var answers []*rpc.Future[*tensor.Tensor]
	for row := range int64(3) {
		answers = append(answers, Read.Async(ctx, table, []int64{row}))
	}
	sum := rpc.Then(answers[0], func(t *tensor.Tensor) (float64, error) { return t.Sum().Item(), nil })
	if _, err := rpc.WaitAll(ctx, answers...); err != nil {
		return err
	}
	if _, err := sum.Wait(ctx); err != nil {
		return err
	}

	// An error says where it comes from, and keeps its identity.
	_, err := Read.Call(ctx, table, []int64{1000})
	if !errors.Is(err, ErrNoRow) {
		return fmt.Errorf("want an error for a row that there is not, got %w", err)
	}
	if rank == 1 {
		fmt.Println(err)
	}

	// A stream carries messages in both directions.
	s, err := Watch.Open(ctx, table)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Send(ctx, int64(rank)); err != nil {
		return err
	}
	s.CloseSend()
	for row, err := range s.All(ctx) {
		if err != nil {
			return err
		}
		fmt.Printf("row %d has the sum %v\n", row.Row, row.Value)
	}
	return nil
}

// serve returns the options of an agent with a table.
func serve() rpc.Option {
	t := &Table{rows: tensor.Zeros(10, dim)}
	return rpc.WithOptions(rpc.Serve(Read, t.read), rpc.Serve(Add, t.add, rpc.WithMethodConcurrency(1)), rpc.ServeStream(Watch, t.watch),
		rpc.WithError("table.no row", ErrNoRow), rpc.WithTimeout(10*time.Second))
}

func run(ctx context.Context, group *dist.Group) error {
	name := "table"
	if group.Rank() > 0 {
		name = fmt.Sprintf("worker%d", group.Rank())
	}
	agent, err := rpc.Init(ctx, name, rpc.WithGroup(group), serve())
	if err != nil {
		return err
	}
	defer agent.Close()
	if group.Rank() > 0 {
		if err := use(ctx, agent.Peer("table"), group.Rank()); err != nil {
			return err
		}
	}
	return agent.Shutdown(ctx)
}

// alone serves a table at an address until Ctrl-C.
func alone(ctx context.Context, addr string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	agent, err := rpc.Init(ctx, "table", rpc.WithPeers([]rpc.PeerAddr{{Name: "table", Addr: addr}}), serve())
	if err != nil {
		return err
	}
	fmt.Println("the table is at", agent.Addr())
	<-ctx.Done()
	return agent.Close()
}

func main() {
	listen := flag.String("listen", "", "serve a table at this `address`, to clients in other languages")
	flag.Parse()
	if *listen != "" {
		launch.Exit(alone(context.Background(), *listen))
	}
	launch.Exit(launch.Spawn(context.Background(), 3, dist.Main(run)))
}
