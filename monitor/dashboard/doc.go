// SPDX-License-Identifier: Apache-2.0

// Package dashboard serves the page of package monitor/report over HTTP, for jobs at work and for
// runs that have ended.
//
// # Mental model
//
// A [Server] follows the histories of runs (monitor/history), and shows a [Job]: what the launcher
// of ranks knows of them, and what they print. The page has everything that is known when it is
// opened. Then it asks once a second for what is new, and says up to where it knows everything (the
// cursor). So the server keeps nothing for a page, and a page that was away asks for what it missed.
//
//	GET /         the page
//	GET /updates  report.Data with what is new after the cursor in "after"
//	GET /log      lines of the rank in "rank" (or all) with the text in "q", after the number in "after"
//	GET /metrics  what [Options].Metrics answers
//
// Each address needs the token, as the query "token" or as the header "Authorization: Bearer";
// without it the answer is 403. Nothing can be changed from outside.
//
// # Training never waits
//
// The server runs in the process of the launcher, not in a rank. What happens to ranks, and their
// lines, are taken by copying at most [maxLine] bytes under a lock that no writer to a network
// holds. Answers are made in memory, and written to sockets with a deadline. There are limits on
// connections, on requests at a time and a second, and on the bytes of answers a second; what is over a limit is
// refused, counted, and told once ([Options].Tell). So a browser that floods, stalls or leaves
// costs a job nothing but a small share of a processor.
//
// # Files
//
//	server.go   Server: address, token, limits
//	answers.go  what the server answers
//	limits.go   the limits
//	runs.go     the runs that are followed, and cursors
//	client.go   Client: what a page knows, for a terminal
//	registry.go Register and Jobs: which jobs run on this machine
//	job.go      Job: ranks and their states
//	lines.go    the lines that ranks print
package dashboard
