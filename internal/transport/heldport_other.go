// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package transport

// bindPort does nothing: only on Linux does a bound socket let others listen.
func bindPort(int) (release func(), err error) { return nil, nil }

// withoutForks calls f. Package net waits for forks itself where the system makes sockets in two
// steps, so that f cannot keep them off.
func withoutForks(f func() error) error { return f() }
