// SPDX-License-Identifier: Apache-2.0

// Package flight is the flight recorder: what every rank keeps, always, of the
// calls that it has made last, so that a job that failed or hangs can say who
// is where.
//
// A [Recorder] belongs to a rank, a [Log] to one of the rank's groups. A call
// is told to the log three times: when the program makes it, when it begins to
// run, when it has ended. The recorder has a fixed number of entries; the
// oldest that has ended makes room. What it costs is paid on every call, so an
// entry holds numbers only: two readings of a clock, two short critical
// sections, no allocation.
//
// The call site is known by a hash of the return addresses on the stack, which
// a few instructions of assembly gather by walking frame pointers. The first
// call of a stack looks its frames up and keeps them under that hash; their
// text is made when somebody asks. The site of a call is the innermost frame
// of the user's program; where there is none, one of the module's own packages
// (see site.go).
//
// [Recorder.Dump] turns the entries into what package flightlog documents,
// reads and merges. All methods are safe for concurrent use; the zero values
// are of no use, but a zero [Ticket] and a nil *[Log] record nothing.
package flight
