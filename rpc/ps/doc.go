// SPDX-License-Identifier: Apache-2.0

// Package ps is a parameter server: tables of rows that lie on servers, from which workers
// pull rows and to which they push gradients.
//
// A table has a row for each key. A key is any 64-bit number, so nobody says how many rows
// there are: a row begins with its first push, and before that it has a first value, which
// depends on the table and the key alone (package rows). [Routing] says which server has
// which keys. A server is a service of an rpc.Agent ([Serve]); a [Client] is made by [Dial].
//
//	s, err := ps.Serve(ctx, agent, index, numServers, ps.WithStore(store))
//
//	c, err := ps.Dial(ctx, agent, ps.InStore(store, numServers),
//		ps.WithWorker(rank, numWorkers, ps.Synchronous()), ps.WithTables(users, items))
//	rows, err := c.Pull(ctx, ps.Request{Table: "users", Keys: keys}) // float32 [keys, width]
//	err = c.Add(ps.Gradient{Table: "users", Keys: once, Grads: grads})
//	err = c.Step(ctx) // pushes, and begins the next step
//
// # Steps and consistency
//
// A worker makes steps: it pulls, computes, and pushes once. [Consistency] says what a pull
// sees of other workers. Synchronous servers apply the sum of the pushes of all workers,
// added in the order of the workers, once all have pushed; so the result has the bits of
// data-parallel training with dist.WithDeterministic. With a bound, or asynchronously, each
// push is applied when it comes. With batched updates the sum or mean of several pushes is
// one update.
//
// # Each push once
//
// A client numbers its pushes to each server, and has one request with pushes under way to a
// server at a time. A server remembers the last number of each client. So a push that is
// repeated after a lost connection has no effect twice, and the client repeats it until its
// deadline. A server with a [Journal] keeps each push before it answers. When it is started
// again it has all that it has acknowledged; clients refuse a server that does not.
//
// # Files
//
//   - routing.go: which server has which keys
//   - settings.go, consistency.go, options.go: what servers and workers agree about
//   - server.go: a server; answer.go: its answers to pulls; handlers.go: those to others;
//     writer.go: whoever changes its state; state.go: that state, which follows
//     from its entries (entry.go) alone
//   - progress.go: how far a job has come, for another number of servers
//   - keeper.go: the snapshots that keep the log short
//   - client.go: a client; remote.go: a server as a client sees it; pull.go, push.go
//   - transfer.go: rows with their states, from and to checkpoints of a run
//   - attach.go, embedding.go: models whose embeddings lie on servers; layers.go: their layers
//   - unique.go: keys, each once
//   - message.go, error.go: what travels
//
// # Caveats
//
// A pull and a push that are under way at the same time are in no order, unless the
// consistency gives one. Tensors of gradients are read until the push is acknowledged
// ([Client.Flush]); they must not be changed before. The zero values of Server, Client,
// Pulled and Routing cannot be used.
package ps
