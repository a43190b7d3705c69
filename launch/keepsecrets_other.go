// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

// KeepSecrets has the system write no core dump of this process, and show its
// memory and environment to nobody but root: for a process that is only a
// launcher, which knows the job's token and holds nothing that anybody would
// debug. The ranks that it starts are as they would be without. Where the system
// has no such thing (it is Linux's) it does nothing.
func KeepSecrets() {}
