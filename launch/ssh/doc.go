// SPDX-License-Identifier: Apache-2.0

// Package ssh starts cohort commands on other hosts by the system's ssh.
//
//	this host                                   a host of the list
//
//	Connect ── ssh -T host cohort host-agent ──► Serve
//	           ◄── a line: Hello ───────────────
//	           ─── a line: Order ───────────────► runs a cohort command
//	           ─── lines: control ──────────────► signals
//	           ◄── standard output and error
//	           ◄── a line: exit code ────────────
//
// [Connect] starts one ssh for each host, and each host says who it is ([Hello]). Connect
// compares the hosts before anything starts: another version of Cohort, another platform, or
// the same machine under two names is an error that names the host. [Fleet.Run] then gives
// each host its [Order]: a cohort command, its directory, its environment and the job's token.
//
// The exit code comes as a line of the output, behind a text that the order has made up, and not
// as the exit code of ssh: ssh ends with 255 if the connection is lost, and so may a command.
//
// Everything secret goes over the standard input of ssh. It is never in the arguments or in
// the environment of ssh or of the agent. The agent ends its command if its standard input
// ends, or if it hears nothing for [Silence]. So nothing is left on a host when this process
// dies, or the network, or the host of this process.
//
// Ssh runs without a terminal and with BatchMode: it never asks for a password. Its errors
// become sentences that say what to do (trouble.go).
//
// # Files
//
//	hostlist.go  lists of hosts: --hosts, host files, Slurm's node01-04 in brackets
//	wire.go      what the two ends say to each other
//	serve.go     the end on the other host
//	connection.go, fleet.go   this end: one host, all hosts
//	copy.go      copies of this program and of the user's, named by their content
//	trouble.go   what ssh's errors mean
package ssh
