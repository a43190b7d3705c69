// SPDX-License-Identifier: Apache-2.0

// Package train has whole training jobs: the step loop, which trains anything,
// and the recipes that `cohort train` runs on it.
//
// # Mental model
//
// [Run] trains a [Task] on all ranks of a group. A Task is what the loop does not
// know: a model, its loss on a batch, an optimizer, where batches come from, how
// good the model is, and which files make a checkpoint of use to others. The loop
// is the rest, and is the same for all tasks: passes whose gradients add up, mixed
// precision, clipping, schedules, evaluation, the best and the last checkpoints,
// an early end, steps that are not finite, resuming, and stopping on a signal.
// loop.go is meant to be read aloud.
//
// How the model is spread over the ranks is a parallel.Strategy: what
// Task.Strategy makes, else the model itself on one rank and DDP on several. The
// loop does not know which one it has: it gives the passes of a step to Strategy.Step,
// which runs them one after the other, or as the stages of a pipeline do. The strategy is
// made first, and the optimizer, whose state lies as the parameters do, after it. [Axes]
// say which ranks take samples of their own.
//
// A recipe such as [LM] makes a Task of its settings: it opens the data, builds
// the model, and calls Run. A program of yours does the same in fewer lines; see
// the example of Run.
//
// # A step
//
// Every rank calls Run with the same task and options, and does its share of each
// step. Rank 0 alone reports progress ([Reporter]). Every rank writes what it holds into the
// checkpoints, beside the next steps.
//
// In a step a rank fetches the batches of all its passes, which then add up gradients
// and the loss. The ranks sum their losses and whether one of them wants to stop. The
// gradients are clipped, and the optimizer steps. Only then does the program read what the step has come
// to. Where the loss or a gradient is not finite, the optimizer of every rank has
// left the update out by itself, and all ranks end with a [NonFiniteError] or go on
// (Options.NaN). A signal that reaches ranks at different times stops all of them
// after the same step, with a checkpoint. An error on one rank, such as that of a
// damaged file, ends the others too; their errors name that rank. Before they end, each of them
// saves alone what it holds of the state after the last whole step (Options.SaveDeadline). If that
// is everything, the next call goes on from there.
//
// # Directories
//
// A run's directory has step-N, the last checkpoints, from which the same call
// goes on; best/step-N, the weights of the best evaluation; config.toml, the
// settings; and history.jsonl, what its steps and evaluations came to. A program that must begin afresh names another directory.
//
// # Files
//
//	loop.go, trainer.go    the step loop, and what comes before and after it
//	task.go, options.go    what is trained, and how
//	axes.go                the ranks of a run, and the choice of a strategy
//	islands.go             islands that exchange what they have learned now and then (DiLoCo)
//	mesh.go                the axes of a run: how many ranks, and what they share out
//	spread.go              the mesh of a recipe's run, and the strategy on it
//	shard_state.go         the parts of a model that a rank holds, and its evaluation
//	vote.go                what the ranks tell each other in a step
//	nonfinite.go           steps whose loss or gradients are not finite
//	feed.go, order_log.go  batches, and the log of the samples that were taken
//	evaluation.go          evaluations of a run: the best one, patience
//	emergency.go           what ranks of a run that fails save
//	saved_run.go           the checkpoint from which a run goes on
//	save.go                checkpoints of a run: save, load, the best weights
//	run_directory.go       who may write into a run's directory
//	resume.go              Resume, for programs with a loop of their own
//	phase.go               what a rank is at before its first step
//	report.go              Reporter; console.go and jsonlines.go are two of them
//	history.go             the history of a run, for monitor/history
//	lm.go, vision.go, rec.go     the recipes; *_config.go are their settings,
//	                       shared_config.go those of all
//	lm_split.go, lm_experts.go   what the axes split of a language model, and mixtures of experts
//	embed.go, classify.go        the recipes of encoders; text_*.go is what they share
//	init_from.go           weights of one run as the beginning of another
//	finetune.go            fine-tuning of a Hugging Face folder
//	model.go               Load: any model with what its inputs go through; model_*.go are its parts
//	eval.go, generate.go   the commands that use a trained model; logits.go is what a token
//	                       is drawn by, conversation.go chats
package train
