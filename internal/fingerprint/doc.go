// SPDX-License-Identifier: Apache-2.0

// Package fingerprint describes the environment of a process: what differs between two
// nodes of a job, and what makes the job fail on one of them.
//
// # The picture
//
// A [Fingerprint] is a table of texts: sections (program, cpu, limits, network, …), and keys
// in each section. [Collect] reads it from the system: build information, /proc, sysctl,
// cgroups, limits, interfaces, the clock, GPUs, and the packages of a Python environment.
// Nothing is started, except nvidia-smi where it is installed.
//
// [Rules] says for each key what a difference means ([Kind]): a must stops a job, a warn is
// printed, a told is never compared. A rule also has the unit, the reason, and a command that
// mends a difference. [Diff] compares two fingerprints, [Compare] those of all nodes of a job:
// what most nodes have is expected of the others.
//
//	fingerprint.go   the table, its limits, JSON
//	toml.go          the file that people read and keep
//	rules.go         what a key means
//	diff.go          findings; mend.go has their commands
//	collect.go       what is read from where, in the files beside it
//
// # Secrets
//
// A variable whose name speaks of a secret has the value [Masked]. Names and passwords in
// URLs are masked too.
//
// # Caveats
//
// A fingerprint has at most [MaxBytes] bytes; a larger one is refused. A key that a system
// cannot tell is missing, and a missing key is no difference, except in the sections of
// packages and variables, which are whole lists. A Fingerprint is not safe for concurrent
// use.
package fingerprint
