// SPDX-License-Identifier: Apache-2.0

// Command ps keeps a table on two parameter servers, and trains it with three workers. The
// servers collect the gradients of all workers and apply their mean as one update.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

const numServers, numWorkers, numSteps, batch = 2, 3, 150, 256

// circle is the table: each key gets a point [2], which begins somewhere near (0, 0).
var circle = rows.Schema{
	Name: "circle", Width: 2,
	Init:      rows.Init{Kind: rows.Normal, Scale: 0.1},
	Optimizer: rows.Optimizer{Kind: rows.SGD, LR: 0.5},
}

// target is where the point of a key belongs.
func target(key int64) (x, y float32) {
	sin, cos := math.Sincos(float64(key) / 100)
	return float32(cos), float32(sin)
}

// run is every rank: the first ones are servers, the others workers.
func run(ctx context.Context, group *dist.Group) (err error) {
	agent, err := rpc.Init(ctx, fmt.Sprintf("rank%d", group.Rank()), rpc.WithGroup(group))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.Close()) }()
	if group.Rank() < numServers {
		err = serve(ctx, agent, group)
	} else {
		err = work(ctx, agent, group)
	}
	return errors.Join(err, agent.Shutdown(ctx)) // which waits for all ranks
}

// serve is a server. It answers until all workers have ended.
func serve(ctx context.Context, agent *rpc.Agent, group *dist.Group) error {
	server, err := ps.Serve(ctx, agent, group.Rank(), numServers, ps.WithStore(group.Store()))
	if err != nil {
		return err
	}
	if err := group.Barrier(ctx); err != nil { // the workers have ended
		return err
	}
	fmt.Printf("server %d has %d of the rows\n", group.Rank(), server.Tables()[0].Stats().Rows)
	return server.Close()
}

// work is a worker, with samples of its own.
func work(ctx context.Context, agent *rpc.Agent, group *dist.Group) error {
	worker := group.Rank() - numServers
	client, err := ps.Dial(ctx, agent, ps.InStore(group.Store(), numServers), ps.WithTables(circle),
		ps.WithWorker(worker, numWorkers, ps.Asynchronous().Batched(numWorkers, true)))
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(uint64(worker), 0))
	for step := range numSteps {
		keys := make([]int64, batch)
		for i := range keys {
			keys[i] = r.Int64N(600)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		points, err := client.Pull(ctx, ps.Request{Table: "circle", Keys: keys})
		if err != nil {
			return err
		}
		// The gradient of half the squared distance is the way from the target to the point.
		away, far := points[0].Float32s(), 0.0
		for i, key := range keys {
			x, y := target(key)
			away[2*i], away[2*i+1] = away[2*i]-x, away[2*i+1]-y
			far += math.Hypot(float64(away[2*i]), float64(away[2*i+1])) / float64(len(keys))
		}
		// Update waits until the gradients of all workers have been applied, and has the new rows.
		if _, err := client.Update(ctx, ps.Gradient{Table: "circle", Keys: keys, Grads: tensor.FromFloat32(away, len(keys), 2)}); err != nil {
			return err
		}
		if worker == 0 && (step == 0 || step == numSteps-1) {
			fmt.Printf("step %d: points are %.2f away from the circle\n", step, far)
		}
	}
	return errors.Join(client.Leave(ctx), client.Close(), group.Barrier(ctx))
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), numServers+numWorkers, dist.Main(run)))
}
