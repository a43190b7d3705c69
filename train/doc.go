// SPDX-License-Identifier: Apache-2.0

// Package train has whole training jobs: the step loop, which trains anything,
// and the recipes that `cohort train` runs on it.
//
// # Mental model
//
// [Run] trains a [Task] on all ranks of a group. A Task is what the loop does not
// know: a model, its loss on a batch, an optimizer, where batches come from, how
// good the model is, which files make a checkpoint of use to others. The loop is
// the rest, and the same for all of them: passes whose gradients add up, mixed
// precision, clipping, schedules, evaluation, the best and the last checkpoints,
// an early end, steps that are not finite, resuming, stopping on a signal.
// loop.go is meant to be read aloud.
//
// A recipe such as [LM] makes a Task of its settings: it opens the data, builds
// the model, and calls Run. A program of yours does the same in fewer lines; see
// the example of Run.
//
// # Who does what
//
// Every rank calls Run with the same task and options, and does its share of
// each step. Only rank 0 writes: progress ([Reporter]) and checkpoints. In every
// step, between the gradients and the update, ranks agree on the mean loss and
// on whether to go on. A signal that reaches them at different times stops all
// of them after the same step, with a checkpoint; and where the loss or a
// gradient is not finite, all of them stop ([NonFiniteError]) or leave out the
// update. An error on one rank, such as that of a damaged file, ends the others
// too, who say whose it is.
//
// # Directories
//
// A run's directory has step-N, the last checkpoints, from which the same call
// goes on; best/step-N, the weights of the best evaluation; and config.toml, the
// settings. A program that must begin afresh names another directory.
package train
