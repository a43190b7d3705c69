// SPDX-License-Identifier: Apache-2.0

// Package dist lets ranks talk: it forms groups of ranks and moves tensors
// between them.
//
// A [Group] is a value with a rank, a size and the operations of a collective
// library: all-reduce, reduce-scatter, broadcast, all-gather, barrier, send
// and receive.
// Every rank of the group calls the same collectives in the same order with
// the same shapes; a rank that does not is told so ([MismatchError]), and so
// is everybody else. Ranks are processes that meet through their environment
// ([Init], under `cohort run` or torchrun's variables), or goroutines of one
// process ([Spawn]); the code between is the same.
//
// Each operation has a form that returns when its tensor is ready and an
// asynchronous one that returns a [Work]. Collectives of a group run one after
// the other in the order in which they were called, whatever their form;
// messages run in order for each pair of ranks and direction, independent of
// the collectives. Until an operation has ended, its tensors belong to it.
//
// # Groups of some ranks
//
// [Group.NewGroup] and [Group.Split] make groups of some of a group's ranks. A
// rank may be in any number of them, with operations under way on all at once;
// the members alone take part in the making, and each group has its own order
// of operations, its own faults and its own keys in the store. Closing a group
// closes those that were made from it.
//
// # Reductions
//
// All ranks get the same bits. Ranks that share memory reduce in the order of
// ranks: ((x0 + x1) + x2) + …. The ring between nodes reduces small data in
// that order too, but large data in another: the share of rank i begins with
// rank i+1 and goes round, so for more than two ranks its float sums differ
// from shared memory's in the last bits. A reduce-scatter goes round the ring
// on every transport.
//
// # Failure
//
// When a rank dies, closes the group, gives up or calls something else, the
// pending operations of every rank end with an error that names it
// ([RankError]), and so does every later one: a group that has failed is of no
// more use. Contexts and the group's time limit end a wait with a
// [TimeoutError] that names the missing ranks; this too fails the group, for
// nobody knows how far the others have come. Errors about arguments come back
// before anything is sent and leave the group as it was.
//
// # Concurrency
//
// A Group may be used by several goroutines; then they must agree on the
// order of collectives with the other ranks' goroutines, which is seldom what
// a program wants. The zero Group is of no use.
package dist
