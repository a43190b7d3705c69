// SPDX-License-Identifier: Apache-2.0

// Package report shows what runs came to: as text for a terminal, as JSON for programs, and as one
// self-contained HTML file with curves.
//
// # Mental model
//
// A [Run] is the history of a run (package monitor/history) with its name and settings.
// [Summarize] computes what people ask first: is it learning, is it fast, what did restarts cost,
// is it overfitting. Text and HTML show the same summary; HTML draws the curves besides.
//
// # The page
//
// One page shows runs that have ended, as a file ([HTML]), and jobs at work, from a server
// (package monitor/dashboard, [Page]). It needs no network, and loads nothing: its style and its
// scripts, in page/, stand in it, and its security policy names them by their hashes. uPlot 1.6.32
// (MIT, by Leon Sorokin) draws the curves. The data ([Data]) stand in the page as JSON, in which no
// text can end the script. A live page asks for what is new.
//
// # Files
//
//	summary.go   Summarize: numbers and doubts of one run
//	verdicts.go  Verdicts: answers to what people ask
//	goodput.go   where the time of the ranks went
//	spikes.go    losses far above those before
//	readings.go  Readings: where the time of ranks goes, beside guide values
//	text.go      Text
//	frame.go     Frame: the page in a terminal
//	data.go      Data: what the page shows
//	html.go      HTML and Page; page/ has the parts
package report
