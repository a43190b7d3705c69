// SPDX-License-Identifier: Apache-2.0

// Package event is the stream of what happens on a rank: steps, values that the program logs,
// collectives, phases, memory, checkpoints, faults. Whatever shows a job reads it.
//
// # Mental model
//
// A rank has one [Stream]. dist.Init makes it, and every group of the rank has it
// (dist.Group.Events). Layers emit events, each of a [Kind] of a closed set; nothing that emits
// waits for what reads. The stream does three things with an event:
//
//   - It keeps the event in a ring, from which each [Reader] takes what it has not seen.
//   - It adds it to the rank's [Figures], sums that lose nothing: time by phase, calls and bytes by
//     group and operation.
//   - It keeps of collectives what the ranks compare now and then ([Stream.Cut], [Attribute]).
//
// # Phases
//
// The goroutine that trains is in one [Phase] at any time, and [Stream.Enter] changes it. Time that it
// stands still in a collective counts as [Communication] and not to the phase around it. So the
// phases add up to the time of the clock. A single rank cannot know for whom it stands still. The
// ranks compare how long each collective has taken them: the one that took the least came last, the
// others waited for it, and what it took itself is the communication. No clocks are compared.
//
// # What is lost
//
// The rings are bounded: one has the last [RingCalls] collectives and phases, the other the last
// [RingOthers] events of other kinds, so that many collectives push out no value. A reader that comes too late
// loses the oldest, and [Reader.Lost] counts them. Figures lose nothing.
//
// # Concurrency
//
// All methods are safe for concurrent use, and emitting takes one short critical section and no
// memory. A nil *Stream and a nil *Channel take everything and keep nothing.
//
// # Files
//
//	event.go       kinds, and what an event has
//	stream.go      Stream and Reader
//	phase.go       the phases of the rank
//	channel.go     collectives of a group
//	attribute.go   who waited for whom
//	figures.go     the sums
//	file.go        a file of the sums, for the launcher
package event
