// SPDX-License-Identifier: Apache-2.0

// Package goroutine tells goroutines apart: [ID] is a number of the one that runs, which costs an instruction.
//
// Go gives goroutines no names, and means it. So what is done by an ID is bookkeeping alone: the flight
// recorder knows whether one goroutine makes all calls of a rank, and the event stream whose time it
// measures. Where the processor has no assembly here, all goroutines have the ID [Unknown].
package goroutine

// Unknown is no ID. It is the ID of all goroutines where they cannot be told apart.
const Unknown = 1
