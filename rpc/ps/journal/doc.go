// SPDX-License-Identifier: Apache-2.0

// Package journal keeps what a parameter server has acknowledged, so that the server comes back
// after a crash with nothing lost and nothing done twice.
//
// A [Journal] is a directory of one server. The directory holds a log, a row of numbered entries:
// the server appends an entry before it answers a push. The number of an entry is its LSN (log
// sequence number). [Journal.Replay] gives the entries to the server, which applies them again.
//
// # Log
//
// The log is a row of segments (files). The name of a segment is the LSN of its first entry. Each
// entry has a CRC-32C over its length, its LSN and its bytes. [Journal.Append] writes any number of
// entries by one write. So the server gives all waiting pushes to one call (group commit). If a
// write fails, as on a full disk, the bytes of that call are cut off again: either all entries of
// a call are in the log, or none. The [Mode] says when a call returns.
//
// A crash can leave a part of the last write: the torn tail. [Open] cuts the torn tail off. Each
// entry also says up to which LSN the log was acknowledged when the entry was written. So a damaged
// entry that was acknowledged is told apart from a torn tail: it is an error of kind [Damaged].
//
// The files entry.go, segment.go, append.go and replay.go are the log. All that changes the file
// system goes through disk.go.
//
// A Journal can be used by several goroutines. One process has a directory at a time: a second one
// gets an error of kind [Busy]. A Journal does not keep the bytes that it is given. The zero value of
// Journal is not usable.
package journal
