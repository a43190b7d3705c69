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
// # The HTML file
//
// The file needs no network, and loads nothing. It has the style and the scripts of page/, where
// uPlot 1.6.32 (MIT, by Leon Sorokin) draws the curves. The data of the runs stand in the file as
// JSON, in which no text can end the script.
//
// # Files
//
//	summary.go   Summarize: numbers and doubts of one run
//	text.go      Text, and the sparkline
//	html.go      HTML; page/ has its parts
package report
