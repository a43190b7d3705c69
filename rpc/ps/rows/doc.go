// SPDX-License-Identifier: Apache-2.0

// Package rows holds the rows of one embedding table in one process. It knows
// neither networks nor logs: package rpc/ps calls it from a server, and
// rpc/ps/journal makes what it holds durable.
//
// # Mental model
//
// A table maps 64-bit keys to rows. A [Schema] says how wide a row is, of which
// dtype, with which first value, and which optimizer changes it. The first value
// of a row is a function of the seed, the table's name and the key alone. So a
// reader never makes a row: [Table.Gather] computes the first value of a key
// that has no row. [Table.Update] makes the row when its first gradient comes, or
// its Admit-th.
//
// A row is one record in memory: its values, the state of its optimizer, and a header
// (LSN, step, count). The LSN is the number of the last log entry that changed the row. An
// older entry leaves the row alone. So a log may be replayed over a snapshot whose rows
// have different ages.
//
// Records lie in large chunks outside the collector's heap (arena.go). An index of open
// addressing finds them (index.go). It has one part for each of the 1,024 partitions of
// keys, and a part is in the order of hashes. [Table.Scan] walks in this order, so a row
// that stays in the table is seen exactly once, whatever comes, goes or moves meanwhile.
//
// Random rows of a large table are in no cache. So keys are looked up in waves (gather.go):
// the processor fetches the buckets of one wave and the rows of another while the rows of a
// third are copied.
//
// # Caveats
//
//   - One goroutine at a time may call the methods that change a table: Update,
//     Remove, Put, Forget. Gather, GatherBags, Scan, Evict and Stats may run beside them, in
//     any number of goroutines. A reader sees each row before or after an update, never
//     between.
//   - Update trusts its arguments. [Table.Check] finds keys and gradients that a
//     server must refuse before it writes them to its log.
//   - Each call of Update needs an LSN of its own, higher than the ones before.
//   - [Table.Close] gives the memory back. Nothing may be called after it.
//   - The numbers of [Hash] and of first values are part of the protocol and of
//     snapshots: they never change.
//
// # Files
//
//	what a user writes   schema.go, init.go, optimizer.go
//	where rows lie       arena.go, index.go, store.go, memory_*.go, codec.go (dtypes)
//	rows on disk         cold.go, segments.go
//	reading              gather.go, prefetch*.go, bags.go
//	changing             update.go, update_shared.go (by two cores), apply.go (the arithmetic), evict.go
//	snapshots            record.go, scan.go
//	rows with states     transfer.go
//	numbers about it     stats.go
package rows
