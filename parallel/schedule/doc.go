// SPDX-License-Identifier: Apache-2.0

// Package schedule says in which order the ranks of a pipeline work on the microbatches
// of a step. Its functions are pure: a schedule is a list of actions for each rank, which
// one runtime executes, [Schedule.Simulate] plays in virtual time, and [Schedule.SVG] draws.
//
// # Mental model
//
// A model is cut into stages. Each stage lies on a rank, and a rank has one or more
// stages. A step has microbatches, which pass through the stages forward and then
// backward. An [Action] is the work of one stage on one microbatch: its forward pass, or
// its backward pass. Some schedules split the backward pass into the part that computes
// the gradient of the stage's input, for which the stage before waits, and the part that
// computes the gradients of the weights, for which nobody waits.
//
// [New] makes a schedule by its name:
//
//	gpipe           all forward passes, then all backward passes
//	1f1b            a backward pass after each forward pass, as soon as there is one
//	interleaved     1f1b for several stages a rank: stage i lies on rank i mod ranks
//	interleaved-zb  interleaved, with weight parts in the time in which the rank would wait
//	zbv             two stages a rank in the shape of a V, with weight parts likewise
//	dualpipev       two stages a rank in the shape of a V, forward beside backward passes
//
// In the shape of a V, rank i of n has the stages i and 2n-1-i, so the first rank has the
// first and the last stage. The orders are those of torch.distributed.pipelining.
//
// [Schedule.Lower] adds the messages between ranks. Sends and receives are asynchronous: a
// rank starts a send after the action that computes the value, and posts a receive before
// the action that needs it. Messages have no tags, so a rank posts its receives from
// another rank in the order of that rank's sends. A step of such programs ends whatever
// the delays of the links are, because an action waits only for actions that come before
// it. A rank that limits the messages on their way, and waits for the oldest, may wait
// forever ([SimulateOptions].MaxSends).
//
// # Caveats
//
// A Schedule is not changed after New, and may be read from several goroutines. The zero
// Schedule has no ranks.
package schedule
