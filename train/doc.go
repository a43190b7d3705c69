// SPDX-License-Identifier: Apache-2.0

// Package train has whole training jobs: a step loop that trains any task, and
// the recipes of `cohort train`, which run on this loop.
//
// # Mental model
//
// [Run] trains a [Task] on all ranks of a group. A Task has what the loop does not
// know: a model, its loss on a batch, an optimizer, the source of batches, a
// measure of how good the model is, and the files that make a checkpoint useful
// to others. The loop does the rest, in the same way for every task: gradient
// accumulation, mixed precision, clipping, learning rate schedules, evaluation,
// the best and the last checkpoints, early stopping, steps that are not finite,
// resuming, and stopping on a signal. loop.go is meant to be read aloud.
//
// A recipe, such as [LM], makes a Task of its settings: it opens the data, builds
// the model, and calls Run. Your own program does the same in fewer lines; see
// the example of Run.
//
// # Ranks
//
// Every rank calls Run with the same task and the same options, and does its share
// of each step. Only rank 0 reports progress ([Reporter]) and writes checkpoints.
// In every step, between the gradients and the update, the ranks agree on the mean
// loss and on whether to continue. A signal may reach the ranks at different
// times; all of them stop after the same step, with a checkpoint. If the loss or
// a gradient is not finite, all ranks stop ([NonFiniteError]) or all skip the
// update. An error on one rank, such as a damaged file, ends the other ranks too,
// and their errors name the rank that failed.
//
// # Directories
//
// The directory of a run has three things: step-N, the last checkpoints, from
// which the same call resumes; best/step-N, the weights of the best evaluation;
// and config.toml, the settings. A program that must not resume names another
// directory.
//
// # Settings
//
// The settings of a recipe are a struct: [LMConfig], [RecConfig], [VisionConfig].
// Each field is at the same time a flag of `cohort train`, a key of the
// configuration file and a value in the checkpoint. All three structs embed
// [SharedConfig], which has the settings that all recipes share. To add
//
//   - a flag for all recipes: add a field to SharedConfig in shared_config.go;
//   - a flag for one recipe: add a field to its struct, in lm_config.go,
//     finetune_config.go, rec_config.go or vision_config.go;
//   - an option of the loop, for programs: add a field to [Options] in options.go.
//
// Nothing else needs a change for the flag, its help and its place in files.
// Package internal/config explains the tags of the fields.
//
// # Files
//
//   - The loop: loop.go, trainer.go, task.go, options.go, axes.go (what the ranks do
//     together), vote.go (what they agree on in a step), phase.go, nonfinite.go,
//     evaluate.go (evaluations, and the best one), savedrun.go and resume.go.
//   - Reports: report.go (the interface), console.go, jsonlines.go.
//   - Settings: the files above, step_size.go (the samples of a step on any number
//     of ranks), validate.go (checks), settings_file.go (config.toml).
//   - Recipes: lm.go with finetune.go and shards.go, rec.go, vision.go; check.go
//     has what is checked before the ranks start; carry.go, rec_carry.go and
//     vision_carry.go have --init-from for classes and columns.
//   - Models on disk: open.go, classifier.go, recommender.go,
//     huggingface_files.go.
//   - Evaluation of a saved model: eval.go, lm_eval.go, rec_eval.go,
//     vision_eval.go. Text from a model: generate.go, generation_config.go.
package train
