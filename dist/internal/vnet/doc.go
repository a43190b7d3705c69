// SPDX-License-Identifier: Apache-2.0

// Package vnet is a network inside a process: hosts, and between any two of
// them a path in each direction with a latency, a rate and faults. Its
// connections are net.Conns with the manners of TCP: a stream in order, a
// window, an end that the peer reads, a reset where nobody listens, silence
// where a path is cut. It lives by the time package alone, so that in a
// testing/synctest bubble it lives in virtual time.
//
// # The same again
//
// In virtual time a run with the same seed goes the same way, although the
// scheduler does not. Time moves only when every goroutine waits, so the
// network, which is what moves it, is the one source of order:
//
//   - what hosts send at one instant is collected and taken up at the next (a
//     nanosecond later) in an order of its own: by sender, receiver and
//     connection;
//   - of what arrives, one thing arrives at an instant, so that its receiver has
//     done all that it does of it before the next comes, and it does so when
//     all is done that hosts do at that instant of themselves, for their timers
//     may fire then too;
//   - what is read at one instant is room for its sender from the next one on;
//   - what is random is drawn for each path by a generator of its own.
//
// What is left to chance is the order of goroutines of one host that write to one
// connection at one instant.
//
// # Caveats
//
// In virtual time the network calls synctest.Wait, so that nobody else may
// while it is in use. Methods may be called by several goroutines. One lock guards a network: it
// is for dozens of hosts, not for measuring. Bytes that have been sent when a
// path is cut arrive; what is sent while it is cut arrives, in order, when it
// is whole again, as TCP's repetitions would. Space in a window is known to
// the sender when the receiver has read, with no delay.
package vnet
