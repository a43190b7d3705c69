// SPDX-License-Identifier: Apache-2.0

// Package train has whole training jobs: recipes that `cohort train` runs, and
// the step loop that they share.
//
// [LM] trains a small GPT on text. It is called on every rank of a group and
// does what a reader expects of a training script, in that order: open the
// data, build the model, wrap it in DDP, resume if there is a checkpoint, then
// step, evaluate and save until done. loop.go is meant to be read aloud.
//
// Only rank 0 writes: progress ([Reporter]) and checkpoints. In every step,
// between the gradients and the update, ranks agree on the mean loss and on
// whether to go on. A signal that reaches them at different times stops all of
// them after the same step, with a checkpoint; and where the loss or a gradient
// is not finite, all of them stop ([NonFiniteError]) or leave out the update.
package train
