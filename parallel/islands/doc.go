// SPDX-License-Identifier: Apache-2.0

// Package islands lets groups of ranks that a slow link joins exchange bytes now and then, and go
// on when one of them is lost.
//
// # Mental model
//
// An island is a job of its own: one rank, or several with a fast network among them. Islands form
// no group of package dist, because the loss of a member ends a group. They know each other by a
// store (package store), which runs beside them: `cohort store --wire cohort`.
//
// Exchanges have numbers, from 0 on. In an exchange each island posts its bytes in the store. Once
// all islands that are alive have posted, one of them writes the list of the members: the first to
// write it decides, by compare-and-set, and all others read the same list. So all islands that take
// an exchange take the same bytes of the same members, also if an island dies meanwhile.
//
// An island shows that it is alive by a counter in the store. Islands whose counter stands still for
// [Config.Silence] are not waited for; if somebody stands still for the exchange ([Island.Hurry]), half
// of the silence is enough. An island that was left out though it lives loses nothing: it takes part
// in the next exchange with all that it has learned. An island that comes back asks for what it has missed: the
// decider of an exchange names a member in the list, and that member gives its state as it is after
// that exchange ([Round.Give]). The island takes the state ([Island.TakeState]), then the exchanges
// after it ([Island.Past]), and takes part again.
//
// A process that comes as an island which lives is refused. An island that was silent, and finds
// that another process has taken its place, ends.
//
// An island of several ranks may have several parts: ranks that exchange different bytes. Part 0
// speaks for the island.
//
// # Files
//
//	config.go    what an island is told, and what it is
//	wait.go      for whom an island waits, in words
//	meeting.go   how islands come together at the start
//	exchange.go  an exchange: post, decide, read
//	gathering.go what has come of an exchange before it is decided
//	absence.go   an island that comes back: states and past exchanges
//	watch.go     who is alive
package islands
