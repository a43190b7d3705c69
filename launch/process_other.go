// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

// stateOf says why a process may not answer, where the system tells.
func stateOf(int) string { return "" }

// isStopped reports whether a process has been stopped; here it cannot tell.
func isStopped(int) bool { return false }
