// SPDX-License-Identifier: Apache-2.0

// Package bench measures Cohort on the user's own machine: the cases of
// `cohort bench`. A case returns [Result]s, which print as one JSON object a
// line, so that runs can be compared by a script, or as a line for people.
//
// The models and sizes are those of a PyTorch script that does the same work,
// so that the two can be run side by side.
package bench
