// SPDX-License-Identifier: Apache-2.0

// Package vnet is a network inside a process: hosts, and between any two of them a path in each
// direction with a latency, a rate and faults. Its connections are net.Conns that behave like TCP: a
// stream in order, a window, an end that the peer reads, a reset where no process listens, silence
// where a path is cut. The network uses no time but that of package time, so that in a bubble of
// testing/synctest it runs in virtual time.
//
// # Repeatable runs
//
// In virtual time a run with the same seed goes the same way, although the scheduler does not. Time
// moves only when every goroutine waits, and only the network moves it. So the network decides the
// order of events:
//
//   - What hosts send at one instant is collected, and taken up at the next instant (a nanosecond
//     later) in a fixed order: by sender, receiver and connection.
//   - One thing arrives at an instant, so that its receiver has done all that follows from it before
//     the next thing arrives. It arrives after all that hosts do at that instant by themselves, for
//     their timers may fire then too.
//   - What is read at one instant is room for its sender from the next instant on.
//   - Each path has a random generator of its own.
//
// Only the order of goroutines of one host that write to one connection at one instant is left to
// chance.
//
// # Caveats
//
// In virtual time the network calls synctest.Wait, so no other goroutine may call it while the network
// is in use. Methods may be called by several goroutines. One lock guards a network: it is for dozens
// of hosts, not for measuring. Bytes that were sent before a path was cut arrive. Bytes that are sent
// while it is cut arrive in order when it is mended, as TCP would repeat them. The sender knows of room
// in the window as soon as the receiver has read.
package vnet
