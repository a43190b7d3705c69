// SPDX-License-Identifier: Apache-2.0

// Package collective is what all ways of moving bytes between ranks have in
// common, without moving any: what a call is ([Call], [Data]), how it fails
// ([RankError], [MismatchError], [TimeoutError]), and the algorithms that
// serve it as pure functions ([Plan]): who sends, receives and reduces which
// elements, in which order. Nothing here waits or knows a transport, so that a
// plan can be checked for any number of ranks by running it in a table.
//
// It is the seam between package dist, which users see, and the packages that
// implement [Backend]. A backend is driven by one group. The group numbers the
// calls, checks their arguments and keeps their order; the backend moves and
// reduces. Data is borrowed for the length of a call and never kept.
package collective
