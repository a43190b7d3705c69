// SPDX-License-Identifier: Apache-2.0

// Package journal keeps what a parameter server has acknowledged, so that the server comes back
// after a crash with nothing lost and nothing done twice.
//
// A [Journal] is a directory of one server. The directory holds a log and snapshots. The log is a
// row of numbered entries: the server appends an entry before it answers a push. The number of an
// entry is its LSN (log sequence number). A snapshot holds the rows of the tables and the server's
// own state at some LSN. [Journal.Recover] loads the newest good snapshot and gives the entries
// behind it to the server, which applies them again.
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
// # Snapshots
//
// A snapshot is a scan of the tables beside updates: its rows have different ages. Each row has
// the LSN of the last entry that changed it. When the log is applied again, an entry changes only
// the rows with a lower LSN. So nothing is copied, and no update waits. An incremental snapshot
// holds only the rows that changed since an earlier snapshot, its base, and a tombstone for each
// row that was removed since then. A snapshot is written into a folder beside the others, is made
// durable, and gets its name by one rename.
//
// The files entry.go, segment.go, append.go and replay.go are the log; manifest.go, snapshot.go,
// load.go and recover.go are the snapshots; retention.go removes what nothing needs; disk.go is the
// way to the file system.
//
// A Journal can be used by several goroutines. One process has a directory at a time: a second one
// gets an error of kind [Busy]. A Journal does not keep the bytes that it is given. The zero value of
// Journal is not usable.
package journal
