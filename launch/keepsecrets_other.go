// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

// KeepSecrets has the system write no core dump of this process, and show its memory and
// environment to nobody but root. It is for a process that is only a launcher: such a
// process knows the job's token, and nobody debugs it. It does not change the ranks that the
// process starts. It does nothing on systems other than Linux.
func KeepSecrets() {}
