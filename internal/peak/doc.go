// SPDX-License-Identifier: Apache-2.0

// Package peak says how fast the threads of this machine are at best: how many floating-point operations
// of matrix products they do in a second ([Product]), and how many bytes they copy.
//
// # Mental model
//
// A training step is compared with what the machine can do, and not with what its maker says. [Known]
// reads that from a small file in the user's cache. If the file does not know this processor, number of
// threads, dtype and version of the program, [Of] measures for about a third of a second and writes the
// file. The caller chooses the moment, so that short programs do not wait for it. Ranks of a machine that ask at
// the same time measure at the same time, each with its own threads, as they will train.
//
// A machine that was busy when it was measured looks slower than it is. So the file keeps the larger
// number: a step that is faster than the peak becomes the peak ([Reached]).
package peak
