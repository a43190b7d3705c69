// SPDX-License-Identifier: Apache-2.0

// Package rpc lets the processes of a job call each other, with tensors in arguments and
// results.
//
// An [Agent] is a process's place in the job: it has a name and a rank, serves [Method]s,
// and calls the methods of its [Peer]s. A method is a value that both sides share. Its type
// parameters are the request and the response: Go values that may hold tensors anywhere.
//
//	var Add = rpc.NewMethod[AddArgs, *tensor.Tensor]("math.Add")
//
//	a, err := rpc.Init(ctx, "worker0", rpc.WithGroup(g), rpc.Serve(Add, add))
//	sum, err := Add.Call(ctx, a.Peer("worker1"), AddArgs{x, y}) // waits for the answer
//	f := Add.Async(ctx, a.Peer("worker1"), AddArgs{x, y})       // returns a future: f.Wait(ctx)
//
// A [StreamMethod] opens a [Stream]: any number of messages in both directions. An [RRef]
// refers to a value that stays in another process. With [ServeAsync] a handler returns a
// [Future], and the answer is sent when that is done.
//
// # Messages and connections
//
// A message is a small head in CBOR and the bytes of the tensors. The tensors' bytes go from
// the sender's memory into the memory of new tensors, without an encoder in between. Small
// messages of several goroutines share system calls. Agents of one host use shared memory or
// unix sockets, others TCP with TLS; COHORT_TRANSPORT and COHORT_ENCRYPT choose, as they do
// for collectives. Both sides of a connection prove that they know the job's token.
// docs/rpc-wire.md describes the format; clients in other languages use it.
//
// # Errors
//
// A failure is an [*Error] with the method, the peer and a [Kind]. The error of a handler
// arrives with the kind "application" and its message. errors.Is and errors.As find the
// handler's error in it if both agents know the error ([WithError], [WithErrorType]).
// [Error.Stack] says where it happened.
//
// # Timeouts
//
// A call ends when its context ends. If the context has no deadline, the agent's timeout
// applies ([DefaultTimeout]). The remaining time travels with the call, so clocks need not
// agree. When a call ends early, the context of its handler ends, but the handler itself is
// not stopped. So a call that has timed out may have taken effect. No call is ever made
// twice.
//
// # Files
//
//   - agent.go, options.go, peer.go: agents, how they begin, and their peers
//   - method.go, call.go, future.go: methods, and the caller's side of a call
//   - serve.go, server.go, incoming.go: services, and the handler's side of a call
//   - lazy.go: tensors that are computed while they are written
//   - concurrency.go: how many calls run, wait, or are answered later
//   - context.go: the context of a handler
//   - stream.go: streams
//   - rref.go, rref_call.go: references; rref_keeper.go and rref_value.go: the owner's side
//   - codec.go, rref_wire.go: tensors and references in messages
//   - error.go, failure.go, panic.go: errors, and how they travel
//   - shutdown.go: leaving the job together
//   - stats.go, debug.go, debug_text.go, builtin.go: what an agent tells of itself
//
// Below are internal/link (connections), internal/wire (messages), internal/cbor (Go values
// as CBOR), internal/rref (the protocol that counts references) and internal/hook (what
// package autograd sees of calls).
//
// # Caveats
//
// Tensors in arguments are read until the call, or its future, is done. Tensors in results
// are read until the answer has been written. A received tensor belongs to the receiver.
//
// Calls run concurrently and in any order; the messages of a stream keep their order. Each
// handler runs in a goroutine of its own, at most [DefaultConcurrency] at once.
//
// The zero Agent, Peer, Method, Future and Stream cannot be used.
package rpc
