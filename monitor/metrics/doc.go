// SPDX-License-Identifier: Apache-2.0

// Package metrics writes what the ranks of a job have done in Prometheus' text format (version 0.0.4 of
// the exposition format, which promtool check metrics reads).
//
// # Mental model
//
// Ranks keep sums (event.Figures). When somebody asks, the launcher collects those of the ranks of its
// host (launch.Figures), and [Write] makes a text of them. So a job has one address for a scraper,
// ranks open no port, and a job that nobody asks pays nothing. Each name begins with cohort_.
//
// # Bounds
//
// Labels are rank, phase, group, op and kind. There are at most [MaxGroups] groups of ranks; what
// is in others counts to the group "other". Sums about groups are over the ranks, so that a job of
// many ranks has not many more series. A counter begins at 0 when a rank is started again, as Prometheus
// expects.
//
// # Files
//
//	metrics.go  the metrics
//	text.go     the format
//	handler.go  the answer to a scraper
package metrics
