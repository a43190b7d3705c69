// SPDX-License-Identifier: Apache-2.0

// Package rpc lets the processes of a job call each other, with tensors.
//
// An [Agent] is a process's place among those that call each other: it has a name
// and a rank, serves [Method]s, and calls those of its [Peer]s. A method is a value
// that both sides share; its type parameters are the request and the response, Go
// values that may hold tensors anywhere:
//
//	var Add = rpc.NewMethod[AddArgs, *tensor.Tensor]("math.Add")
//
//	a, err := rpc.Init(ctx, "worker0", rpc.WithGroup(g), rpc.Serve(Add, add))
//	sum, err := Add.Call(ctx, a.Peer("worker1"), AddArgs{x, y}) // waits
//	f := Add.Async(ctx, a.Peer("worker1"), AddArgs{x, y})       // does not: f.Wait(ctx)
//
// A [StreamMethod] is a conversation of any number of messages in both directions.
// [ServeAsync] answers later than its handler returns.
//
// # How it travels
//
// A message is a small head in CBOR and the tensors' bytes, which go from the
// sender's memory into that of new tensors with no encoder in between. Small
// messages of several goroutines share system calls. Agents of one host talk through
// shared memory or unix sockets, others over TCP with TLS; COHORT_TRANSPORT and
// COHORT_ENCRYPT choose as they do for collectives. Every connection proves the
// job's token. docs/rpc-wire.md has the format: clients in other languages speak it.
//
// # Errors
//
// Whatever goes wrong is an [*Error] with the method, the peer and a [Kind]. What a
// handler returns arrives as the kind "application" with its message, and stays
// what it is for errors.Is and errors.As if both sides know it ([WithError],
// [WithErrorType]). [Error.Stack] leads to where it happened.
//
// # Times
//
// A call ends with its context; one without a deadline ends after the agent's time
// limit ([DefaultTimeout]). Deadlines travel as what is left of them, so clocks need
// not agree, and the end of a call ends its handler's context. A handler that
// nobody waits for any more is not stopped otherwise, and a call that timed out may
// have taken effect. Nothing is ever called twice.
//
// # Caveats
//
// Ownership: tensors in arguments are read until the call (the future) is done,
// results of handlers until they are written; what is received is the receiver's
// own. Calls are concurrent and their order is not kept; a stream's messages keep
// theirs. Handlers run in goroutines of their own, at most [DefaultConcurrency] at
// once. The zero Agent, Peer, Method, Future and Stream are of no use.
package rpc
