// SPDX-License-Identifier: Apache-2.0

// Package flight is the flight recorder: every rank always keeps its last calls, so that a job that
// failed or hangs can tell which rank is where.
//
// A [Recorder] belongs to a rank, a [Log] to one of the rank's groups. The log hears of a call three
// times: when the program makes it, when it begins to run, and when it has ended. The recorder has a
// fixed number of entries; the oldest call that has ended makes room. Every call pays for the
// recorder, so an entry holds numbers only. A call costs two readings of a clock and two short
// critical sections, and no allocation.
//
// The site of a call is found by a hash of the return addresses on the stack, which a few
// instructions of assembly gather by walking frame pointers. The first call from a stack looks its
// frames up and keeps them under the hash. Their text is made when it is asked for. The site is the
// innermost frame of the user's program, or where there is none, of one of the module's own packages
// (see site.go).
//
// [Recorder.Dump] turns the entries into what package flightlog documents, reads and merges. All
// methods are safe for concurrent use. The zero values cannot be used, but a zero [Ticket] and a nil
// *[Log] record nothing.
//
// Files: recorder.go, doing.go (what a rank is doing now), dump.go, site.go (call sites), stacks.go
// (stacks of goroutines), stack_*.go (the hash).
package flight
