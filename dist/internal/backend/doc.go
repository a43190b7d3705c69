// SPDX-License-Identifier: Apache-2.0

// Package backend is the seam between package dist, which users see, and the
// ways of moving bytes between ranks: what a call is ([Call], [Data]), what a
// backend does with it ([Backend]) and how it fails ([RankError],
// [MismatchError], [TimeoutError]).
//
// A backend is driven by one group. The group numbers the calls, checks their
// arguments and keeps their order; the backend moves and reduces. Data is
// borrowed for the length of a call and never kept.
package backend
