// SPDX-License-Identifier: Apache-2.0

//go:build race

package gloo

// raceEnabled: the race detector knows that what is read from a connection comes after
// what was written to it, but not of writes by the system call.
const raceEnabled = true
