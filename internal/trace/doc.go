// SPDX-License-Identifier: Apache-2.0

// Package trace keeps what a goroutine computes, operation by operation, while somebody wants to know it.
//
// # Mental model
//
// A [Recorder] belongs to the goroutine that has called [Start], until Stop. A device says of each
// operation when it began and ended ([Begin]), and how much it was. Package nn says which module is
// called, and a tape which module an operation of the backward pass belongs to. Devices have no context,
// so the recorder is found by the goroutine. All of this costs one look at [On], an atomic load, while no
// recorder runs.
//
// What goroutines compute that have no recorder is not kept. A recorder keeps at most [MaxOps] operations,
// and counts the others. An operation within another one is a part of it.
package trace
