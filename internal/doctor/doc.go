// SPDX-License-Identifier: Apache-2.0

// Package doctor finds what keeps a job from running, or makes it slow: on this host,
// between hosts, and in the files of a run that has failed.
//
// # The picture
//
// A table of checks ([Checks]) says what is looked at, why it matters and what mends it.
// [Collect] reads the [Facts] of a host. [Judge] applies the table to these facts, and is a
// function of its arguments alone. Each [Finding] names its check and the host, says what
// was found, and has the command that mends it.
//
// [Examine] does this for several hosts and the network between them ([Survey]), and
// [JudgeHosts] finds what is wrong. On each host a process answers requests that it reads
// from a pipe ([Host.Serve]). How the process is started does not matter: over ssh, by a
// scheduler, in a namespace. So a network between hosts that does not work is seen and named,
// and hides nothing. Each host listens at a port, and knows a cookie for each other one.
//
// [ReadRun] reads the logs, error files and flight records of a failed run, and compares
// them with a table of known troubles ([Troubles]).
//
//	check.go      the table of checks; finding.go: what they return
//	facts.go      what is known of a host; collect.go and disk*.go read it
//	filter.go     firewall and traffic shaping
//	judge_*.go    checks of one host; between_*.go: checks of several
//	serve.go      the process on each host; link.go: its connections
//	examine.go    who asks all hosts; survey.go: what they have answered
//	run.go        files of a failed run; troubles.go: the table of troubles
//	page.go       the tables as they stand in docs/doctor.md
//
// # Caveats
//
// A finding says what was so when it was looked at. Rates are measured for a fraction of a
// second, and a host with other work is slower. Facts that a system does not tell are
// missing, and no check finds anything in what is missing.
package doctor
