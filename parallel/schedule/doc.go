// SPDX-License-Identifier: Apache-2.0

// Package schedule says in which order the ranks of a pipeline work on the microbatches
// of a step. Its functions are pure: a schedule is a list of actions for each rank, which
// one runtime executes, [Simulate] plays in virtual time.
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
//
// The orders are those of torch.distributed.pipelining.
//
// # Caveats
//
// A Schedule is not changed after New, and may be read from several goroutines. The zero
// Schedule has no ranks.
package schedule
